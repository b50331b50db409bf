//! Requests to the engine, already parsed: they cannot be malformed, only refused by the chain's rules.

use std::time::Duration;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::{eip2930::AccessList, eip4895::Withdrawals, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, map::HashMap};
use bitflags::bitflags;

use crate::{chain::ChainSpec, ledger::Snapshot};

/// A call as a request describes it. An absent field gets its default from the block in which the call runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The sender; the zero address by default.
    pub from: Address,
    /// The callee, or the creation of a contract.
    pub to: TxKind,
    /// Gas limit. `None` allows all the gas of the block or of the node's cap.
    pub gas: Option<u64>,
    /// The price that the call offers for gas.
    pub fees: CallFees,
    /// Value transferred, in wei.
    pub value: U256,
    /// Call data, or the code that creates a contract.
    pub data: Bytes,
    /// The sender's nonce; its current one by default.
    pub nonce: Option<u64>,
    /// EIP-155 chain id. If present, it must be the chain's own.
    pub chain_id: Option<U256>,
    /// Access list (EIP-2930).
    pub access_list: Option<AccessList>,
    /// Versioned hashes of the blobs (EIP-4844).
    pub blob_hashes: Option<Vec<B256>>,
    /// The maximum price that the call pays per unit of blob gas, in wei (EIP-4844).
    pub max_fee_per_blob_gas: Option<u128>,
    /// Signed delegations (EIP-7702).
    pub authorization_list: Option<Vec<SignedAuthorization>>,
}

impl Call {
    /// Creates a call of an account, from the zero address, without value and data.
    #[must_use]
    pub fn to(account: Address) -> Self {
        Self { to: TxKind::Call(account), ..Self::default() }
    }

    /// Creates the creation of a contract by this code.
    #[must_use]
    pub fn create(code: impl Into<Bytes>) -> Self {
        Self { to: TxKind::Create, data: code.into(), ..Self::default() }
    }

    /// Sets the sender.
    #[must_use]
    pub fn with_from(self, from: Address) -> Self {
        Self { from, ..self }
    }

    /// Sets the value, in wei.
    #[must_use]
    pub fn with_value(self, value: U256) -> Self {
        Self { value, ..self }
    }

    /// Sets the data.
    #[must_use]
    pub fn with_data(self, data: impl Into<Bytes>) -> Self {
        Self { data: data.into(), ..self }
    }

    /// Sets the gas limit.
    #[must_use]
    pub fn with_gas(self, gas: u64) -> Self {
        Self { gas: Some(gas), ..self }
    }

    /// Returns the maximum price that the call pays per unit of gas, in wei.
    pub(super) const fn max_fee(&self) -> u128 {
        match self.fees {
            CallFees::GasPrice(fee) | CallFees::Market { max_fee: Some(fee), .. } => fee,
            CallFees::Market { max_fee: None, .. } => 0,
        }
    }

    /// Returns the sender, the maximum price that it pays per unit of gas, and the length of the data, for errors.
    pub(super) fn named(&self) -> (Address, u128, usize) {
        (self.from, self.max_fee(), self.data.len())
    }
}

/// The price that a call offers for a unit of gas, in wei.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::address;
/// use presim::{Config, Error, Node, simulation::{Call, CallFees, SimBlock, Simulation}};
///
/// let node = Node::start(Config::default()).await?;
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// let fees = CallFees::Market { max_fee: Some(1), max_priority: None };
/// let call = Call { fees, ..Call::to(from).with_from(from).with_gas(21_000) };
/// // With `validation`, a call pays for its gas as on the chain. One wei is less than the base fee.
/// let bundle = Simulation { validation: true, ..Simulation::of([SimBlock::of([call])]) };
/// let Err(Error::Simulation(error)) = node.simulate(&bundle).await else { return Err("the call is refused".into()) };
/// assert_eq!(error.code(), -38012);
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFees {
    /// A single price, as before EIP-1559.
    GasPrice(u128),
    /// EIP-1559 fees. An absent fee is zero; a call without either pays nothing.
    Market {
        /// The maximum price that the call pays in total.
        max_fee: Option<u128>,
        /// The maximum price that the call pays to the block's producer.
        max_priority: Option<u128>,
    },
}

impl Default for CallFees {
    fn default() -> Self {
        Self::Market { max_fee: None, max_priority: None }
    }
}

