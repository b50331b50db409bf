//! The state of a node: its newest snapshot, its load, divergences, bundles that were sent, and requests to approve.

use std::collections::BTreeMap;

use alloy_eips::BlockNumHash;
use alloy_primitives::{Address, B256, Bytes, I256, U256};
use serde::{Deserialize, Serialize};

/// The state of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum FeedState {
    /// Sub-blocks are applied on time.
    Live,
    /// The feed is late.
    Lagging,
    /// The chain has no feed.
    Static,
    /// The feed is broken, and `pending` is the canonical head.
    Degraded,
    /// A state that this version of the crate does not know.
    #[serde(other)]
    Unknown,
}

/// The part of the block so far that was compared with its producer's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Verified {
    /// Gas, receipts root and logs bloom.
    Full,
    /// The block was not executed: its state is from its access list (EIP-7928).
    List,
    /// Gas, balances or single receipts.
    Partial,
    /// Nothing.
    None,
    /// A part that this version of the crate does not know.
    #[serde(other)]
    Unknown,
}

/// The newest snapshot, and the state of its feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewestSnapshot {
    /// The id, for [`BlockSelector::snapshot`](crate::BlockSelector::snapshot).
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
    /// The number of the block being built.
    #[serde(with = "alloy_serde::quantity")]
    pub block_number: u64,
    /// The number of sub-blocks of the block so far.
    #[serde(with = "alloy_serde::quantity")]
    pub index: u64,
    /// The age in milliseconds.
    pub age_ms: u64,
    /// The newest sealed or canonical block.
    pub head: Head,
    /// The state of the feed.
    pub feed: FeedState,
    /// The part of the block that was compared with its producer's figures.
    pub verified: Verified,
    /// The name of the fork whose rules apply to the block.
    pub fork: String,
    /// The reason why the feed lags or is degraded: a cause of `/health`, such as `disconnected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The age in milliseconds of the oldest sub-block that waits, while the feed lags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// The number of sub-blocks that wait, while the feed lags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_sub_blocks: Option<u64>,
}

/// A block by its number and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Head {
    /// The number.
    #[serde(with = "alloy_serde::quantity")]
    pub number: u64,
    /// The hash.
    pub hash: B256,
}

impl From<Head> for BlockNumHash {
    fn from(Head { number, hash }: Head) -> Self {
        Self { number, hash }
    }
}

/// A difference between pre-confirmed results and the producer's data or the canonical block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Divergence {
    /// The time in milliseconds since 1970.
    pub time: u64,
    /// The number of the block.
    #[serde(with = "alloy_serde::quantity")]
    pub block: u64,
    /// The index of the sub-block. `None` if the canonical block differs.
    #[serde(default, with = "alloy_serde::quantity::opt")]
    pub index: Option<u64>,
    /// The hash of the transaction, if the difference is one transaction's.
    #[serde(default)]
    pub transaction: Option<B256>,
    /// The name of the field.
    pub field: String,
    /// The value that the node has computed, as text.
    pub computed: String,
    /// The value of the producer or of the canonical block, as text.
    pub announced: String,
}

/// The outcome of a bundle of `eth_sendBundle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Outcome {
    /// The bundle waits.
    Pending,
    /// The bundle is in a block.
    Mined {
        /// The number of the block, possibly of the one being built.
        #[serde(with = "alloy_serde::quantity")]
        block_number: u64,
    },
    /// The bundle was dropped.
    Dropped {
        /// The reason in words.
        reason: String,
    },
}

/// The load of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NodeStatus {
    /// The name and version of the node, such as `presim/v0.1.0`.
    pub version: String,
    /// The id of the chain (EIP-155).
    #[serde(with = "alloy_serde::quantity")]
    pub chain_id: u64,
    /// The time since the start in milliseconds.
    pub uptime_ms: u64,
    /// The number of CPU workers.
    pub workers: u64,
    /// The part of one core that the process used in the window, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// The memory of the node.
    pub memory: MemoryStatus,
    /// The number of subscriptions.
    pub subscriptions: u64,
    /// The number of transactions in the pool.
    pub pool: u64,
    /// The time in milliseconds to which rates and percentiles refer.
    pub window_ms: u64,
    /// The requests of all methods.
    pub requests: RequestsStatus,
    /// The requests by method.
    pub methods: Vec<MethodStatus>,
    /// The load of the lanes, by name.
    pub lanes: BTreeMap<String, LaneStatus>,
    /// The standing bundles of the client.
    pub standing: StandingStatus,
    /// The contracts that the node knows by name.
    pub contracts: Vec<NamedContract>,
    /// The state of the feed.
    pub feed: FeedSummary,
    /// The warning of `/health`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MemoryStatus {
    /// The bytes held for connections.
    pub io_bytes: u64,
    /// The bytes of bytecode.
    pub code_bytes: u64,
    /// The bytes of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
}

/// The requests of all methods.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RequestsStatus {
    /// The number since the start.
    pub total: u64,
    /// The number of rejected requests since the start.
    pub rejected: u64,
    /// The number in a second.
    pub per_second: f64,
    /// The number of rejected requests in a second.
    pub rejected_per_second: f64,
}

