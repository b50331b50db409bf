//! The transactions of signed bundles.

use std::fmt;

use alloy_consensus::{
    TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};

use crate::{
    pool::SentTransaction,
    rpc::{
        json::hex::Data,
        protocol::error::{Result, RpcError},
    },
};

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
pub fn transaction(raw: &Data, path: impl fmt::Display) -> Result<Recovered<TxEnvelope>> {
    with_sender(decode(raw, &path)?.tx, path)
}

/// Recovers the sender of a transaction.
pub fn with_sender(tx: TxEnvelope, path: impl fmt::Display) -> Result<Recovered<TxEnvelope>> {
    tx.try_into_recovered().map_err(|error| RpcError::params(format!("{path}: no recoverable sender: {error}")))
}

/// Decodes a transaction from its EIP-2718 bytes.
pub fn decode(raw: &Data, path: &impl fmt::Display) -> Result<SentTransaction> {
    SentTransaction::decode(&raw.0)
        .map_err(|error| RpcError::params(format!("{path}: not a signed transaction (EIP-2718): {error}")))
}
