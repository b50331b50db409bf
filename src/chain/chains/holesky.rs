//! Holesky (<https://github.com/eth-clients/holesky>).

use alloy_primitives::address;

use super::network::{Network, Rules, all_from_genesis};
use crate::chain::ForkName::*;

/// Holesky.
pub(super) const HOLESKY: Network = Network {
    id: 17_000,
    block_ms: 12_000,
    wrapper: Some(address!("94373a4919B3240D86eA41593D5eBa789FEF3848")),
    rules: Rules::Ethereum { deposits: address!("4242424242424242424242424242424242424242"), blocks: all_from_genesis },
    forks: &[
        (Shanghai, 1_696_000_704),
        (Cancun, 1_707_305_664),
        (Prague, 1_740_434_112),
        (Osaka, 1_759_308_480),
        (Bpo1, 1_759_800_000),
        (Bpo2, 1_760_389_824),
    ],
};