impl CallFees {
    /// Returns these fees replaced by the given market fees. Missing ones are kept.
    pub(super) const fn with_market(self, max_fee: Option<u128>, max_priority: Option<u128>) -> Self {
        let (old_fee, old_priority) = match self {
            Self::GasPrice(_) => (None, None),
            Self::Market { max_fee, max_priority } => (max_fee, max_priority),
        };
        Self::Market {
            max_fee: if max_fee.is_some() { max_fee } else { old_fee },
            max_priority: if max_priority.is_some() { max_priority } else { old_priority },
        }
    }

    /// Returns whether the call offers nothing for its gas.
    pub(super) const fn is_free(&self) -> bool {
        match self {
            Self::GasPrice(price) => *price == 0,
            Self::Market { max_fee, max_priority } => {
                matches!(max_fee, None | Some(0)) && matches!(max_priority, None | Some(0))
            }
        }
    }
}

/// Values that replace an account's own. `None` keeps the account's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountOverride {
    /// Balance in wei.
    pub balance: Option<U256>,
    /// Next nonce of the account.
    pub nonce: Option<u64>,
    /// Bytecode; empty for an account without code.
    pub code: Option<Bytes>,
    /// Storage slots.
    pub storage: StorageOverride,
    /// The address to which the precompile at this account moves.
    pub move_precompile_to: Option<Address>,
}

/// Storage slots that replace an account's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StorageOverride {
    /// The account keeps its storage.
    #[default]
    Keep,
    /// `state`: the account has these slots and no others.
    Replace(Vec<(U256, U256)>),
    /// `stateDiff`: these slots change, and all others stay.
    Diff(Vec<(U256, U256)>),
}

/// State overrides, ordered by address, so that the account that an error names does not depend on hash order.
pub type StateOverrides = Vec<(Address, AccountOverride)>;

/// Values that replace a block's own. `None` keeps the block's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOverrides {
    /// Block number.
    pub number: Option<u64>,
    /// Timestamp in seconds.
    pub time: Option<u64>,
    /// Gas limit.
    pub gas_limit: Option<u64>,
    /// The recipient of the fees.
    pub fee_recipient: Option<Address>,
    /// The block's `prevRandao` (EIP-4399).
    pub prev_randao: Option<B256>,
    /// Base fee in wei.
    pub base_fee: Option<u64>,
    /// Price of a unit of blob gas in wei.
    pub blob_base_fee: Option<u128>,
    /// Root of the parent beacon block (EIP-4788).
    pub beacon_root: Option<B256>,
    /// Withdrawals (EIP-4895).
    pub withdrawals: Option<Withdrawals>,
    /// Difficulty. Ignored from the merge on.
    pub difficulty: Option<U256>,
    /// Slot (EIP-7843). Ignored before Amsterdam.
    pub slot_number: Option<u64>,
    /// The name of the fork whose rules apply to the block, and to the blocks after it unless they name a fork
    /// themselves.
    pub fork: Option<Box<str>>,
}

impl BlockOverrides {
    /// Fills absent values from `others`, number, time and slot only if `first`, because later blocks follow from the
    /// first.
    pub(crate) fn or(self, others: &Self, first: bool) -> Self {
        let (number, time, slot) =
            if first { (others.number, others.time, others.slot_number) } else { (None, None, None) };
        Self {
            number: self.number.or(number),
            time: self.time.or(time),
            gas_limit: self.gas_limit.or(others.gas_limit),
            fee_recipient: self.fee_recipient.or(others.fee_recipient),
            prev_randao: self.prev_randao.or(others.prev_randao),
            base_fee: self.base_fee.or(others.base_fee),
            blob_base_fee: self.blob_base_fee.or(others.blob_base_fee),
            beacon_root: self.beacon_root.or(others.beacon_root),
            withdrawals: self.withdrawals.or_else(|| others.withdrawals.clone()),
            difficulty: self.difficulty.or(others.difficulty),
            slot_number: self.slot_number.or(slot),
            fork: self.fork.or_else(|| others.fork.clone()),
        }
    }
}

/// The parameters of an `eth_call`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRequest {
    /// The call.
    pub call: Call,
    /// Overrides of the state before the call.
    pub state: StateOverrides,
    /// Overrides of the block in which the call runs.
    pub block: BlockOverrides,
}

