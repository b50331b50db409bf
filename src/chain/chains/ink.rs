//! Ink (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/ink.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Ink.
pub(super) const INK: Network = Network {
    id: 57_073,
    block_ms: 1000,
    wrapper: None,
    rules: Rules::OpStack { bedrock: 0, elasticity: 6, denominator: 250, denominator_canyon: 250 },
    forks: &[
        (Canyon, 0),
        (Ecotone, 0),
        (Fjord, 0),
        (Granite, 0),
        (Holocene, 1_742_396_400),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Karst, 1_783_526_401),
    ],
};
