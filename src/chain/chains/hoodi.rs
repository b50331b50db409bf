//! Hoodi (<https://github.com/eth-clients/hoodi>).

use alloy_primitives::address;

use super::network::{Network, Rules, all_from_genesis};
use crate::chain::ForkName::*;

/// Hoodi.
pub(super) const HOODI: Network = Network {
    id: 560_048,
    block_ms: 12_000,
    wrapper: None,
    rules: Rules::Ethereum { deposits: address!("00000000219ab540356cBB839Cbe05303d7705Fa"), blocks: all_from_genesis },
    forks: &[
        (Shanghai, 0),
        (Cancun, 0),
        (Prague, 1_742_999_832),
        (Osaka, 1_761_677_592),
        (Bpo1, 1_762_365_720),
        (Bpo2, 1_762_955_544),
    ],
};
