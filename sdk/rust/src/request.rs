//! Requests: bundles, searches, standing bundles and the states on which they run.

use std::collections::BTreeMap;

use alloy_eips::{BlockId, BlockNumberOrTag, eip4895::Withdrawal};
use alloy_primitives::{Address, B256, Bytes, I256, U256};
use alloy_rpc_types_eth::{TransactionRequest, state::AccountOverride};
use serde::{Deserialize, Serialize};

/// The state on which a request runs.
///
/// ```
/// use alloy_eips::BlockNumberOrTag;
/// use presim_client::BlockSelector;
///
/// assert_eq!(BlockSelector::from(BlockNumberOrTag::Latest), BlockSelector::LATEST);
/// assert_eq!(serde_json::to_string(&BlockSelector::snapshot(0x1f)).unwrap(), r#"{"snapshotId":"0x1f"}"#);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum BlockSelector {
    /// The state that was `pending` when the snapshot with this id was the newest.
    Snapshot {
        /// The id of a retained snapshot.
        #[serde(with = "alloy_serde::quantity")]
        snapshot_id: u64,
    },
    /// A state in the middle of the block with a number.
    InBlock {
        /// The number of the block.
        #[serde(with = "alloy_serde::quantity")]
        block_number: u64,
        /// The number of transactions that the state has of the block. -1 means the whole block.
        transaction_index: i64,
    },
    /// A state in the middle of the block with a hash.
    InBlockByHash {
        /// The hash of the block.
        block_hash: B256,
        /// The number of transactions that the state has of the block. -1 means the whole block.
        transaction_index: i64,
    },
    /// A block by its tag, number or hash.
    Block(BlockId),
}

impl BlockSelector {
    /// The newest snapshot.
    pub const PENDING: Self = Self::Block(BlockId::Number(BlockNumberOrTag::Pending));
    /// The newest sealed block.
    pub const LATEST: Self = Self::Block(BlockId::Number(BlockNumberOrTag::Latest));

    /// Selects a snapshot by its id, so that several requests run on one state.
    pub const fn snapshot(id: u64) -> Self {
        Self::Snapshot { snapshot_id: id }
    }
}

impl<T: Into<BlockId>> From<T> for BlockSelector {
    fn from(block: T) -> Self {
        Self::Block(block.into())
    }
}

/// A call of a simulation: unsigned, or the bytes of a signed transaction.
///
/// At `/`, an unsigned call names its `to`. In a [`WatchedBundle`], it names its `gas`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Call {
    /// A signed transaction, which is checked and pays as on the chain.
    Signed(Bytes),
    /// An unsigned call.
    Unsigned(Box<TransactionRequest>),
}

impl From<TransactionRequest> for Call {
    fn from(call: TransactionRequest) -> Self {
        Self::Unsigned(Box::new(call))
    }
}

impl From<Bytes> for Call {
    fn from(signed: Bytes) -> Self {
        Self::Signed(signed)
    }
}

/// The values of a block that differ from its default ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockOverrides {
    /// The number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<U256>,
    /// The time in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub time: Option<u64>,
    /// The gas limit.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub gas_limit: Option<u64>,
    /// The account that receives the fees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fee_recipient: Option<Address>,
    /// The random value of the beacon chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_randao: Option<B256>,
    /// The base fee in wei per unit of gas.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub base_fee_per_gas: Option<u64>,
    /// The base fee in wei per unit of blob gas.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub blob_base_fee: Option<u128>,
    /// The root of the parent beacon block (EIP-4788).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beacon_root: Option<B256>,
    /// The withdrawals (EIP-4895).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// The difficulty, before the merge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difficulty: Option<U256>,
    /// The slot of the beacon chain, from Amsterdam on.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub slot_number: Option<u64>,
    /// The name of the fork whose rules the block has, such as `amsterdam`, regardless of its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
}

/// A block of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SimBlock {
    /// Values of the block that differ from its default ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_overrides: Option<BlockOverrides>,
    /// Accounts with values that differ from their state before the block.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub state_overrides: BTreeMap<Address, AccountOverride>,
    /// The calls, in their order.
    pub calls: Vec<Call>,
}

