//! World Chain (<https://github.com/ethereum-optimism/superchain-registry/blob/main/superchain/configs/mainnet/worldchain.toml>; Karst: <https://github.com/ethereum-optimism/optimism/releases/tag/op-reth%2Fv2.4.3>).

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// World Chain.
pub(super) const WORLD_CHAIN: Network = Network {
    id: 480,
    block_ms: 2000,
    wrapper: None,
    rules: Rules::OpStack { bedrock: 0, elasticity: 10, denominator: 50, denominator_canyon: 250 },
    forks: &[
        (Canyon, 0),
        (Ecotone, 0),
        (Fjord, 1_721_826_000),
        (Granite, 1_727_780_400),
        (Holocene, 1_738_238_400),
        (Isthmus, 1_764_072_000),
        (Jovian, 1_777_593_600),
        (Karst, 1_789_992_000),
    ],
};
