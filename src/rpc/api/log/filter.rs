//! Filters that clients poll.

use std::sync::Arc;

use alloy_eips::BlockNumHash;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{BLOOM_TICKS, BODY_TICKS, write, write_logs};
use crate::{
    chain::SealedBlock,
    ledger::{BlockLogs, Chain, Selector, UnknownBlock},
    meter::Stopped,
    rpc::{
        api::{Example, Method},
        json::{
            self,
            hex::{Fixed, Quantity},
        },
        params::{self, FilterParam, LogFilter, LogRange},
        protocol::error::{Result, RpcError},
        run::{
            Attempt, Backend,
            filters::{Filter, KnownLogs, Move, PendingHashes, Position},
            request::Request,
            runner::RequestRunner,
        },
    },
};

/// Installs a filter for logs of blocks that are sealed from now on. The result is its id.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a filter")]
pub struct NewFilter {
    filter: FilterParam,
}

impl Method for NewFilter {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example {
        params: r#"[{"address": "0x5fbdb2315678afecb367f032d93f642f64180aa3"}]"#,
        answer: r#""0x1f2e3d4c5b6a7988""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
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
        let position = Position::new(KnownLogs::up_to(run.published.head().id()));
        let id = install(backend, run, Filter::Logs { filter, range, position });
        json::quantity(&mut run.out, id);
        Ok(())
    }
}

without_params! {
    /// Installs a filter for the hashes of blocks that are sealed from now on.
    NewBlockFilter -> Quantity<u64> = r#""0x1f2e3d4c5b6a7988""#, |backend, run| {
        install(backend, run, Filter::Blocks(Position::new(run.published.head().id())))
    };

    /// Installs a filter for the hashes of transactions that enter the pool from now on.
    NewPendingTransactionFilter -> Quantity<u64> = r#""0x1f2e3d4c5b6a7988""#, |backend, run| {
        install(backend, run, Filter::Pending(PendingHashes::new(backend.pool.subscribe())))
    };
}

queries! {
    /// Forgets a filter. The result is false if there is none.
    UninstallFilter = "1 parameter: the id of a subscription or filter", { id: Quantity<u64> },
        r#"["0x1f2e3d4c5b6a7988"]"# => bool = "true", |asked, backend, _| backend.filters.uninstall(asked.id.0);
}

fn install(backend: &Backend, run: &Attempt<'_>, filter: Filter) -> u64 {
    backend.filters.install(run.client, filter)
}

/// All logs of a filter, as `eth_getLogs` has them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct GetFilterLogs {
    id: Quantity<u64>,
}

impl Method for GetFilterLogs {
    type Answer = Vec<json::Log>;
    const EXAMPLE: Example = Example { params: r#"["0x1f2e3d4c5b6a7988"]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let id = self.id.0;
        match &*backend.filters.ask(id)? {
            Filter::Logs { filter, range, .. } => write_logs(backend, run, filter, *range)?,
            Filter::Blocks(_) | Filter::Pending(_) => {
                return Err(RpcError::new(-32000, format!("params[0]: filter {id:#x} is not about logs")));
            }
        }
        Ok(())
    }
}

/// The hashes or logs that are new to a filter since it was last polled, after the logs of blocks that are no longer
/// canonical, with `removed`. Any beyond the limits wait for the next poll.
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
    Log(Box<json::Log>),
}

/// The answer to a poll, and the move of the filter's position once the answer's bytes are granted.
#[derive(Debug)]
pub struct Poll {
    /// The answer up to the end of its result, or the error that the client gets once.
    pub answer: Result<Vec<u8>>,
    pub moves: Move,
}

/// The end of a run that has found the news of a filter: the move beyond them, and the error to answer instead of the
/// written result.
struct Found {
    moves: Move,
    error: Option<RpcError>,
}

impl GetFilterChanges {
    pub const EXAMPLE: Example = Example {
        params: r#"["0x1f2e3d4c5b6a7988"]"#,
        answer: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#,
    };

