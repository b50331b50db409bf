//! The rules of one chain: its fork schedule, and the fees and environments that follow from it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::Header;
use alloy_eips::{
    eip1559::{BaseFeeParams, INITIAL_BASE_FEE},
    eip7825::MAX_TX_GAS_LIMIT_OSAKA,
    eip7840::BlobParams,
    eip7892::BlobScheduleBlobParams,
};
use alloy_evm::{EvmEnv, eth::spec::EthExecutorSpec};
use alloy_genesis::ChainConfig;
use alloy_hardforks::{EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, Bytes, U256, address};
use revm::{
    context::{BlockEnv, CfgEnv},
    context_interface::block::BlobExcessGasAndPrice,
    primitives::{eip3860::MAX_INITCODE_SIZE, hardfork::SpecId},
};
use strum::VariantArray;

use super::{
    ChainSpecError, Family, ForkName as N, ForkTime, Natives, SealedBlock,
    forks::{ForkTimes, set_forks},
    op::{OpFork, OpStackParams},
};

/// The time between blocks from Denim on.
const DENIM_BLOCK_TIME: Duration = Duration::from_millis(200);

/// The fork schedule and the constants of a chain, read from a geth-format `config`.
#[derive(Clone, Debug)]
pub struct ChainSpec {
    pub(super) config: ChainConfig,
    /// The chain id. A chain under test may change it for all clones of the rules.
    pub(super) chain_id: Arc<AtomicU64>,
    pub(super) forks: ForkTimes,
    blobs: BlobScheduleBlobParams,
    /// The usual time between two blocks.
    pub(super) block_time: Duration,
    /// The rules that do not apply, because the chain is under test.
    pub(super) lifted: LiftedRules,
    /// The contract that wraps the native currency, like WETH9, if it is known.
    pub(super) wrapper: Option<Address>,
    /// The contracts of the chain's nodes that presim does not have.
    pub(super) natives: Natives,
    /// The rules of the OP stack; `None` on a chain of Ethereum's family.
    op_stack: Option<OpStackParams>,
    /// The rules as each of the forks has them.
    pub(super) fork_rules: ForkRules,
    /// The fork whose rules apply at any time, if there is one ([`under`](ChainSpec::under)).
    pub(super) under: Option<&'static str>,
}

/// The rules of the forks of a chain. Each is created on first use, and shared by all clones.
#[derive(Clone, Debug, Default)]
pub(super) struct ForkRules(pub(super) Arc<[OnceLock<Box<ChainSpec>>; 1 + N::VARIANTS.len()]>);

/// The rules that a chain under test lifts.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiftedRules {
    /// Allows contracts to send transactions, which EIP-3607 forbids.
    pub contracts_may_send: bool,
    /// Removes the cap on a transaction's gas (EIP-7825).
    pub any_tx_gas: bool,
    /// The most bytes of a contract's code, if they are not the fork's (EIP-170).
    pub code_size: Option<usize>,
}

/// A fork of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// A fork of Ethereum.
    Ethereum(SpecId),
    /// A fork of the OP stack.
    OpStack(OpFork),
}

impl From<SpecId> for Fork {
    fn from(spec: SpecId) -> Self {
        Self::Ethereum(spec)
    }
}

impl From<OpFork> for Fork {
    fn from(fork: OpFork) -> Self {
        Self::OpStack(fork)
    }
}

impl ChainSpec {
    /// Reads the rules from the `config` of a genesis, which has an `optimism` object on the OP stack. `block_time` is
    /// the usual time between two blocks.
    ///
    /// # Errors
    ///
    /// Returns [`ChainSpecError::Field`] if a field of the OP stack is malformed, and [`ChainSpecError::Order`] if a
    /// fork activates before one that it follows.
    pub fn new(config: ChainConfig, block_time: Duration) -> Result<Self, ChainSpecError> {
        let forks = ForkTimes::of(&config)?;
        let op_stack = OpStackParams::of(&config, forks)?;
        // A predeploy (<https://specs.optimism.io/protocol/predeploys.html#weth9>).
        let wrapper = op_stack.is_some().then_some(address!("4200000000000000000000000000000000000006"));
        Ok(Self {
            natives: Natives::of(&forks),
            forks,
            blobs: blob_schedule(&config),
            chain_id: Arc::new(config.chain_id.into()),
            config,
            block_time,
            lifted: LiftedRules::default(),
            wrapper,
            op_stack,
            fork_rules: ForkRules::default(),
            under: None,
        })
    }

