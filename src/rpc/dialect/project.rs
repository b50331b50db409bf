//! presim's own contract: `api.md`.

use super::Dialect;
use crate::{
    chain::ChainSpec,
    engine::{BaseFeeRule, CallOutcome, HaltText, revert_reason},
    rpc::{encode, error::RpcError},
};

/// What `/` speaks unless told otherwise.
pub static PROJECT: Dialect = Dialect {
    refuses_unknown_fields: true,
    requires_to_and_selector: true,
    base_fee: BaseFeeRule::Block,
    block_time: ChainSpec::block_time,
    state_roots: false,
    estimate_tolerance: 0.0,
    shows_fillers: false,
    shows_revert_data: true,
    shows_early_fields: true,
    // As on the chain, where a reverted log was never there.
    counts_reverted_logs: false,
    // api.md 7.1: one message, the reason in `data`.
    revert: |data| RpcError::with_data(-32000, "execution reverted", data),
    // api.md 7.2.
    not_atomic: (5710, "EIP-7702 not supported on the specified chain ID"),
    halt: |reason| RpcError::new(-32000, reason),
    many_error: |out, error| encode::value(out, error),
    // api.md 2.5: a string, the revert reason.
    call_error: |out, outcome, data| match outcome {
        CallOutcome::Success => {}
        CallOutcome::Revert => match revert_reason(data) {
            Some(reason) => encode::string(out, &reason),
            None => encode::string(out, "execution reverted"),
        },
        CallOutcome::Halt(reason) => encode::string(out, &HaltText(reason.clone()).to_string()),
    },
};
