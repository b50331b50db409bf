//! The chains of the superchain registry (<https://github.com/ethereum-optimism/superchain-registry/tree/main/superchain/configs>),
//! and X Layer.

use alloy_primitives::address;

use super::network::{Network, Rules};
use crate::chain::ForkName::{self, *};

/// The times of most chains' forks.
const USUAL_TIMES: [u64; 8] = [
    1_704_992_401,
    1_710_374_401,
    1_720_627_201,
    1_726_070_401,
    1_736_445_601,
    1_746_806_401,
    1_764_691_201,
    1_783_526_401,
];

/// Returns the forks that these chains have, at these times.
const fn forks(times: [u64; 8]) -> [(ForkName, u64); 8] {
    let [canyon, ecotone, fjord, granite, holocene, isthmus, jovian, karst] = times;
    [
        (Canyon, canyon),
        (Ecotone, ecotone),
        (Fjord, fjord),
        (Granite, granite),
        (Holocene, holocene),
        (Isthmus, isthmus),
        (Jovian, jovian),
        (Karst, karst),
    ]
}

/// Returns the base fee parameters of a chain that begins with Bedrock.
const fn fees(elasticity: u64, denominator: u64, denominator_canyon: u64) -> Rules {
    Rules::OpStack { bedrock: 0, elasticity, denominator, denominator_canyon }
}

/// A chain with the values that most chains have, but without an id.
const USUAL: Network =
    Network { id: 0, block_ms: 2000, wrapper: None, rules: Rules::STANDARD_OP_STACK, forks: &forks(USUAL_TIMES) };

/// OP Mainnet, from Bedrock on.
pub(super) const OP_MAINNET: Network = Network {
    id: 10,
    rules: Rules::OpStack { bedrock: 105_235_063, elasticity: 6, denominator: 50, denominator_canyon: 250 },
    ..USUAL
};

/// OP Sepolia.
pub(super) const OP_SEPOLIA: Network = Network {
    id: 11_155_420,
    forks: &forks([
        1_699_981_200,
        1_708_534_800,
        1_716_998_400,
        1_723_478_400,
        1_732_633_200,
        1_744_905_600,
        1_763_568_001,
        1_781_712_001,
    ]),
    ..USUAL
};

/// World Chain (Karst: <https://github.com/ethereum-optimism/optimism/releases/tag/op-reth%2Fv2.4.3>).
pub(super) const WORLD_CHAIN: Network = Network {
    id: 480,
    rules: fees(10, 50, 250),
    forks: &forks([0, 0, 1_721_826_000, 1_727_780_400, 1_738_238_400, 1_764_072_000, 1_777_593_600, 1_789_992_000]),
    ..USUAL
};

/// Unichain.
pub(super) const UNICHAIN: Network = Network {
    id: 130,
    block_ms: 1000,
    forks: &forks([0, 0, 0, 0, 1_736_445_601, 1_746_806_401, 1_764_691_201, 1_783_526_401]),
    ..USUAL
};

/// Ink.
pub(super) const INK: Network = Network {
    id: 57_073,
    block_ms: 1000,
    rules: fees(6, 250, 250),
    forks: &forks([0, 0, 0, 0, 1_742_396_400, 1_746_806_401, 1_764_691_201, 1_783_526_401]),
    ..USUAL
};

/// Soneium.
pub(super) const SONEIUM: Network = Network {
    id: 1868,
    forks: &forks([0, 0, 0, 0, 1_738_573_200, 1_746_806_401, 1_764_691_201, 1_783_526_401]),
    ..USUAL
};

/// X Layer (<https://github.com/okx/xlayer-reth>), from the block on with which it became a chain of the OP stack,
/// 42,810,021. Its currency is OKB.
pub(super) const X_LAYER: Network = Network {
    id: 196,
    block_ms: 1000,
    wrapper: Some(address!("e538905cf8410324e03A5A23C1c177a474D59b2b")),
    rules: fees(1, 100_000_000, 100_000_000),
    forks: &[(Canyon, 0), (Ecotone, 0), (Fjord, 0), (Granite, 0), (Holocene, 0), (Isthmus, 0), (Jovian, 1_764_691_201)],
};

/// Mode.
pub(super) const MODE: Network = Network { id: 34_443, ..USUAL };

/// Zora.
pub(super) const ZORA: Network = Network { id: 7_777_777, ..USUAL };

/// Lisk.
pub(super) const LISK: Network = Network { id: 1135, rules: fees(20, 1000, 1000), ..USUAL };

/// Metal L2.
pub(super) const METAL: Network = Network {
    id: 1750,
    forks: &forks([0, 0, 1_720_627_201, 1_726_070_401, 1_736_445_601, 1_746_806_401, 1_764_691_201, 1_783_526_401]),
    ..USUAL
};
