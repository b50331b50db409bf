//! The methods of `--testing` that run on a snapshot. Those that change the chain are in the table of methods alone.

pub mod changes;
pub mod payload;

use alloy_consensus::{Header, Transaction, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::{eip4895::Withdrawals, eip7594::BlobTransactionSidecarVariant, eip7685::Requests};
use alloy_evm::block::BlockExecutionError;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, U256};

use crate::rpc::run::{Backend, Run};
use crate::{
    chain::{Attributes, ChainReceipt, ChainTx, Family, SealedBlock, gas_limit_towards},
    ledger::{OpenBlock, Selector, Snapshot},
    meter::Meter,
    pool::BlockFees,
    rpc::{
        params::{BuildBlockRequest, BuildTransaction, PayloadAttributes},
        protocol::error::{Result, RpcError},
    },
    source::apply::{SubBlock, extend, open_block_with, seal},
};

/// The gas limit that built blocks approach: the default of geth's `--miner.gaslimit`.
const WANTED_GAS_LIMIT: u64 = 60_000_000;

/// A block that was built on request and is in no chain.
#[derive(Debug)]
pub struct BuiltBlock {
    /// The block.
    pub block: SealedBlock,
    /// The requests of its contracts (EIP-7685).
    pub requests: Requests,
    /// The tips that its fee recipient earns, in wei.
    pub value: U256,
    /// The blobs of its transactions that were given in network form.
    pub sidecars: Vec<BlobTransactionSidecarVariant>,
}

impl Backend {
    /// Answers `testing_buildBlockV1`.
    pub fn build_block(&self, run: &mut Run<'_>, request: BuildBlockRequest) -> Result<()> {
        if self.spec.family() == Family::OpStack {
            let text = "not on the OP stack: the attributes have no deposits, with which its blocks begin";
            return Err(RpcError::new(-32000, text));
        }
        let parent = self.select(run.published, Selector::Hash(request.parent))?;
        if parent.open.is_some() {
            let text = format!("params[0]: {}: a block that is being built: expected a sealed one", request.parent);
            return Err(RpcError::params(text));
        }
        let (header, withdrawals) = self.built_header(&parent, &request)?;
        let invalid = |error: BlockExecutionError| RpcError::new(-32000, error.to_string());
        let opened = open_block_with(&self.spec, &parent, header).map_err(invalid)?.snapshot;
        let Some(open) = &opened.open else { return Err(RpcError::internal("an opened block is not open")) };
        let (given, sidecars): (Option<Vec<_>>, Vec<_>) = match request.transactions {
            Some(list) => {
                let (list, sidecars): (Vec<_>, Vec<_>) =
                    list.into_iter().map(|BuildTransaction { tx, sidecar }| (tx, sidecar)).unzip();
                (Some(list), sidecars.into_iter().flatten().collect())
            }
            None => (None, Vec::new()),
        };
        let mut meter = std::mem::take(&mut run.meter);
        let mut filled = Ok(());
        let grown = extend(&self.spec, &opened, open, |block| {
            filled = match given {
                Some(list) => push_all(block, list, &mut meter),
                None => self.push_best(block, &opened, open, &mut meter),
            };
        });
        filled?;
        let Some(open) = &grown.snapshot.open else { return Err(RpcError::internal("an extended block is not open")) };
        let (sealed, requests) = seal(&self.spec, &grown.snapshot, open, withdrawals).map_err(invalid)?;
        let block = SealedBlock::clone(&sealed.snapshot.head);
        let value = tips(&block);
        payload::built_block(&mut run.out, &BuiltBlock { block, requests, value, sidecars });
        Ok(())
    }

