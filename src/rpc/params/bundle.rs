//! The parameters of the methods for signed bundles: `eth_callBundle`, `eth_sendBundle`, `eth_cancelBundle`.

use std::fmt;

use alloy_consensus::{
    TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_primitives::{Address, B256, U256, map::B256Map};
use serde::Deserialize;

use super::{SelectorParam, ShapeLimits, parse};
use crate::{
    engine::{BlockOverrides, SimBlock, SimCall},
    ledger::Selector,
    pool::{SentBundle, SentTransaction},
    rpc::{
        json::hex::{Data, Fixed, Number},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

params! {
    BundleParams(FlashbotsBundleParam) = "1 parameter: the bundle";
    SendBundleParams(SentBundleParam) = "1 parameter: the bundle";
    CancelBundleParams(CancelledBundleParam) = "1 parameter: an object with the replacementUuid";
}

/// A bundle, with the fields that Flashbots documents.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FlashbotsBundleParam {
    txs: Vec<Data>,
    block_number: Number<u64>,
    state_block_number: SelectorParam,
    timestamp: Option<Number<u64>>,
    coinbase: Option<Fixed<20>>,
    gas_limit: Option<Number<u64>>,
    difficulty: Option<Number<U256>>,
    base_fee: Option<Number<u64>>,
    timeout: Option<Number<u64>>,
    transaction_index: Option<i64>,
}

/// Maximum number of a bundle's transactions that are sent, as Flashbots documents it for its relay.
const MAX_SENT: usize = 100;
/// Maximum length of the name under which a bundle is replaced or cancelled, in bytes. A UUID has 36.
const MAX_UUID: usize = 64;

/// A bundle to be mined, with the fields that Flashbots documents.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentBundleParam {
    txs: Vec<Data>,
    block_number: Number<u64>,
    min_timestamp: Option<Number<u64>>,
    max_timestamp: Option<Number<u64>>,
    #[serde(default)]
    reverting_tx_hashes: Option<Vec<Fixed<32>>>,
    #[serde(alias = "uuid")]
    replacement_uuid: Option<String>,
}

/// The name of a bundle to be cancelled.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelledBundleParam {
    #[serde(alias = "uuid")]
    replacement_uuid: String,
}

/// The parsed parameters of `eth_callBundle`.
#[derive(Debug)]
pub struct ParsedBundle {
    /// The block of the bundle, with its transactions decoded and their senders recovered.
    pub bundle: SimBlock,
    /// The block whose state the bundle runs on.
    pub state: Selector,
    /// The client's time limit in milliseconds. `None` and zero leave the node's own limit.
    pub timeout: Option<u64>,
}

