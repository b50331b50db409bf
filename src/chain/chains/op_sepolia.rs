//! OP Sepolia (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/sepolia/op.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// OP Sepolia.
pub(super) const OP_SEPOLIA: Network = Network {
    id: 11_155_420,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    forks: &[
        (Canyon, 1_699_981_200),
        (Ecotone, 1_708_534_800),
        (Fjord, 1_716_998_400),
        (Granite, 1_723_478_400),
        (Holocene, 1_732_633_200),
        (Isthmus, 1_744_905_600),
        (Jovian, 1_763_568_001),
        (Karst, 1_781_712_001),
    ],
};
