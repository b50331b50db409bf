//! The rules of a chain under one of its forks, regardless of the time.

use alloy_consensus::Header;
use alloy_hardforks::EthereumHardfork;
use revm::primitives::hardfork::SpecId;
use strum::VariantArray;

use super::{
    ChainSpec, ChainSpecError, Family, ForkName, Natives,
    forks::{ForkTimes, set_newest_fork},
};

/// The chain does not have the requested fork, or presim does not execute its rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fork {name:?}: expected one of {known}")]
pub struct UnknownFork {
    /// The name that was asked for.
    pub name: String,
    /// The names of the chain's forks, separated by commas.
    pub known: String,
}

/// A fork whose rules can be applied to a block. `None` is the first of the family, a fork by block number.
type RuledFork = Option<ForkName>;

impl ChainSpec {
    /// Returns the rules under the fork `name` at any time: that fork and all forks before it are active, and none
    /// after it. The forks since the merge or since Bedrock have names. A fork that sets no blob parameters and follows
    /// the forks that change only those (EIP-7892) keeps the chain's blob parameters of the block's time.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownFork`] if the chain has no such fork, or presim does not execute its rules.
    pub fn under(&self, name: &str) -> Result<&Self, UnknownFork> {
        let unknown = || UnknownFork { name: name.to_owned(), known: self.ruled_fork_names().join(", ") };
        let mut forks = self.ruled_forks();
        let fork = forks.find(|fork| name.eq_ignore_ascii_case(self.name_of(*fork))).ok_or_else(unknown)?;
        let index = fork.map_or(0, |fork| 1 + fork as usize);
        let cell = self.fork_rules.0.get(index).ok_or_else(unknown)?;
        if let Some(made) = cell.get() {
            return Ok(made);
        }
        let made = self.make_under(fork).map_err(|_| unknown())?;
        Ok(cell.get_or_init(|| Box::new(made)))
    }

    /// Returns the names of the forks that [`under`](Self::under) accepts.
    pub fn ruled_fork_names(&self) -> Vec<&'static str> {
        self.ruled_forks().map(|fork| self.name_of(fork)).collect()
    }

    fn name_of(&self, fork: RuledFork) -> &'static str {
        match (fork, self.family()) {
            (Some(fork), _) => fork.into(),
            (None, Family::Ethereum) => "paris",
            (None, Family::OpStack) => "bedrock",
        }
    }

    /// Returns the requested fork if these rules are the result of [`under`](Self::under).
    pub const fn fork_override(&self) -> Option<&'static str> {
        self.under
    }

    /// Returns the name of the newest fork that is active in `header`'s block, in lower case.
    pub fn fork_name(&self, header: &Header) -> &'static str {
        let family = self.family();
        let timed = ForkName::VARIANTS.iter().rev().filter(|fork| fork.family() == family);
        let mut active = timed.filter(|fork| self.forks.is_active(**fork, header.timestamp));
        match (self.under, active.next()) {
            (Some(name), _) => name,
            (None, Some(fork)) => fork.into(),
            (None, None) if family == Family::OpStack => self.name_of(None),
            (None, None) => match self.evm_fork(header) {
                SpecId::FRONTIER => "frontier",
                SpecId::HOMESTEAD => "homestead",
                SpecId::TANGERINE => "tangerine",
                SpecId::SPURIOUS_DRAGON => "spuriousdragon",
                SpecId::BYZANTIUM => "byzantium",
                SpecId::PETERSBURG => "petersburg",
                SpecId::ISTANBUL => "istanbul",
                SpecId::BERLIN => "berlin",
                SpecId::LONDON => "london",
                _ => self.name_of(None),
            },
        }
    }

    fn ruled_forks(&self) -> impl Iterator<Item = RuledFork> {
        let family = self.family();
        // A fork that changes only blob parameters has no rules without them.
        let has_rules = move |fork: &ForkName| {
            fork.is_executed() && (!fork.is_of_blobs() || self.config.blob_schedule.contains_key(<&str>::from(fork)))
        };
        let timed = ForkName::VARIANTS.iter().copied().filter(move |fork| fork.family() == family);
        std::iter::once(None).chain(timed.filter(move |fork| has_rules(fork)).map(Some))
    }

    fn make_under(&self, fork: RuledFork) -> Result<Self, ChainSpecError> {
        let mut config = self.config.clone();
        let (family, name) = (self.family(), self.name_of(fork));
        let has_blobs = self.config.blob_schedule.contains_key(name);
        if family == Family::Ethereum {
            set_newest_fork(&mut config, EthereumHardfork::Paris);
            config.dao_fork_support = false;
        }
        for other in ForkName::VARIANTS.iter().copied().filter(|other| other.family() == family) {
            let time = match fork {
                Some(newest) if other == newest || other.is_before(newest) => Some(0),
                Some(newest) if other.is_of_blobs() && newest.is_after_blobs() && !has_blobs => self.forks.time(other),
                _ => None,
            };
            other.write(&mut config, time);
        }
        let forks = ForkTimes::of(&config)?;
        let mut rules = Self::new(config, self.block_time)?;
        rules.natives = Natives::of(&forks).under(name, &self.natives);
        rules.under = Some(name);
        rules.chain_id = self.chain_id.clone();
        rules.lifted = self.lifted;
        rules.wrapper = self.wrapper;
        Ok(rules)
    }
}