    /// Finds the news of a filter.
    pub fn poll(runner: &Arc<RequestRunner>, request: Request) -> BoxFuture<'_, Result<Poll>> {
        Box::pin(async move {
            let Self { id } = params::parse(&request.params, request.caller.dialect)?;
            let filter = runner.backend.filters.ask(id.0)?;
            let snapshots = runner.host.snapshots.clone();
            let find = move |backend: &Backend, run: &mut Attempt<'_>| match &*filter {
                Filter::Blocks(position) => {
                    let from = position.get();
                    new_blocks(backend.limits.max_logs, run, position, from, &snapshots.load())
                }
                Filter::Logs { filter, range, position } => {
                    let from = position.get();
                    let (published, start) = (snapshots.load(), run.out.len() + 1);
                    let (first, last) = ends(*range);
                    let search = NewLogs { backend, filter, first, last, published: &published, run, start, count: 0 };
                    search.find(position, from)
                }
                Filter::Pending(hashes) => {
                    let (fresh, moves) = hashes.next(backend.limits.max_logs);
                    json::list(&mut run.out, fresh, |out, hash| json::data(out, hash.as_slice()));
                    Ok(Found { moves, error: None })
                }
            };
            let (Found { moves, error }, out) = runner.run(request, find).await?;
            Ok(Poll { answer: error.map_or(Ok(out), Err), moves })
        })
    }
}

/// Writes the hashes of the blocks after the newest one that the client knows, or after the newest one of these that is
/// still canonical.
///
/// The position is read before the chain, so that no poll sees a chain that is older than its filter's position.
fn new_blocks(
    most: usize,
    run: &mut Attempt<'_>,
    position: &Position<BlockNumHash>,
    from: Arc<BlockNumHash>,
    published: &Chain,
) -> Result<Found> {
    let mut newest = *from;
    while !published.is_canonical(newest) {
        match published.abandoned(newest.hash) {
            Some(block) => newest = parent(block),
            None => {
                let error = Some(forgotten(newest, published));
                return Ok(Found { moves: position.moved(from, published.head().id()), error });
            }
        }
    }
    // The headers are known, even of blocks that are pruned already.
    let blocks = (newest.number + 1..=published.head().number()).filter_map(|number| published.sealed_block(number));
    json::list(&mut run.out, blocks.take(most), |out, block| {
        newest = block.id();
        json::data(out, block.hash().as_slice());
    });
    Ok(Found { moves: position.moved(from, newest), error: None })
}

fn parent(block: &SealedBlock) -> BlockNumHash {
    BlockNumHash::new(block.number().saturating_sub(1), block.header.parent_hash)
}

/// Returns the error of a poll if the client's last block was abandoned so long ago that it is forgotten.
fn forgotten(block: BlockNumHash, published: &Chain) -> RpcError {
    let BlockNumHash { number, hash } = block;
    let head = published.head().number();
    RpcError::new(
        -32000,
        format!(
            "block {number} ({hash}) is no longer canonical, and its logs are no longer held: what the filter has returned of it and \
             of later blocks may be void; the filter goes on after block {head}: read the blocks up to it with eth_getLogs"
        ),
    )
}

/// A search for the logs that are new to a filter.
struct NewLogs<'a, 'r> {
    backend: &'a Backend,
    filter: &'a LogFilter,
    /// The first and the last number of the filter's range.
    first: u64,
    last: u64,
    published: &'a Chain,
    run: &'a mut Attempt<'r>,
    /// The length of the answer before its first log.
    start: usize,
    count: usize,
}

/// The reason why a search ends before it has written everything.
enum Stop {
    /// The answer is full. The next poll continues.
    Full,
    /// Logs can no longer be returned: the error, and the position from which to continue.
    Lost(Box<(RpcError, KnownLogs)>),
    /// The run has failed.
    Failed(Box<RpcError>),
}