impl SimBlock {
    /// Creates a block of calls.
    pub fn of<C: Into<Call>>(calls: impl IntoIterator<Item = C>) -> Self {
        Self { calls: calls.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// A part of the result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Output {
    /// Whether each call has succeeded.
    Status,
    /// The gas of each call.
    GasUsed,
    /// The data that each call returns.
    ReturnData,
    /// The reason why a call has failed.
    Error,
    /// The logs of each call.
    Logs,
    /// The header of each block, and its transactions.
    Header,
    /// The transfers of ether of each call.
    Transfers,
    /// The changed accounts of each block.
    StateDiff,
    /// The access list of each call (EIP-2930).
    AccessList,
    /// The access list of each block (EIP-7928), from Amsterdam on.
    BlockAccessList,
    /// Everything that the whole run has read of its state.
    ReadSet,
    /// The net changes of ether and tokens in each block.
    Assets,
    /// The income of the producer of each block.
    Coinbase,
    /// The call frames of each call.
    Trace,
}

/// The way in which a call must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RequiredStatus {
    /// The call succeeds.
    Success,
    /// The call fails.
    Failure,
    /// The call may end either way.
    Any,
}

/// The end that a call must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The index of the call's block.
    pub block: u64,
    /// The index of the call in its block.
    pub call: u64,
    /// The required end.
    pub status: RequiredStatus,
}

/// A bundle: calls in blocks, which run one after another. The payload of `presim_simulate`.
///
/// The blocks are often those of one bundle that would be included next:
///
/// ```
/// use alloy_rpc_types_eth::TransactionRequest;
/// use presim_client::{Output, Simulation};
///
/// let bundle = Simulation::of([TransactionRequest::default()]).with_outputs([Output::Status]).atomic();
/// assert_eq!(bundle.blocks[0].calls.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Simulation {
    /// The blocks, in their order.
    #[serde(rename = "blockStateCalls")]
    pub blocks: Vec<SimBlock>,
    /// Whether transfers of ether are shown as logs.
    #[serde(skip_serializing_if = "is_false")]
    pub trace_transfers: bool,
    /// Whether calls must be valid transactions, and pay for their gas.
    #[serde(skip_serializing_if = "is_false")]
    pub validation: bool,
    /// Whether the transactions of a block are shown in full, with [`Output::Header`].
    #[serde(skip_serializing_if = "is_false")]
    pub return_full_transactions: bool,
    /// The parts of the result. `None` means the parts of `eth_simulateV1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Output>>,
    /// If present, the bundle is atomic: the listed calls must end as listed, and all other calls must succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Vec<Condition>>,
    /// Errors such as `error Expired(uint256 deadline)`, by which the data of reverts is decoded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

impl Simulation {
    /// Creates a bundle of calls in one block.
    pub fn of<C: Into<Call>>(calls: impl IntoIterator<Item = C>) -> Self {
        Self::of_blocks([SimBlock::of(calls)])
    }

    /// Creates a bundle of blocks.
    pub fn of_blocks(blocks: impl IntoIterator<Item = SimBlock>) -> Self {
        Self { blocks: blocks.into_iter().collect(), ..Self::default() }
    }

    /// Requests only these parts of the result. The node computes nothing else.
    #[must_use]
    pub fn with_outputs(mut self, outputs: impl IntoIterator<Item = Output>) -> Self {
        self.outputs = Some(outputs.into_iter().collect());
        self
    }

    /// Makes the bundle atomic: all calls must succeed.
    #[must_use]
    pub fn atomic(self) -> Self {
        self.atomic_except([])
    }

    /// Makes the bundle atomic: these calls must end as listed, and all others must succeed.
    #[must_use]
    pub fn atomic_except(mut self, conditions: impl IntoIterator<Item = Condition>) -> Self {
        self.when = Some(conditions.into_iter().collect());
        self
    }
}

/// The gain of an account, in wei or in a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountObjective {
    /// The account.
    pub account: Address,
    /// The token whose balance counts. `None` means ether.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Address>,
    /// The price that is subtracted for each unit of gas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gas_price: Option<U256>,
}

