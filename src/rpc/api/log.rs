//! `eth_getLogs`.

use alloy_consensus::TxReceipt;
use alloy_primitives::Log;

use crate::rpc::run::{Backend, Run};
use crate::{
    chain::SealedBlock,
    ledger::{Block, Chain, KnownBlock, Selector},
    rpc::{
        json::{self, LogPlace},
        params::{LogFilter, LogRange},
        protocol::error::{Result, RpcError},
    },
};

impl LogFilter {
    /// Returns the matching logs of a block's transactions from the index `start` on, each with its position and its index
    /// in the block. The blooms of the block and of each receipt are checked first.
    pub(in crate::rpc) fn logs_in<'a>(
        &'a self,
        block: &'a Block,
        start: usize,
    ) -> impl Iterator<Item = (LogPlace<'a>, u64, &'a Log)> {
        // The bloom of a block being built takes all its receipts, that of a receipt is there.
        let may_match = block.is_open() || self.matches_bloom(block.header().logs_bloom);
        let transactions = may_match.then(|| block.transactions_from(start)).into_iter().flatten();
        transactions.filter(|included| self.matches_bloom(included.receipt.bloom())).flat_map(move |included| {
            let mut place = None;
            let logs = included.receipt.logs().iter().zip(included.first_log..);
            // Only a log that matches takes the hash of the block.
            logs.filter(|(log, _)| self.matches(log))
                .map(move |(log, index)| (*place.get_or_insert_with(|| LogPlace::of(block, &included)), index, log))
        })
    }

    /// Returns the matching logs of a block whose transactions are not known, as [`logs_in`](Self::logs_in) does.
    pub(in crate::rpc) fn logs_alone_in<'a>(
        &'a self,
        block: &'a SealedBlock,
    ) -> impl Iterator<Item = (LogPlace<'a>, u64, &'a Log)> {
        let may_match = self.matches_bloom(block.header.logs_bloom);
        let logs = may_match.then(|| LogPlace::of_logs_alone(block)).into_iter().flatten();
        logs.filter(|(.., log)| self.matches(log))
    }
}

/// Appends logs, each after a comma unless `count` is zero, and adds them to `count`. Stops once `count` exceeds `most`.
pub fn write<'a>(
    logs: impl Iterator<Item = (LogPlace<'a>, u64, &'a Log)>,
    count: &mut usize,
    most: usize,
    out: &mut Vec<u8>,
) {
    for (place, index, log) in logs {
        *count += 1;
        if *count > most {
            return;
        }
        if *count > 1 {
            out.push(b',');
        }
        json::log(out, log, &place, index, false);
    }
}

impl Backend {
    /// Answers `eth_getLogs`. Reads the bloom of each block, and the block's body only if the bloom matches.
    pub fn get_logs(&self, run: &mut Run<'_>, (filter, range): (LogFilter, LogRange)) -> Result<()> {
        self.write_logs(run, &filter, range)
    }

    /// Writes the matching logs of a range of blocks.
    pub fn write_logs(&self, run: &mut Run<'_>, filter: &LogFilter, range: LogRange) -> Result<()> {
        let Run { published, meter, out, .. } = run;
        let (sealed, last) = match range {
            LogRange::Block(hash) => {
                let block = published.block(Selector::Hash(hash))?;
                let block =
                    block.ok_or_else(|| RpcError::new(-32000, format!("unknown block: no block with hash {hash}")))?;
                (None, Some(block))
            }
            LogRange::Range(from, to) => self.range(published, from, to)?,
        };
        let (mut count, most) = (0, self.limits.max_logs);
        out.push(b'[');
        let sealed = sealed.into_iter().flat_map(|(from, to)| published.blocks(from, to));
        for (nth, block) in sealed.enumerate() {
            if nth % BLOCKS_PER_CHECK == 0 {
                meter.check()?;
            }
            // The header is in memory, so a block whose bloom does not match costs only this check.
            if filter.matches_bloom(block.header.logs_bloom) {
                let block = Block::sealed(block).ok_or_else(|| published.no_body(block.number()))?;
                write(filter.logs_in(&block, 0), &mut count, most, out);
                self.bound_logs(count, out.len())?;
            }
        }
        if let Some(block) = last {
            write(filter.logs_in(&block, 0), &mut count, most, out);
            self.bound_logs(count, out.len())?;
        }
        out.push(b']');
        Ok(())
    }

    fn bound_logs(&self, count: usize, bytes: usize) -> Result<()> {
        let most = self.limits.max_logs;
        if count > most {
            return Err(RpcError::limit(format!(
                "params[0]: more than {most} logs match: ask for fewer blocks or topics at once"
            )));
        }
        if bytes > self.limits.max_response {
            return Err(json::too_long(self.limits.max_response));
        }
        Ok(())
    }

    /// Returns the numbers of the sealed blocks of a range, and the block being built if the range reaches it.
    #[expect(clippy::type_complexity, reason = "named nowhere else")]
    fn range(&self, published: &Chain, from: Selector, to: Selector) -> Result<(Option<(u64, u64)>, Option<Block>)> {
        let number = |selector: Selector, end: &str| match selector {
            Selector::Number(number) => Ok(number),
            other => match self.find(published, other)? {
                Some(block) => Ok(block.number()),
                None => Err(RpcError::params(format!("params[0].{end}: unknown block"))),
            },
        };
        let (from_number, to_number) = (number(from, "fromBlock")?, number(to, "toBlock")?);
        if from_number > to_number {
            return Err(RpcError::params(format!(
                "params[0].fromBlock: invalid block range: {from_number} is after toBlock, {to_number}"
            )));
        }
        published.has_blocks(from_number, to_number)?;
        let span = (to_number - from_number).saturating_add(1);
        if span > self.limits.max_log_blocks {
            return Err(RpcError::limit(format!(
                "params[0]: a range of {span} blocks: at most {}: ask for fewer at once",
                self.limits.max_log_blocks
            )));
        }
        let Some(last) = self.find(published, to)? else {
            let newest = published.find(Selector::Pending)?.map_or(0, |newest| newest.number());
            return Err(RpcError::params(format!(
                "params[0].toBlock: block range extends beyond the newest block: requested {to_number}, newest {newest}"
            )));
        };
        let open = Some(last).filter(KnownBlock::is_open).and_then(Block::load);
        let last_sealed = if open.is_some() { to_number.checked_sub(1) } else { Some(to_number) };
        let sealed = last_sealed.filter(|last| from_number <= *last).map(|last| (from_number, last));
        Ok((sealed, open))
    }
}

/// Number of blocks between two checks of the deadline.
const BLOCKS_PER_CHECK: usize = 256;
