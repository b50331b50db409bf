//! Chains of Ethereum's family whose ids presim does not know. A node announces their forks (EIP-7910), or the user
//! configures them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use alloy_eips::{eip7840::BlobParams, eip7910::SystemContract};
use alloy_genesis::ChainConfig;
use alloy_hardforks::{EthereumHardfork, ForkCondition};
use alloy_primitives::Address;
use revm::{
    precompile::{PrecompileSpecId, Precompiles},
    primitives::hardfork::SpecId,
};
use serde::Deserialize;

use super::network::{Network, Rules};
use crate::chain::{
    ChainSpec, ChainSpecError, Family,
    ForkName::{self, *},
    ForkTime, set_newest_fork,
};

/// The forks that `eth_config` covers and presim executes, oldest first, except forks that change only blob parameters.
const COVERED: [(ForkName, SpecId); 4] =
    [(Cancun, SpecId::CANCUN), (Prague, SpecId::PRAGUE), (Osaka, SpecId::OSAKA), (Amsterdam, SpecId::AMSTERDAM)];

/// The forks of a chain as a node announces them (EIP-7910).
#[derive(Clone, Debug, Deserialize)]
pub struct AnnouncedForks {
    /// The active fork.
    current: AnnouncedFork,
    /// The fork after it.
    next: Option<AnnouncedFork>,
    /// The last fork that is scheduled.
    last: Option<AnnouncedFork>,
}

/// A fork as `eth_config` announces it, without a name.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnnouncedFork {
    /// Unix time in seconds; 0 at genesis.
    activation_time: u64,
    /// `None` before Cancun.
    blob_schedule: Option<BlobParams>,
    precompiles: Option<BTreeMap<String, Address>>,
    system_contracts: Option<BTreeMap<String, Address>>,
}

impl AnnouncedForks {
    /// Returns the time since which the active fork is, in Unix seconds.
    pub const fn active_since(&self) -> u64 {
        self.current.activation_time
    }

    /// Returns the times of the forks.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        [Some(&self.current), self.next.as_ref(), self.last.as_ref()]
            .into_iter()
            .flatten()
            .map(|fork| fork.activation_time)
    }

    /// Writes the forks into `config`. Those before the active one count as active from genesis. A later fork that presim does
    /// not know is left out.
    ///
    /// Returns `None` if presim does not know the active fork.
    fn write(&self, config: &mut ChainConfig) -> Option<()> {
        let mut rules = self.current.rules()?;
        config.deposit_contract_address = self.current.contract(&SystemContract::DepositContract);
        // Blob parameters other than Osaka's were set by a fork that changed nothing else.
        let changes_blobs = rules == 2 && self.current.activation_time > 0 && !self.current.has_blobs_of_osaka();
        let name = if changes_blobs { Bpo1 } else { COVERED[rules].0 };
        self.current.write(name, 0, config);
        let mut time = self.current.activation_time;
        for later in [&self.next, &self.last].into_iter().flatten() {
            let Some(found) = later.rules().filter(|_| later.activation_time > time) else { continue };
            let name = if found > rules { Some(COVERED[found].0) } else { ForkName::next_of_blobs(config) };
            if let Some(name) = name.filter(|_| found >= rules) {
                later.write(name, later.activation_time, config);
                (rules, time) = (found, later.activation_time);
            }
        }
        Some(())
    }
}

impl AnnouncedFork {
    /// Returns the index in [`COVERED`] of the fork with these precompiles and system contracts. `None` if there is no such fork.
    fn rules(&self) -> Option<usize> {
        let addresses: BTreeSet<Address> = self.precompiles.as_ref()?.values().copied().collect();
        let names = self.system_contracts.as_ref()?.keys().cloned();
        // A chain may have no deposit contract.
        let deposits = SystemContract::DepositContract.to_string();
        let contracts: BTreeSet<String> = names.chain([deposits.clone()]).collect();
        COVERED.iter().position(|(fork, spec)| {
            let precompiles = Precompiles::new(PrecompileSpecId::from_spec_id(*spec)).addresses();
            let own = contracts_of(*fork).map(|contract| contract.to_string()).chain([deposits.clone()]);
            precompiles.copied().collect::<BTreeSet<_>>() == addresses && own.collect::<BTreeSet<_>>() == contracts
        })
    }

