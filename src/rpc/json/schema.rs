//! The shapes of what is written by hand: headers, transactions, logs, call frames and access lists of blocks.

#![expect(dead_code, reason = "the fields are shapes: the writers beside this file write them")]

use alloy_primitives::U256;
use schemars::JsonSchema;
use serde::Deserialize;

use super::hex::{Data, Fixed, Quantity, Word};

/// The fields of a header. A field that its fork has not begun is left out, or has its empty value.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    base_fee_per_gas: Option<Quantity<u64>>,
    blob_gas_used: Option<Quantity<u64>>,
    block_access_list_hash: Option<Fixed<32>>,
    difficulty: Quantity<U256>,
    excess_blob_gas: Option<Quantity<u64>>,
    extra_data: Data,
    gas_limit: Quantity<u64>,
    gas_used: Quantity<u64>,
    hash: Fixed<32>,
    logs_bloom: Data,
    miner: Fixed<20>,
    mix_hash: Fixed<32>,
    nonce: Data,
    number: Quantity<u64>,
    parent_beacon_block_root: Option<Fixed<32>>,
    parent_hash: Fixed<32>,
    receipts_root: Fixed<32>,
    requests_hash: Option<Fixed<32>>,
    sha3_uncles: Fixed<32>,
    slot_number: Option<Quantity<u64>>,
    state_root: Fixed<32>,
    timestamp: Quantity<u64>,
    /// The time in milliseconds, where the block tells it.
    timestamp_ms: Option<Quantity<u64>>,
    transactions_root: Fixed<32>,
    withdrawals_root: Option<Fixed<32>>,
}

/// A block: its header, and its content.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    #[serde(flatten)]
    header: Header,
    size: Quantity<u64>,
    transactions: Vec<BlockTransaction>,
    uncles: Vec<Fixed<32>>,
    withdrawals: Option<Vec<Withdrawal>>,
}

/// A transaction's hash, or the transaction in full.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum BlockTransaction {
    Hash(Fixed<32>),
    Full(Box<Transaction>),
}

/// The receipt of a transaction. Fields of the L1 cost are those of an OP-stack chain.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    blob_gas_used: Option<Quantity<u64>>,
    blob_gas_price: Option<Quantity<u128>>,
    block_hash: Fixed<32>,
    block_number: Quantity<u64>,
    contract_address: Option<Fixed<20>>,
    cumulative_gas_used: Quantity<u64>,
    gas_used: Quantity<u64>,
    logs: Vec<Log>,
    logs_bloom: Data,
    /// The state root after the transaction, before Byzantium.
    root: Option<Fixed<32>>,
    /// 1 if the transaction has succeeded.
    status: Option<Quantity<u64>>,
    effective_gas_price: Quantity<u128>,
    from: Fixed<20>,
    to: Option<Fixed<20>>,
    transaction_hash: Fixed<32>,
    transaction_index: Quantity<u64>,
    r#type: Quantity<u64>,
    deposit_nonce: Option<Quantity<u64>>,
    deposit_receipt_version: Option<Quantity<u64>>,
    l1_gas_price: Option<Quantity<U256>>,
    l1_gas_used: Option<Quantity<U256>>,
    l1_fee: Option<Quantity<U256>>,
    /// A decimal number.
    l1_fee_scalar: Option<String>,
    l1_base_fee_scalar: Option<Quantity<u64>>,
    l1_blob_base_fee: Option<Quantity<U256>>,
    l1_blob_base_fee_scalar: Option<Quantity<u64>>,
    operator_fee_scalar: Option<Quantity<u64>>,
    operator_fee_constant: Option<Quantity<u64>>,
    da_footprint_gas_scalar: Option<Quantity<u64>>,
    /// The gas that the sequencer has refunded to the transaction, if any. `gasUsed` is less by it.
    op_gas_refund: Option<Quantity<u64>>,
}

/// A transaction with its position. One that is in no block has null there. Some fields are those of an OP-stack deposit. A
/// post-execution transaction of the OP stack (type 0x7d) has only its position, from, gas, hash, input, type and value.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transaction {
    block_hash: Option<Fixed<32>>,
    block_number: Option<Quantity<u64>>,
    block_timestamp: Option<Quantity<u64>>,
    block_timestamp_ms: Option<Quantity<u64>>,
    transaction_index: Option<Quantity<u64>>,
    from: Fixed<20>,
    gas: Quantity<u64>,
    gas_price: Option<Quantity<u128>>,
    max_fee_per_gas: Option<Quantity<u128>>,
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    max_fee_per_blob_gas: Option<Quantity<u128>>,
    hash: Fixed<32>,
    input: Data,
    nonce: Option<Quantity<u64>>,
    to: Option<Fixed<20>>,
    value: Quantity<U256>,
    r#type: Quantity<u64>,
    access_list: Option<Vec<AccessListItem>>,
    chain_id: Option<Quantity<u64>>,
    blob_versioned_hashes: Option<Vec<Fixed<32>>>,
    authorization_list: Option<Vec<Authorization>>,
    v: Option<Quantity<u64>>,
    r: Option<Quantity<U256>>,
    s: Option<Quantity<U256>>,
    y_parity: Option<Quantity<u64>>,
    source_hash: Option<Fixed<32>>,
    mint: Option<Quantity<u128>>,
    is_system_tx: Option<bool>,
    deposit_receipt_version: Option<Quantity<u64>>,
}

