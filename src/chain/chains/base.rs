//! Base and Base Sepolia, which have forks of their own since Jovian (<https://docs.base.org/upgrades/overview>).

use super::network::{Network, Rules};
use crate::chain::ForkName::{self, *};

/// The forks of Base, in the order of activation.
const ORDER: [ForkName; 11] = [Canyon, Ecotone, Fjord, Granite, Holocene, Isthmus, Jovian, Azul, Beryl, Cobalt, Denim];

/// The time between blocks since Denim.
const BLOCK_MS: u64 = 200;

/// Base.
pub(super) const BASE: Network = Network {
    id: 8_453,
    block_ms: BLOCK_MS,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    order: &ORDER,
    times: &[
        1_704_992_401,
        1_710_374_401,
        1_720_627_201,
        1_726_070_401,
        1_736_445_601,
        1_746_806_401,
        1_764_691_201,
        1_779_991_200,
        1_782_410_400,
        1_790_791_200,
        1_793_901_600,
    ],
};

/// Base Sepolia.
pub(super) const BASE_SEPOLIA: Network = Network {
    id: 84_532,
    block_ms: BLOCK_MS,
    wrapper: None,
    rules: Rules::OpStack { bedrock: 0, elasticity: 10, denominator: 50, denominator_canyon: 250 },
    order: &ORDER,
    times: &[
        1_699_981_200,
        1_708_534_800,
        1_716_998_400,
        1_723_478_400,
        1_732_633_200,
        1_744_905_600,
        1_763_568_001,
        1_776_708_000,
        1_781_805_600,
        1_790_186_400,
        1_792_605_600,
    ],
};
