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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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
pub struct SimulatedTx {
    /// The sender.
    pub from: Address,
    /// The transaction.
    pub tx: ListedTx,
    /// The hash of the transaction's encoding (EIP-2718).
    pub hash: B256,
}

/// The result of a call.
#[derive(Clone, Debug)]
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
    /// The frames of the call ([`Outputs::TRACE`](crate::engine::Outputs::TRACE)).
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
