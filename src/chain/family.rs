//! The two families of rules.

use alloy_genesis::ChainConfig;

/// The key in a genesis `config` that marks a chain of the OP stack.
pub(super) const OPTIMISM: &str = "optimism";

/// The family of rules that a chain follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Family {
    /// The rules of Ethereum.
    #[strum(serialize = "Ethereum's family")]
    Ethereum,
    /// The rules of the OP stack (<https://specs.optimism.io>).
    #[strum(serialize = "the OP stack")]
    OpStack,
}

impl Family {
    /// Returns the family of a chain with this genesis `config`.
    pub(super) fn of(config: &ChainConfig) -> Self {
        if config.extra_fields.contains_key(OPTIMISM) { Self::OpStack } else { Self::Ethereum }
    }
}