bitflags! {
    /// The parts of a simulation's results that a request asks for. Other parts are not computed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Outputs: u16 {
        /// Whether each call succeeded.
        const STATUS = 1;
        /// The gas that each call used.
        const GAS_USED = 1 << 1;
        /// Each call's output.
        const RETURN_DATA = 1 << 2;
        /// Why a call failed.
        const ERROR = 1 << 3;
        /// The logs of each call.
        const LOGS = 1 << 4;
        /// Each block's header with its hashes and roots, and its transactions.
        const HEADER = 1 << 5;
        /// The transfers of the native currency in each call.
        const TRANSFERS = 1 << 6;
        /// The changes of the state by each block's calls.
        const STATE_DIFF = 1 << 7;
        /// The accounts and slots that each call accesses.
        const ACCESS_LIST = 1 << 8;
        /// The values that the run reads of its snapshot. Only JSON-RPC returns them.
        const READ_SET = 1 << 9;
        /// The net changes of accounts' assets in each block.
        const ASSETS = 1 << 10;
        /// The income of each block's producer.
        const COINBASE = 1 << 11;
        /// The frames of each call.
        const TRACE = 1 << 12;
        /// Each block's access list (EIP-7928), from Amsterdam on.
        const BLOCK_ACCESS_LIST = 1 << 13;
    }
}

impl Outputs {
    /// The outputs of `eth_simulateV1`.
    pub const SIMULATE_V1: Self = Self::STATUS
        .union(Self::GAS_USED)
        .union(Self::RETURN_DATA)
        .union(Self::ERROR)
        .union(Self::LOGS)
        .union(Self::HEADER);
}

impl Default for Outputs {
    /// Returns the outputs of `eth_simulateV1`.
    fn default() -> Self {
        Self::SIMULATE_V1
    }
}

/// The parameters of an `eth_simulateV1` or a `presim_simulate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// The blocks, in order.
    pub blocks: Vec<SimBlock>,
    /// Whether transfers of the native currency are reported as logs.
    pub trace_transfers: bool,
    /// Whether nonces, fees and the base fee are checked as for real transactions.
    pub validation: bool,
    /// The parts of the results that are computed.
    pub outputs: Outputs,
    /// The required ends of calls. The bundle fails as a whole if one is not met. `None` if calls may end in any way.
    pub when: Option<Conditions>,
    /// The quantity that is measured before the first call and after the last.
    pub objective: Option<Objective>,
}

/// A quantity that a bundle may raise or lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Objective {
    /// The balance of an account, in wei.
    Ether(Address),
    /// The balance of an account in an ERC-20 token, as the token's `balanceOf` returns it.
    Token {
        /// The account.
        account: Address,
        /// The token.
        token: Address,
    },
    /// The income of the blocks' producers from the calls, in wei.
    Coinbase,
}

impl Simulation {
    /// Creates a simulation of these blocks, with the outputs of `eth_simulateV1`.
    #[must_use]
    pub fn of(blocks: impl IntoIterator<Item = SimBlock>) -> Self {
        Self { blocks: blocks.into_iter().collect(), ..Self::default() }
    }

    /// Sets the parts of the results that are computed.
    #[must_use]
    pub fn with_outputs(self, outputs: Outputs) -> Self {
        Self { outputs, ..self }
    }

    /// Returns whether the income of the blocks' producers is counted.
    pub(super) fn counts_income(&self) -> bool {
        self.outputs.contains(Outputs::COINBASE) || self.objective == Some(Objective::Coinbase)
    }

    /// Returns the number of calls in all blocks.
    pub(crate) fn calls(&self) -> usize {
        self.blocks.iter().map(|block| block.calls.len()).sum()
    }
}

/// The required ends of a bundle's calls. A call that is not named must succeed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{Address, U256, address};
/// use presim::{Config, Node, simulation::{Call, CallIndex, Conditions, RequiredEnd, SimBlock, Simulation}};
///
/// let node = Node::start(Config::default()).await?;
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// let pay = Call::to(Address::repeat_byte(7)).with_from(from).with_value(U256::from(1));
/// let second = CallIndex { block: 0, call: 1 };
/// let when = Conditions([(second, RequiredEnd::Failure)].into_iter().collect());
/// let bundle = Simulation { when: Some(when), ..Simulation::of([SimBlock::of([pay.clone(), pay.clone(), pay])]) };
/// // The second call succeeds, so the bundle ends there.
/// assert_eq!(node.simulate(&bundle).await?.dropped, Some(second));
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(pub HashMap<CallIndex, RequiredEnd>);

impl Conditions {
    /// Returns whether the call at `index` may end with or without success.
    pub(super) fn allow(&self, index: CallIndex, success: bool) -> bool {
        match self.0.get(&index) {
            None | Some(RequiredEnd::Success) => success,
            Some(RequiredEnd::Failure) => !success,
            Some(RequiredEnd::Any) => true,
        }
    }
}

