//! Filters that clients poll.

use std::collections::BTreeMap;

use tokio::sync::broadcast::error::TryRecvError;

use super::log::write;
use crate::rpc::run::{Backend, Run};
use crate::{
    ledger::{BlockLogs, Selector, UnknownBlock},
    rpc::{
        json,
        params::{LogFilter, LogRange},
        protocol::error::{Result, RpcError},
        run::filters::FilterSubject,
    },
};

impl Backend {
    /// Answers `eth_newFilter`: a filter of logs in blocks that are sealed from now on.
    pub fn new_filter(&self, run: &mut Run<'_>, (filter, range): (LogFilter, LogRange)) -> Result<()> {
        if matches!(range, LogRange::Block(_)) {
            return Err(RpcError::params(
                "params[0].blockHash: not supported by a filter, which covers future blocks: use eth_getLogs",
            ));
        }
        if let LogRange::Range(from, to) = range {
            for (end, selector) in [("fromBlock", from), ("toBlock", to)] {
                if matches!(selector, Selector::Hash(_) | Selector::Snapshot(_)) {
                    let text = format!(
                        "params[0].{end}: one block, but a filter covers future blocks: expected a tag or a number"
                    );
                    return Err(RpcError::params(text));
                }
            }
        }
        let next = run.published.head().number() + 1;
        self.install(run, FilterSubject::Logs { filter: Box::new(filter), range, next, late: BTreeMap::new() })
    }

    /// Answers `eth_newBlockFilter`: a filter of hashes of blocks that are sealed from now on.
    pub fn new_block_filter(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let next = run.published.head().number() + 1;
        self.install(run, FilterSubject::Blocks { next })
    }

    /// Answers `eth_newPendingTransactionFilter`: a filter of hashes of transactions that enter the pool from now on.
    pub fn new_pending_filter(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        self.install(run, FilterSubject::Pending(self.pool.subscribe()))
    }

    fn install(&self, run: &mut Run<'_>, subject: FilterSubject) -> Result<()> {
        json::quantity(&mut run.out, self.filters.install(run.client, subject));
        Ok(())
    }

    pub fn uninstall_filter(&self, run: &mut Run<'_>, id: u64) -> Result<()> {
        json::value(&mut run.out, &self.filters.uninstall(id));
        Ok(())
    }

    /// Answers `eth_getFilterLogs`: all logs of a filter's range, as `eth_getLogs` returns them.
    pub fn get_filter_logs(&self, run: &mut Run<'_>, id: u64) -> Result<()> {
        self.filters.with(id, |watched| match watched {
            FilterSubject::Logs { filter, range, .. } => self.write_logs(run, filter, *range),
            FilterSubject::Blocks { .. } | FilterSubject::Pending(_) => {
                Err(RpcError::new(-32000, format!("params[0]: filter {id:#x} is not about logs")))
            }
        })
    }

    /// Answers `eth_getFilterChanges`: the entries since the last poll. Those beyond the limits wait for the next poll.
    pub fn get_filter_changes(&self, run: &mut Run<'_>, id: u64) -> Result<()> {
        let Run { published, meter, out, .. } = run;
        let (most, start) = (self.limits.max_logs, out.len());
        let head = published.head().number();
        self.filters.with(id, |watched| {
            match watched {
                FilterSubject::Blocks { next } => {
                    let mut known = *next;
                    // The headers are known, even of blocks that are pruned already.
                    let blocks = (known..=head).filter_map(|number| published.sealed_block(number));
                    json::list(out, blocks.take(most), |out, block| {
                        known = block.number() + 1;
                        json::data(out, block.hash().as_slice());
                    });
                    *next = known;
                }
                FilterSubject::Logs { filter, range, next, late } => {
                    let (first, last) = ends(*range, head);
                    if let Err(pruned @ (UnknownBlock::History { oldest, .. } | UnknownBlock::Pruned { oldest, .. })) =
                        published.has_blocks(first.max(*next), last)
                    {
                        // The client gets this error once. The next poll begins at the oldest block that is retained.
                        *next = oldest;
                        return Err(pruned.into());
                    }
                    // The position advances only when the response is complete, so that a stopped run loses no logs.
                    let (mut known, mut count, mut waiting) = (*next, 0, late.clone());
                    let from = first.max(known);
                    let fresh = published.blocks(from, last).map(|block| (block.number(), block.hash()));
                    let fresh = fresh.filter(|(number, _)| !late.contains_key(number));
                    // A block that was waited for may have been replaced by another.
                    let now = |number: u64| published.blocks(number, number).next().map(|block| block.hash());
                    let all = late.iter().map(|(number, hash)| (*number, now(*number).unwrap_or(*hash))).chain(fresh);
                    out.push(b'[');
                    for (number, hash) in all {
                        let (end, is_new) = (out.len(), number >= from);
                        match published.logs_of(number, hash) {
                            BlockLogs::Late { .. } if !is_new => {
                                waiting.insert(number, hash);
                                continue;
                            }
                            BlockLogs::Late { block, since } if filter.matches_bloom(block.header.logs_bloom) => {
                                if published.waits_for(number, since, self.limits.late) {
                                    break;
                                }
                                waiting.insert(number, hash);
                            }
                            BlockLogs::Whole(block) => {
                                meter.check()?;
                                write(filter.logs_in(&block, 0), &mut count, usize::MAX, out);
                            }
                            BlockLogs::Alone(block) => {
                                meter.check()?;
                                write(filter.logs_alone_in(&block), &mut count, usize::MAX, out);
                            }
                            BlockLogs::Late { .. } | BlockLogs::Unknown => {}
                        }
                        // Two bytes are reserved for the ends of the array and of the response.
                        if out.len() + 2 > self.limits.max_response {
                            if end == start + 1 {
                                return Err(json::too_long(self.limits.max_response));
                            }
                            out.truncate(end);
                            break;
                        }
                        if is_new {
                            known = number + 1;
                        } else {
                            waiting.remove(&number);
                        }
                        if count >= most {
                            break;
                        }
                    }
                    out.push(b']');
                    (*next, *late) = (known, waiting);
                }
                FilterSubject::Pending(transactions) => {
                    let fresh = std::iter::from_fn(|| {
                        loop {
                            match transactions.try_recv() {
                                Ok(tx) => return Some(tx),
                                // The channel has dropped the oldest transactions. The remaining ones follow.
                                Err(TryRecvError::Lagged(_)) => {}
                                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
                            }
                        }
                    });
                    json::list(out, fresh.take(most), |out, tx| json::data(out, tx.tx_hash().as_slice()));
                }
            }
            Ok(())
        })
    }
}

/// Returns the first and the last block number of a filter's range, up to `head`. Tags do not bound the range.
const fn ends(range: LogRange, head: u64) -> (u64, u64) {
    let LogRange::Range(from, to) = range else { return (0, head) };
    let first = if let Selector::Number(number) = from { number } else { 0 };
    let last = match to {
        Selector::Number(number) if number < head => number,
        _ => head,
    };
    (first, last)
}
