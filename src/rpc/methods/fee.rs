//! Fees: current, past and suggested.

use alloy_consensus::{Header, Transaction};
use alloy_primitives::U256;

use super::{Backend, Run};
use crate::{
    ledger::{Block, KnownBlock, Selector},
    rpc::{
        encode::{self, Object},
        error::{Result, RpcError},
        wire::FeeHistoryRequest,
    },
};

/// Maximum number of blocks in a fee history, as in geth. A longer one is cut.
const MAX_BLOCKS: u64 = 1024;

impl Backend {
    /// Answers `eth_gasPrice`: the price that a legacy transaction should offer to be in the next block.
    pub(super) fn gas_price(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let base_fee = self.wallet.fees.base_fee(run.published).unwrap_or_default();
        let price = u128::from(base_fee).saturating_add(self.wallet.fees.tip(run.published));
        encode::quantity_u256(&mut run.out, U256::from(price));
        Ok(())
    }

    /// Answers `eth_maxPriorityFeePerGas`.
    pub(super) fn max_priority_fee(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        encode::quantity_u256(&mut run.out, U256::from(self.wallet.fees.tip(run.published)));
        Ok(())
    }

    /// Answers `eth_baseFee`: the base fee of the block being built, or of the next block. Null before London.
    pub(super) fn base_fee(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        encode::or_null(&mut run.out, self.wallet.fees.base_fee(run.published), encode::quantity);
        Ok(())
    }

    /// Answers `eth_blobBaseFee`: the blob base fee of the block being built, or of the next block. Null before Cancun.
    pub(super) fn blob_base_fee(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let published = run.published;
        let fee = match published.pending().and_then(|snapshot| snapshot.open.as_ref()) {
            Some(open) => self.blob_fee(&open.header),
            None => self.next_blob_fee(&published.head().header),
        };
        encode::or_null(&mut run.out, fee, |out, fee| encode::quantity_u256(out, U256::from(fee)));
        Ok(())
    }

    fn blob_fee(&self, header: &Header) -> Option<u128> {
        header.blob_fee(self.spec.blob_params(header.timestamp)?)
    }

    fn next_blob_fee(&self, header: &Header) -> Option<u128> {
        let time = self.spec.next_timestamp(header.timestamp);
        let excess = self.spec.next_excess_blob_gas(header, time)?;
        Some(self.spec.blob_params(time)?.calc_blob_fee(excess))
    }

    pub(super) fn fee_history(
        &self,
        run: &mut Run<'_>,
        FeeHistoryRequest { count, newest, percentiles }: FeeHistoryRequest,
    ) -> Result<()> {
        let published = run.published;
        let Some(last) = self.find(published, newest)? else {
            let head = published.head().number();
            return Err(RpcError::new(
                -32000,
                match newest {
                    Selector::Number(number) => {
                        format!("params[1]: request beyond head block: requested {number}, head {head}")
                    }
                    _ => "params[1]: unknown block".to_owned(),
                },
            ));
        };
        let number = last.number();
        // The range must not begin before the earliest block.
        let earliest = published.find(Selector::Earliest)?.map_or(0, |first| first.number());
        let count = count.min(MAX_BLOCKS).min(number - earliest + 1);
        let first = number + 1 - count;
        let sealed_end = if last.is_open() { number.saturating_sub(1) } else { number };
        // Without percentiles, headers are enough, and they outlast the bodies of pruned blocks.
        let blocks: Vec<KnownBlock> = (count > 0)
            .then(|| (first..=sealed_end).filter_map(|number| published.sealed_block(number)).map(KnownBlock::Sealed))
            .into_iter()
            .flatten()
            .chain((count > 0 && last.is_open()).then(|| last.clone()))
            .collect();
        let mut reward = |known: &KnownBlock, percentiles: &[f64]| -> Result<Vec<u128>> {
            // Checks the deadline, because sorting the transactions of a thousand blocks takes long.
            run.meter.check()?;
            let block = Block::load(known.clone()).ok_or_else(|| published.no_body(known.number()))?;
            Ok(rewards(&block, percentiles))
        };
        let paid = |percentiles: &Vec<f64>| -> Result<Vec<Vec<u128>>> {
            blocks.iter().map(|known| reward(known, percentiles)).collect()
        };
        let rewards = percentiles.as_ref().map(paid).transpose()?;
        self.write_history(&blocks, first, rewards.as_deref(), &mut run.out);
        Ok(())
    }

    fn write_history(&self, blocks: &[KnownBlock], first: u64, rewards: Option<&[Vec<u128>]>, out: &mut Vec<u8>) {
        let headers = || blocks.iter().map(|block| block.header().inner());
        let last = headers().next_back();
        let mut object = Object::new(out);
        object.quantity("oldestBlock", if blocks.is_empty() { 0 } else { first });
        if let Some(rewards) = rewards {
            encode::list(object.key("reward"), rewards, |out, tips| {
                encode::list(out, tips, |out, tip| encode::quantity_u256(out, U256::from(*tip)));
            });
        }
        // The fees have one more entry than there are blocks, because the next block's fees follow from the last block.
        let next = last.map(|last| {
            self.spec.next_base_fee(last, last.number + 1, self.spec.next_timestamp(last.timestamp)).unwrap_or_default()
        });
        let fees = headers().map(|header| header.base_fee_per_gas.unwrap_or_default()).chain(next);
        encode::list(object.key("baseFeePerGas"), fees, encode::quantity);
        encode::list(object.key("gasUsedRatio"), headers(), |out, header| {
            ratio(out, header.gas_used, header.gas_limit)
        });
        let next = last.map(|last| self.next_blob_fee(last).unwrap_or_default());
        let fees = headers().map(|header| self.blob_fee(header).unwrap_or_default()).chain(next);
        encode::list(object.key("baseFeePerBlobGas"), fees, |out, fee| encode::quantity_u256(out, U256::from(fee)));
        encode::list(object.key("blobGasUsedRatio"), headers(), |out, header| {
            let most = self.spec.blob_params(header.timestamp).map_or(0, |blobs| blobs.max_blob_gas_per_block());
            ratio(out, header.blob_gas_used.unwrap_or_default(), most);
        });
        object.end();
    }
}

/// Writes `part / whole` as a plain number, or 0 if `whole` is zero.
fn ratio(out: &mut Vec<u8>, part: u64, whole: u64) {
    let ratio = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    out.extend_from_slice(ratio.to_string().as_bytes());
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
