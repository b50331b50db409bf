//! The chains of the superchain registry (<https://github.com/ethereum-optimism/superchain-registry/tree/main/superchain/configs>),
//! and X Layer.

use alloy_primitives::address;

use super::network::{Network, Rules};
use crate::chain::ForkName::{self, *};

/// The forks of these chains, in the order of activation.
pub(super) const ORDER: [ForkName; 9] = [Canyon, Ecotone, Fjord, Granite, Holocene, Isthmus, Jovian, Karst, Lagoon];

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

/// The times of the forks of most test networks.
const USUAL_TEST_TIMES: [u64; 8] = [
    1_699_981_200,
    1_708_534_800,
    1_716_998_400,
    1_723_478_400,
    1_732_633_200,
    1_744_905_600,
    1_763_568_001,
    1_781_712_001,
];

/// Returns the times of a test network that has the usual ones after this time of Canyon.
const fn test_times(canyon: u64) -> [u64; 8] {
    let mut times = USUAL_TEST_TIMES;
    times[0] = canyon;
    times
}

/// The times of Lagoon on the chains that have it, and on their test networks
/// (<https://github.com/ethereum-optimism/optimism/releases/tag/op-reth%2Fv2.10.0>).
const LAGOON: u64 = 1_799_683_201;
const TEST_LAGOON: u64 = 1_796_918_401;

/// Returns the times of a chain that has scheduled Lagoon.
const fn with_lagoon(
    [canyon, ecotone, fjord, granite, holocene, isthmus, jovian, karst]: [u64; 8],
    lagoon: u64,
) -> [u64; 9] {
    [canyon, ecotone, fjord, granite, holocene, isthmus, jovian, karst, lagoon]
}

/// Returns the base fee parameters of a chain that begins with Bedrock.
const fn fees(elasticity: u64, denominator: u64, denominator_canyon: u64) -> Rules {
    Rules::OpStack { bedrock: 0, elasticity, denominator, denominator_canyon }
}

/// A chain with the values that most chains have, but without an id.
const USUAL: Network = Network {
    id: 0,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    order: &ORDER,
    times: &USUAL_TIMES,
};

/// A test network with the values that most have, but without an id.
const USUAL_TEST: Network = Network { times: &USUAL_TEST_TIMES, ..USUAL };

/// OP Mainnet, from Bedrock on.
pub(super) const OP_MAINNET: Network = Network {
    id: 10,
    rules: Rules::OpStack { bedrock: 105_235_063, elasticity: 6, denominator: 50, denominator_canyon: 250 },
    times: &with_lagoon(USUAL_TIMES, LAGOON),
    ..USUAL
};

/// OP Sepolia.
pub(super) const OP_SEPOLIA: Network =
    Network { id: 11_155_420, times: &with_lagoon(USUAL_TEST_TIMES, TEST_LAGOON), ..USUAL_TEST };

/// World Chain (Karst: <https://github.com/ethereum-optimism/optimism/releases/tag/op-reth%2Fv2.4.3>).
pub(super) const WORLD_CHAIN: Network = Network {
    id: 480,
    rules: fees(10, 50, 250),
    times: &[0, 0, 1_721_826_000, 1_727_780_400, 1_738_238_400, 1_764_072_000, 1_777_593_600, 1_789_992_000],
    ..USUAL
};

/// World Chain Sepolia (Karst: as World Chain's).
pub(super) const WORLD_CHAIN_SEPOLIA: Network = Network {
    id: 4801,
    rules: fees(10, 50, 250),
    times: &[0, 0, 1_721_739_600, 1_726_570_800, 1_737_633_600, 1_761_825_600, 1_777_161_600, 1_788_868_800],
    ..USUAL_TEST
};

/// Unichain.
pub(super) const UNICHAIN: Network = Network {
    id: 130,
    block_ms: 1000,
    times: &[0, 0, 0, 0, 1_736_445_601, 1_746_806_401, 1_764_691_201, 1_783_526_401, LAGOON],
    ..USUAL
};

/// Unichain Sepolia.
pub(super) const UNICHAIN_SEPOLIA: Network = Network {
    id: 1301,
    block_ms: 1000,
    times: &[0, 0, 0, 0, 1_734_559_200, 1_744_905_600, 1_763_568_001, 1_781_712_001, TEST_LAGOON],
    ..USUAL_TEST
};

/// Ink.
pub(super) const INK: Network = Network {
    id: 57_073,
    block_ms: 1000,
    rules: fees(6, 250, 250),
    times: &[0, 0, 0, 0, 1_742_396_400, 1_746_806_401, 1_764_691_201, 1_783_526_401, LAGOON],
    ..USUAL
};

/// Ink Sepolia.
pub(super) const INK_SEPOLIA: Network =
    Network { id: 763_373, block_ms: 1000, times: &with_lagoon(USUAL_TEST_TIMES, TEST_LAGOON), ..USUAL_TEST };

/// Soneium.
pub(super) const SONEIUM: Network = Network {
    id: 1868,
    times: &[0, 0, 0, 0, 1_738_573_200, 1_746_806_401, 1_764_691_201, 1_783_526_401, LAGOON],
    ..USUAL
};

/// Soneium Minato, Soneium's test network.
pub(super) const SONEIUM_MINATO: Network = Network {
    id: 1946,
    times: &[
        0,
        0,
        1_730_106_000,
        1_730_106_000,
        1_734_685_200,
        1_744_905_600,
        1_763_568_001,
        1_781_712_001,
        TEST_LAGOON,
    ],
    ..USUAL_TEST
};

/// X Layer (<https://github.com/okx/xlayer-reth>), since block 42,810,021, when it became a chain of the OP stack. Its
/// currency is OKB.
pub(super) const X_LAYER: Network = Network {
    id: 196,
    block_ms: 1000,
    wrapper: Some(address!("e538905cf8410324e03A5A23C1c177a474D59b2b")),
    rules: fees(1, 100_000_000, 100_000_000),
    order: &ORDER,
    times: &[0, 0, 0, 0, 0, 0, 1_764_691_201],
};

/// X Layer's test network, from block 12,241,700 on.
pub(super) const X_LAYER_TESTNET: Network =
    Network { id: 1952, wrapper: None, times: &[0, 0, 0, 0, 0, 0, 1_764_327_600], ..X_LAYER };

/// Mode.
pub(super) const MODE: Network = Network { id: 34_443, ..USUAL };

/// Mode's test network.
pub(super) const MODE_SEPOLIA: Network = Network { id: 919, times: &test_times(1_703_203_200), ..USUAL_TEST };

/// Zora.
pub(super) const ZORA: Network = Network { id: 7_777_777, ..USUAL };

/// Zora's test network.
pub(super) const ZORA_SEPOLIA: Network = Network { id: 999_999_999, ..USUAL_TEST };

/// Lisk.
pub(super) const LISK: Network = Network { id: 1135, rules: fees(20, 1000, 1000), ..USUAL };

/// Lisk's test network.
pub(super) const LISK_SEPOLIA: Network =
    Network { id: 4202, rules: fees(10, 50, 250), times: &test_times(1_705_312_994), ..USUAL_TEST };

/// Metal L2.
pub(super) const METAL: Network = Network {
    id: 1750,
    times: &[0, 0, 1_720_627_201, 1_726_070_401, 1_736_445_601, 1_746_806_401, 1_764_691_201, 1_783_526_401],
    ..USUAL
};

/// Metal L2's test network.
pub(super) const METAL_SEPOLIA: Network = Network { id: 1740, times: &test_times(1_708_129_622), ..USUAL_TEST };
