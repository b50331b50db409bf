//! The rules of one chain: which fork is active when, and what follows from it.

use alloy_consensus::Header;
use alloy_eips::{
    eip1559::{BaseFeeParams, INITIAL_BASE_FEE},
    eip7840::BlobParams,
    eip7892::BlobScheduleBlobParams,
};
use alloy_evm::{EvmEnv, eth::spec::EthExecutorSpec};
use alloy_genesis::ChainConfig;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, U256};
use revm::primitives::hardfork::SpecId;

/// The fork schedule and the constants of a chain, read from a geth-format `config`.
#[derive(Clone, Debug)]
pub struct ChainSpec {
    pub(super) config: ChainConfig,
    blobs: BlobScheduleBlobParams,
    block_time: u64,
}

impl ChainSpec {
    /// A chain by the `config` of its genesis. `block_time` is its usual distance between blocks, in seconds.
    pub fn new(config: ChainConfig, block_time: u64) -> Self {
        Self { blobs: config.blob_schedule_blob_params(), config, block_time }
    }

    /// EIP-155 chain id.
    pub const fn chain_id(&self) -> u64 {
        self.config.chain_id
    }

    /// The usual distance between two blocks, in seconds.
    pub const fn block_time(&self) -> u64 {
        self.block_time
    }

    /// The environment in which the transactions of `header`'s block run.
    pub fn evm_env(&self, header: &Header) -> EvmEnv {
        EvmEnv::for_eth_block(header, self, self.chain_id(), self.blob_params(header.timestamp))
    }

    /// Target, maximum and price curve of blobs at `timestamp` (EIP-7840, EIP-7892); none before Cancun.
    pub fn blob_params(&self, timestamp: u64) -> Option<BlobParams> {
        if let Some(scheduled) = self.blobs.active_scheduled_params_at_timestamp(timestamp) {
            Some(*scheduled)
        } else if self.is_osaka_active_at_timestamp(timestamp) {
            Some(self.blobs.osaka)
        } else if self.is_prague_active_at_timestamp(timestamp) {
            Some(self.blobs.prague)
        } else if self.is_cancun_active_at_timestamp(timestamp) {
            Some(self.blobs.cancun)
        } else {
            None
        }
    }

    /// The base fee, in wei, of a block on `parent` (EIP-1559); none before London.
    pub fn next_base_fee(&self, parent: &Header, number: u64) -> Option<u64> {
        if !self.is_london_active_at_block(number) {
            return None;
        }
        let Some(fee) = parent.base_fee_per_gas else { return Some(INITIAL_BASE_FEE) };
        // A block adds at most an eighth: a fee that an override put at the end of the range cannot rise past it.
        let parent = Header { base_fee_per_gas: Some(fee.min(u64::MAX / 9 * 8)), ..parent.clone() };
        parent.next_block_base_fee(BaseFeeParams::ethereum())
    }

    /// The excess blob gas of a block on `parent` at `timestamp` (EIP-4844, EIP-7918); none before Cancun.
    pub fn next_excess_blob_gas(&self, parent: &Header, timestamp: u64) -> Option<u64> {
        let params = self.blob_params(timestamp)?;
        Some(parent.next_block_excess_blob_gas(params).unwrap_or_default())
    }

    /// Whether a block in `env` has a base fee: from London on.
    pub fn is_market(&self, env: &EvmEnv) -> bool {
        env.cfg_env.spec.is_enabled_in(SpecId::LONDON)
    }

    /// Whether blocks at `number` are produced by proof of stake (EIP-3675).
    pub fn is_post_merge(&self, number: u64) -> bool {
        self.is_paris_active_at_block(number)
    }
}

impl EthereumHardforks for ChainSpec {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        use EthereumHardfork as F;
        let block = |at: Option<u64>| at.map_or(ForkCondition::Never, ForkCondition::Block);
        let time = |at: Option<u64>| at.map_or(ForkCondition::Never, ForkCondition::Timestamp);
        let c = &self.config;
        match fork {
            F::Frontier => ForkCondition::Block(0),
            F::Homestead => block(c.homestead_block),
            F::Dao => block(c.dao_fork_block.filter(|_| c.dao_fork_support)),
            F::Tangerine => block(c.eip150_block),
            F::SpuriousDragon => block(c.eip155_block.max(c.eip158_block)),
            F::Byzantium => block(c.byzantium_block),
            F::Constantinople => block(c.constantinople_block),
            F::Petersburg => block(c.petersburg_block.or(c.constantinople_block)),
            F::Istanbul => block(c.istanbul_block),
            F::MuirGlacier => block(c.muir_glacier_block),
            F::Berlin => block(c.berlin_block),
            F::London => block(c.london_block),
            F::ArrowGlacier => block(c.arrow_glacier_block),
            F::GrayGlacier => block(c.gray_glacier_block),
            F::Paris => {
                let merged_from_start = c.terminal_total_difficulty.is_some_and(|ttd| ttd.is_zero());
                match c.merge_netsplit_block {
                    None if merged_from_start || c.terminal_total_difficulty_passed => ForkCondition::Block(0),
                    None => ForkCondition::Never,
                    Some(number) => ForkCondition::TTD {
                        activation_block_number: number,
                        fork_block: Some(number),
                        total_difficulty: c.terminal_total_difficulty.unwrap_or(U256::MAX),
                    },
                }
            }
            F::Shanghai => time(c.shanghai_time),
            F::Cancun => time(c.cancun_time),
            F::Prague => time(c.prague_time),
            F::Osaka => time(c.osaka_time),
            F::Bpo1 => time(c.bpo1_time),
            F::Bpo2 => time(c.bpo2_time),
            F::Bpo3 => time(c.bpo3_time),
            F::Bpo4 => time(c.bpo4_time),
            F::Bpo5 => time(c.bpo5_time),
            F::Amsterdam => time(c.amsterdam_time),
            _ => ForkCondition::Never,
        }
    }
}

impl EthExecutorSpec for ChainSpec {
    fn deposit_contract_address(&self) -> Option<Address> {
        self.config.deposit_contract_address
    }
}
