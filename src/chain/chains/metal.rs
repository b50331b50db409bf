//! Metal L2 (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/metal.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Metal L2.
pub(super) const METAL: Network = Network {
    id: 1750,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    forks: &[
        (Canyon, 0),
        (Ecotone, 0),
        (Fjord, 1_720_627_201),
        (Granite, 1_726_070_401),
        (Holocene, 1_736_445_601),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Karst, 1_783_526_401),
    ],
};
