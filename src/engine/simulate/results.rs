//! The results of a simulation: its blocks, and in them its calls.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::Header;
use alloy_eips::{eip2930::AccessList, eip4895::Withdrawals, eip7928::BlockAccessList};
use alloy_primitives::{Address, B256, Bytes, I256, Sealed, U256, map::AddressMap};
use alloy_rlp::Encodable;
use revm::context::result::HaltReason;

use super::outputs::{AccountDiff, Asset, CoinbaseIncome, NetChange, TokenInfo, size_of_assets};
use crate::engine::{
    fees::ListedTx,
    request::CallIndex,
    trace::Trace,
    transfers::{NumberedLog, Transfer},
};

/// The results of a simulation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Simulated {
    /// The blocks that ran, in order.
    pub blocks: Vec<SimulatedBlock>,
    /// The call that did not end as the bundle requires, and with which the run ended.
    pub dropped: Option<CallIndex>,
    /// The names and decimals of the tokens among the [assets](crate::engine::Outputs::ASSETS).
    pub tokens: AddressMap<TokenInfo>,
    /// Gas that the calls used.
    pub gas_used: u64,
    /// By how much the objective grew, if the request has one.
    pub objective: Option<I256>,
}

/// A block that was simulated.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{U256, address, bytes};
/// use presim::{Config, Node, simulation::{
///     AccountDiff, Asset, Call, NetChange, Outputs, SimBlock, SimulatedBlock, Simulation, TokenInfo, ValueChange,
/// }};
///
/// let node = Node::start(Config::default()).await?;
/// let (_, weth) = node.contracts()[0];
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// // `deposit()` wraps the value that it is sent.
/// let wrap = Call::to(weth).with_from(from).with_value(U256::from(5)).with_data(bytes!("d0e30db0"));
/// let outputs = Outputs::ASSETS | Outputs::STATE_DIFF;
/// let simulated = node.simulate(&Simulation::of([SimBlock::of([wrap])]).with_outputs(outputs)).await?;
/// let SimulatedBlock { assets: Some(assets), diff: Some(diff), .. } = &simulated.blocks[0] else {
///     return Err("both are outputs".into());
/// };
/// let (paid, got): (NetChange, NetChange) = (assets[&from][&Asset::Ether], assets[&from][&Asset::Erc20(weth)]);
/// assert_eq!((paid.net(), got.net()), ((true, U256::from(5)), (false, U256::from(5))));
/// let token: &TokenInfo = &simulated.tokens[&weth];
/// assert_eq!((token.symbol.as_deref(), token.decimals), (Some("WETH"), Some(18)));
/// let changed: &AccountDiff = &diff[&weth];
/// for (slot, ValueChange { from, to }) in &changed.slots {
///     println!("slot {slot}: {from} becomes {to}");
/// }
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulatedBlock {
    /// Whether the request did not ask for the block, which fills a gap between block numbers.
    pub filler: bool,
    /// The name of the fork whose rules apply to it.
    pub fork: &'static str,
    /// The base fee, wei. Zero before London.
    pub base_fee: u64,
    /// The recipient of the fees.
    pub fee_recipient: Address,
    /// The producer's fees for gas, without the base fee, wei.
    pub fees: U256,
    /// The results of the calls, in order.
    pub calls: Vec<CallResult>,
    /// The block in a chain's form ([`Outputs::HEADER`](crate::engine::Outputs::HEADER)).
    pub listing: Option<BlockListing>,
    /// The access list ([`Outputs::BLOCK_ACCESS_LIST`](crate::engine::Outputs::BLOCK_ACCESS_LIST)). `None` before Amsterdam.
    pub access_list: Option<BlockAccessList>,
    /// The changes of the state by the calls ([`Outputs::STATE_DIFF`](crate::engine::Outputs::STATE_DIFF)).
    pub diff: Option<BTreeMap<Address, AccountDiff>>,
    /// The net changes of accounts' assets ([`Outputs::ASSETS`](crate::engine::Outputs::ASSETS)).
    pub assets: Option<BTreeMap<Address, BTreeMap<Asset, NetChange>>>,
    /// The producer's income ([`Outputs::COINBASE`](crate::engine::Outputs::COINBASE)).
    pub coinbase: Option<CoinbaseIncome>,
}

/// A simulated block in a chain's form.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_consensus::Transaction;
/// use alloy_primitives::{U256, address};
/// use presim::{Config, Node, simulation::{BlockListing, Call, ListedTx, Outputs, SimBlock, SimulatedTx, Simulation}};
///
/// let node = Node::start(Config::default()).await?;
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// let pay = Call::to(from).with_from(from).with_value(U256::from(5));
/// let bundle = Simulation::of([SimBlock::of([pay])]).with_outputs(Outputs::HEADER);
/// let simulated = node.simulate(&bundle).await?;
/// let listing: &BlockListing = simulated.blocks[0].listing.as_ref().ok_or("the header is an output")?;
/// println!("block {} {}", listing.header.number, listing.header.hash());
/// let SimulatedTx { from: sender, tx: ListedTx { tx, signed, .. }, .. } = &listing.transactions[0];
/// // A call is listed without a signature.
/// assert_eq!((*sender, tx.value(), signed), (from, U256::from(5), &None));
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockListing {
    /// The header. Its state root is zero if none was computed.
    pub header: Sealed<Header>,
    /// The calls as transactions, in order.
    pub transactions: Vec<SimulatedTx>,
    /// The time of the block in milliseconds, if the chain's blocks have it.
    pub timestamp_ms: Option<u64>,
    /// Withdrawals (EIP-4895). `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// Size of the block's RLP, in bytes.
    pub size: usize,
}

