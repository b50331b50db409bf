//! The frames of transactions, in Parity's form, and the rewards of blocks.

use alloy_consensus::Header;
use alloy_evm::block::calc::{base_block_reward, block_reward, ommer_reward};
use alloy_primitives::{Address, U256};
use alloy_rpc_types_eth::BlockNumHash;
use alloy_rpc_types_trace::{
    filter::{TraceFilter, TraceFilterMode},
    parity::{LocalizedTransactionTrace, RewardAction, RewardType},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    run::{find_block, replay},
    schema::Frame,
};
use crate::{
    chain::Family,
    engine::{Trace, Tracer},
    ledger::{self, Chain, Selector, UnknownBlock},
    rpc::{
        api::{Example, Method},
        json::{
            self,
            hex::{Fixed, Number},
        },
        params::{SelectorParam, select},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// The frames of a block's transactions, and before the merge the block's rewards.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct Block {
    block: SelectorParam,
}

impl Method for Block {
    type Answer = Vec<Frame>;
    const EXAMPLE: Example = Example { params: r#"["latest"]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = find_block(backend, run.published, self.block.into())?;
        let mut page = TracePage::all(backend.limits.max_response);
        run.out.push(b'[');
        frames_of(backend, run, &block, 0..block.len(), &mut page, |_| true)?;
        rewards_of(backend, run, &block, &mut page, |_| true)?;
        run.out.push(b']');
        Ok(())
    }
}

/// The frames of a transaction; null if it is unknown.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction's hash")]
pub struct Transaction {
    hash: Fixed<32>,
}

impl Method for Transaction {
    type Answer = Option<Vec<Frame>>;
    const EXAMPLE: Example =
        Example { params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let Some((block, index)) = find(run.published, self.hash)? else {
            run.out.extend_from_slice(b"null");
            return Ok(());
        };
        run.out.push(b'[');
        let mut page = TracePage::all(backend.limits.max_response);
        frames_of(backend, run, &block, index..index + 1, &mut page, |_| true)?;
        run.out.push(b']');
        Ok(())
    }
}

/// Returns the block of a transaction, and the transaction's index there. On an upstream's chain one that is not known here may be in an
/// older block.
fn find(published: &Chain, hash: Fixed<32>) -> Result<Option<(ledger::Block, usize)>> {
    let hash = hash.into();
    match published.transaction(&hash) {
        None if published.tags().is_some() => Err(UnknownBlock::Transaction { hash }.into()),
        found => Ok(found),
    }
}

/// One frame of a transaction; null if there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: a transaction's hash, a list with the index of a trace")]
pub struct Get {
    hash: Fixed<32>,
    /// The frame's index, in a list of one.
    indices: Vec<Number<u64>>,
}

impl Method for Get {
    type Answer = Option<Frame>;
    const EXAMPLE: Example = Example {
        params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", ["0x0"]]"#,
        answer: "null",
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let start = run.out.len();
        // The list of indices selects a trace only if it has one element, as in Erigon and reth.
        if let (Some((block, at)), [Number(index)]) = (find(run.published, self.hash)?, &self.indices[..]) {
            let mut page = TracePage { skip: *index, left: Some(1), ..TracePage::all(backend.limits.max_response) };
            frames_of(backend, run, &block, at..at + 1, &mut page, |_| true)?;
        }
        if run.out.len() == start {
            run.out.extend_from_slice(b"null");
        }
        Ok(())
    }
}

/// The frames of a range of blocks whose addresses match.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a filter")]
pub struct Filter {
    filter: FilterParam,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TraceFilter")]
struct FilterParam {
    /// The first block, by default genesis.
    from_block: Option<SelectorParam>,
    /// The last block, by default the latest.
    to_block: Option<SelectorParam>,
    from_address: Option<Vec<Fixed<20>>>,
    to_address: Option<Vec<Fixed<20>>>,
    /// Whether one of the addresses must match or both, by default both.
    #[schemars(with = "Option<String>", extend("enum" = ["union", "intersection"]))]
    mode: Option<TraceFilterMode>,
    /// The number of matching traces to skip.
    after: Option<Number<u64>>,
    /// The maximum number of traces to return.
    count: Option<Number<u64>>,
}

impl Method for Filter {
    type Answer = Vec<Frame>;
    const EXAMPLE: Example = Example {
        params: r#"[{"fromBlock": "0x1", "toBlock": "latest", "toAddress": ["0x00000000000000000000000000000000000000aa"]}]"#,
        answer: "[]",
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let filter = self.filter;
        let addresses = |list: Option<Vec<Fixed<20>>>| list.unwrap_or_default().into_iter().map(Fixed::into).collect();
        let matcher = TraceFilter {
            from_address: addresses(filter.from_address),
            to_address: addresses(filter.to_address),
            mode: filter.mode.unwrap_or_default(),
            ..TraceFilter::default()
        }
        .matcher();
        let number = |selector: Selector| match selector {
            Selector::Earliest => Ok(0),
            other => find_block(backend, run.published, other).map(|block| block.number()),
        };
        let from = number(filter.from_block.map_or(Selector::Earliest, Selector::from))?;
        let to = number(select(filter.to_block))?;
        if from > to {
            return Err(RpcError::params(format!("params[0].fromBlock: {from} is after toBlock, {to}")));
        }
        let (span, most) = ((to - from).saturating_add(1), backend.limits.max_log_blocks);
        if span > most {
            return Err(RpcError::limit(format!(
                "params[0]: a range of {span} blocks: at most {most} (--max-log-blocks): ask for fewer at once"
            )));
        }
        let matches = |trace: &LocalizedTransactionTrace| matcher.matches(&trace.trace);
        let mut page = TracePage {
            skip: filter.after.map_or(0, |after| after.0),
            left: filter.count.map(|count| count.0),
            ..TracePage::all(backend.limits.max_response)
        };
        run.out.push(b'[');
        for number in from..=to {
            if page.is_full() {
                break;
            }
            run.meter.check()?;
            let block = find_block(backend, run.published, Selector::Number(number))?;
            frames_of(backend, run, &block, 0..block.len(), &mut page, matches)?;
            rewards_of(backend, run, &block, &mut page, matches)?;
        }
        run.out.push(b']');
        Ok(())
    }
}

/// Replays a block, and adds the matching frames of some of its transactions to a page.
fn frames_of(
    backend: &Backend,
    run: &mut Attempt<'_>,
    block: &ledger::Block,
    traced: std::ops::Range<usize>,
    page: &mut TracePage,
    matches: impl Fn(&LocalizedTransactionTrace) -> bool,
) -> Result<()> {
    if traced.is_empty() {
        return Ok(());
    }
    replay(backend, run, block, traced, &Tracer::Frames, |out, _, trace| match trace {
        Trace::FlatCalls(frames) => frames.into_iter().try_for_each(|frame| page.add(out, frame, &matches)),
        _ => Err(RpcError::internal("another tracer has run than that of frames")),
    })
}

/// Adds the matching rewards of a block before the merge to a page: its own, and its uncles'.
fn rewards_of(
    backend: &Backend,
    run: &mut Attempt<'_>,
    block: &ledger::Block,
    page: &mut TracePage,
    matches: impl Fn(&LocalizedTransactionTrace) -> bool,
) -> Result<()> {
    let number = block.number();
    // Genesis has no producer, and a block that is not complete has no reward yet.
    let paid = number > 0 && !block.is_open() && backend.spec.family() == Family::Ethereum;
    let Some(base) = paid.then(|| base_block_reward(&backend.spec, number)).flatten() else { return Ok(()) };
    let at = BlockNumHash { number, hash: block.header().hash() };
    let reward = |author: Address, reward_type, value: u128| {
        RewardAction { author, reward_type, value: U256::from(value) }.into_localized_trace(at)
    };
    let own = reward(block.context().beneficiary, RewardType::Block, block_reward(base, block.ommers().len()));
    let of_uncle =
        |uncle: &Header| reward(uncle.beneficiary, RewardType::Uncle, ommer_reward(base, number, uncle.number));
    for trace in std::iter::once(own).chain(block.ommers().iter().map(of_uncle)) {
        page.add(&mut run.out, trace, &matches)?;
    }
    Ok(())
}

/// The part of the matching traces that a response has.
struct TracePage {
    /// Matching traces to skip.
    skip: u64,
    /// Traces that may still be written. `None` means any number.
    left: Option<u64>,
    /// Whether no trace has been written.
    is_empty: bool,
    /// Maximum bytes of the response.
    limit: usize,
}

impl TracePage {
    const fn all(limit: usize) -> Self {
        Self { skip: 0, left: None, is_empty: true, limit }
    }

    fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    fn add(
        &mut self,
        out: &mut Vec<u8>,
        trace: LocalizedTransactionTrace,
        matches: impl Fn(&LocalizedTransactionTrace) -> bool,
    ) -> Result<()> {
        if self.is_full() || !matches(&trace) {
            return Ok(());
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(());
        }
        if !std::mem::take(&mut self.is_empty) {
            out.push(b',');
        }
        self.left = self.left.map(|left| left - 1);
        json::bounded_value(out, &trace, self.limit)
    }
}
