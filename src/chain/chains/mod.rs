//! The networks that presim knows by their chain id: their forks by name and time, in a file for
//! each family, and one for Base.
//!
//! A network is its genesis `config`, as geth and op-geth have it, so that a known chain and a chain of a genesis file
//! follow the same code, and [`set_forks`](super::set_forks) changes either.

mod base;
mod ethereum;
mod network;
mod op_stack;
#[cfg(test)]
mod tests;
mod unknown;

use std::time::Duration;

use network::Network;
pub use unknown::AnnouncedForks;

use super::{ChainSpec, ChainSpecError, ForkTime};

const NETWORKS: [&Network; 26] = [
    &ethereum::MAINNET,
    &ethereum::SEPOLIA,
    &ethereum::HOLESKY,
    &ethereum::HOODI,
    &op_stack::OP_MAINNET,
    &op_stack::OP_SEPOLIA,
    &base::BASE,
    &base::BASE_SEPOLIA,
    &op_stack::WORLD_CHAIN,
    &op_stack::WORLD_CHAIN_SEPOLIA,
    &op_stack::UNICHAIN,
    &op_stack::UNICHAIN_SEPOLIA,
    &op_stack::INK,
    &op_stack::INK_SEPOLIA,
    &op_stack::SONEIUM,
    &op_stack::SONEIUM_MINATO,
    &op_stack::X_LAYER,
    &op_stack::X_LAYER_TESTNET,
    &op_stack::MODE,
    &op_stack::MODE_SEPOLIA,
    &op_stack::ZORA,
    &op_stack::ZORA_SEPOLIA,
    &op_stack::LISK,
    &op_stack::LISK_SEPOLIA,
    &op_stack::METAL,
    &op_stack::METAL_SEPOLIA,
];

impl ChainSpec {
    /// Returns the rules of the network with this id, or `None` if presim does not know it.
    pub fn known(chain_id: u64) -> Option<Self> {
        Self::known_with(chain_id, &[])?.ok()
    }

    /// Returns the rules of the network with this id, with these forks instead of its own, or `None` if presim does not
    /// know it.
    ///
    /// # Errors
    ///
    /// Returns a [`ChainSpecError`] if the network's family does not have a fork, or a fork activates before one that
    /// it follows.
    pub fn known_with(chain_id: u64, forks: &[ForkTime]) -> Option<Result<Self, ChainSpecError>> {
        let network = NETWORKS.into_iter().find(|network| network.id == chain_id)?;
        let spec = Self::with_forks(network.config(), forks, Duration::from_millis(network.block_ms));
        Some(spec.map(|spec| match network.wrapper {
            Some(wrapper) => spec.with_wrapper(wrapper),
            None => spec,
        }))
    }

    /// Returns the ids of the networks that presim knows.
    pub fn known_ids() -> impl Iterator<Item = u64> {
        NETWORKS.into_iter().map(|network| network.id)
    }
}