/// The index of a call in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallIndex {
    /// Index of the block in the request, from 0.
    pub block: usize,
    /// Index of the call in the block, from 0.
    pub call: usize,
}

/// The end that a bundle requires of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequiredEnd {
    /// The call succeeds.
    Success,
    /// The call reverts, or the EVM halts it.
    Failure,
    /// Any end.
    Any,
}

/// One block of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimBlock {
    /// Overrides of the state before the block's first call.
    pub state: StateOverrides,
    /// Overrides of the block's fields.
    pub block: BlockOverrides,
    /// The calls, in order.
    pub calls: Vec<SimCall>,
}

impl SimBlock {
    /// Creates a block of these calls, without overrides.
    #[must_use]
    pub fn of(calls: impl IntoIterator<Item = Call>) -> Self {
        Self { calls: calls.into_iter().map(SimCall::from).collect(), ..Self::default() }
    }
}

/// A call of a simulation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, transaction::SignerRecoverable};
/// use alloy_primitives::{Address, U256};
/// use alloy_signer::SignerSync;
/// use alloy_signer_local::MnemonicBuilder;
/// use presim::{Config, Node, simulation::{Call, SimBlock, SimCall, Simulation}};
///
/// let node = Node::start(Config::default().with("traffic", 0)).await?;
/// let signer = MnemonicBuilder::from_phrase("test test test test test test test test test test test junk").build()?;
/// let tx = TxEip1559 {
///     chain_id: node.chain_id(),
///     nonce: node.account(signer.address()).await?.nonce,
///     gas_limit: 21_000,
///     max_fee_per_gas: 100_000_000_000,
///     to: Address::repeat_byte(7).into(),
///     value: U256::from(1),
///     ..TxEip1559::default()
/// };
/// let signature = signer.sign_hash_sync(&tx.signature_hash())?;
/// let seen = TxEnvelope::from(tx.into_signed(signature)).try_into_recovered()?;
/// // The bundle runs a call after a transaction that somebody has signed.
/// let calls = vec![SimCall::Signed(Box::new(seen)), Call::to(Address::repeat_byte(7)).into()];
/// let simulated = node.simulate(&Simulation::of([SimBlock { calls, ..SimBlock::default() }])).await?;
/// assert_eq!(simulated.blocks[0].calls.len(), 2);
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all calls are unsigned, and a box would cost each an allocation")]
pub enum SimCall {
    /// A call as a request describes it.
    Unsigned(Call),
    /// A signed transaction, which is checked and pays as on the chain, with or without `validation`.
    Signed(Box<Recovered<TxEnvelope>>),
}

impl SimCall {
    /// Returns the sender.
    pub(super) fn sender(&self) -> Address {
        match self {
            Self::Unsigned(call) => call.from,
            Self::Signed(tx) => tx.signer(),
        }
    }
}

impl From<Call> for SimCall {
    fn from(call: Call) -> Self {
        Self::Unsigned(call)
    }
}

/// The rules that a caller of the engine sets: limits, and the points in which the dialects differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationRules {
    /// The base fee of calls without validation.
    pub base_fee: BaseFeeRule,
    /// Whether a block that continues the one being built has its `prevRandao`. If not, it has zero.
    pub keeps_prev_randao: bool,
    /// The time between simulated blocks; `None` for the chain's own.
    pub block_time: Option<Duration>,
    /// Whether state roots are computed. If not, they are zero.
    pub state_roots: bool,
    /// Gas that all calls of a request may use together.
    pub gas_cap: u64,
    /// Number of blocks that a simulation may span, gaps included.
    pub max_blocks: u64,
    /// Bytes that the traces of a request may take.
    pub max_trace: usize,
    /// The distance of an estimate above the smallest gas limit, as a fraction of the estimate. Zero means exact.
    pub estimate_tolerance: f64,
}

impl SimulationRules {
    /// Returns the time between the blocks after `snapshot`. Where it is less than a second, blocks may share a timestamp.
    pub fn step(&self, spec: &ChainSpec, snapshot: &Snapshot) -> Duration {
        self.block_time.unwrap_or_else(|| spec.block_time_at(snapshot.header().timestamp))
    }
}

/// The base fee that a call without validation sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseFeeRule {
    /// The block's own. A call that offers no gas price still pays nothing.
    Block,
    /// geth's rule: zero in a simulation, and in a call that offers no gas price.
    ZeroWhenFree,
}
