//! Base and Base Sepolia, which have forks of their own since Jovian (<https://docs.base.org/upgrades/overview>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// The time between blocks since Denim.
const BLOCK_MS: u64 = 200;

/// Base.
pub(super) const BASE: Network = Network {
    id: 8_453,
    block_ms: BLOCK_MS,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    forks: &[
        (Canyon, 1_704_992_401),
        (Ecotone, 1_710_374_401),
        (Fjord, 1_720_627_201),
        (Granite, 1_726_070_401),
        (Holocene, 1_736_445_601),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Azul, 1_779_991_200),
        (Beryl, 1_782_410_400),
        (Cobalt, 1_790_791_200),
        (Denim, 1_793_901_600),
    ],
};

/// Base Sepolia.
pub(super) const BASE_SEPOLIA: Network = Network {
    id: 84_532,
    block_ms: BLOCK_MS,
    wrapper: None,
    rules: Rules::OpStack { bedrock: 0, elasticity: 10, denominator: 50, denominator_canyon: 250 },
    forks: &[
        (Canyon, 1_699_981_200),
        (Ecotone, 1_708_534_800),
        (Fjord, 1_716_998_400),
        (Granite, 1_723_478_400),
        (Holocene, 1_732_633_200),
        (Isthmus, 1_744_905_600),
        (Jovian, 1_763_568_001),
        (Azul, 1_776_708_000),
        (Beryl, 1_781_805_600),
        (Cobalt, 1_790_186_400),
        (Denim, 1_792_605_600),
    ],
};
