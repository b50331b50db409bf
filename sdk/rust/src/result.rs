//! Results of simulations and searches.

use std::{collections::BTreeMap, fmt};

use alloy_eips::{eip2930::AccessList, eip7928::BlockAccessList};
use alloy_primitives::{Address, B256, Bytes, I256, U64, U256};
use alloy_rpc_types_eth::{Block, Log};
use alloy_rpc_types_trace::geth::CallFrame;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        Error as _, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::{Map, Value};

/// A call by its index and its block's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallIndex {
    /// The index of the block.
    pub block: u64,
    /// The index of the call in its block.
    pub call: u64,
}

/// An atomic bundle that was not executed to its end, because a call has not ended as it had to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("call {} of block {} has not ended as the bundle requires", dropped.call, dropped.block)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Dropped {
    /// The call.
    pub dropped: CallIndex,
    /// Everything that the run has read of its state, with [`Output::ReadSet`](crate::Output::ReadSet).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_set: Option<ReadSet>,
}

/// The result of a simulation: its blocks, or the call at which an atomic bundle was dropped.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Simulated {
    /// The blocks.
    Blocks(Vec<SimulatedBlock>),
    /// The call that has not ended as it had to.
    Dropped(Dropped),
}

impl Simulated {
    /// Returns the blocks.
    ///
    /// # Errors
    ///
    /// Returns the call that has not ended as it had to, if the bundle is atomic.
    pub fn into_blocks(self) -> Result<Vec<SimulatedBlock>, Dropped> {
        match self {
            Self::Blocks(blocks) => Ok(blocks),
            Self::Dropped(dropped) => Err(dropped),
        }
    }
}

// An untagged enum would copy all blocks before they are read.
impl<'de> Deserialize<'de> for Simulated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SimulatedVisitor;

        impl<'de> Visitor<'de> for SimulatedVisitor {
            type Value = Simulated;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("simulated blocks, or the call that was dropped")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, blocks: A) -> Result<Simulated, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(blocks)).map(Simulated::Blocks)
            }

            fn visit_map<A: MapAccess<'de>>(self, dropped: A) -> Result<Simulated, A::Error> {
                Dropped::deserialize(MapAccessDeserializer::new(dropped)).map(Simulated::Dropped)
            }
        }

        deserializer.deserialize_any(SimulatedVisitor)
    }
}

/// A simulated block, with the outputs that were requested.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SimulatedBlock {
    /// The header, transactions and withdrawals, with [`Output::Header`](crate::Output::Header).
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub block: Option<Box<Block>>,
    /// The results of the calls, in their order.
    pub calls: Vec<SimulatedCall>,
    /// The name of the fork whose rules apply to the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// The net changes of assets, by account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assets: Option<BTreeMap<Address, Vec<AssetChange>>>,
    /// The changed accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_diff: Option<BTreeMap<Address, AccountDifference>>,
    /// The accounts and slots that the block accessed (EIP-7928).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_access_list: Option<BlockAccessList>,
    /// The hash of the access list, without the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_access_list_hash: Option<B256>,
    /// The income of the block's producer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coinbase: Option<CoinbaseIncome>,
    /// Everything that the whole run has read of its state. The last block has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_set: Option<ReadSet>,
}

// A header that does not parse must be an error, which a flattened option is not.
impl<'de> Deserialize<'de> for SimulatedBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            calls: Vec<SimulatedCall>,
            fork: Option<String>,
            assets: Option<BTreeMap<Address, Vec<AssetChange>>>,
            state_diff: Option<BTreeMap<Address, AccountDifference>>,
            block_access_list: Option<BlockAccessList>,
            block_access_list_hash: Option<B256>,
            coinbase: Option<CoinbaseIncome>,
            read_set: Option<ReadSet>,
            #[serde(flatten)]
            header: Map<String, Value>,
        }

        let fields = Fields::deserialize(deserializer)?;
        let mut header = fields.header;
        let block = if header.contains_key("parentHash") {
            // The header has the hash too.
            let hash =
                fields.block_access_list_hash.map(|hash| ("blockAccessListHash".into(), hash.to_string().into()));
            header.extend(hash);
            Some(serde_json::from_value(Value::Object(header)).map_err(D::Error::custom)?)
        } else {
            None
        };
        let block_access_list_hash = fields.block_access_list_hash.filter(|_| block.is_none());
        Ok(Self {
            block,
            calls: fields.calls,
            fork: fields.fork,
            assets: fields.assets,
            state_diff: fields.state_diff,
            block_access_list: fields.block_access_list,
            block_access_list_hash,
            coinbase: fields.coinbase,
            read_set: fields.read_set,
        })
    }
}

