//! X Layer (<https://github.com/okx/xlayer-reth>).

use alloy_primitives::address;

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// X Layer, from the block on with which it became a chain of the OP stack, 42,810,021. Its currency is OKB.
pub(super) const X_LAYER: Network = Network {
    id: 196,
    block_ms: 1000,
    wrapper: Some(address!("e538905cf8410324e03A5A23C1c177a474D59b2b")),
    rules: Rules::OpStack { bedrock: 0, elasticity: 1, denominator: 100_000_000, denominator_canyon: 100_000_000 },
    forks: &[(Canyon, 0), (Ecotone, 0), (Fjord, 0), (Granite, 0), (Holocene, 0), (Isthmus, 0), (Jovian, 1_764_691_201)],
};