    /// Returns the header of the block to build, and its withdrawals.
    fn built_header(&self, parent: &Snapshot, request: &BuildBlockRequest) -> Result<(Header, Withdrawals)> {
        let PayloadAttributes { timestamp, prev_randao, fee_recipient, ref withdrawals, beacon_root, slot_number } =
            request.attributes;
        let head = &parent.head.header;
        let repeats = self.spec.timestamps_repeat(timestamp);
        if timestamp < head.timestamp || timestamp == head.timestamp && !repeats {
            return Err(RpcError::params(format!(
                "params[1].timestamp: {timestamp}: expected a time {} that of the parent, {}",
                if repeats { "not before" } else { "after" },
                head.timestamp
            )));
        }
        let expect = |field: &str, given: bool, fork: &str, active: bool| match (given, active) {
            (false, true) => {
                Err(RpcError::params(format!("params[1].{field}: missing: blocks have it from {fork} on")))
            }
            (true, false) => Err(RpcError::params(format!("params[1].{field}: blocks have none before {fork}"))),
            _ => Ok(()),
        };
        if slot_number.is_some() {
            expect("slotNumber", true, "Amsterdam", self.spec.is_amsterdam_active_at_timestamp(timestamp))?;
        }
        let shanghai = self.spec.is_shanghai_active_at_timestamp(timestamp);
        let cancun = self.spec.is_cancun_active_at_timestamp(timestamp);
        expect("withdrawals", withdrawals.is_some(), "Shanghai", shanghai)?;
        expect("parentBeaconBlockRoot", beacon_root.is_some(), "Cancun", cancun)?;
        let attributes = Attributes {
            timestamp,
            fee_recipient,
            prev_randao,
            beacon_root: beacon_root.unwrap_or_default(),
            gas_limit: gas_limit_towards(WANTED_GAS_LIMIT, head.gas_limit),
        };
        let mut header = self.spec.next_header(head, head.number + 1, attributes);
        if header.block_access_list_hash.is_some() {
            header.slot_number = slot_number.or(header.slot_number).or(Some(0));
        }
        if let Some(data) = &request.extra_data {
            header.extra_data = data.clone();
        }
        Ok((header, withdrawals.clone().unwrap_or_default()))
    }

    /// Fills a block from the pool, without blob transactions, whose blobs the pool does not keep.
    fn push_best(&self, block: &mut SubBlock<'_>, on: &Snapshot, open: &OpenBlock, meter: &mut Meter) -> Result<()> {
        let fees = BlockFees { base: open.header.base_fee_per_gas.unwrap_or_default(), blob: u128::MAX };
        let mut best = self.pool.best(on, fees);
        while let Some(ready) = best.next(block.room()) {
            check_time(meter)?;
            let tx = ready.transaction();
            match block.push(Recovered::clone(tx).convert()) {
                Ok(()) => best.included(ready),
                Err(reason) => tracing::debug!(hash = %tx.tx_hash(), %reason, "a transaction is left out"),
            }
        }
        Ok(())
    }

    pub fn impersonate(&self, run: &mut Run<'_>, account: Address) -> Result<()> {
        if !self.impersonated.add(account) {
            let text = "as many accounts as can be are impersonated (--testing-limit): stop one of them";
            return Err(RpcError::limit(text));
        }
        run.out.extend_from_slice(b"null");
        Ok(())
    }

    pub fn stop_impersonating(&self, run: &mut Run<'_>, account: Address) -> Result<()> {
        self.impersonated.remove(&account);
        run.out.extend_from_slice(b"null");
        Ok(())
    }
}

/// Appends all of the transactions.
fn push_all(block: &mut SubBlock<'_>, list: Vec<Recovered<TxEnvelope>>, meter: &mut Meter) -> Result<()> {
    for (index, tx) in list.into_iter().enumerate() {
        check_time(meter)?;
        block.push(tx.convert()).map_err(|error| RpcError::new(-32000, format!("params[2][{index}]: {error}")))?;
    }
    Ok(())
}

fn check_time(meter: &mut Meter) -> Result<()> {
    meter.check().map_err(RpcError::from)
}

/// Returns the tips of a block's transactions, in wei.
fn tips(block: &SealedBlock) -> U256 {
    let (body, base_fee) = (block.body(), block.header.base_fee_per_gas.unwrap_or_default());
    let mut gas_before = 0;
    let tip = |(tx, receipt): (&Recovered<ChainTx>, &ChainReceipt)| {
        let cumulative = receipt.cumulative_gas_used();
        let gas = cumulative - std::mem::replace(&mut gas_before, cumulative);
        U256::from(tx.effective_tip_per_gas(base_fee).unwrap_or_default()) * U256::from(gas)
    };
    body.transactions.iter().zip(&body.receipts).map(tip).sum()
}
