//! `debug_traceBlockByNumber`, `debug_traceBlockByHash` and `debug_traceTransaction`: real transactions, run again on the
//! state before them.

use std::{ops::Range, sync::Arc};

use alloy_primitives::B256;

use crate::{
    engine::{self, Trace, Tracer},
    ledger::{Block, Chain, Included, Selector, Snapshot, UnknownBlock},
    rpc::{
        json::{self, TracePlace},
        params::ReplayRequest,
        protocol::error::{Result, RpcError},
        run::{Backend, Run},
    },
};

impl Backend {
    pub(crate) fn trace_block(&self, run: &mut Run<'_>, request: ReplayRequest<Selector>) -> Result<()> {
        let block = self.block_to_trace(run.published, request.subject)?;
        run.limit_time(request.timeout);
        let hash = block.header().hash();
        run.out.push(b'[');
        self.replay(run, &block, 0..block.len(), &request.tracer, |out, included, trace| {
            if included.index > 0 {
                out.push(b',');
            }
            let place = place(included, &block, hash);
            let mut object = json::Object::new(out);
            object.data("txHash", included.tx.tx_hash().as_slice());
            json::trace(object.key("result"), &trace, Some(&place), self.limits.max_response)?;
            object.end();
            Ok(())
        })?;
        run.out.push(b']');
        Ok(())
    }

    pub(crate) fn trace_transaction(&self, run: &mut Run<'_>, request: ReplayRequest<B256>) -> Result<()> {
        let (block, index) = self.transaction_to_trace(run.published, request.subject)?;
        run.limit_time(request.timeout);
        let hash = block.header().hash();
        self.replay(run, &block, index..index + 1, &request.tracer, |out, included, trace| {
            json::trace(out, &trace, Some(&place(included, &block, hash)), self.limits.max_response)
        })
    }

    /// Returns the block that `selector` selects, with geth's error if there is none.
    pub fn block_to_trace(&self, published: &Chain, selector: Selector) -> Result<Block> {
        self.block(published, selector)?.ok_or_else(|| {
            let text = match selector {
                Selector::Number(number) => format!("block #{number} not found"),
                Selector::Hash(hash) => format!("block {hash} not found"),
                _ => "block not found".to_owned(),
            };
            RpcError::new(-32000, text)
        })
    }

    /// Returns the block of a transaction, and the transaction's index there, with geth's error if there is none.
    pub fn transaction_to_trace(&self, published: &Chain, hash: B256) -> Result<(Block, usize)> {
        published.transaction(&hash).ok_or_else(|| RpcError::new(-32000, "transaction not found"))
    }

    /// Replays `block`, and passes the traces of some of its transactions to `write`, with the buffer of the response.
    pub fn replay(
        &self,
        run: &mut Run<'_>,
        block: &Block,
        traced: Range<usize>,
        tracer: &Tracer,
        mut write: impl FnMut(&mut Vec<u8>, &Included<'_>, Trace) -> Result<()>,
    ) -> Result<()> {
        let before = before(run.published, block)?;
        run.reset_to(&before);
        let Run { overlay, out, .. } = run;
        engine::trace_block(&self.spec, block, traced, (tracer, self.limits.max_trace), overlay, |included, trace| {
            self.gas.increment(included.gas_used);
            write(out, included, trace)
        })?;
        // For the next replay of the same request.
        run.meter = std::mem::take(&mut run.overlay.meter);
        Ok(())
    }
}

/// Returns the snapshot before the first transaction of `block`.
pub fn before(published: &Chain, block: &Block) -> Result<Arc<Snapshot>> {
    let number = block.number();
    let parent = number.checked_sub(1).ok_or_else(|| RpcError::new(-32000, "genesis is not traceable"))?;
    published.select(Selector::Number(parent)).map_err(|error| match error {
        UnknownBlock::Pruned { oldest, .. } => RpcError::new(
            -32000,
            format!(
                "block {number} is not traceable: the state before it is not retained, the oldest retained is after block {oldest} (--keep-blocks)"
            ),
        ),
        error => error.into(),
    })
}

/// Returns the position of a transaction in `block`, which has this hash.
pub fn place(included: &Included<'_>, block: &Block, hash: B256) -> TracePlace {
    TracePlace { number: block.number(), block: hash, transaction: *included.tx.tx_hash(), index: included.index }
}
