//! execution-apis in geth's manner, for client libraries with strict types.

use std::{sync::OnceLock, time::Duration};

use alloy_primitives::Bytes;

use super::Dialect;
use crate::{
    engine::{BaseFeeRule, CallOutcome, HaltText, revert_reason},
    rpc::{json, protocol::error::RpcError},
};

/// The dialect of `/standard`.
pub static STANDARD: Dialect = Dialect {
    refuses_unknown_fields: false,
    requires_to_and_selector: false,
    base_fee: BaseFeeRule::ZeroWhenFree,
    // execution-apis, `eth_simulateV1`: `prevRandao` is zero by default, and simulated blocks are 12 seconds apart.
    keeps_prev_randao: false,
    block_time: Some(Duration::from_secs(12)),
    sends_from_wallet: true,
    state_roots: true,
    // geth's `estimateGasErrorRatio`.
    estimate_tolerance: 0.015,
    // A client that has a receipt reads `latest` next, and takes its next nonce from there.
    receipts_wait: true,
    // web3.py sends them.
    takes_integer_types: true,
    shows_fillers: true,
    shows_revert_data: false,
    shows_early_fields: false,
    counts_reverted_logs: true,
    revert: reverted,
    // EIP-5792's `AtomicityNotSupported`.
    not_atomic: (5760, "The wallet does not support atomic execution but the request requires it"),
    halt: |reason| RpcError::new(-32000, reason),
    // A string, as reth and alloy's types have it.
    many_error: |out, error| json::string(out, error.message()),
    call_error: |out, outcome, data, custom| match outcome {
        CallOutcome::Success => {}
        CallOutcome::Revert => {
            let reason = custom.or_else(|| revert_reason(data));
            json::value(out, &reverted_with(reason, data.clone()).into_object());
        }
        CallOutcome::Halt(reason) => {
            let text = HaltText(reason.clone()).to_string();
            json::value(out, &RpcError::new(VM_ERROR, text).into_object());
        }
    },
    document: OnceLock::new(),
};

/// geth's code of a revert.
const REVERTED: i32 = 3;
/// The code of execution-apis for a call that the EVM halted.
const VM_ERROR: i32 = -32015;

fn reverted(data: Bytes) -> RpcError {
    reverted_with(revert_reason(&data), data)
}

fn reverted_with(reason: Option<String>, data: Bytes) -> RpcError {
    let message = match reason {
        Some(reason) => format!("execution reverted: {reason}"),
        None => "execution reverted".to_owned(),
    };
    RpcError::with_data(REVERTED, message, data)
}
