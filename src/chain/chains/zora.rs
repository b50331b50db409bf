//! Zora (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/zora.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Zora.
pub(super) const ZORA: Network = Network {
    id: 7_777_777,
    block_ms: 2000,
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
        (Karst, 1_783_526_401),
    ],
};
