//! The rules of a chain under one of its forks, regardless of the time.

use std::str::FromStr;

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

/// A fork whose rules can be applied to a block. The first of each family is a fork by block number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuledFork {
    First(Family),
    Timed(ForkName),
}

impl RuledFork {
    fn name(self) -> &'static str {
        match self {
            Self::First(Family::Ethereum) => "paris",
            Self::First(Family::OpStack) => "bedrock",
            Self::Timed(fork) => fork.into(),
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::First(_) => 0,
            Self::Timed(fork) => 1 + fork as usize,
        }
    }
}

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
        let first = RuledFork::First(self.family());
        let fork = match ForkName::from_str(name) {
            Ok(fork) => RuledFork::Timed(fork),
            Err(_) if name.eq_ignore_ascii_case(first.name()) => first,
            Err(_) => return Err(unknown()),
        };
        let known = self.ruled_forks().any(|known| known == fork);
        let cell = self.fork_rules.0.get(fork.index()).filter(|_| known).ok_or_else(unknown)?;
        if let Some(made) = cell.get() {
            return Ok(made);
        }
        let made = self.make_under(fork).map_err(|_| unknown())?;
        Ok(cell.get_or_init(|| Box::new(made)))
    }

    /// Returns the names of the forks that [`under`](Self::under) accepts.
    pub fn ruled_fork_names(&self) -> Vec<&'static str> {
        self.ruled_forks().map(RuledFork::name).collect()
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
            (None, None) if family == Family::OpStack => RuledFork::First(family).name(),
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
                _ => RuledFork::First(family).name(),
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
        std::iter::once(RuledFork::First(family)).chain(timed.filter(move |fork| has_rules(fork)).map(RuledFork::Timed))
    }

    fn make_under(&self, fork: RuledFork) -> Result<Self, ChainSpecError> {
        let mut config = self.config.clone();
        let family = self.family();
        let has_blobs = self.config.blob_schedule.contains_key(fork.name());
        if family == Family::Ethereum {
            set_newest_fork(&mut config, EthereumHardfork::Paris);
            config.dao_fork_support = false;
        }
        for other in ForkName::VARIANTS.iter().copied().filter(|other| other.family() == family) {
            let time = match fork {
                RuledFork::Timed(newest) if other == newest || other.is_before(newest) => Some(0),
                RuledFork::Timed(newest) if other.is_of_blobs() && newest.is_after_blobs() && !has_blobs => {
                    self.forks.time(other)
                }
                RuledFork::Timed(_) | RuledFork::First(_) => None,
            };
            other.write(&mut config, time);
        }
        let forks = ForkTimes::of(&config)?;
        let mut rules = Self::new(config, self.block_time)?;
        rules.natives = Natives::of(&forks).under(fork.name(), &self.natives);
        rules.under = Some(fork.name());
        rules.chain_id = self.chain_id.clone();
        rules.lifted = self.lifted;
        rules.wrapper = self.wrapper;
        Ok(rules)
    }
}