    /// Reads the rules as [`new`](Self::new) does, with `forks` at other times than in `config`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set_forks`] and [`new`](Self::new).
    pub fn with_forks(
        mut config: ChainConfig,
        forks: &[ForkTime],
        block_time: Duration,
    ) -> Result<Self, ChainSpecError> {
        set_forks(&mut config, forks)?;
        Self::new(config, block_time)
    }

    /// Returns the geth-format `config` of the chain.
    pub const fn config(&self) -> &ChainConfig {
        &self.config
    }

    /// Returns the family of rules that the chain follows.
    pub const fn family(&self) -> Family {
        if self.op_stack.is_some() { Family::OpStack } else { Family::Ethereum }
    }

    /// Returns the chain id (EIP-155).
    pub fn chain_id(&self) -> u64 {
        self.chain_id.load(Relaxed)
    }

    /// Sets the chain id of a chain under test, here and in all clones.
    pub fn set_chain_id(&self, id: u64) {
        self.chain_id.store(id, Relaxed);
    }

    /// Sets the usual time between two blocks.
    #[must_use]
    pub fn with_block_time(self, block_time: Duration) -> Self {
        Self { block_time, fork_rules: ForkRules::default(), ..self }
    }

    /// Sets the rules that do not apply.
    #[must_use]
    pub fn with_lifted(self, lifted: LiftedRules) -> Self {
        Self { lifted, fork_rules: ForkRules::default(), ..self }
    }

    /// Returns the rules that do not apply.
    pub const fn lifted(&self) -> LiftedRules {
        self.lifted
    }

    /// Returns the most gas of a transaction at `timestamp` (EIP-7825).
    pub fn most_tx_gas(&self, timestamp: u64) -> u64 {
        let is_capped = !self.lifted.any_tx_gas && self.is_osaka_active_at_timestamp(timestamp);
        if is_capped { MAX_TX_GAS_LIMIT_OSAKA } else { u64::MAX }
    }

    /// Returns the most bytes of the code that creates a contract (EIP-3860).
    pub fn most_init_code(&self) -> usize {
        self.lifted.code_size.map_or(MAX_INITCODE_SIZE, |size| size.saturating_mul(2))
    }

    /// Lifts the rules that do not apply.
    fn lift<S: Copy>(&self, cfg: &mut CfgEnv<S>) {
        cfg.disable_eip3607 = self.lifted.contracts_may_send;
        if self.lifted.any_tx_gas {
            cfg.tx_gas_limit_cap = Some(u64::MAX);
        }
        if self.lifted.code_size.is_some() {
            cfg.limit_contract_code_size = self.lifted.code_size;
        }
    }

    /// Sets the contract that wraps the native currency, like WETH9.
    #[must_use]
    pub fn with_wrapper(self, wrapper: Address) -> Self {
        Self { wrapper: Some(wrapper), fork_rules: ForkRules::default(), ..self }
    }

    /// Returns the contract that wraps the native currency, like WETH9, if it is known.
    pub const fn wrapper(&self) -> Option<Address> {
        self.wrapper
    }

    /// Adds native contracts to those that the forks introduce.
    #[must_use]
    pub fn with_natives(self, more: &[Address]) -> Self {
        Self { natives: self.natives.with(more), fork_rules: ForkRules::default(), ..self }
    }

    /// Returns the contracts of the chain's nodes that presim cannot execute.
    pub const fn natives(&self) -> &Natives {
        &self.natives
    }

    /// Returns the usual time between two blocks.
    pub const fn block_time(&self) -> Duration {
        self.block_time
    }

    /// Returns the time between blocks that the chain's forks prescribe at `timestamp`, if they prescribe one:
    /// [Denim's](https://docs.base.org/upgrades/denim/200ms-blocks).
    pub fn prescribed_block_time(&self, timestamp: u64) -> Option<Duration> {
        self.forks.is_active(N::Denim, timestamp).then_some(DENIM_BLOCK_TIME)
    }