    fn contract(&self, contract: &SystemContract) -> Option<Address> {
        self.system_contracts.as_ref()?.get(&contract.to_string()).copied()
    }

    fn has_blobs_of_osaka(&self) -> bool {
        let (own, terms) = (BlobParams::osaka(), |blobs: BlobParams| {
            (blobs.target_blob_count, blobs.max_blob_count, blobs.update_fraction)
        });
        self.blob_schedule.is_none_or(|blobs| terms(blobs) == terms(own))
    }

    /// Writes the fork under this name into `config`, and the forks that it follows, at `before` unless they have a time.
    fn write(&self, name: ForkName, before: u64, config: &mut ChainConfig) {
        name.activate(config, self.activation_time, before);
        if let Some(blobs) = self.blob_schedule {
            config.blob_schedule.insert(name.to_string(), blobs);
        }
    }
}

/// Returns the system contracts that `eth_config` names of a fork in [`COVERED`].
fn contracts_of(fork: ForkName) -> impl Iterator<Item = SystemContract> {
    let prague = (fork != Cancun).then(|| SystemContract::prague(None));
    let amsterdam = (fork == Amsterdam).then(SystemContract::amsterdam);
    let all = SystemContract::cancun().into_iter().chain(prague.into_iter().flatten());
    all.chain(amsterdam.into_iter().flatten()).map(|(contract, _)| contract)
}

/// Returns the `config` of a chain of Ethereum's family whose forks by block number are all active from genesis.
fn ethereum(chain_id: u64) -> ChainConfig {
    let forks = &[(EthereumHardfork::Frontier, ForkCondition::ZERO_BLOCK)];
    let rules = Rules::Ethereum { deposits: None, forks };
    Network { id: chain_id, block_ms: 0, wrapper: None, rules, order: &[], times: &[] }.config()
}

impl ChainSpec {
    /// Returns the rules of the chain whose forks a node announces, with `forks` instead of its own; `None` if presim does not
    /// know the active fork. `block_time` is the usual time between two blocks.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`with_forks`](Self::with_forks).
    pub fn announced(
        chain_id: u64,
        announced: &AnnouncedForks,
        forks: &[ForkTime],
        block_time: Duration,
    ) -> Option<Result<Self, ChainSpecError>> {
        let mut config = ethereum(chain_id);
        announced.write(&mut config)?;
        Some(Self::with_forks(config, forks, block_time))
    }

    /// Returns Ethereum's rules up to the fork `newest`, with `forks` at other times.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`with_forks`](Self::with_forks).
    pub fn up_to(
        chain_id: u64,
        newest: EthereumHardfork,
        forks: &[ForkTime],
        block_time: Duration,
    ) -> Result<Self, ChainSpecError> {
        let mut config = ethereum(chain_id);
        set_newest_fork(&mut config, newest);
        Self::with_forks(config, forks, block_time)
    }

    /// Returns Ethereum's rules up to the newest of `forks` that is active from genesis, as its time 0 says, and from there on
    /// `forks` alone; `None` if none of them is.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`with_forks`](Self::with_forks).
    pub fn of_forks(chain_id: u64, forks: &[ForkTime], block_time: Duration) -> Option<Result<Self, ChainSpecError>> {
        let mut config = ethereum(chain_id);
        let from_genesis = forks.iter().filter(|at| at.time == Some(0) && at.fork.family() == Family::Ethereum);
        let from_genesis = from_genesis.map(|at| at.fork.activate(&mut config, 0, 0)).count();
        (from_genesis > 0).then(|| Self::with_forks(config, forks, block_time))
    }
}
