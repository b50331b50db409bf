//! Parity's traces: of calls, and of the transactions of blocks.

use alloy_consensus::Header;
use alloy_evm::block::calc::{base_block_reward, block_reward, ommer_reward};
use alloy_primitives::{Address, B256, U256};
use alloy_rpc_types_eth::BlockNumHash;
use alloy_rpc_types_trace::parity::{LocalizedTransactionTrace, RewardAction, RewardType};

use super::replay::place;
use crate::{
    chain::Family,
    engine::{ParityOptions, Trace, Tracer},
    ledger::{Block, Selector},
    rpc::{
        json,
        params::{TraceRequest, TraceSearch},
        protocol::error::{Result, RpcError},
        run::{Backend, Run},
    },
};

/// The tracer of the methods that return frames alone.
const FRAMES: Tracer = Tracer::Parity(ParityOptions { trace: true, vm_trace: false, state_diff: false });

impl Backend {
    pub(crate) fn parity_call_many(&self, run: &mut Run<'_>, request: TraceRequest) -> Result<()> {
        let bundles = self.trace(run, &request, "", |_, call| format!("params[0][{call}][0]"))?;
        let mut encoded = Ok(());
        json::list(&mut run.out, bundles.iter().flatten(), |out, trace| {
            if encoded.is_ok() {
                encoded = json::trace(out, trace, None, self.limits.max_response);
            }
        });
        encoded
    }

    pub(crate) fn replay_block(&self, run: &mut Run<'_>, (selector, tracer): (Selector, Tracer)) -> Result<()> {
        let block = self.block_to_trace(run.published, selector)?;
        run.out.push(b'[');
        if !block.is_empty() {
            self.replay(run, &block, 0..block.len(), &tracer, |out, included, trace| {
                let Trace::Parity(trace) = trace else { return Err(no_parity()) };
                if included.index > 0 {
                    out.push(b',');
                }
                json::parity_results(out, &trace, Some(*included.tx.tx_hash()), self.limits.max_response)
            })?;
        }
        run.out.push(b']');
        Ok(())
    }

    pub(crate) fn replay_transaction(&self, run: &mut Run<'_>, (hash, tracer): (B256, Tracer)) -> Result<()> {
        let (block, index) = self.transaction_to_trace(run.published, hash)?;
        self.replay(run, &block, index..index + 1, &tracer, |out, _, trace| {
            json::trace(out, &trace, None, self.limits.max_response)
        })
    }

    pub(crate) fn parity_block(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        let block = self.block_to_trace(run.published, selector)?;
        let mut page = TracePage::all(self.limits.max_response);
        run.out.push(b'[');
        self.frames_of(run, &block, 0..block.len(), &mut page, |_| true)?;
        self.rewards_of(run, &block, &mut page, |_| true)?;
        run.out.push(b']');
        Ok(())
    }

    pub(crate) fn parity_transaction(&self, run: &mut Run<'_>, hash: B256) -> Result<()> {
        let Some((block, index)) = run.published.transaction(&hash) else {
            run.out.extend_from_slice(b"null");
            return Ok(());
        };
        run.out.push(b'[');
        let mut page = TracePage::all(self.limits.max_response);
        self.frames_of(run, &block, index..index + 1, &mut page, |_| true)?;
        run.out.push(b']');
        Ok(())
    }

    pub(crate) fn parity_get(&self, run: &mut Run<'_>, (hash, index): (B256, Option<usize>)) -> Result<()> {
        let start = run.out.len();
        if let (Some((block, at)), Some(index)) = (run.published.transaction(&hash), index) {
            let mut page = TracePage { skip: index as u64, left: Some(1), ..TracePage::all(self.limits.max_response) };
            self.frames_of(run, &block, at..at + 1, &mut page, |_| true)?;
        }
        if run.out.len() == start {
            run.out.extend_from_slice(b"null");
        }
        Ok(())
    }

    pub(crate) fn parity_filter(&self, run: &mut Run<'_>, search: TraceSearch) -> Result<()> {
        let number = |selector: Selector| match selector {
            Selector::Earliest => Ok(0),
            other => self.block_to_trace(run.published, other).map(|block| block.number()),
        };
        let (from, to) = (number(search.from)?, number(search.to)?);
        if from > to {
            return Err(RpcError::params(format!("params[0].fromBlock: {from} is after toBlock, {to}")));
        }
        let (span, most) = ((to - from).saturating_add(1), self.limits.max_log_blocks);
        if span > most {
            return Err(RpcError::limit(format!(
                "params[0]: a range of {span} blocks: at most {most} (--max-log-blocks): ask for fewer at once"
            )));
        }
        let matches = |trace: &LocalizedTransactionTrace| search.matcher.matches(&trace.trace);
        let mut page = TracePage { skip: search.after, left: search.count, ..TracePage::all(self.limits.max_response) };
        run.out.push(b'[');
        for number in from..=to {
            if page.is_full() {
                break;
            }
            run.meter.check()?;
            let block = self.block_to_trace(run.published, Selector::Number(number))?;
            self.frames_of(run, &block, 0..block.len(), &mut page, matches)?;
            self.rewards_of(run, &block, &mut page, matches)?;
        }
        run.out.push(b']');
        Ok(())
    }

    /// Replays a block, and adds the frames of some of its transactions that match to a page.
    fn frames_of(
        &self,
        run: &mut Run<'_>,
        block: &Block,
        traced: std::ops::Range<usize>,
        page: &mut TracePage,
        matches: impl Fn(&LocalizedTransactionTrace) -> bool,
    ) -> Result<()> {
        if traced.is_empty() {
            return Ok(());
        }
        let hash = block.header().hash();
        self.replay(run, block, traced, &FRAMES, |out, included, trace| {
            let Trace::Parity(trace) = trace else { return Err(no_parity()) };
            let place = place(included, block, hash);
            json::each_frame(&trace.frames, true, |frame| page.add(out, place.localized(frame), &matches))
        })
    }

    /// Adds the rewards of a block before the merge that match to a page: its own, and those of its uncles.
    fn rewards_of(
        &self,
        run: &mut Run<'_>,
        block: &Block,
        page: &mut TracePage,
        matches: impl Fn(&LocalizedTransactionTrace) -> bool,
    ) -> Result<()> {
        let number = block.number();
        // Genesis has no producer, and a block that is not complete has no reward yet.
        let paid = number > 0 && !block.is_open() && self.spec.family() == Family::Ethereum;
        let Some(base) = paid.then(|| base_block_reward(&self.spec, number)).flatten() else { return Ok(()) };
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

fn no_parity() -> RpcError {
    RpcError::internal("another tracer has run than Parity's")
}