    /// Returns the usual time between a block at `timestamp` and the next: the time that the forks prescribe, unless it
    /// was set to less than a second.
    pub fn block_time_at(&self, timestamp: u64) -> Duration {
        let prescribed = self.prescribed_block_time(timestamp).filter(|_| self.block_time >= Duration::from_secs(1));
        prescribed.unwrap_or(self.block_time)
    }

    /// Returns whether a block at `timestamp` may have the timestamp of its parent. Blocks that are less than a second
    /// apart must share timestamps, because a timestamp is in whole seconds.
    pub fn timestamps_repeat(&self, timestamp: u64) -> bool {
        match self.forks.time(N::Denim) {
            Some(denim) => denim <= timestamp,
            None => self.block_time < Duration::from_secs(1),
        }
    }

    /// Returns whether a block at `timestamp` contains the milliseconds of its time, as Denim requires.
    pub fn has_base_time(&self, timestamp: u64) -> bool {
        self.forks.is_active(N::Denim, timestamp)
    }

    /// Returns whether a block at `timestamp` may end with a post-execution transaction, as from Lagoon on.
    pub fn has_post_exec(&self, timestamp: u64) -> bool {
        self.forks.is_active(N::Lagoon, timestamp)
    }

    /// Returns the time of a block since 1970, with milliseconds where the chain's blocks contain them.
    pub fn instant_of(&self, block: &SealedBlock) -> Duration {
        let timestamp = block.header.timestamp;
        if self.has_base_time(timestamp) { block.instant() } else { Duration::from_secs(timestamp) }
    }

    /// Returns the timestamp that the block after one at `timestamp` usually has.
    pub fn next_timestamp(&self, timestamp: u64) -> u64 {
        timestamp.saturating_add(self.block_time.as_secs())
    }

    /// Returns the EVM environment of the transactions in `header`'s block, by the rules of Ethereum.
    pub fn evm_env(&self, header: &Header) -> EvmEnv {
        let mut env = EvmEnv::for_eth_block(header, self, self.chain_id(), self.blob_params(header.timestamp));
        self.lift(&mut env.cfg_env);
        env
    }

    /// Returns the EVM environment of the transactions in `header`'s block, by the rules of the OP stack.
    ///
    /// From [Ecotone](https://specs.optimism.io/protocol/ecotone/derivation.html) on, BLOBBASEFEE gives 1: there are no blobs.
    pub fn op_evm_env(&self, header: &Header) -> EvmEnv<OpFork> {
        let fork = self.op_fork(header.timestamp);
        let mut cfg = CfgEnv::new_with_spec(fork).with_chain_id(self.chain_id());
        self.lift(&mut cfg);
        let block = BlockEnv {
            number: U256::from(header.number),
            beneficiary: header.beneficiary,
            timestamp: U256::from(header.timestamp),
            difficulty: U256::ZERO,
            prevrandao: Some(header.mix_hash),
            gas_limit: header.gas_limit,
            basefee: header.base_fee_per_gas.unwrap_or_default(),
            blob_excess_gas_and_price: (fork >= OpFork::Ecotone)
                .then_some(BlobExcessGasAndPrice { excess_blob_gas: 0, blob_gasprice: 1 }),
            slot_num: 0,
        };
        EvmEnv::new(cfg, block)
    }

    /// Returns the fork of the OP stack that is active at `timestamp`. Its value means nothing on a chain of Ethereum's
    /// family.
    pub fn op_fork(&self, timestamp: u64) -> OpFork {
        let active = OpFork::TIMED.iter().find(|(name, _)| self.forks.is_active(*name, timestamp));
        active.map_or(OpFork::Bedrock, |(_, fork)| *fork)
    }

    /// Returns the number of the first block whose rules presim implements. On the OP stack, the first block of
    /// Bedrock.
    pub fn first_executable(&self) -> u64 {
        self.op_stack.as_ref().map_or(0, |op_stack| op_stack.bedrock)
    }

