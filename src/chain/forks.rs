//! The forks that activate at a time, by name, and the times of one chain.

use std::{fmt, str::FromStr};

use alloy_genesis::ChainConfig;
use alloy_hardforks::EthereumHardfork;
use alloy_primitives::U256;
use strum::VariantArray;

use super::Family;

/// A fork that activates at a time. Forks that activate at a block are fields of the `config` alone. The name, in lower
/// case, is the beginning of the fork's key in a genesis `config`.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
pub enum ForkName {
    /// Ethereum's forks (<https://ethereum.org/ethereum-forks>).
    Shanghai,
    /// EIP-7569.
    Cancun,
    /// EIP-7600.
    Prague,
    /// EIP-7607.
    Osaka,
    /// The forks that change blob parameters alone (EIP-7892).
    Bpo1,
    /// EIP-7892.
    Bpo2,
    /// EIP-7892.
    Bpo3,
    /// EIP-7892.
    Bpo4,
    /// EIP-7892.
    Bpo5,
    /// EIP-7773.
    Amsterdam,
    /// EIP-8081.
    Bogota,
    /// The forks of the OP stack (<https://specs.optimism.io>).
    Regolith,
    /// Ethereum's Shanghai on the OP stack.
    Canyon,
    /// Ethereum's Cancun on the OP stack.
    Ecotone,
    /// The RIP-7212 precompile, and L1 fees by compressed size.
    Fjord,
    /// A limit for the input of the pairing precompile.
    Granite,
    /// Base fee parameters in the header.
    Holocene,
    /// Ethereum's Prague on the OP stack.
    Isthmus,
    /// The DA footprint, and a minimum base fee.
    Jovian,
    /// Ethereum's Osaka on the OP stack, and a lower limit for the input of the pairing precompile.
    Karst,
    /// Messages between chains, by contracts, and gas refunds by the sequencer, in the last transaction of a block. The EVM
    /// stays Karst's. It was called Interop.
    Lagoon,
    /// The forks of Base after Jovian (<https://docs.base.org/upgrades/overview>). Azul has Ethereum's Osaka, without
    /// Karst's limit.
    Azul,
    /// Native tokens.
    Beryl,
    /// Account abstraction.
    Cobalt,
    /// Blocks every 200 ms, of which five have the same timestamp.
    Denim,
    /// Features that are not public yet (<https://foundry-rs.github.io/foundry/foundry_evm_hardforks/enum.BaseUpgrade.html>).
    Zenith,
    /// The forks of World Chain after Karst (<https://github.com/worldcoin/world-chain>).
    Tropo,
    /// The second of them.
    Strato,
}

use ForkName::*;

/// The forks that follow one another: the time of a fork is at least the time of each one before it.
const LINES: [&[ForkName]; 5] = [
    &[Shanghai, Cancun, Prague, Osaka, Amsterdam, Bogota],
    &[Osaka, Bpo1, Bpo2, Bpo3, Bpo4, Bpo5],
    &[Regolith, Canyon, Ecotone, Fjord, Granite, Holocene, Isthmus, Jovian, Karst, Lagoon],
    &[Jovian, Azul, Beryl, Cobalt, Denim, Zenith],
    &[Karst, Tropo, Strato],
];

impl ForkName {
    /// Returns whether presim executes the fork's rules. Forks that it does not execute are in the tables too, so that
    /// their times are known.
    pub const fn is_executed(self) -> bool {
        !matches!(self, Bogota | Zenith | Tropo | Strato)
    }

    /// Returns the family whose chains have the fork.
    pub const fn family(self) -> Family {
        if (self as usize) < Regolith as usize { Family::Ethereum } else { Family::OpStack }
    }

    /// Returns whether the fork changes blob parameters alone (EIP-7892).
    pub(super) const fn is_of_blobs(self) -> bool {
        matches!(self, Bpo1 | Bpo2 | Bpo3 | Bpo4 | Bpo5)
    }

    /// Returns whether forks that change only blob parameters may precede this fork, which does not depend on them.
    pub(super) const fn is_after_blobs(self) -> bool {
        matches!(self, Amsterdam | Bogota)
    }

    /// Returns whether `later` follows the fork, at once or after others.
    pub(super) fn is_before(self, later: Self) -> bool {
        let lines = LINES.iter().filter_map(|line| Some((line, line.iter().position(|fork| *fork == later)?)));
        lines.into_iter().any(|(line, at)| line[..at].iter().any(|fork| *fork == self || self.is_before(*fork)))
    }

    /// Returns the key of the fork's time in a genesis `config`.
    fn key(self) -> String {
        format!("{self}Time")
    }

    /// Returns the field of the time in `config`, or `None` if `config` has it among its extra fields.
    const fn field(self, config: &mut ChainConfig) -> Option<&mut Option<u64>> {
        Some(match self {
            Shanghai => &mut config.shanghai_time,
            Cancun => &mut config.cancun_time,
            Prague => &mut config.prague_time,
            Osaka => &mut config.osaka_time,
            Bpo1 => &mut config.bpo1_time,
            Bpo2 => &mut config.bpo2_time,
            Bpo3 => &mut config.bpo3_time,
            Bpo4 => &mut config.bpo4_time,
            Bpo5 => &mut config.bpo5_time,
            Amsterdam => &mut config.amsterdam_time,
            Bogota => &mut config.bogota_time,
            _ => return None,
        })
    }

