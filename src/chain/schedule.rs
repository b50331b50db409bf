//! The fork schedule in the form of `eth_config` (EIP-7910).

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::Header;
use alloy_eip2124::ForkHash;
use alloy_eips::{
    eip7840::BlobParams,
    eip7910::{EthConfig, EthForkConfig, SystemContract},
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256};
use revm::precompile::Precompiles;

use super::{ChainSpec, Family, Fork, ForkAt};

/// The deposit contract of a chain whose `config` names none. geth returns the same value.
const NO_DEPOSIT_CONTRACT: Address = Address::ZERO;

/// The blob parameters of a chain without blobs.
const NO_BLOBS: BlobParams = BlobParams {
    target_blob_count: 0,
    max_blob_count: 0,
    update_fraction: 0,
    min_blob_fee: 0,
    max_blobs_per_tx: 0,
    blob_base_cost: 0,
};

impl ChainSpec {
    /// Returns the fork that is active in `head`, the next fork, and the last scheduled fork. Returns `None` before
    /// Cancun, because EIP-7910 does not cover those forks. On the OP stack, the answer has no blobs and no requests,
    /// as on Base (<https://docs.base.org/base-chain/specs/upgrades/azul/exec-engine#eth-config-rpc-method>).
    ///
    /// `precompiles` returns the precompiles of a fork.
    pub fn fork_config(
        &self,
        genesis: &Header,
        genesis_hash: B256,
        head: &Header,
        precompiles: impl Fn(Fork) -> &'static Precompiles,
    ) -> Option<EthConfig> {
        let times = self.fork_times();
        let config = |time: u64| self.one_fork(genesis, genesis_hash, time, &precompiles);
        // Forks that are active at genesis count as activated at time zero.
        let active = times.iter().copied().filter(|time| *time <= head.timestamp).max()?;
        let next = times.iter().copied().find(|time| *time > head.timestamp);
        let last = next.and(times.last().copied());
        Some(EthConfig { current: config(active)?, next: next.and_then(config), last: last.and_then(config) })
    }

    /// Returns whether a fork whose rules presim executes becomes active at this time.
    pub fn executes_fork_at(&self, time: u64) -> bool {
        time == 0 || self.forks.is_executed_at(time)
    }

    /// Returns the first fork of the chain whose rules presim does not execute.
    pub const fn unexecuted_fork(&self) -> Option<ForkAt> {
        self.natives().fork()
    }

    /// Returns the timestamps at which forks become active, in order.
    fn fork_times(&self) -> BTreeSet<u64> {
        self.forks.iter().collect()
    }

    fn one_fork(
        &self,
        genesis: &Header,
        genesis_hash: B256,
        time: u64,
        precompiles: &impl Fn(Fork) -> &'static Precompiles,
    ) -> Option<EthForkConfig> {
        // The header is past every fork by block number, so that the timestamp alone decides.
        let header = Header { number: u64::MAX, timestamp: time.max(genesis.timestamp), ..genesis.clone() };
        let precompiles: BTreeMap<String, Address> = precompiles(self.fork(&header))
            .inner()
            .iter()
            .map(|(address, precompile)| (precompile.id().name().to_owned(), *address))
            .collect();
        let mut system_contracts = BTreeMap::from(SystemContract::cancun());
        if self.is_prague_active_at_timestamp(header.timestamp) {
            let deposits = self.config.deposit_contract_address.unwrap_or(NO_DEPOSIT_CONTRACT);
            system_contracts.extend(SystemContract::prague(Some(deposits)));
        }
        let blob_schedule = match self.family() {
            Family::Ethereum => self.blob_params(header.timestamp)?,
            Family::OpStack if self.is_cancun_active_at_timestamp(header.timestamp) => {
                system_contracts.retain(|contract, _| {
                    matches!(contract, SystemContract::BeaconRoots | SystemContract::HistoryStorage)
                });
                NO_BLOBS
            }
            Family::OpStack => return None,
        };
        if self.is_amsterdam_active_at_timestamp(header.timestamp) {
            system_contracts.extend(SystemContract::amsterdam());
        }
        Some(EthForkConfig {
            activation_time: if time <= genesis.timestamp { 0 } else { time },
            blob_schedule,
            chain_id: self.chain_id(),
            fork_id: self.fork_hash(genesis, genesis_hash, time).0.to_vec().into(),
            precompiles,
            system_contracts,
        })
    }

    /// Returns the fork hash at `time` (EIP-2124, EIP-6122). Forks that are active at genesis are left out.
    fn fork_hash(&self, genesis: &Header, genesis_hash: B256, time: u64) -> ForkHash {
        let c = &self.config;
        let blocks: BTreeSet<u64> = [
            c.homestead_block,
            c.dao_fork_block,
            c.eip150_block,
            c.eip155_block,
            c.eip158_block,
            c.byzantium_block,
            c.constantinople_block,
            c.petersburg_block,
            c.istanbul_block,
            c.muir_glacier_block,
            c.berlin_block,
            c.london_block,
            c.arrow_glacier_block,
            c.gray_glacier_block,
            c.merge_netsplit_block,
        ]
        .into_iter()
        .flatten()
        .filter(|block| *block > 0)
        .collect();
        let times = self.fork_times().into_iter().filter(|at| *at > genesis.timestamp && *at <= time);
        blocks.into_iter().chain(times).fold(ForkHash::from(genesis_hash), |hash, at| hash + at)
    }
}