/// The amount that a search maximizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Objective {
    /// The income of the blocks' producer.
    Coinbase,
    /// The gas, of which less is better.
    GasUsed,
    /// The gain of an account.
    #[serde(untagged)]
    Account(AccountObjective),
}

impl Objective {
    /// The gain of an account in wei.
    pub const fn ether(account: Address) -> Self {
        Self::Account(AccountObjective { account, token: None, gas_price: None })
    }

    /// The gain of an account in a token.
    pub const fn token(account: Address, token: Address) -> Self {
        Self::Account(AccountObjective { account, token: Some(token), gas_price: None })
    }
}

/// The distance between points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scale {
    /// The same difference.
    #[default]
    Linear,
    /// The same factor.
    Geometric,
}

/// The values that a field takes in a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Values {
    /// A list.
    List {
        /// The values.
        values: Vec<U256>,
    },
    /// The values from one to another at equal distances.
    Steps {
        /// The first value.
        from: U256,
        /// The bound of the last value.
        to: U256,
        /// The distance.
        step: U256,
    },
    /// A number of values between two.
    Points {
        /// The first value.
        from: U256,
        /// The last value.
        to: U256,
        /// The number of values.
        points: u64,
        /// The distance between the values.
        #[serde(default)]
        scale: Scale,
    },
    /// A range in which the search looks for the value with the largest objective. Only if a single field varies.
    Maximize {
        /// The range.
        maximize: Range,
    },
}

impl Values {
    /// The values of a list.
    pub fn list(values: impl IntoIterator<Item = U256>) -> Self {
        Self::List { values: values.into_iter().collect() }
    }

    /// The range in which the search looks for the value with the largest objective.
    pub const fn maximize(from: U256, to: U256) -> Self {
        Self::Maximize { maximize: Range { from, to, tolerance: None } }
    }
}

/// A range in which a search looks for the best value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The least value.
    pub from: U256,
    /// The greatest value.
    pub to: U256,
    /// The distance from the best value that is good enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<U256>,
}

/// A field that varies in a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vary {
    /// The path of the field, such as `blocks[0].calls[1].value`.
    pub path: String,
    /// The word of the call data, if the path ends in `.data`: word n begins at byte 4 + 32n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<u64>,
    /// The values.
    #[serde(flatten)]
    pub values: Values,
}

impl Vary {
    /// Varies a word of a call's data: word n is the n-th static argument of the function.
    pub fn data(block: usize, call: usize, word: u64, values: Values) -> Self {
        Self { path: format!("blocks[{block}].calls[{call}].data"), word: Some(word), values }
    }

    /// Varies the ether that a call sends.
    pub fn value(block: usize, call: usize, values: Values) -> Self {
        Self::of_path(format!("blocks[{block}].calls[{call}].value"), values)
    }

    /// Varies a slot that a block's overrides set.
    pub fn slot(block: usize, account: Address, slot: B256, values: Values) -> Self {
        Self::of_path(format!("blocks[{block}].stateOverrides.{account}.stateDiff.{slot}"), values)
    }

    /// Varies the field with a path.
    pub fn of_path(path: impl Into<String>, values: Values) -> Self {
        Self { path: path.into(), word: None, values }
    }
}

/// The conditions on the variants of a search. A variant that violates one ranks below all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Require {
    /// The ends that calls must have. Calls that are not listed must succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Vec<Condition>>,
    /// The least objective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<I256>,
}

