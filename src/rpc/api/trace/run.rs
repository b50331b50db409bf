//! Runs of traced calls, and of the transactions of blocks.

use std::{ops::Range, sync::Arc};

use alloy_eips::BlockHashOrNumber;

use crate::{
    engine::{self, CallResult, Trace, Tracer},
    ledger::{Block, Chain, Included, Selector, Snapshot, UnknownBlock},
    rpc::{
        api::many::refusal,
        json::{self, hex::Fixed},
        params::ManyRequest,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Traces one call, and writes its trace.
pub fn trace_call(backend: &Backend, run: &mut Attempt<'_>, call: &ManyRequest, tracer: Tracer) -> Result<()> {
    let traces = trace_calls(backend, run, call, &[tracer], "params[2].txIndex", |_, _| "params[0]".to_owned())?;
    let trace = traces.iter().flatten().next().ok_or_else(|| RpcError::internal("a call that ran has no trace"))?;
    json::trace(&mut run.out, trace, backend.limits.max_response)
}

/// Traces calls, each with its tracer; the last tracer serves all further calls. `index` is the field of the position
/// in the block, and `path` returns a call's field, for errors.
pub fn trace_calls(
    backend: &Backend,
    run: &mut Attempt<'_>,
    calls: &ManyRequest,
    tracers: &[Tracer],
    index: &str,
    path: fn(usize, usize) -> String,
) -> Result<Vec<Vec<Arc<Trace>>>> {
    let rules = backend.rules(run.dialect);
    run.by = backend.by(calls.bundles.first().map(|bundle| &bundle.block));
    let (snapshot, overlay) = backend.set_up(calls, index, run)?;
    let done = backend
        .engine(&rules, overlay)
        .call_many(&snapshot, &calls.state, &calls.bundles, tracers)
        .map_err(|error| refusal(error, path))?;
    backend.gas.increment(done.gas_used);
    let traces = |calls: Vec<CallResult>| calls.into_iter().filter_map(|call| call.trace).collect();
    Ok(done.blocks.into_iter().map(|bundle| traces(bundle.calls)).collect())
}

/// Returns the block that `selector` selects, with geth's error if there is none.
pub fn find_block(backend: &Backend, published: &Chain, selector: Selector) -> Result<Block> {
    backend.block(published, selector)?.ok_or_else(|| match selector {
        Selector::Number(number) => UnknownBlock::Contents { block: BlockHashOrNumber::Number(number) }.into(),
        Selector::Hash(hash) => UnknownBlock::Contents { block: BlockHashOrNumber::Hash(hash) }.into(),
        _ => RpcError::new(-32000, "block not found"),
    })
}

/// Returns the block of a transaction that has a trace, and the transaction's index there.
///
/// # Errors
///
/// Returns -32000 if there is no such transaction, or it runs no code.
pub fn find_traced(published: &Chain, hash: Fixed<32>) -> Result<(Block, usize)> {
    let (block, index) = find_transaction(published, hash)?;
    if block.transaction(index).is_some_and(|one| one.tx.as_post_exec().is_some()) {
        let text =
            "a post-execution transaction runs no code: it has no trace, and its refunds are in those of the others";
        return Err(RpcError::new(-32000, text));
    }
    Ok((block, index))
}

/// Returns the block of a transaction, and the transaction's index there, with geth's error if there is none.
pub fn find_transaction(published: &Chain, hash: Fixed<32>) -> Result<(Block, usize)> {
    let hash = hash.into();
    Ok(published.transaction(&hash).ok_or(UnknownBlock::Transaction { hash })?)
}

/// Replays `block`, and passes the traces of some of its transactions to `write`, with the buffer of the response.
pub fn replay(
    backend: &Backend,
    run: &mut Attempt<'_>,
    block: &Block,
    traced: Range<usize>,
    tracer: &Tracer,
    mut write: impl FnMut(&mut Vec<u8>, &Included<'_>, Trace) -> Result<()>,
) -> Result<()> {
    let before = before(run.published, block)?;
    run.reset_to(&before);
    let Attempt { overlay, out, .. } = run;
    engine::trace_block(
        &backend.spec,
        block,
        traced,
        (tracer, backend.limits.max_trace),
        overlay,
        |included, trace| {
            backend.gas.increment(included.gas_used);
            write(out, included, trace)
        },
    )?;
    // For the next replay of the same request.
    run.meter = std::mem::take(&mut run.overlay.meter);
    Ok(())
}

/// Returns the snapshot before the first transaction of `block`.
pub fn before(published: &Chain, block: &Block) -> Result<Arc<Snapshot>> {
    let number = block.number();
    let parent = number.checked_sub(1).ok_or_else(|| RpcError::new(-32000, "genesis is not traceable"))?;
    published.select(Selector::Number(parent)).map_err(|error| match error {
        // The state of an upstream's block can be fetched.
        UnknownBlock::Pruned { oldest, .. } if published.tags().is_none() => RpcError::new(
            -32000,
            format!(
                "block {number} is not traceable: the state before it is not retained, the oldest retained is after block {oldest} (--keep-blocks)"
            ),
        ),
        error => error.into(),
    })
}
