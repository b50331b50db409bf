//! The forks of the OP stack that change how transactions run, and the forks of Ethereum that they contain.

use revm::primitives::hardfork::SpecId;

use crate::chain::ForkName;

/// A fork of the OP stack, in the order of activation. A chain has all that are older than its newest, except that Azul
/// and Karst are two branches: Base has the first, all others have the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpFork {
    /// The first fork whose blocks are executed here (<https://specs.optimism.io/protocol/bedrock/overview.html>).
    #[default]
    Bedrock,
    /// <https://specs.optimism.io/protocol/regolith/overview.html>
    Regolith,
    /// <https://specs.optimism.io/protocol/canyon/overview.html>
    Canyon,
    /// <https://specs.optimism.io/protocol/ecotone/overview.html>
    Ecotone,
    /// <https://specs.optimism.io/protocol/fjord/overview.html>
    Fjord,
    /// <https://specs.optimism.io/protocol/granite/overview.html>
    Granite,
    /// <https://specs.optimism.io/protocol/holocene/overview.html>
    Holocene,
    /// <https://specs.optimism.io/protocol/isthmus/overview.html>
    Isthmus,
    /// <https://specs.optimism.io/protocol/jovian/overview.html>
    Jovian,
    /// <https://docs.base.org/base-chain/specs/upgrades/azul/exec-engine>
    Azul,
    /// <https://specs.optimism.io/protocol/karst/overview.html>
    Karst,
}

impl OpFork {
    /// The forks that activate at a time, from the newest, by the names that a genesis `config` gives them.
    pub(in crate::chain) const TIMED: [(ForkName, Self); 10] = [
        (ForkName::Karst, Self::Karst),
        (ForkName::Azul, Self::Azul),
        (ForkName::Jovian, Self::Jovian),
        (ForkName::Isthmus, Self::Isthmus),
        (ForkName::Holocene, Self::Holocene),
        (ForkName::Granite, Self::Granite),
        (ForkName::Fjord, Self::Fjord),
        (ForkName::Ecotone, Self::Ecotone),
        (ForkName::Canyon, Self::Canyon),
        (ForkName::Regolith, Self::Regolith),
    ];
}

impl From<OpFork> for SpecId {
    fn from(fork: OpFork) -> Self {
        match fork {
            OpFork::Bedrock | OpFork::Regolith => Self::MERGE,
            OpFork::Canyon => Self::SHANGHAI,
            OpFork::Ecotone | OpFork::Fjord | OpFork::Granite | OpFork::Holocene => Self::CANCUN,
            OpFork::Isthmus | OpFork::Jovian => Self::PRAGUE,
            OpFork::Azul | OpFork::Karst => Self::OSAKA,
        }
    }
}