/// A bundle with one or two fields that vary, and the objective of the best values. The payload of `presim_search`.
///
/// ```
/// use alloy_primitives::{U256, address};
/// use alloy_rpc_types_eth::TransactionRequest;
/// use presim_client::{Objective, Search, Values, Vary};
///
/// let account = address!("70997970C51812dc3A010C7d01b50e0d17dc79C8");
/// let values = Values::maximize(U256::from(1), U256::from(1_000));
/// let search = Search::of([TransactionRequest::default()], Vary::value(0, 0, values), Objective::ether(account));
/// assert_eq!(search.vary[0].path, "blocks[0].calls[0].value");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Search {
    /// The blocks, in their order.
    #[serde(rename = "blockStateCalls")]
    pub blocks: Vec<SimBlock>,
    /// The fields that vary: one, or two that form a grid.
    pub vary: Vec<Vary>,
    /// The amount that the search maximizes.
    pub objective: Objective,
    /// The conditions on variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Require>,
    /// The number of variants that are returned. `None` means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<u64>,
    /// The parts of the best variant's result. `None` means that there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<Output>>,
    /// Whether transfers of ether are shown as logs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub trace_transfers: bool,
    /// Whether calls must be valid transactions, and pay for their gas.
    #[serde(default, skip_serializing_if = "is_false")]
    pub validation: bool,
    /// Whether the transactions of a block are shown in full, with [`Output::Header`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub return_full_transactions: bool,
    /// Errors such as `error Expired(uint256 deadline)`, by which the data of reverts is decoded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

impl Search {
    /// Creates a search over a bundle of calls in one block.
    pub fn of<C: Into<Call>>(calls: impl IntoIterator<Item = C>, vary: Vary, objective: Objective) -> Self {
        Self::of_blocks([SimBlock::of(calls)], [vary], objective)
    }

    /// Creates a search over a bundle of blocks.
    pub fn of_blocks(
        blocks: impl IntoIterator<Item = SimBlock>,
        vary: impl IntoIterator<Item = Vary>,
        objective: Objective,
    ) -> Self {
        Self {
            blocks: blocks.into_iter().collect(),
            vary: vary.into_iter().collect(),
            objective,
            require: None,
            top: None,
            outputs: None,
            trace_transfers: false,
            validation: false,
            return_full_transactions: false,
            errors: Vec::new(),
        }
    }

    /// Sets the least objective of a variant that is worth sending.
    #[must_use]
    pub fn with_least(mut self, least: I256) -> Self {
        self.require.get_or_insert_default().least = Some(least);
        self
    }

    /// Requests parts of the best variant's result.
    #[must_use]
    pub fn with_outputs(mut self, outputs: impl IntoIterator<Item = Output>) -> Self {
        self.outputs = Some(outputs.into_iter().collect());
        self
    }
}

/// The payload of a standing bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Watched {
    /// A simulation.
    Simulate(Simulation),
    /// A search.
    Search(Box<Search>),
}

/// The snapshots on which a standing bundle runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Every {
    /// Each snapshot that changes something that the bundle has read.
    Snapshot,
    /// The first snapshot of each block.
    Block,
}

/// The condition under which answers of a search are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Only {
    /// The objective above which answers are sent.
    pub above: I256,
}

/// A standing bundle: the node runs it again when a snapshot changes something that it has read.
///
/// Every unsigned call names its `gas`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchedBundle {
    /// The name by which answers refer to the bundle.
    pub name: String,
    /// The payload.
    #[serde(flatten)]
    pub watched: Watched,
    /// The snapshots on which the bundle runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Every>,
    /// The condition under which answers of a search are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Only>,
}

impl WatchedBundle {
    /// Watches a simulation.
    pub fn simulate(name: impl Into<String>, simulation: Simulation) -> Self {
        Self { name: name.into(), watched: Watched::Simulate(simulation), every: None, only: None }
    }

    /// Watches a search.
    pub fn search(name: impl Into<String>, search: Search) -> Self {
        Self { name: name.into(), watched: Watched::Search(Box::new(search)), every: None, only: None }
    }

    /// Runs the bundle on the first snapshot of each block only.
    #[must_use]
    pub const fn every_block(mut self) -> Self {
        self.every = Some(Every::Block);
        self
    }

    /// Sends only answers of a search whose objective is above a bound, and once that it is no longer above it.
    #[must_use]
    pub const fn only_above(mut self, above: I256) -> Self {
        self.only = Some(Only { above });
        self
    }
}

/// The changes that a subscription to `presim_stateChanges` sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeFilter {
    /// The accounts. Empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address: Vec<Address>,
    /// The slots, at most 1,000. Empty means all slots, and the accounts themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<B256>,
    /// The id of the snapshot since which the first notification has the changes.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub from: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}