/// Parses a bundle, decodes its transactions and recovers their senders.
pub fn parse_bundle(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<ParsedBundle> {
    let BundleParams(bundle, ()) = parse(params, dialect)?;
    check_count(bundle.txs.len(), limits.max_block_calls)?;
    // A state named by its block includes all transactions of the block, which is what -1 means.
    if let Some(index) = bundle.transaction_index.filter(|index| *index != -1) {
        return Err(RpcError::params(format!(
            "params[0].transactionIndex: {index}: not supported: expected -1, or a snapshotId in stateBlockNumber"
        )));
    }
    let calls =
        bundle.txs.iter().enumerate().map(|(index, raw)| {
            Ok(SimCall::Signed(Box::new(transaction(raw, format_args!("params[0].txs[{index}]"))?)))
        });
    let calls = calls.collect::<Result<_>>()?;
    let block = BlockOverrides {
        number: Some(bundle.block_number.0),
        time: bundle.timestamp.map(|time| time.0),
        fee_recipient: bundle.coinbase.map(Address::from),
        gas_limit: bundle.gas_limit.map(|gas| gas.0),
        difficulty: bundle.difficulty.map(|difficulty| difficulty.0),
        base_fee: bundle.base_fee.map(|fee| fee.0),
        ..BlockOverrides::default()
    };
    Ok(ParsedBundle {
        bundle: SimBlock { calls, block, ..SimBlock::default() },
        state: bundle.state_block_number.0,
        timeout: bundle.timeout.map(|timeout| timeout.0),
    })
}

/// Parses a bundle to be mined, and decodes its transactions. Its name is returned beside it.
pub fn parse_sent_bundle(params: &str, dialect: &Dialect) -> Result<(SentBundle, Option<String>)> {
    let SendBundleParams(bundle, ()) = parse(params, dialect)?;
    check_count(bundle.txs.len(), MAX_SENT)?;
    let transactions =
        bundle.txs.iter().enumerate().map(|(index, raw)| decode(raw, &format_args!("params[0].txs[{index}]")));
    let transactions = transactions.collect::<Result<Vec<_>, _>>()?;
    let mut indices = B256Map::default();
    for (index, sent) in transactions.iter().enumerate() {
        if let Some(first) = indices.insert(*sent.tx.tx_hash(), index) {
            return Err(RpcError::params(format!(
                "params[0].txs[{index}]: expected another transaction than txs[{first}]"
            )));
        }
    }
    let may_revert: Vec<B256> = bundle.reverting_tx_hashes.into_iter().flatten().map(B256::from).collect();
    if let Some((index, hash)) = may_revert.iter().enumerate().find(|(_, hash)| !indices.contains_key(*hash)) {
        return Err(RpcError::params(format!(
            "params[0].revertingTxHashes[{index}]: {hash}: expected the hash of a transaction of the bundle"
        )));
    }
    // Zero means that there is no bound, as in mev-geth.
    let [min_timestamp, max_timestamp] =
        [bundle.min_timestamp, bundle.max_timestamp].map(|time| time.map_or(0, |time| time.0));
    if max_timestamp != 0 && max_timestamp < min_timestamp {
        return Err(RpcError::params(format!(
            "params[0].maxTimestamp: {max_timestamp}: expected at least minTimestamp, {min_timestamp}"
        )));
    }
    if let Some(uuid) = &bundle.replacement_uuid {
        check_uuid(uuid)?;
    }
    let max_timestamp = if max_timestamp == 0 { u64::MAX } else { max_timestamp };
    let block = bundle.block_number.0;
    let sent = SentBundle { transactions, block, min_timestamp, max_timestamp, may_revert, name: None };
    Ok((sent, bundle.replacement_uuid))
}

/// Parses the name of a bundle to be cancelled.
pub fn parse_cancelled_bundle(params: &str, dialect: &Dialect) -> Result<String> {
    let CancelBundleParams(CancelledBundleParam { replacement_uuid }, ()) = parse(params, dialect)?;
    check_uuid(&replacement_uuid)?;
    Ok(replacement_uuid)
}

fn check_count(count: usize, most: usize) -> Result<()> {
    if count == 0 {
        return Err(RpcError::params("params[0].txs: empty: expected at least one signed transaction"));
    }
    if count > most {
        return Err(RpcError::limit(format!("params[0].txs: too many transactions: {count}, at most {most}")));
    }
    Ok(())
}

fn check_uuid(uuid: &str) -> Result<()> {
    let length = uuid.len();
    match (1..=MAX_UUID).contains(&length) {
        true => Ok(()),
        false => Err(RpcError::params(format!(
            "params[0].replacementUuid: {length} bytes: expected a UUID, or another text of 1 to {MAX_UUID} bytes"
        ))),
    }
}

/// Decodes a transaction from its EIP-2718 bytes and recovers its sender. Drops the blobs of a transaction in network
/// form, because execution does not depend on them.
pub fn transaction(raw: &Data, place: impl fmt::Display) -> Result<Recovered<TxEnvelope>> {
    let SentTransaction { tx, .. } = decode(raw, &place)?;
    tx.try_into_recovered().map_err(|error| RpcError::params(format!("{place}: no recoverable sender: {error}")))
}

/// Decodes a transaction from its EIP-2718 bytes.
fn decode(raw: &Data, place: &impl fmt::Display) -> Result<SentTransaction> {
    SentTransaction::decode(&raw.0)
        .map_err(|error| RpcError::params(format!("{place}: not a signed transaction (EIP-2718): {error}")))
}