/// The result of a call, with the outputs that were requested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct SimulatedCall {
    /// Whether the call has succeeded.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub status: Option<bool>,
    /// The gas that the call pays for.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub gas_used: Option<u64>,
    /// The gas that the call needs while it runs, before refunds.
    #[serde(skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub max_used_gas: Option<u64>,
    /// The data that the call returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_data: Option<Bytes>,
    /// The reason why the call has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
    /// The logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<Log>>,
    /// The transfers of ether, internal ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<Vec<Transfer>>,
    /// The slots that the call accessed, and the accounts that were cold when it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_list: Option<AccessList>,
    /// The call frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Box<CallFrame>>,
}

impl SimulatedCall {
    /// Returns whether the call has succeeded. Without [`Output::Status`](crate::Output::Status) it returns `false`.
    pub fn has_succeeded(&self) -> bool {
        self.status == Some(true)
    }
}

/// The reason why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallError {
    /// 3 for a revert, -32015 for a halt. `/` has no code.
    pub code: Option<i64>,
    /// The reason in words: of a revert the reason that its data has, if it has one.
    pub message: String,
    /// The data of a revert. At `/`, the return data has it.
    pub data: Option<Bytes>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum CallErrorForm {
    Text(String),
    Object {
        code: i64,
        message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Bytes>,
    },
}

impl Serialize for CallError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { code, message, data } = self.clone();
        let form = match code {
            Some(code) => CallErrorForm::Object { code, message, data },
            None => CallErrorForm::Text(message),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CallError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match CallErrorForm::deserialize(deserializer)? {
            CallErrorForm::Text(message) => Self { code: None, message, data: None },
            CallErrorForm::Object { code, message, data } => Self { code: Some(code), message, data },
        })
    }
}

/// A transfer of ether.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Transfer {
    /// The sender.
    pub from: Address,
    /// The receiver.
    pub to: Address,
    /// The amount in wei.
    pub value: U256,
}

/// The kind of an asset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum AssetKind {
    /// Ether.
    Ether,
    /// A fungible token.
    Erc20,
    /// A single token.
    Erc721,
    /// One of the tokens of a contract.
    Erc1155,
}

/// The net change of an asset that an account has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AssetChange {
    /// The kind of the asset.
    #[serde(rename = "type")]
    pub kind: AssetKind,
    /// The change in the asset's smallest unit.
    pub change: I256,
    /// The contract of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Address>,
    /// The id of a token of ERC-721 or ERC-1155.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<U256>,
    /// The symbol that the token returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// The number of decimals that the token returns.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub decimals: Option<u8>,
}

/// The income of a block's producer, in wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CoinbaseIncome {
    /// The fees.
    pub fees: U256,
    /// The net transfers.
    pub transfers: I256,
}

/// A value before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Difference<T> {
    /// The value before.
    pub from: T,
    /// The value after.
    pub to: T,
}

/// The change of a balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BalanceDifference {
    /// The values before and after.
    Values(Difference<U256>),
    /// By how much the balance changes, for the fee recipient and the vaults of the OP stack.
    Change {
        /// The change in wei.
        change: I256,
    },
}

/// The change of an account. A part that has not changed is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AccountDifference {
    /// The balance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceDifference>,
    /// The nonce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<Difference<U64>>,
    /// The code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Difference<Bytes>>,
    /// The storage, by slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<BTreeMap<B256, Difference<B256>>>,
}

/// The parts of an account that a run has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReadAccount {
    /// `balance`, `nonce`, `code`, `existence` or `storage`.
    pub parts: Vec<String>,
    /// The slots.
    pub slots: Vec<B256>,
}

/// The values that a run has read of its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ReadSet {
    /// Whether the reads are unknown, or too many to list. All other fields are `None` then.
    pub everything: bool,
    /// The accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<BTreeMap<Address, ReadAccount>>,
    /// The fields of the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Vec<String>>,
    /// The numbers of the blocks whose hashes were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hashes: Option<Vec<U64>>,
    /// The gas that the block must have left.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub gas: Option<u64>,
}

/// The error of a variant that cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VariantError {
    /// The code of JSON-RPC.
    pub code: i64,
    /// The reason in words.
    pub message: String,
}

/// A variant of a search, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Variant {
    /// The values of the fields that vary.
    pub values: Vec<U256>,
    /// Whether the variant can be sent as it is: no call failed that must not, and the objective is large enough.
    #[serde(with = "alloy_serde::quantity")]
    pub status: bool,
    /// The objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<I256>,
    /// The gas.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub gas_used: Option<u64>,
    /// The first call that has not ended as it had to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<CallIndex>,
    /// The error of a variant that cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VariantError>,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Found {
    /// The best variants, the best first.
    pub best: Vec<Variant>,
    /// The number of variants that ran.
    pub runs: u64,
    /// Whether all variants ran before the deadline.
    pub complete: bool,
    /// The name of the fork whose rules apply to the first block.
    pub fork: String,
    /// The outputs of the best variant, if they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Simulated>,
}
