//! `testing_buildBlockV1`: a block on a parent, which changes nothing.

use alloy_consensus::{Header, Transaction, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::eip4895::{Withdrawal, Withdrawals};
use alloy_evm::block::BlockExecutionError;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, U256};
use schemars::JsonSchema;
use serde::Deserialize;

use super::payload::BuiltBlock;
use crate::{
    chain::{Attributes, ChainReceipt, ChainTx, Family, SealedBlock, gas_limit_towards},
    engine::{Applied, open_block_with, seal},
    ledger::{OpenBlock, Selector, Snapshot},
    meter::Meter,
    pool::{BlockFees, SentTransaction},
    rpc::{
        api::{Example, Method},
        json::{
            self, Shape,
            hex::{Data, Fixed, Quantity},
        },
        params::{decode, with_sender},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
    source::sub_block::{SubBlock, extend},
};

/// The gas limit that built blocks approach: the default of geth's `--miner.gaslimit`.
const WANTED_GAS_LIMIT: u64 = 60_000_000;
/// The longest `extraData` of a block (Yellow Paper, section 4.4.4).
const MAX_EXTRA_DATA: usize = 32;

/// With --testing: builds a block on a parent, which changes nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "3 or 4 parameters: parent's hash, payload attributes, transactions or null, extra data"
)]
#[schemars(extend("required" = ["parent", "attributes", "transactions"]))]
pub struct BuildBlock {
    parent: Fixed<32>,
    attributes: PayloadAttributes,
    /// Signed transactions, or null to take the pool's.
    transactions: Option<Vec<Data>>,
    #[serde(default)]
    extra_data: Option<Data>,
}

/// `PayloadAttributesV4` of the engine API: the fields of a block that the consensus layer chooses.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PayloadAttributes {
    /// Unix time, in seconds.
    timestamp: Quantity<u64>,
    /// The beacon chain's randomness (EIP-4399).
    prev_randao: Fixed<32>,
    /// The account that receives the block's fees.
    suggested_fee_recipient: Fixed<20>,
    /// Withdrawals (EIP-4895), from Shanghai on.
    withdrawals: Option<Vec<json::Withdrawal>>,
    /// The root of the parent beacon block (EIP-4788), from Cancun on.
    parent_beacon_block_root: Option<Fixed<32>>,
    /// The slot (EIP-7843); by default the slot after the parent's.
    slot_number: Option<Quantity<u64>>,
}

impl From<json::Withdrawal> for Withdrawal {
    fn from(json::Withdrawal { index, validator_index, address, amount }: json::Withdrawal) -> Self {
        Self { index: index.0, validator_index: validator_index.0, address: address.into(), amount: amount.0 }
    }
}

impl Method for BuildBlock {
    type Answer = BuiltBlock;
    const EXAMPLE: Example = Example {
        params: r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", {"timestamp": "0xffffffff", "prevRandao": "0x0000000000000000000000000000000000000000000000000000000000000001", "suggestedFeeRecipient": "0x00000000000000000000000000000000000000aa", "parentBeaconBlockRoot": "0x0000000000000000000000000000000000000000000000000000000000000001", "withdrawals": []}, [], "0x"]"#,
        answer: r#"{"executionPayload": {"parentHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "feeRecipient": "0x00000000000000000000000000000000000000aa", "stateRoot": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "receiptsRoot": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "logsBloom": "0x00", "prevRandao": "0x0000000000000000000000000000000000000000000000000000000000000001", "blockNumber": "0x1", "gasLimit": "0x3938700", "gasUsed": "0x0", "timestamp": "0xffffffff", "extraData": "0x", "baseFeePerGas": "0x7", "blockHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "transactions": [], "withdrawals": [], "blobGasUsed": "0x0", "excessBlobGas": "0x0"}, "blockValue": "0x0", "blobsBundle": {"commitments": [], "proofs": [], "blobs": []}, "executionRequests": [], "shouldOverrideBuilder": false}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (count, most) = (self.transactions.as_ref().map_or(0, Vec::len), backend.limits.shape.max_block_calls);
        if count > most {
            return Err(RpcError::limit(format!("params[2]: too many transactions: {count}, at most {most}")));
        }
        if let Some(data) = self.extra_data.as_ref().filter(|data| data.0.len() > MAX_EXTRA_DATA) {
            let length = data.0.len();
            return Err(RpcError::params(format!("params[3]: {length} bytes: expected at most {MAX_EXTRA_DATA}")));
        }
        let decoded = |(index, raw): (usize, &Data)| {
            let path = format!("params[2][{index}]");
            let SentTransaction { tx, sidecar, .. } = decode(raw, &path)?;
            Ok((with_sender(tx, path)?, sidecar))
        };
        let decoded = |list: &Vec<Data>| list.iter().enumerate().map(decoded).collect::<Result<_>>();
        let given: Option<Vec<_>> = self.transactions.as_ref().map(decoded).transpose()?;
        let spec = &backend.spec;
        if spec.family() == Family::OpStack {
            let text = "not on the OP stack: the attributes have no deposits, with which its blocks begin";
            return Err(RpcError::new(-32000, text));
        }
        let parent = backend.select(run, Selector::Hash(self.parent.into()))?;
        if parent.open.is_some() {
            let hash = B256::from(self.parent);
            let text = format!("params[0]: {hash}: a block that is being built: expected a sealed one");
            return Err(RpcError::params(text));
        }
        let (header, withdrawals) = self.header(backend, &parent)?;
        let invalid = |error: BlockExecutionError| RpcError::new(-32000, error.to_string());
        let opened = known(run, open_block_with(spec, &parent, header).map_err(invalid)?)?;
        let Some(open) = &opened.open else { return Err(RpcError::internal("an opened block is not open")) };
        let (given, sidecars): (Option<Vec<_>>, Vec<_>) = match given {
            Some(list) => {
                let (list, sidecars): (Vec<_>, Vec<_>) = list.into_iter().unzip();
                (Some(list), sidecars.into_iter().flatten().collect())
            }
            None => (None, Vec::new()),
        };
        let mut meter = std::mem::take(&mut run.meter);
        let mut filled = Ok(());
        let grown = extend(spec, &opened, open, |block| {
            filled = match given {
                Some(list) => push_all(block, list, &mut meter),
                None => push_best(backend, block, &opened, open, &mut meter),
            };
        });
        let grown = known(run, grown)?;
        filled?;
        let Some(open) = &grown.open else { return Err(RpcError::internal("an extended block is not open")) };
        let (sealed, requests) = seal(spec, &grown, open, withdrawals).map_err(invalid)?;
        let sealed = known(run, sealed)?;
        let block = &sealed.head;
        BuiltBlock::write(&mut run.out, (&**block, &requests, tips(block), &*sidecars));
        Ok(())
    }
}

