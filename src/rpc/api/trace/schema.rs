//! The shapes of traces, which [`json::trace`](crate::rpc::json::trace) and [`json::parity_results`](crate::rpc::json::parity_results)
//! write.

#![expect(dead_code, reason = "the fields are shapes")]

use std::collections::BTreeMap;

use alloy_primitives::U256;
use schemars::JsonSchema;

use crate::rpc::{
    json::{
        hex::{Data, Fixed, Quantity, Word},
        schema::{CallFrame, Difference},
    },
    params::AddressKey,
};

/// The result of a tracer: the struct logger, `callTracer`, `flatCallTracer`, `prestateTracer`, `4byteTracer`,
/// `stateGasTracer` or `muxTracer`. The result of `noopTracer` is empty.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Trace {
    Steps(StepTrace),
    Calls(Box<CallFrame>),
    FlatCalls(Vec<Frame>),
    /// The accounts and slots before the call.
    PreState(BTreeMap<AddressKey, AccountState>),
    /// The accounts and slots that the call changed, before and after.
    Changes {
        post: BTreeMap<AddressKey, AccountState>,
        pre: BTreeMap<AddressKey, AccountState>,
    },
    /// The numbers of calls, by function selector and size of the data.
    FourByte(BTreeMap<String, u64>),
    StateGas(StateGas),
    /// The results by the names of their tracers.
    Mux(BTreeMap<String, Trace>),
}

/// A transaction of a block, and its trace.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracedTransaction {
    tx_hash: Fixed<32>,
    result: Trace,
}

/// The result of the struct logger. The gas in two dimensions is present from Amsterdam on.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepTrace {
    gas: u64,
    regular_gas_used: Option<u64>,
    state_gas_used: Option<u64>,
    gas_refund: Option<u64>,
    /// Whether the call reverted, or the EVM stopped it.
    failed: bool,
    return_value: Data,
    struct_logs: Vec<Step>,
}

/// An opcode that ran.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Step {
    pc: u64,
    op: String,
    gas: u64,
    gas_cost: u64,
    depth: u64,
    error: Option<String>,
    stack: Option<Vec<Quantity<U256>>>,
    return_data: Option<Data>,
    /// The memory in words of 32 bytes.
    memory: Option<Vec<Data>>,
    /// The slots that the contract has read or written so far.
    storage: Option<BTreeMap<String, Word>>,
    refund: Option<u64>,
}

/// An account of `prestateTracer`.
#[derive(JsonSchema)]
pub struct AccountState {
    balance: Option<Quantity<U256>>,
    code: Option<Data>,
    nonce: Option<u64>,
    storage: Option<BTreeMap<String, Fixed<32>>>,
}

/// The result of `stateGasTracer`: gas in both dimensions (EIP-8037).
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StateGas {
    gas_used: Quantity<u64>,
    regular_gas_used: Quantity<u64>,
    state_gas_used: Quantity<u64>,
    gas_refund: Quantity<u64>,
}

/// A frame in Parity's form. A frame of a transaction of the chain has its position there.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ParityFrame")]
pub struct Frame {
    action: Action,
    block_hash: Option<Fixed<32>>,
    block_number: Option<u64>,
    error: Option<String>,
    result: Option<FrameResult>,
    /// The number of the frame's calls.
    subtraces: u64,
    /// The index of the frame, and of each frame around it except the outermost, among the calls of its parent.
    trace_address: Vec<u64>,
    transaction_hash: Option<Fixed<32>>,
    transaction_position: Option<u64>,
    /// The kind of the action: call, create, suicide or reward.
    r#type: String,
}

/// The input of a frame: a call, a creation, a self-destruction or a reward.
#[derive(JsonSchema)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Action {
    Call { from: Fixed<20>, call_type: String, gas: Quantity<u64>, input: Data, to: Fixed<20>, value: Quantity<U256> },
    Create { from: Fixed<20>, gas: Quantity<u64>, init: Data, value: Quantity<U256>, creation_method: String },
    SelfDestruct { address: Fixed<20>, balance: Quantity<U256>, refund_address: Fixed<20> },
    Reward { author: Fixed<20>, reward_type: String, value: Quantity<U256> },
}

/// The outcome of a call or of a creation.
#[derive(JsonSchema)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum FrameResult {
    Call { gas_used: Quantity<u64>, output: Data },
    Create { address: Fixed<20>, code: Data, gas_used: Quantity<u64> },
}

/// A trace in Parity's form. A part that was not asked for is empty or null.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParityTrace {
    output: Data,
    state_diff: Option<BTreeMap<AddressKey, AccountDelta>>,
    trace: Vec<Frame>,
    vm_trace: Option<VmTrace>,
    /// The hash of the transaction, where a block is replayed.
    transaction_hash: Option<Fixed<32>>,
}

/// The change of an account, in Parity's form.
#[derive(JsonSchema)]
struct AccountDelta {
    balance: Delta<Quantity<U256>>,
    code: Delta<Data>,
    nonce: Delta<Quantity<u64>>,
    storage: BTreeMap<String, Delta<Fixed<32>>>,
}

/// The change of a value: = for none, + for a new value, - for a removed one, and * for both.
#[derive(JsonSchema)]
#[schemars(inline)]
enum Delta<T> {
    #[serde(rename = "=")]
    Unchanged,
    #[serde(rename = "+")]
    Added(T),
    #[serde(rename = "-")]
    Removed(T),
    #[serde(rename = "*")]
    Changed(Difference<T>),
}

/// The opcodes of a frame.
#[derive(JsonSchema)]
struct VmTrace {
    code: Data,
    ops: Vec<VmOp>,
}

/// An opcode, its changes, and the frame that it called.
#[derive(JsonSchema)]
struct VmOp {
    cost: u64,
    ex: Option<VmChange>,
    pc: u64,
    sub: Option<VmTrace>,
    op: Option<String>,
}

/// The changes of an opcode, and the gas that is left after it.
#[derive(JsonSchema)]
struct VmChange {
    mem: Option<MemoryChange>,
    push: Vec<Quantity<U256>>,
    store: Option<SlotWrite>,
    used: u64,
}

#[derive(JsonSchema)]
struct MemoryChange {
    data: Data,
    off: u64,
}

#[derive(JsonSchema)]
struct SlotWrite {
    key: Quantity<U256>,
    val: Quantity<U256>,
}