    /// Returns the time in `config`, or `None` if it has none. Changes nothing.
    fn read(self, config: &mut ChainConfig) -> Result<Option<u64>, ChainSpecError> {
        if let Some(field) = self.field(config) {
            return Ok(*field);
        }
        let time = config.extra_fields.get_deserialized::<Option<u64>>(&self.key()).transpose();
        time.map(Option::flatten).map_err(|error| ChainSpecError::Field {
            field: self.key(),
            problem: format!("{error}: expected a Unix time in seconds"),
        })
    }

    /// Activates this fork of Ethereum at `time`. The forks before it that have no time yet activate at `before`.
    pub(super) fn activate(self, config: &mut ChainConfig, time: u64, before: u64) {
        for line in LINES {
            let followed = line.iter().position(|fork| *fork == self).map_or(&[][..], |at| &line[..at]);
            for fork in followed {
                if fork.field(config).is_some_and(|time| time.is_none()) {
                    fork.activate(config, before, before);
                }
            }
        }
        self.write(config, Some(time));
    }

    /// Returns the first fork that changes blob parameters alone (EIP-7892) and has no time in `config`.
    pub(super) fn next_of_blobs(config: &mut ChainConfig) -> Option<Self> {
        let mut all = [Bpo1, Bpo2, Bpo3, Bpo4, Bpo5].into_iter();
        all.find(|fork| fork.field(config).is_some_and(|time| time.is_none()))
    }

    /// Sets the time in `config`.
    pub(super) fn write(self, config: &mut ChainConfig, time: Option<u64>) {
        match self.field(config) {
            Some(field) => *field = time,
            None => drop(config.extra_fields.insert(self.key(), time.into())),
        }
    }
}

/// The reason why a genesis `config` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainSpecError {
    /// A field of the OP stack is malformed.
    #[error("config.{field}: {problem}")]
    Field { field: String, problem: String },
    /// The chain's family does not have a fork.
    #[error("fork {fork}: a chain of {family} does not have it: expected one of {known}")]
    OtherFamily { fork: ForkName, family: Family, known: String },
    /// A fork activates before one that it follows. The times are Unix times in seconds.
    #[error(
        "fork times out of order: {fork}={time}, but {before}={least}, which it follows: expected a time of {fork} of at \
         least {least}, or an earlier {before}"
    )]
    Order { fork: ForkName, time: u64, before: ForkName, least: u64 },
}

/// Returns the names of forks as a list.
fn names<'a>(forks: impl IntoIterator<Item = &'a ForkName>) -> String {
    forks.into_iter().map(<&str>::from).collect::<Vec<_>>().join(", ")
}

/// A fork with a time that replaces the chain's own: `NAME=TIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkTime {
    /// The fork.
    pub fork: ForkName,
    /// Unix time in seconds. `None` means never.
    pub time: Option<u64>,
}

impl FromStr for ForkTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, time) = text.split_once('=').ok_or("expected NAME=TIME, for example osaka=1764798551")?;
        let unknown = |_| format!("unknown fork '{name}': expected one of {}", names(ForkName::VARIANTS));
        let fork = ForkName::from_str(name).map_err(unknown)?;
        let time = match time {
            "never" => None,
            time => Some(time.parse().map_err(|error| {
                format!("the time of {fork}, '{time}': {error}: expected a Unix time in seconds, or never")
            })?),
        };
        Ok(Self { fork, time })
    }
}

impl fmt::Display for ForkTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time {
            Some(time) => write!(f, "{}={time}", self.fork),
            None => write!(f, "{}=never", self.fork),
        }
    }
}

/// A fork of a chain, and the time at which it becomes active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkAt {
    /// The fork.
    pub fork: ForkName,
    /// Unix time in seconds.
    pub time: u64,
}

impl fmt::Display for ForkAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fork {} (from {} on)", self.fork, self.time)
    }
}

/// Writes `forks` into `config`.
///
/// # Errors
///
/// Returns [`ChainSpecError::OtherFamily`] if the chain's family does not have a fork.
pub fn set_forks(config: &mut ChainConfig, forks: &[ForkTime]) -> Result<(), ChainSpecError> {
    let family = Family::of(config);
    for ForkTime { fork, time } in forks {
        if fork.family() != family {
            let known = names(ForkName::VARIANTS.iter().filter(|fork| fork.family() == family));
            return Err(ChainSpecError::OtherFamily { fork: *fork, family, known });
        }
        fork.write(config, *time);
    }
    Ok(())
}

