//! Fees: current, past and suggested.

use alloy_consensus::{Header, Transaction};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    chain::ChainSpec,
    ledger::{Block, KnownBlock, Selector, UnknownBlock},
    rpc::{
        json::{
            Shape,
            hex::{Number, Quantity},
            shapes,
        },
        params::SelectorParam,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Maximum number of blocks in a fee history, as in geth. A longer one is cut.
const MAX_BLOCKS: u64 = 1024;
/// Maximum number of percentiles in a request, as in geth.
const MAX_PERCENTILES: usize = 100;

without_params! {
    /// The price in wei that a legacy transaction should offer for a unit of gas, to be in the next block.
    GasPrice -> Quantity<u128> = r#""0x3b9aca07""#, |backend, run| {
        let base_fee = backend.wallet.fees.base_fee(run.published).unwrap_or_default();
        u128::from(base_fee).saturating_add(backend.wallet.fees.tip(run.published))
    };

    /// The tip that got transactions into the last blocks, in wei.
    MaxPriorityFee -> Quantity<u128> = r#""0x3b9aca00""#, |backend, run| backend.wallet.fees.tip(run.published);

    /// The base fee of the block being built, or of the next, in wei; null before London.
    BaseFee -> Option<Quantity<u64>> = r#""0x7""#, |backend, run| backend.wallet.fees.base_fee(run.published);

    /// The price of a unit of blob gas in the block being built, or the next, in wei; null before Cancun.
    BlobBaseFee -> Option<Quantity<u128>> = r#""0x1""#, |backend, run| {
        let published = run.published;
        match published.pending().and_then(|snapshot| snapshot.open.as_ref()) {
            Some(open) => blob_fee(&backend.spec, &open.header),
            None => next_blob_fee(&backend.spec, &published.head().header),
        }
    };
}

fn blob_fee(spec: &ChainSpec, header: &Header) -> Option<u128> {
    header.blob_fee(spec.blob_params(header.timestamp)?)
}

fn next_blob_fee(spec: &ChainSpec, header: &Header) -> Option<u128> {
    let time = spec.next_timestamp(header.timestamp);
    let excess = spec.next_excess_blob_gas(header, time)?;
    Some(spec.blob_params(time)?.calc_blob_fee(excess))
}

/// Base fees, how full blocks were, and the tips paid.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 or 3 parameters: block count, newest block, reward percentiles")]
pub struct GetFeeHistory {
    count: Number<u64>,
    newest: SelectorParam,
    /// Percentiles of the tips paid, from 0 to 100 in ascending order.
    #[serde(default)]
    #[schemars(length(max = 100), inner(range(min = 0, max = 100)))]
    percentiles: Option<Vec<f64>>,
}

shapes! {
    /// The fees of a range of blocks. The fees have one more entry than there are blocks, for the next block.
    pub FeeHistory: (&ChainSpec, u64, Option<Vec<Vec<u128>>>, &[KnownBlock]) => |(spec, first, rewards, blocks)| let {
        let headers = || blocks.iter().map(|block| block.header().inner());
        // The next block's fees follow from the last block.
        let last = headers().next_back();
        let next_fee = |last: &Header| spec.next_base_fee(last, last.number + 1, spec.next_timestamp(last.timestamp));
        let fees = headers().map(|header| header.base_fee_per_gas.unwrap_or_default());
        let blob_fees = headers().map(|header| blob_fee(spec, header).unwrap_or_default());
        let next_blob_fee = last.map(|last| next_blob_fee(spec, last).unwrap_or_default());
        let blob_ratio = |header: &Header| {
            let most = spec.blob_params(header.timestamp).map_or(0, |blobs| blobs.max_blob_gas_per_block());
            ratio(header.blob_gas_used.unwrap_or_default(), most)
        };
    } {
        oldestBlock: Quantity<u64> = if blocks.is_empty() { 0 } else { first },
        /// The tips by block and percentile.
        reward: Option<Vec<Vec<Quantity<u128>>>> = rewards,
        baseFeePerGas: Vec<Quantity<u64>> = fees.chain(last.map(|last| next_fee(last).unwrap_or_default())),
        gasUsedRatio: Vec<f64> = headers().map(|header| ratio(header.gas_used, header.gas_limit)),
        baseFeePerBlobGas: Vec<Quantity<u128>> = blob_fees.chain(next_blob_fee),
        blobGasUsedRatio: Vec<f64> = headers().map(blob_ratio),
    }
}

