//! The shape of a simulation's result, which [`write_simulation`](super::write_simulation) writes.

#![expect(dead_code, reason = "the fields are shapes")]

use std::collections::BTreeMap;

use alloy_primitives::U256;
use schemars::JsonSchema;

use crate::rpc::json::{
    hex::{Data, Fixed, Quantity, Word},
    schema::{
        AccessListItem, AccountChanges, AccountDifference, BlockTransaction, CallError, CallFrame, Header, Log,
        Withdrawal,
    },
};

/// The blocks of a simulation, or the call that has not ended as it had to.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum SimulatedBlocks {
    Blocks(Vec<SimulatedBlock>),
    Dropped {
        dropped: DroppedCall,
        #[serde(rename = "readSet")]
        read_set: Option<ReadSet>,
    },
}

/// A call by the index of its block and its own in that.
#[derive(JsonSchema)]
pub struct DroppedCall {
    block: u64,
    call: u64,
}

/// A simulated block. Without the output `header` it has no fields of one.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedBlock {
    #[serde(flatten)]
    header: Option<Header>,
    size: Option<Quantity<u64>>,
    transactions: Option<Vec<BlockTransaction>>,
    uncles: Option<Vec<Fixed<32>>>,
    withdrawals: Option<Vec<Withdrawal>>,
    /// The name of the fork whose rules the block has. Not in `eth_simulateV1`.
    fork: Option<String>,
    calls: Vec<SimulatedCallResult>,
    block_access_list: Option<Vec<AccountChanges>>,
    state_diff: Option<BTreeMap<String, AccountDifference>>,
    /// The net changes of assets, by account.
    assets: Option<BTreeMap<String, Vec<AssetChange>>>,
    coinbase: Option<CoinbaseIncome>,
    read_set: Option<ReadSet>,
}

/// The result of a call, as far as its outputs are asked for.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SimulatedCallResult {
    return_data: Option<Data>,
    logs: Option<Vec<Log>>,
    /// The gas that the call pays for.
    gas_used: Option<Quantity<u64>>,
    /// The gas that the call needs while it runs, before refunds.
    max_used_gas: Option<Quantity<u64>>,
    /// 1 if the call has succeeded.
    status: Option<Quantity<u64>>,
    error: Option<CallError>,
    transfers: Option<Vec<Transfer>>,
    access_list: Option<Vec<AccessListItem>>,
    trace: Option<CallFrame>,
}

/// A transfer of ether.
#[derive(JsonSchema)]
struct Transfer {
    from: Fixed<20>,
    to: Fixed<20>,
    value: Quantity<U256>,
}

/// The net change of an asset that an account has.
#[derive(JsonSchema)]
struct AssetChange {
    r#type: AssetKind,
    token: Option<Fixed<20>>,
    id: Option<Quantity<U256>>,
    /// A decimal number, which may be negative.
    change: String,
    symbol: Option<String>,
    decimals: Option<Quantity<u64>>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AssetKind {
    Ether,
    Erc20,
    Erc721,
    Erc1155,
}

/// The gain of the fee recipient.
#[derive(JsonSchema)]
struct CoinbaseIncome {
    fees: Quantity<U256>,
    /// A decimal number, which may be negative.
    transfers: String,
}

/// The values that a run has read.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReadSet {
    /// Whether too much was read to list it.
    everything: bool,
    accounts: Option<BTreeMap<String, ReadAccount>>,
    /// Names of fields of the block.
    block: Option<Vec<String>>,
    block_hashes: Option<Vec<Quantity<u64>>>,
    gas: Option<Quantity<u64>>,
}

/// The parts of an account that a run has read.
#[derive(JsonSchema)]
struct ReadAccount {
    parts: Vec<String>,
    slots: Vec<Word>,
}