/// The requests of a method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct MethodStatus {
    /// The name of the method.
    pub method: String,
    /// The number since the start.
    pub total: u64,
    /// The number in a second.
    pub per_second: f64,
    /// The number of errors in a second.
    pub failed_per_second: f64,
    /// The number of rejected requests in a second.
    pub rejected_per_second: f64,
    /// The median duration in microseconds.
    pub p50_us: u64,
    /// The 99th percentile of the duration in microseconds.
    pub p99_us: u64,
}

/// The load of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The number of waiting requests.
    pub waiting: u64,
    /// The number of running requests.
    pub running: u64,
    /// The number of rejected requests since the start.
    pub rejected: u64,
    /// Whether the lane rejects requests of clients above their quota.
    pub overloaded: bool,
}

/// The standing bundles of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StandingStatus {
    /// The number.
    pub count: u64,
    /// The twenty with the best objectives.
    pub best: Vec<StandingSummary>,
}

/// A standing bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StandingSummary {
    /// The name of the bundle.
    pub name: String,
    /// The objective of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<I256>,
    /// The newest snapshot for which the answer is known to hold.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub holds_at: Option<u64>,
    /// Whether the bundle has to run again.
    pub is_due: bool,
}

/// A contract that a node knows by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NamedContract {
    /// The name.
    pub name: String,
    /// The address.
    pub address: Address,
}

/// The state of a feed, with the time between its sub-blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FeedSummary {
    /// The state.
    pub state: FeedState,
    /// The time between two sub-blocks in milliseconds, if the feed is live or late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// The cause in words, if the feed is late or degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
}

/// The requests that wait for an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approvals {
    /// The requests, beginning with the one that has waited longest.
    pub batches: Vec<Question>,
    /// The number of further requests, for which the list has no room.
    pub more: u64,
    /// The ids of withdrawn requests that no other request gets yet.
    #[serde(default)]
    pub withdrawn: Vec<WithdrawnIds>,
}

/// The withdrawn ids of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WithdrawnIds {
    /// The name of the client's token.
    #[serde(default)]
    pub client: Option<String>,
    /// The number of ids.
    pub ids: u64,
}

/// A request that waits for an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Question {
    /// The number of the request in the order of arrival.
    pub number: u64,
    /// The digest of the request.
    pub digest: B256,
    /// The time in milliseconds that the request has waited.
    pub waited_ms: u64,
    /// The time in milliseconds until the request is rejected.
    pub left_ms: u64,
    /// The id of a batch, or a random one.
    pub id: String,
    /// The account that signs.
    pub from: Address,
    /// The id of the chain (EIP-155).
    pub chain_id: u64,
    /// The name of the client's token.
    #[serde(default)]
    pub client: Option<String>,
    /// The origin of the page, as its browser names it.
    #[serde(default)]
    pub page: Option<String>,
    /// The act to be approved.
    #[serde(flatten)]
    pub act: Act,
}

/// An act to be approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Act {
    /// A batch is signed and sent.
    Batch {
        /// Whether all calls are executed or none.
        atomic: bool,
        /// The code to which the account is to be delegated (EIP-7702).
        upgrade: Option<Address>,
        /// The number of transactions to be signed.
        transactions: u64,
        /// The maximum gas fees of the transactions in wei.
        most_fees: U256,
        /// The estimated fees of the OP stack in wei.
        #[serde(default)]
        data_fees: U256,
        /// The calls, in their order.
        calls: Vec<AskedCall>,
        /// The account's changes of assets in words, without gas fees.
        assets: Vec<String>,
    },
    /// A message is signed (`personal_sign`).
    Message {
        /// The message, without the prefix of EIP-191.
        message: Bytes,
        /// The hash that is signed.
        hash: B256,
    },
    /// Typed data is signed (`eth_signTypedData_v4`).
    TypedData {
        /// The fields of the domain.
        domain: Vec<ShownField>,
        /// The name of the message's type.
        primary_type: String,
        /// The fields of the message.
        fields: Vec<ShownField>,
        /// The signature's use in words, in lines.
        words: Vec<String>,
        /// The hash that is signed.
        hash: B256,
    },
    /// A transaction is signed and not sent (`eth_signTransaction`).
    Transaction {
        /// The fields of the transaction.
        fields: Vec<ShownField>,
        /// The call in words, in lines.
        words: Vec<String>,
        /// The hash that is signed.
        hash: B256,
    },
}

/// A call of a batch, as an approver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AskedCall {
    /// The callee. `None` creates a contract.
    pub to: Option<Address>,
    /// The value in wei.
    pub value: U256,
    /// The call data.
    pub data: Bytes,
    /// The gas limit that the client has set.
    pub gas_limit: Option<u64>,
    /// The result of the call in the simulation, in words.
    pub outcome: String,
    /// The call in words, in lines. Empty if its function is not known.
    pub words: Vec<String>,
}

/// A field of a message or transaction, as an approver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShownField {
    /// The name, after the names of the fields around it.
    pub name: String,
    /// The value. Texts are quoted and escaped.
    pub value: String,
}