/// Returns the snapshot of a step, unless the step has missed state of an upstream. The request then runs again.
fn known(run: &mut Attempt<'_>, applied: Applied) -> Result<Snapshot> {
    run.overlay.add_missed(applied.missed);
    run.ensure_complete()?;
    Ok(applied.snapshot)
}

impl BuildBlock {
    /// Returns the header of the block to build, and its withdrawals.
    fn header(&self, backend: &Backend, parent: &Snapshot) -> Result<(Header, Withdrawals)> {
        let (spec, attributes) = (&backend.spec, &self.attributes);
        let (timestamp, withdrawals, root) =
            (attributes.timestamp.0, &attributes.withdrawals, attributes.parent_beacon_block_root);
        let head = &parent.head.header;
        let repeats = spec.timestamps_repeat(timestamp);
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
        if attributes.slot_number.is_some() {
            expect("slotNumber", true, "Amsterdam", spec.is_amsterdam_active_at_timestamp(timestamp))?;
        }
        let shanghai = spec.is_shanghai_active_at_timestamp(timestamp);
        let cancun = spec.is_cancun_active_at_timestamp(timestamp);
        expect("withdrawals", withdrawals.is_some(), "Shanghai", shanghai)?;
        expect("parentBeaconBlockRoot", root.is_some(), "Cancun", cancun)?;
        let chosen = Attributes {
            timestamp,
            fee_recipient: attributes.suggested_fee_recipient.into(),
            prev_randao: attributes.prev_randao.into(),
            beacon_root: root.map(B256::from).unwrap_or_default(),
            gas_limit: gas_limit_towards(WANTED_GAS_LIMIT, head.gas_limit),
        };
        let mut header = spec.next_header(head, head.number + 1, chosen);
        if header.block_access_list_hash.is_some() {
            header.slot_number = attributes.slot_number.map(|slot| slot.0).or(header.slot_number).or(Some(0));
        }
        if let Some(Data(data)) = &self.extra_data {
            header.extra_data = data.clone();
        }
        let withdrawals = withdrawals.iter().flatten().copied().map(Withdrawal::from);
        Ok((header, withdrawals.collect::<Vec<_>>().into()))
    }
}

/// Fills a block from the pool, without blob transactions, because the pool does not keep their blobs.
fn push_best(
    backend: &Backend,
    block: &mut SubBlock<'_, '_>,
    on: &Snapshot,
    open: &OpenBlock,
    meter: &mut Meter,
) -> Result<()> {
    let fees = BlockFees { base: open.header.base_fee_per_gas.unwrap_or_default(), blob: u128::MAX };
    let mut best = backend.pool.best(on, fees);
    while let Some(ready) = best.next(block.room()) {
        meter.check()?;
        let tx = ready.transaction();
        match block.push(Recovered::clone(tx).convert()) {
            Ok(true) => best.included(ready),
            // The request runs again when the state is known.
            Ok(false) => return Ok(()),
            Err(reason) => tracing::debug!(hash = %tx.tx_hash(), %reason, "a transaction is left out"),
        }
    }
    Ok(())
}

/// Appends all of the transactions.
fn push_all(block: &mut SubBlock<'_, '_>, list: Vec<Recovered<TxEnvelope>>, meter: &mut Meter) -> Result<()> {
    for (index, tx) in list.into_iter().enumerate() {
        meter.check()?;
        let ran = block.push(tx.convert());
        if !ran.map_err(|error| RpcError::new(-32000, format!("params[2][{index}]: {error}")))? {
            // The request runs again when the state is known.
            return Ok(());
        }
    }
    Ok(())
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
