//! execution-apis in geth's manner, for client libraries with strict types.

use std::{sync::OnceLock, time::Duration};

use alloy_primitives::Bytes;

use super::{Dialect, ErrorForm};
use crate::{
    engine::{BaseFeeRule, revert_reason},
    rpc::protocol::error::RpcError,
};

/// The dialect of `/standard`.
pub static STANDARD: Dialect = like_geth(false, reverted, |error| error);

/// Returns a dialect in geth's manner, for tests or not, with these errors.
pub(super) const fn like_geth(
    for_tests: bool,
    revert: fn(Bytes) -> RpcError,
    told: fn(RpcError) -> RpcError,
) -> Dialect {
    Dialect {
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
        for_tests,
        revert,
        told,
        // EIP-5792's `AtomicityNotSupported`.
        not_atomic: (5760, "The wallet does not support atomic execution but the request requires it"),
        // As in reth's and alloy's types.
        many_error: ErrorForm::Text,
        call_error: ErrorForm::Object,
        documents: [const { OnceLock::new() }; 4],
    }
}

fn reverted(data: Bytes) -> RpcError {
    RpcError::reverted(revert_reason(&data), data)
}