impl GetFeeHistory {
    /// Returns the requested percentiles of the tips. As in geth, an empty list requests none.
    fn percentiles(&self) -> Result<Option<&[f64]>> {
        let list = self.percentiles.as_deref().unwrap_or_default();
        if list.len() > MAX_PERCENTILES {
            return Err(RpcError::params(format!("params[2]: {} percentiles: at most {MAX_PERCENTILES}", list.len())));
        }
        if let Some(index) = list.iter().position(|percentile| !(0.0..=100.0).contains(percentile)) {
            return Err(RpcError::params(format!(
                "params[2][{index}]: invalid percentile {}: expected 0 to 100",
                list[index]
            )));
        }
        if let Some(index) = list.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(RpcError::params(format!(
                "params[2][{}]: invalid percentile: less than the one before it: expected ascending order",
                index + 1
            )));
        }
        Ok(Some(list).filter(|list| !list.is_empty()))
    }
}

impl Method for GetFeeHistory {
    type Answer = FeeHistory;
    const EXAMPLE: Example = Example {
        params: r#"["0x1", "latest", [50]]"#,
        answer: r#"{"oldestBlock": "0x10", "reward": [["0x3b9aca00"]], "baseFeePerGas": ["0x8", "0x7"], "gasUsedRatio": [0.02], "baseFeePerBlobGas": ["0x1", "0x1"], "blobGasUsedRatio": [0]}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (percentiles, newest, published) = (self.percentiles()?, Selector::from(self.newest), run.published);
        let unknown = |number| UnknownBlock::Pruned { number, oldest: published.oldest_state() };
        let Some(last) = backend.find(published, newest)? else {
            let head = published.head().number();
            return Err(RpcError::new(
                -32000,
                match newest {
                    Selector::Number(number) if number <= head => return Err(unknown(number).into()),
                    Selector::Number(number) => {
                        format!("params[1]: request beyond head block: requested {number}, head {head}")
                    }
                    _ => "params[1]: unknown block".to_owned(),
                },
            ));
        };
        let number = last.number();
        // The range must not begin before the earliest block; on a fork, not before the block on which it began.
        let earliest = match published.forked_at() {
            Some(fork) => fork,
            None => published.find(Selector::Earliest)?.map_or(0, |first| first.number()),
        };
        let count = self.count.0.min(MAX_BLOCKS).min(number - earliest + 1);
        let first = number + 1 - count;
        let sealed_end = if last.is_open() { number.saturating_sub(1) } else { number };
        // Without percentiles, headers are enough, and they outlast the bodies of pruned blocks.
        let sealed = |number| published.sealed_block(number).map(KnownBlock::Sealed).ok_or_else(|| unknown(number));
        let blocks: Result<Vec<KnownBlock>, UnknownBlock> = (count > 0)
            .then(|| (first..=sealed_end).map(sealed))
            .into_iter()
            .flatten()
            .chain((count > 0 && last.is_open()).then(|| Ok(last.clone())))
            .collect();
        let blocks = blocks?;
        let mut reward = |known: &KnownBlock, percentiles: &[f64]| -> Result<Vec<u128>> {
            // Checks the deadline, because sorting the transactions of a thousand blocks takes long.
            run.meter.check()?;
            let block = Block::load(known.clone()).ok_or_else(|| published.no_body(known.number()))?;
            Ok(rewards(&block, percentiles))
        };
        let paid = |percentiles: &[f64]| -> Result<Vec<Vec<u128>>> {
            blocks.iter().map(|known| reward(known, percentiles)).collect()
        };
        let rewards = percentiles.map(paid).transpose()?;
        FeeHistory::write(&mut run.out, (&*backend.spec, first, rewards, &*blocks));
        Ok(())
    }
}

/// Returns `part / whole`, or 0 if `whole` is zero.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns the tip paid at each percentile of the gas used in a block, in wei. All are zero if the block is empty.
fn rewards(block: &Block, percentiles: &[f64]) -> Vec<u128> {
    let base_fee = block.header().base_fee_per_gas.unwrap_or_default();
    let mut paid: Vec<(u128, u64)> = block
        .transactions()
        .map(|included| (included.tx.effective_tip_per_gas(base_fee).unwrap_or_default(), included.gas_used))
        .collect();
    paid.sort_unstable();
    let all = block.header().gas_used as f64;
    let mut rest = paid.iter().copied();
    let mut at = rest.next();
    let mut sum = at.map_or(0, |(_, gas)| gas);
    percentiles
        .iter()
        .map(|percentile| {
            // As in geth, the threshold is a whole number of units of gas.
            let threshold = (all * percentile / 100.0) as u64;
            while sum < threshold {
                let Some(next) = rest.next() else { break };
                at = Some(next);
                sum += next.1;
            }
            at.map_or(0, |(tip, _)| tip)
        })
        .collect()
}