    /// Returns whether `fork` activates at exactly `timestamp`.
    pub fn activates_at(&self, fork: N, timestamp: u64) -> bool {
        self.forks.time(fork) == Some(timestamp)
    }

    /// Returns whether the block at `timestamp` is on the OP stack, and of `fork` or a newer one.
    pub fn has_op_fork(&self, fork: OpFork, timestamp: u64) -> bool {
        self.op_stack.is_some() && self.op_fork(timestamp) >= fork
    }

    /// Returns the fork of Ethereum whose EVM rules apply in `header`'s block, on either family.
    pub fn evm_fork(&self, header: &Header) -> SpecId {
        match self.family() {
            Family::Ethereum => alloy_evm::spec(self, header),
            Family::OpStack => self.op_fork(header.timestamp).into(),
        }
    }

    /// Returns the fork of the chain's own family that is active in `header`'s block.
    pub fn fork(&self, header: &Header) -> Fork {
        match self.family() {
            Family::Ethereum => Fork::Ethereum(self.evm_fork(header)),
            Family::OpStack => self.op_fork(header.timestamp).into(),
        }
    }

    /// Returns whether the chain's rules change after block `number` at `timestamp`.
    pub fn changes_after(&self, number: u64, timestamp: u64) -> bool {
        let at_block = |number: u64| self.fork(&Header { number, timestamp, ..Header::default() });
        self.forks.iter().any(|time| time > timestamp) || at_block(number) != at_block(u64::MAX)
    }

    /// Returns the target, maximum and price curve of blobs at `timestamp` (EIP-7840, EIP-7892). Returns `None` before
    /// Cancun and on the OP stack.
    pub fn blob_params(&self, timestamp: u64) -> Option<BlobParams> {
        if self.op_stack.is_some() {
            return None;
        }
        let BlobScheduleBlobParams { osaka, prague, cancun, .. } = &self.blobs;
        let by_fork = || {
            let forks = [(N::Osaka, osaka), (N::Prague, prague), (N::Cancun, cancun)];
            forks.into_iter().find(|(fork, _)| self.forks.is_active(*fork, timestamp)).map(|(_, params)| params)
        };
        self.blobs.active_scheduled_params_at_timestamp(timestamp).or_else(by_fork).copied()
    }

    /// Returns the base fee in wei of block `number` on `parent` (EIP-1559, or the OP stack's), `None` before London.
    pub fn next_base_fee(&self, parent: &Header, number: u64, timestamp: u64) -> Option<u64> {
        if !self.is_london_active_at_block(number) {
            return None;
        }
        let Some(fee) = parent.base_fee_per_gas else { return Some(INITIAL_BASE_FEE) };
        if let Some(op_stack) = &self.op_stack {
            return Some(op_stack.next_base_fee(parent, timestamp));
        }
        // A block raises the fee by at most an eighth, so the bound prevents an overflow by a fee from an override.
        let parent = Header { base_fee_per_gas: Some(fee.min(u64::MAX / 9 * 8)), ..parent.clone() };
        parent.next_block_base_fee(BaseFeeParams::ethereum())
    }

    /// Returns the `extraData` of a block on `parent` at `timestamp`: on the OP stack, from Holocene on, the parameters
    /// of the next block's base fee. Empty elsewhere.
    pub fn next_extra_data(&self, parent: &Header, timestamp: u64) -> Bytes {
        self.op_stack.as_ref().map(|op_stack| op_stack.next_extra_data(parent, timestamp)).unwrap_or_default()
    }

    /// Returns the excess blob gas of a block on `parent` at `timestamp` (EIP-4844, EIP-7918), or `None` before Cancun.
    /// On the OP stack it is zero from Ecotone on.
    pub fn next_excess_blob_gas(&self, parent: &Header, timestamp: u64) -> Option<u64> {
        if self.op_stack.is_some() {
            return (self.op_fork(timestamp) >= OpFork::Ecotone).then_some(0);
        }
        let params = self.blob_params(timestamp)?;
        Some(parent.next_block_excess_blob_gas(params).unwrap_or_default())
    }