/// Returns the first fork whose time in `config` `forks` would change, with its new time and its present one.
///
/// # Errors
///
/// Returns [`ChainSpecError::OtherFamily`] if the chain's family does not have a fork, and [`ChainSpecError::Field`] if a field of
/// `config` is malformed.
pub fn first_changed(config: &ChainConfig, forks: &[ForkTime]) -> Result<Option<(ForkTime, ForkTime)>, ChainSpecError> {
    let (mut before, mut after) = (config.clone(), config.clone());
    set_forks(&mut after, forks)?;
    for ForkTime { fork, .. } in forks {
        let of = |config| fork.read(config).map(|time| ForkTime { fork: *fork, time });
        let (old, new) = (of(&mut before)?, of(&mut after)?);
        if old != new {
            return Ok(Some((new, old)));
        }
    }
    Ok(None)
}

/// Sets the forks of Ethereum that activate at a block to the blocks that `at` returns, except the DAO's and the merge.
pub(super) fn set_block_forks(config: &mut ChainConfig, at: impl Fn(EthereumHardfork) -> Option<u64>) {
    use EthereumHardfork as Fork;
    config.homestead_block = at(Fork::Homestead);
    config.eip150_block = at(Fork::Tangerine);
    (config.eip155_block, config.eip158_block) = (at(Fork::SpuriousDragon), at(Fork::SpuriousDragon));
    config.byzantium_block = at(Fork::Byzantium);
    config.constantinople_block = at(Fork::Constantinople);
    // EIP-1283 gas metering, which only Constantinople has, is not supported.
    config.petersburg_block = at(Fork::Constantinople);
    config.istanbul_block = at(Fork::Istanbul);
    config.muir_glacier_block = at(Fork::MuirGlacier);
    config.berlin_block = at(Fork::Berlin);
    config.london_block = at(Fork::London);
    config.arrow_glacier_block = at(Fork::ArrowGlacier);
    config.gray_glacier_block = at(Fork::GrayGlacier);
}

/// Activates Ethereum's forks up to `newest` in `config` from genesis, and removes the later ones.
pub fn set_newest_fork(config: &mut ChainConfig, newest: EthereumHardfork) {
    use EthereumHardfork as Fork;
    let zero = |fork: Fork| (fork <= newest).then_some(0);
    set_block_forks(config, zero);
    config.merge_netsplit_block = zero(Fork::Paris);
    config.terminal_total_difficulty = zero(Fork::Paris).map(U256::from);
    config.terminal_total_difficulty_passed = newest >= Fork::Paris;
    config.shanghai_time = zero(Fork::Shanghai);
    config.cancun_time = zero(Fork::Cancun);
    config.prague_time = zero(Fork::Prague);
    config.osaka_time = zero(Fork::Osaka);
    config.amsterdam_time = zero(Fork::Amsterdam);
}

/// The times at which the forks of a chain activate.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForkTimes([Option<u64>; ForkName::VARIANTS.len()]);

impl ForkTimes {
    /// Reads the times of the family's forks from a genesis `config`.
    ///
    /// # Errors
    ///
    /// Returns [`ChainSpecError::Field`] if a time is malformed, and [`ChainSpecError::Order`] if a fork activates
    /// before one that it follows.
    pub fn of(config: &ChainConfig) -> Result<Self, ChainSpecError> {
        let family = Family::of(config);
        let config = &mut config.clone();
        let mut times = [None; ForkName::VARIANTS.len()];
        for fork in ForkName::VARIANTS.iter().filter(|fork| fork.family() == family) {
            times[*fork as usize] = fork.read(config)?;
        }
        let times = Self(times);
        for line in LINES {
            let mut last: Option<(ForkName, u64)> = None;
            for (fork, time) in line.iter().filter_map(|fork| Some((*fork, times.time(*fork)?))) {
                if let Some((before, least)) = last.filter(|(_, least)| time < *least) {
                    return Err(ChainSpecError::Order { fork, time, before, least });
                }
                last = Some((fork, time));
            }
        }
        Ok(times)
    }

    /// Returns the time of a fork, or `None` if it is not scheduled.
    pub const fn time(&self, fork: ForkName) -> Option<u64> {
        self.0[fork as usize]
    }

    /// Returns whether a fork is active at `timestamp`.
    pub fn is_active(&self, fork: ForkName, timestamp: u64) -> bool {
        self.time(fork).is_some_and(|time| time <= timestamp)
    }

    /// Returns the first scheduled fork whose rules presim does not execute.
    pub fn unexecuted(&self) -> Option<ForkAt> {
        let unexecuted = ForkName::VARIANTS.iter().copied().filter(|fork| !fork.is_executed());
        unexecuted.filter_map(|fork| Some(ForkAt { fork, time: self.time(fork)? })).min_by_key(|at| at.time)
    }

    /// Returns whether a fork whose rules presim executes becomes active at this time.
    pub fn is_executed_at(&self, time: u64) -> bool {
        ForkName::VARIANTS.iter().copied().any(|fork| fork.is_executed() && self.time(fork) == Some(time))
    }

    /// Returns the times of all scheduled forks.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied().flatten()
    }
}
