//! Soneium (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/soneium.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Soneium.
pub(super) const SONEIUM: Network = Network {
    id: 1868,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    forks: &[
        (Canyon, 0),
        (Ecotone, 0),
        (Fjord, 0),
        (Granite, 0),
        (Holocene, 1_738_573_200),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Karst, 1_783_526_401),
    ],
};