/// A transaction that is filled in or signed: its encoding (EIP-2718), and its fields.
#[derive(JsonSchema)]
pub struct PreparedTransaction {
    raw: Data,
    tx: TransactionFields,
}

/// The fields of a transaction that is not sent. The price that its type does not have is null. The signature is zeros if it is not
/// signed.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TransactionFields {
    r#type: Quantity<u64>,
    chain_id: Option<Quantity<u64>>,
    nonce: Quantity<u64>,
    to: Option<Fixed<20>>,
    gas: Quantity<u64>,
    gas_price: Option<Quantity<u128>>,
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    max_fee_per_gas: Option<Quantity<u128>>,
    value: Quantity<U256>,
    input: Data,
    access_list: Option<Vec<AccessListItem>>,
    authorization_list: Option<Vec<Authorization>>,
    v: Quantity<u64>,
    r: Quantity<U256>,
    s: Quantity<U256>,
    y_parity: Option<Quantity<u64>>,
    hash: Fixed<32>,
}

/// An address that a transaction accesses, and its slots (EIP-2930).
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccessListItem {
    address: Fixed<20>,
    storage_keys: Vec<Fixed<32>>,
}

/// A signed permission to set an account's code (EIP-7702).
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Authorization {
    chain_id: Quantity<U256>,
    address: Fixed<20>,
    nonce: Quantity<u64>,
    y_parity: Quantity<u64>,
    r: Quantity<U256>,
    s: Quantity<U256>,
}

/// A withdrawal from the beacon chain (EIP-4895). The amount is in gwei.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Withdrawal {
    pub index: Quantity<u64>,
    pub validator_index: Quantity<u64>,
    pub address: Fixed<20>,
    pub amount: Quantity<u64>,
}

/// A log with its position, where it has one.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    address: Fixed<20>,
    topics: Vec<Fixed<32>>,
    data: Data,
    block_number: Option<Quantity<u64>>,
    transaction_hash: Option<Fixed<32>>,
    transaction_index: Option<Quantity<u64>>,
    block_hash: Option<Fixed<32>>,
    block_timestamp: Option<Quantity<u64>>,
    block_timestamp_ms: Option<Quantity<u64>>,
    log_index: Quantity<u64>,
    /// Whether the log's block was replaced.
    removed: Option<bool>,
}

/// The reason why a call has failed: on `/` a text, on `/standard` an object.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum CallError {
    Text(String),
    Object { code: i32, message: String, data: Option<Data> },
}

/// A call frame of geth's `callTracer`.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallFrame {
    r#type: String,
    from: Fixed<20>,
    to: Option<Fixed<20>>,
    value: Option<Quantity<U256>>,
    gas: Quantity<u64>,
    gas_used: Quantity<u64>,
    input: Data,
    output: Option<Data>,
    error: Option<String>,
    revert_reason: Option<String>,
    calls: Option<Vec<CallFrame>>,
    logs: Option<Vec<FrameLog>>,
    /// The gas of the first frame by its two dimensions, from Amsterdam on.
    regular_gas_used: Option<Quantity<u64>>,
    state_gas_used: Option<Quantity<u64>>,
    gas_refund: Option<Quantity<u64>>,
}

/// A log of a call frame.
#[derive(JsonSchema)]
struct FrameLog {
    address: Fixed<20>,
    topics: Vec<Fixed<32>>,
    data: Data,
    /// The number of the frame's calls before the log.
    position: Option<Quantity<u64>>,
    index: Option<Quantity<u64>>,
}

/// The part of a block's access list about an account (EIP-7928).
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountChanges {
    address: Fixed<20>,
    storage_changes: Vec<SlotChanges>,
    storage_reads: Vec<Word>,
    balance_changes: Vec<ValueChange<Quantity<U256>>>,
    nonce_changes: Vec<ValueChange<Quantity<u64>>>,
    code_changes: Vec<CodeChange>,
}

#[derive(JsonSchema)]
struct SlotChanges {
    key: Word,
    changes: Vec<ValueChange<Word>>,
}

/// A value after the transaction with this index.
#[derive(JsonSchema)]
#[schemars(inline)]
struct ValueChange<T> {
    index: Quantity<u64>,
    value: T,
}

#[derive(JsonSchema)]
struct CodeChange {
    index: Quantity<u64>,
    code: Data,
}

/// The change of an account: the values before and after, where they differ.
#[derive(JsonSchema)]
pub struct AccountDifference {
    balance: Option<BalanceDifference>,
    nonce: Option<Difference<Quantity<u64>>>,
    code: Option<Difference<Data>>,
    storage: Option<std::collections::BTreeMap<String, Difference<Word>>>,
}

/// The values before and after, or for the fee recipient by how much its balance changes.
#[derive(JsonSchema)]
struct BalanceDifference {
    from: Option<Quantity<U256>>,
    to: Option<Quantity<U256>>,
    /// A decimal number, which may be negative.
    change: Option<String>,
}

/// A value before and after.
#[derive(JsonSchema)]
pub struct Difference<T> {
    from: T,
    to: T,
}
