//! Notifications of subscriptions.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, LogData};
use serde::{Deserialize, Serialize};

use crate::{AccountDifference, FeedState, Verified};

/// A snapshot, as `presim_snapshots` announces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PublishedSnapshot {
    /// The id, for [`BlockSelector::snapshot`](crate::BlockSelector::snapshot).
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
    /// The number of the block being built.
    #[serde(with = "alloy_serde::quantity")]
    pub block_number: u64,
    /// The number of sub-blocks of the block so far.
    #[serde(with = "alloy_serde::quantity")]
    pub index: u64,
    /// The time of the block in seconds since 1970.
    #[serde(with = "alloy_serde::quantity")]
    pub timestamp: u64,
    /// The gas that the block has used so far.
    #[serde(with = "alloy_serde::quantity")]
    pub gas_used: u64,
    /// The base fee of the block in wei per unit of gas, from London on.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub base_fee_per_gas: Option<u64>,
    /// The hashes of the block's transactions that are new.
    pub transactions: Vec<B256>,
    /// The blocks that were sealed since the last snapshot, and have new transactions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sealed: Vec<NewInSealed>,
    /// The accounts that have changed. `None` if they are not known.
    pub touched: Option<Vec<Address>>,
}

impl PublishedSnapshot {
    /// Returns the number of the block that has a transaction, if the transaction is new with this snapshot.
    pub fn block_of(&self, transaction: B256) -> Option<u64> {
        let sealed = self.sealed.iter().map(|block| (block.block_number, &block.transactions));
        let mut blocks = sealed.chain([(self.block_number, &self.transactions)]);
        blocks.find_map(|(number, hashes)| hashes.contains(&transaction).then_some(number))
    }
}

/// The new transactions of a sealed block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewInSealed {
    /// The number of the block.
    #[serde(with = "alloy_serde::quantity")]
    pub block_number: u64,
    /// The hashes of the block's transactions that are new.
    pub transactions: Vec<B256>,
}

/// The state of the feed, as `presim_feed` announces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FeedChange {
    /// The state.
    pub state: FeedState,
    /// The cause of `/health`, while the feed lags or is degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The age in milliseconds of the oldest sub-block that waits, while the feed lags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// The number of sub-blocks that wait, while the feed lags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_sub_blocks: Option<u64>,
    /// The part of the newest snapshot's block that was compared with its producer's figures.
    pub verified: Verified,
}

/// The changes since the last notification, as `presim_stateChanges` announces them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StateChanges {
    /// The changes are known.
    Known(KnownChanges),
    /// The changes are not known: everything that a client has of the state may be wrong.
    Reset(Reset),
}

/// The changes of the state, and the logs of new transactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KnownChanges {
    /// The id of the snapshot.
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
    /// The changes, by account.
    pub changes: BTreeMap<Address, AccountDifference>,
    /// The logs of the new transactions.
    pub logs: Vec<NewLog>,
}

/// A snapshot whose changes are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reset {
    /// Always `true`.
    pub reset: bool,
    /// The id of the snapshot.
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
}

/// A log of a new transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewLog {
    /// The contract.
    pub address: Address,
    /// The topics.
    pub topics: Vec<B256>,
    /// The data.
    pub data: Bytes,
    /// The hash of the transaction.
    pub transaction_hash: B256,
}

impl NewLog {
    /// Returns the log in the form in which alloy decodes events, or `None` if it has more than four topics.
    pub fn into_log(self) -> Option<alloy_primitives::Log> {
        Some(alloy_primitives::Log { address: self.address, data: LogData::new(self.topics, self.data)? })
    }
}
