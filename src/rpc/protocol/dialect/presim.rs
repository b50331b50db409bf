//! presim's own contract, which `src/rpc/README.md` describes.

use std::sync::OnceLock;

use super::{Dialect, ErrorForm};
use crate::{engine::BaseFeeRule, rpc::protocol::error::RpcError};

/// The dialect of `/` by default.
pub static PRESIM: Dialect = Dialect {
    refuses_unknown_fields: true,
    requires_to_and_selector: true,
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: None,
    sends_from_wallet: false,
    state_roots: false,
    estimate_tolerance: 0.0,
    receipts_wait: false,
    takes_integer_types: false,
    shows_fillers: false,
    shows_revert_data: true,
    shows_early_fields: true,
    // As on the chain, which never has reverted logs.
    counts_reverted_logs: false,
    for_tests: false,
    // One message for all reverts, with the reason in `data`.
    told: |error| error,
    revert: |data| RpcError::with_data(-32000, "execution reverted", data),
    // EIP-5792's code for an unsupported chain, with the contract's message.
    not_atomic: (5710, "EIP-7702 not supported on the specified chain ID"),
    many_error: ErrorForm::Object,
    call_error: ErrorForm::Text,
    documents: [const { OnceLock::new() }; 4],
};
