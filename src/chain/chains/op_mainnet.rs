//! OP Mainnet (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/op.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// OP Mainnet, from Bedrock on.
pub(super) const OP_MAINNET: Network = Network {
    id: 10,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::OpStack { bedrock: 105_235_063, elasticity: 6, denominator: 50, denominator_canyon: 250 },
    forks: &[
        (Canyon, 1_704_992_401),
        (Ecotone, 1_710_374_401),
        (Fjord, 1_720_627_201),
        (Granite, 1_726_070_401),
        (Holocene, 1_736_445_601),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Karst, 1_783_526_401),
    ],
};
