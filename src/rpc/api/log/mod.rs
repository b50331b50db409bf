//! Logs of blocks, and the filters that clients poll.

mod filter;

pub use self::filter::{
    FilterEntry, GetFilterChanges, GetFilterLogs, NewBlockFilter, NewFilter, NewPendingTransactionFilter, Poll,
    UninstallFilter,
};

use alloy_primitives::Log;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    ledger::{Block, Chain, KnownBlock, Selector},
    meter::Meter,
    rpc::{
        json::{self, LogView, Shape, TxPosition},
        params::{FilterParam, LogFilter, LogRange},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Ticks of the meter for a block whose bloom is read.
const BLOOM_TICKS: u32 = 16;
/// Ticks for a block whose body is read, which may not be in memory.
const BODY_TICKS: u32 = 512;
/// Number of logs that are written between two counts of their bytes.
const LOGS_PER_COUNT: usize = 16;

/// The logs that pass a filter. A range may end in pending.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a filter")]
pub struct GetLogs {
    filter: FilterParam,
}

impl Method for GetLogs {
    type Answer = Vec<json::Log>;
    const EXAMPLE: Example = Example {
        params: r#"[{"fromBlock": "0x1", "toBlock": "pending", "address": "0x5fbdb2315678afecb367f032d93f642f64180aa3", "topics": [null, ["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]]}]"#,
        answer: "[]",
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let range = self.filter.range()?;
        write_logs(backend, run, &self.filter.into_filter("params[0]")?, range)
    }
}

/// Appends logs, `removed` or not, each after a comma unless `count` is zero, and adds them to `count`. Stops once `count` exceeds `most`.
fn write<'a>(
    logs: impl Iterator<Item = (TxPosition<'a>, u64, &'a Log)>,
    count: &mut usize,
    most: usize,
    removed: bool,
    out: &mut Vec<u8>,
) {
    for (position, index, log) in logs {
        *count += 1;
        if *count > most {
            return;
        }
        if *count > 1 {
            out.push(b',');
        }
        json::Log::write(out, LogView { log, position: Some(position), index, removed: Some(removed) });
    }
}

/// Writes the matching logs of a range of blocks. Reads the bloom of each block, and the block's body only if the bloom
/// matches.
fn write_logs(backend: &Backend, run: &mut Attempt<'_>, filter: &LogFilter, range: LogRange) -> Result<()> {
    let Attempt { published, meter, out, .. } = run;
    let (sealed, last) = match range {
        LogRange::Block(hash) => {
            let block = published.block(Selector::Hash(hash))?;
            let block =
                block.ok_or_else(|| RpcError::new(-32000, format!("unknown block: no block with hash {hash}")))?;
            (None, Some(block))
        }
        LogRange::Range(from, to) => known_range(backend, published, from, to)?,
    };
    let (mut count, most) = (0, backend.limits.max_logs);
    out.push(b'[');
    let sealed = sealed.into_iter().flat_map(|(from, to)| published.blocks(from, to));
    let mut write_all = |block: &Block, meter: &mut Meter, out: &mut Vec<u8>| -> Result<()> {
        meter.count(BODY_TICKS)?;
        let mut logs = filter.logs_in(block, 0).peekable();
        while logs.peek().is_some() {
            let start = out.len();
            write(logs.by_ref().take(LOGS_PER_COUNT), &mut count, most, false, out);
            bound_logs(backend, count, out)?;
            json::count_bytes(meter, out.len() - start)?;
        }
        Ok(())
    };
    for block in sealed {
        meter.count(BLOOM_TICKS)?;
        // The header is in memory, so a block whose bloom does not match costs only this check.
        if filter.matches_bloom(block.header.logs_bloom) {
            let block = Block::sealed(block).ok_or_else(|| published.no_body(block.number()))?;
            write_all(&block, meter, out)?;
        }
    }
    if let Some(block) = last {
        write_all(&block, meter, out)?;
    }
    out.push(b']');
    Ok(())
}

fn bound_logs(backend: &Backend, count: usize, out: &[u8]) -> Result<()> {
    let most = backend.limits.max_logs;
    if count > most {
        return Err(RpcError::limit(format!(
            "params[0]: more than {most} logs match: ask for fewer blocks or topics at once"
        )));
    }
    json::check_length(out, backend.limits.max_response)
}

/// Returns the numbers of the sealed blocks of a range, and the block being built if the range reaches it.
#[expect(clippy::type_complexity, reason = "named nowhere else")]
fn known_range(
    backend: &Backend,
    published: &Chain,
    from: Selector,
    to: Selector,
) -> Result<(Option<(u64, u64)>, Option<Block>)> {
    let number = |selector: Selector, end: &str| match selector {
        Selector::Number(number) => Ok(number),
        // The first block of an upstream's chain is not here.
        Selector::Earliest => Ok(backend.find(published, selector)?.map_or(0, |first| first.number())),
        other => match backend.find(published, other)? {
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
    if span > backend.limits.max_log_blocks {
        return Err(RpcError::limit(format!(
            "params[0]: a range of {span} blocks: at most {}: ask for fewer at once",
            backend.limits.max_log_blocks
        )));
    }
    let Some(last) = backend.find(published, to)? else {
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
