//! The shapes of call frames, which the writers of traces write.

#![expect(dead_code, reason = "the fields are shapes: the writers beside this file write them")]

use alloy_primitives::U256;
use schemars::JsonSchema;

pub use super::difference::Difference;
use super::hex::{Data, Fixed, Quantity};

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