impl From<RpcError> for Stop {
    fn from(error: RpcError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Stopped> for Stop {
    fn from(why: Stopped) -> Self {
        Self::from(RpcError::from(why))
    }
}

impl NewLogs<'_, '_> {
    /// Writes the news since `from`, up to the limits.
    fn find(mut self, position: &Position<KnownLogs>, from: Arc<KnownLogs>) -> Result<Found> {
        let mut known = KnownLogs::clone(&from);
        self.run.out.push(b'[');
        let stopped = self.write_all(&mut known).err();
        self.run.out.push(b']');
        match stopped {
            Some(Stop::Failed(error)) => Err(*error),
            // If something was written before, the next poll finds the same error.
            Some(Stop::Lost(lost)) if self.count == 0 => {
                let (error, goes_on) = *lost;
                Ok(Found { moves: position.moved(from, goes_on), error: Some(error) })
            }
            _ => Ok(Found { moves: position.moved(from, known), error: None }),
        }
    }

    /// Writes the logs of abandoned blocks as removed, then the logs of late blocks, then the logs of later blocks.
    /// Moves `known` with each block.
    fn write_all(&mut self, known: &mut KnownLogs) -> Result<(), Stop> {
        self.take_back(known)?;
        for (number, hash) in known.late.clone() {
            match self.published.logs_of(number, hash) {
                BlockLogs::Late { .. } => {}
                logs => {
                    self.write(&logs, false)?;
                    known.late.remove(&number);
                    self.check_count()?;
                }
            }
        }
        self.check_pruned(known)?;
        let blocks = self.published.blocks(known.newest.number + 1, self.published.head().number());
        for block in blocks {
            self.run.meter.count(BLOOM_TICKS)?;
            if self.may_have_logs(block) {
                match self.published.logs_of(block.number(), block.hash()) {
                    BlockLogs::Late { since } => {
                        if self.published.waits_for(block.number(), since, self.backend.limits.late) {
                            return Ok(());
                        }
                        known.late.insert(block.number(), block.hash());
                    }
                    logs => self.write(&logs, false)?,
                }
            }
            known.newest = block.id();
            self.check_count()?;
        }
        Ok(())
    }

    /// Writes the logs of the blocks that are no longer canonical as removed, newest first.
    fn take_back(&mut self, known: &mut KnownLogs) -> Result<(), Stop> {
        while !self.published.is_canonical(known.newest) {
            let lost = |known: &KnownLogs| {
                let goes_on = KnownLogs::up_to(self.published.head().id());
                Stop::Lost(Box::new((forgotten(known.newest, self.published), goes_on)))
            };
            let block = self.published.abandoned(known.newest.hash).ok_or_else(|| lost(known))?;
            let was_returned = !known.late.contains_key(&block.number());
            if was_returned && self.may_have_logs(block) {
                let logs = BlockLogs::of(block).ok_or_else(|| lost(known))?;
                self.write(&logs, true)?;
            }
            known.late.remove(&block.number());
            known.newest = parent(block);
            self.check_count()?;
        }
        Ok(())
    }

    /// Checks that no new block of the range is pruned. The client gets this error once. The next poll begins at the oldest
    /// block that is retained.
    fn check_pruned(&self, known: &KnownLogs) -> Result<(), Stop> {
        let fresh = self.first.max(known.newest.number + 1);
        let last = self.last.min(self.published.head().number());
        if fresh > last {
            return Ok(());
        }
        match self.published.has_blocks(fresh, last) {
            Err(pruned @ (UnknownBlock::History { oldest, .. } | UnknownBlock::Pruned { oldest, .. })) => {
                let newest = self.published.blocks(oldest, oldest).next();
                let newest = newest.map_or(self.published.head().id(), |block| parent(block));
                Err(Stop::Lost(Box::new((pruned.into(), KnownLogs { newest, late: known.late.clone() }))))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a block is in the filter's range, and its bloom matches.
    fn may_have_logs(&self, block: &SealedBlock) -> bool {
        (self.first..=self.last).contains(&block.number()) && self.filter.matches_bloom(block.header.logs_bloom)
    }

    /// Writes the matching logs of a block, all or none.
    fn write(&mut self, logs: &BlockLogs, removed: bool) -> Result<(), Stop> {
        let (end, most) = (self.run.out.len(), self.backend.limits.max_response);
        self.run.meter.count(BODY_TICKS)?;
        let Self { filter, run, count, .. } = self;
        match logs {
            BlockLogs::Whole(block) => write(filter.logs_in(block, 0), count, usize::MAX, removed, &mut run.out),
            BlockLogs::Alone(block) => write(filter.logs_alone_in(block), count, usize::MAX, removed, &mut run.out),
            BlockLogs::Late { .. } | BlockLogs::Unknown => {}
        }
        json::count_bytes(&mut run.meter, run.out.len() - end)?;
        // Two bytes are reserved for the ends of the array and of the response.
        if run.out.len() + 2 <= most {
            return Ok(());
        }
        run.out.truncate(end);
        if end == self.start { Err(json::too_long(most).into()) } else { Err(Stop::Full) }
    }

    fn check_count(&self) -> Result<(), Stop> {
        if self.count >= self.backend.limits.max_logs { Err(Stop::Full) } else { Ok(()) }
    }
}

/// Returns the first and the last block number of a filter's range. Tags do not bound the range.
const fn ends(range: LogRange) -> (u64, u64) {
    let LogRange::Range(from, to) = range else { return (0, u64::MAX) };
    let first = if let Selector::Number(number) = from { number } else { 0 };
    let last = if let Selector::Number(number) = to { number } else { u64::MAX };
    (first, last)
}