/// A call as the transaction that its block lists.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulatedTx {
    /// The sender.
    pub from: Address,
    /// The transaction.
    pub tx: ListedTx,
    /// The hash of the transaction's encoding (EIP-2718).
    pub hash: B256,
}

/// The result of a call.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{U256, address, bytes};
/// use presim::{Config, Node, simulation::{
///     Call, CallResult, NumberedLog, Outputs, SimBlock, Simulation, Trace, TracedGas, Transfer,
/// }};
///
/// let node = Node::start(Config::default()).await?;
/// let (_, weth) = node.contracts()[0];
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// let wrap = Call::to(weth).with_from(from).with_value(U256::from(5)).with_data(bytes!("d0e30db0"));
/// let outputs = Outputs::SIMULATE_V1 | Outputs::TRANSFERS | Outputs::TRACE | Outputs::ACCESS_LIST;
/// let simulated = node.simulate(&Simulation::of([SimBlock::of([wrap])]).with_outputs(outputs)).await?;
/// let call: &CallResult = &simulated.blocks[0].calls[0];
/// assert_eq!(call.transfers, [Transfer { from, to: weth, value: U256::from(5) }]);
/// for NumberedLog { number, log } in &call.logs {
///     println!("log {number} of {}", log.address);
/// }
/// let Some(Trace::Calls { frames, gas: TracedGas { gas, .. }, .. }) = call.trace.as_deref() else {
///     return Err("the trace is an output".into());
/// };
/// println!("{} frames, gas {}", frames.len(), gas.tx_gas_used());
/// println!("the call accesses {:?}", call.access_list);
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallResult {
    /// The way in which the call ended.
    pub outcome: CallOutcome,
    /// Gas used, after refunds.
    pub gas_used: u64,
    /// Gas used before refunds, or the floor (EIP-7623) if that is higher.
    pub max_used_gas: u64,
    /// The call's output, or the data of its revert.
    pub return_data: Bytes,
    /// Logs, including transfers of the native currency if the request traces them. Empty if the call failed.
    pub logs: Vec<NumberedLog>,
    /// The transfers of the native currency ([`Outputs::TRANSFERS`](crate::engine::Outputs::TRANSFERS)). Empty if the
    /// call failed.
    pub transfers: Vec<Transfer>,
    /// The accounts and slots that the call accessed ([`Outputs::ACCESS_LIST`](crate::engine::Outputs::ACCESS_LIST)),
    /// without the ones that are always warm.
    pub access_list: Option<AccessList>,
    /// The frames of the call, as [`Trace::Calls`] ([`Outputs::TRACE`](crate::engine::Outputs::TRACE)).
    pub trace: Option<Arc<Trace>>,
    /// The change of the fee recipient's balance by the call, wei
    /// ([`Outputs::COINBASE`](crate::engine::Outputs::COINBASE)).
    pub income: Option<I256>,
}

/// The way in which a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call ran to its end.
    Success,
    /// The call reverted. Its return data contains the reason.
    Revert,
    /// The EVM stopped the call.
    Halt(HaltReason),
}

impl SimulatedBlock {
    /// Returns about how many bytes it takes, without its traces.
    pub(super) fn size(&self) -> usize {
        let listing = self.listing.as_ref().map_or(0, |listing| {
            let withdrawals = listing.withdrawals.as_ref().map_or(0, |list| size_of_val(list.as_slice()));
            let txs = listing.transactions.iter().map(|tx| size_of::<SimulatedTx>() + 2 * tx.tx.encoded.len());
            withdrawals + listing.header.extra_data.len() + txs.sum::<usize>()
        });
        size_of::<Self>()
            + listing
            + self.calls.iter().map(CallResult::size).sum::<usize>()
            + self.access_list.as_ref().map_or(0, |list| size_of_val(list.as_slice()) + list.length())
            + self.diff.iter().flat_map(BTreeMap::values).map(AccountDiff::size).sum::<usize>()
            + self.assets.as_ref().map_or(0, size_of_assets)
    }
}

impl CallResult {
    /// Returns about how many bytes it takes, without its trace.
    pub(super) fn size(&self) -> usize {
        let log = |log: &NumberedLog| size_of_val(log) + size_of_val(log.log.topics()) + log.log.data.data.len();
        size_of::<Self>()
            + self.return_data.len()
            + self.logs.iter().map(log).sum::<usize>()
            + size_of_val(self.transfers.as_slice())
            + self.access_list.as_ref().map_or(0, |list| list.size())
    }
}
