//! Filters that clients poll.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::broadcast::error::TryRecvError;

use super::{write, write_logs};
use crate::{
    ledger::{BlockLogs, Selector, UnknownBlock},
    rpc::{
        api::{Example, Method, Query},
        json::{
            self, Lookup,
            hex::{Fixed, Quantity},
            schema,
        },
        params::{FilterParam, LogRange},
        protocol::error::{Result, RpcError},
        run::{Backend, Run, filters::FilterSubject},
    },
};

/// Installs a filter for logs of blocks that are sealed from now on. The result is its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a filter")]
pub struct NewFilter {
    filter: FilterParam,
}

impl Query for NewFilter {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example {
        params: r#"[{"address": "0x5fbdb2315678afecb367f032d93f642f64180aa3"}]"#,
        answer: r#""0x1f2e3d4c5b6a7988""#,
    };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        let range = self.filter.range()?;
        let filter = Box::new(self.filter.into_filter("params[0]")?);
        let LogRange::Range(from, to) = range else {
            return Err(RpcError::params(
                "params[0].blockHash: not supported by a filter, which covers future blocks: use eth_getLogs",
            ));
        };
        for (end, selector) in [("fromBlock", from), ("toBlock", to)] {
            if matches!(selector, Selector::Hash(_) | Selector::Snapshot(_)) {
                let text = format!(
                    "params[0].{end}: one block, but a filter covers future blocks: expected a tag or a number"
                );
                return Err(RpcError::params(text));
            }
        }
        let next = run.published.head().number() + 1;
        Ok(install(backend, run, FilterSubject::Logs { filter, range, next, late: BTreeMap::new() }))
    }
}

/// Installs a filter for the hashes of blocks that are sealed from now on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct NewBlockFilter {}

impl Query for NewBlockFilter {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example { params: "[]", answer: r#""0x1f2e3d4c5b6a7988""# };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        let next = run.published.head().number() + 1;
        Ok(install(backend, run, FilterSubject::Blocks { next }))
    }
}

/// Installs a filter for the hashes of transactions that enter the pool from now on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct NewPendingTransactionFilter {}

impl Query for NewPendingTransactionFilter {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example { params: "[]", answer: r#""0x1f2e3d4c5b6a7988""# };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        Ok(install(backend, run, FilterSubject::Pending(backend.pool.subscribe())))
    }
}

fn install(backend: &Backend, run: &Run<'_>, subject: FilterSubject) -> Quantity<u64> {
    Quantity(backend.filters.install(run.client, subject))
}

/// Forgets a filter. The result is false if there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct UninstallFilter {
    id: Quantity<u64>,
}

impl Query for UninstallFilter {
    type Answer = bool;
    const EXAMPLE: Example = Example { params: r#"["0x1f2e3d4c5b6a7988"]"#, answer: "true" };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        Ok(backend.filters.uninstall(self.id.0))
    }
}

/// All logs of a filter, as `eth_getLogs` has them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct GetFilterLogs {
    id: Quantity<u64>,
}

impl Method for GetFilterLogs {
    type Answer = Vec<schema::Log>;
    const EXAMPLE: Example = Example { params: r#"["0x1f2e3d4c5b6a7988"]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        let id = self.id.0;
        backend.filters.with(id, |subject| match subject {
            FilterSubject::Logs { filter, range, .. } => write_logs(backend, run, filter, *range),
            FilterSubject::Blocks { .. } | FilterSubject::Pending(_) => {
                Err(RpcError::new(-32000, format!("params[0]: filter {id:#x} is not about logs")))
            }
        })?;
        Ok(Lookup::Found)
    }
}

/// The hashes or logs that are new to a filter since it was last polled. Those beyond the limits wait for the next poll.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct GetFilterChanges {
    id: Quantity<u64>,
}

/// An entry of a filter: the hash of a block or a transaction, or a log.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the handler writes it")]
pub enum FilterEntry {
    Hash(Fixed<32>),
    Log(Box<schema::Log>),
}

impl Method for GetFilterChanges {
    type Answer = Vec<FilterEntry>;
    const EXAMPLE: Example = Example {
        params: r#"["0x1f2e3d4c5b6a7988"]"#,
        answer: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#,
    };

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        let Run { published, meter, out, .. } = run;
        let (most, start) = (backend.limits.max_logs, out.len());
        let head = published.head().number();
        backend.filters.with(self.id.0, |subject| {
            match subject {
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
                                if published.waits_for(number, since, backend.limits.late) {
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
                        if out.len() + 2 > backend.limits.max_response {
                            if end == start + 1 {
                                return Err(json::too_long(backend.limits.max_response));
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
        })?;
        Ok(Lookup::Found)
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