    /// Returns whether a block in `env` has a base fee, as blocks since London do.
    pub fn is_market<S: Copy + Into<SpecId>>(&self, env: &EvmEnv<S>) -> bool {
        env.cfg_env.spec.into().is_enabled_in(SpecId::LONDON)
    }

    /// Returns the block whose state change moves the balances of the DAO (EIP-779), if the chain supports that fork.
    pub fn dao_fork_block(&self) -> Option<u64> {
        self.config.dao_fork_block.filter(|_| self.config.dao_fork_support)
    }

    /// Returns whether proof of stake produces block `number` (EIP-3675).
    pub fn is_post_merge(&self, number: u64) -> bool {
        self.is_paris_active_at_block(number)
    }
}

/// Returns the blob parameters of a `config`. alloy-genesis reads Amsterdam's only under the key `Amsterdam`, but a
/// genesis has them under `amsterdam` (EIP-7840).
fn blob_schedule(config: &ChainConfig) -> BlobScheduleBlobParams {
    let Some(amsterdam) = config.blob_schedule.get(N::Amsterdam.into()) else {
        return config.blob_schedule_blob_params();
    };
    let mut config = config.clone();
    config.blob_schedule.insert("Amsterdam".to_owned(), *amsterdam);
    config.blob_schedule_blob_params()
}

impl EthereumHardforks for ChainSpec {
    fn ethereum_fork_activation(&self, fork: EthereumHardfork) -> ForkCondition {
        use EthereumHardfork as F;
        if let Some(op_stack) = &self.op_stack {
            return self.op_stack_activation(op_stack, fork);
        }
        let block = |at: Option<u64>| at.map_or(ForkCondition::Never, ForkCondition::Block);
        let time = |fork: N| self.activation(fork);
        let c = &self.config;
        match fork {
            F::Frontier => ForkCondition::Block(0),
            F::Homestead => block(c.homestead_block),
            // Moved by `ChainExecutor::begin`: alloy-evm would move the balances after the block's transactions.
            F::Dao => ForkCondition::Never,
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
            F::Shanghai => time(N::Shanghai),
            F::Cancun => time(N::Cancun),
            F::Prague => time(N::Prague),
            F::Osaka => time(N::Osaka),
            F::Bpo1 => time(N::Bpo1),
            F::Bpo2 => time(N::Bpo2),
            F::Bpo3 => time(N::Bpo3),
            F::Bpo4 => time(N::Bpo4),
            F::Bpo5 => time(N::Bpo5),
            F::Amsterdam => time(N::Amsterdam),
            _ => ForkCondition::Never,
        }
    }
}

impl ChainSpec {
    fn activation(&self, fork: N) -> ForkCondition {
        self.forks.time(fork).map_or(ForkCondition::Never, ForkCondition::Timestamp)
    }

    /// Returns the activation of Osaka's EVM on the OP stack, whichever fork brings it.
    fn osaka_on_op_stack(&self) -> ForkCondition {
        let times = [N::Karst, N::Azul].into_iter().filter_map(|fork| self.forks.time(fork));
        times.min().map_or(ForkCondition::Never, ForkCondition::Timestamp)
    }

    /// Returns the activation of a fork of Ethereum that a fork of the OP stack brings.
    fn op_stack_activation(&self, op_stack: &OpStackParams, fork: EthereumHardfork) -> ForkCondition {
        use EthereumHardfork as F;
        match fork {
            F::Dao => ForkCondition::Never,
            _ if fork <= F::Berlin => ForkCondition::Block(0),
            F::London | F::ArrowGlacier | F::GrayGlacier => ForkCondition::Block(op_stack.bedrock),
            F::Paris => ForkCondition::TTD {
                activation_block_number: op_stack.bedrock,
                fork_block: Some(op_stack.bedrock),
                total_difficulty: U256::ZERO,
            },
            F::Shanghai => self.activation(N::Canyon),
            F::Cancun => self.activation(N::Ecotone),
            F::Prague => self.activation(N::Isthmus),
            F::Osaka => self.osaka_on_op_stack(),
            _ => ForkCondition::Never,
        }
    }
}

impl EthExecutorSpec for ChainSpec {
    fn deposit_contract_address(&self) -> Option<Address> {
        self.config.deposit_contract_address
    }
}
