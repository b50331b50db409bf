//! The parameters of `eth_callBundle`, and the transactions of signed bundles.

use std::fmt;

use alloy_consensus::{
    TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_primitives::{Address, U256};
use serde::Deserialize;

use super::{SelectorParam, ShapeLimits, parse};
use crate::{
    engine::{BlockOverrides, SimBlock, SimCall},
    ledger::Selector,
    pool::SentTransaction,
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

/// Checks the number of a bundle's transactions.
pub fn check_count(count: usize, most: usize) -> Result<()> {
    if count == 0 {
        return Err(RpcError::params("params[0].txs: empty: expected at least one signed transaction"));
    }
    if count > most {
        return Err(RpcError::limit(format!("params[0].txs: too many transactions: {count}, at most {most}")));
    }
    Ok(())
}

/// Decodes a transaction from its EIP-2718 bytes and recovers its sender. Drops the blobs of a transaction in network
/// form, because execution does not depend on them.
pub fn transaction(raw: &Data, place: impl fmt::Display) -> Result<Recovered<TxEnvelope>> {
    let SentTransaction { tx, .. } = decode(raw, &place)?;
    tx.try_into_recovered().map_err(|error| RpcError::params(format!("{place}: no recoverable sender: {error}")))
}

/// Decodes a transaction from its EIP-2718 bytes.
pub fn decode(raw: &Data, place: &impl fmt::Display) -> Result<SentTransaction> {
    SentTransaction::decode(&raw.0)
        .map_err(|error| RpcError::params(format!("{place}: not a signed transaction (EIP-2718): {error}")))
}
