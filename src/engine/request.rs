//! What is asked of the engine, already parsed: nothing here can be malformed, only refused by the chain's rules.

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::{eip2930::AccessList, eip4895::Withdrawals, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};

/// A call as a request describes it: what is absent gets its default from the block it runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The sender; the zero address by default.
    pub from: Address,
    /// The callee, or the creation of a contract.
    pub to: TxKind,
    /// Gas limit.
    pub gas: Option<u64>,
    /// What is paid for gas.
    pub fees: CallFees,
    /// Value transferred, in wei.
    pub value: U256,
    /// Call data, or the code that creates a contract.
    pub data: Bytes,
    /// The sender's nonce; its current one by default.
    pub nonce: Option<u64>,
    /// EIP-155 chain id; must be the chain's own where given.
    pub chain_id: Option<U256>,
    /// EIP-2930.
    pub access_list: Option<AccessList>,
    /// EIP-4844: versioned hashes of the blobs.
    pub blob_hashes: Option<Vec<B256>>,
    /// EIP-4844: wei a unit of blob gas, at the most.
    pub max_fee_per_blob_gas: Option<u128>,
    /// EIP-7702.
    pub authorization_list: Option<Vec<SignedAuthorization>>,
}

/// What a call pays a unit of gas, in wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFees {
    /// One price, as before EIP-1559.
    GasPrice(u128),
    /// EIP-1559. Absent is zero, and both absent is a call that pays nothing.
    Market {
        /// The most it pays.
        max_fee: Option<u128>,
        /// The most it pays to the block's producer.
        max_priority: Option<u128>,
    },
}

impl Default for CallFees {
    fn default() -> Self {
        Self::Market { max_fee: None, max_priority: None }
    }
}

impl CallFees {
    /// Whether the call offers nothing for its gas.
    pub const fn is_free(&self) -> bool {
        match self {
            Self::GasPrice(price) => *price == 0,
            Self::Market { max_fee, max_priority } => {
                matches!(max_fee, None | Some(0)) && matches!(max_priority, None | Some(0))
            }
        }
    }
}

/// Values in the place of an account's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountOverride {
    /// Balance in wei.
    pub balance: Option<U256>,
    /// Nonce.
    pub nonce: Option<u64>,
    /// Bytecode.
    pub code: Option<Bytes>,
    /// Storage.
    pub storage: StorageOverride,
    /// Moves the precompile that is here to this address.
    pub move_precompile_to: Option<Address>,
}

/// Slots in the place of an account's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StorageOverride {
    /// The storage stays as it is.
    #[default]
    Keep,
    /// `state`: these slots and no others.
    Replace(Vec<(U256, U256)>),
    /// `stateDiff`: these slots, and all others as they are.
    Diff(Vec<(U256, U256)>),
}

/// State overrides, ordered by address: what an error names first does not depend on a hash.
pub type StateOverrides = Vec<(Address, AccountOverride)>;

/// Values in the place of a block's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOverrides {
    /// Block number.
    pub number: Option<u64>,
    /// Timestamp in seconds.
    pub time: Option<u64>,
    /// Gas limit.
    pub gas_limit: Option<u64>,
    /// Who gets the fees.
    pub fee_recipient: Option<Address>,
    /// EIP-4399.
    pub prev_randao: Option<B256>,
    /// Base fee in wei.
    pub base_fee: Option<u64>,
    /// Price of a unit of blob gas in wei.
    pub blob_base_fee: Option<u128>,
    /// EIP-4788.
    pub beacon_root: Option<B256>,
    /// EIP-4895.
    pub withdrawals: Option<Withdrawals>,
    /// Difficulty, before the merge.
    pub difficulty: Option<U256>,
}

impl BlockOverrides {
    /// These, and where they say nothing `others`; its number and its time only where `first`, as later blocks follow from the first.
    pub fn or(self, others: &Self, first: bool) -> Self {
        let (number, time) = if first { (others.number, others.time) } else { (None, None) };
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
        }
    }
}

/// An `eth_call`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRequest {
    /// The call.
    pub call: Call,
    /// Applied to the state before it.
    pub state: StateOverrides,
    /// Applied to the block it runs in.
    pub block: BlockOverrides,
}

/// An `eth_simulateV1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// The blocks, in order.
    pub blocks: Vec<SimBlock>,
    /// Report transfers of the native currency as logs.
    pub trace_transfers: bool,
    /// Check nonces, fees and base fee as for real transactions.
    pub validation: bool,
}

impl Simulation {
    /// How many calls it has, in all its blocks.
    pub fn calls(&self) -> usize {
        self.blocks.iter().map(|block| block.calls.len()).sum()
    }
}

/// One block of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimBlock {
    /// Applied before the block's first call.
    pub state: StateOverrides,
    /// The block's own fields.
    pub block: BlockOverrides,
    /// The calls, in order.
    pub calls: Vec<Call>,
}

/// An `eth_callBundle`.
#[derive(Clone, Debug)]
pub struct SignedBundle {
    /// Signed transactions with their senders, in order.
    pub transactions: Vec<Recovered<TxEnvelope>>,
    /// The block that they are meant for.
    pub number: u64,
    /// That block's timestamp in seconds.
    pub timestamp: Option<u64>,
    /// Who gets its fees.
    pub coinbase: Option<Address>,
    /// Its gas limit.
    pub gas_limit: Option<u64>,
    /// Its difficulty, before the merge.
    pub difficulty: Option<U256>,
    /// Its base fee in wei.
    pub base_fee: Option<u64>,
}

/// Bundles of calls that run one after another, each on what those before it left: `eth_callMany`, and the traces of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundles {
    /// Applied to the state before the first call.
    pub state: StateOverrides,
    /// In order.
    pub bundles: Vec<Bundle>,
}

/// Calls in one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// In order.
    pub calls: Vec<Call>,
    /// Applied to the block they run in.
    pub block: BlockOverrides,
}

/// What a caller of the engine decides: limits, and where the dialects differ.
#[derive(Clone, Copy, Debug)]
pub struct SimulationRules {
    /// The base fee where nothing else sets it.
    pub base_fee: BaseFeeRule,
    /// Seconds between simulated blocks.
    pub block_time: u64,
    /// Whether state roots are computed; they are zero where not.
    pub state_roots: bool,
    /// Gas for a whole request, its calls together.
    pub gas_cap: u64,
    /// Blocks a simulation may span, gaps included.
    pub max_blocks: u64,
    /// How far above the smallest gas limit an estimate may be, as a part of it; zero for exactly that.
    pub estimate_tolerance: f64,
}

/// What base fee a call without validation sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseFeeRule {
    /// The block's own; a call that offers no gas price pays nothing all the same.
    Block,
    /// geth's: zero in a simulation, and in a call that offers no gas price.
    ZeroWhenFree,
}
