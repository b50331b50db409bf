//! Unichain (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/unichain.toml>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Unichain.
pub(super) const UNICHAIN: Network = Network {
    id: 130,
    block_ms: 1000,
    wrapper: None,
    rules: Rules::STANDARD_OP_STACK,
    forks: &[
        (Canyon, 0),
        (Ecotone, 0),
        (Fjord, 0),
        (Granite, 0),
        (Holocene, 1_736_445_601),
        (Isthmus, 1_746_806_401),
        (Jovian, 1_764_691_201),
        (Karst, 1_783_526_401),
    ],
};
