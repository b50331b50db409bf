//! The requests that wait for an approver, as they are shown.

use alloy_primitives::{Address, B256, Bytes, U256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wallet::{BatchId, ShownField};

/// A request as it is shown to an approver, before anything is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// Id of the request: the batch's, or a random one.
    pub id: BatchId,
    /// The account that signs.
    #[schemars(with = "String")]
    pub from: Address,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// The client that asks.
    #[serde(flatten)]
    pub asker: Requester,
    /// The act to be approved.
    #[serde(flatten)]
    pub act: RequestedAction,
}

/// The client of a request, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requester {
    /// Name of the client's token.
    pub client: Option<String>,
    /// Origin of the page, as its browser names it. Programs that are no browsers may name any.
    pub page: Option<String>,
}

/// The act to be approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum RequestedAction {
    /// A batch is signed and sent.
    Batch(AskedBatch),
    /// A message is signed (`personal_sign`).
    Message(AskedMessage),
    /// Typed data is signed (`eth_signTypedData_v4`).
    TypedData(AskedTypedData),
    /// A transaction is signed and not sent (`eth_signTransaction`).
    Transaction(AskedTransaction),
}

impl RequestedAction {
    /// Returns the name of such acts.
    pub const fn noun(&self) -> &'static str {
        match self {
            Self::Batch(_) => "batch",
            Self::Message(_) => "message",
            Self::TypedData(_) => "typed message",
            Self::Transaction(_) => "transaction",
        }
    }

    /// Returns about how many bytes the act takes as JSON.
    pub fn size(&self) -> usize {
        let lines = |lines: &[String]| lines.iter().map(|line| line.len() + 4).sum::<usize>();
        let fields =
            |fields: &[ShownField]| fields.iter().map(|field| field.name.len() + field.value.len() + 32).sum::<usize>();
        match self {
            Self::Batch(batch) => {
                let call = |call: &AskedCall| 2 * call.data.len() + call.outcome.len() + lines(&call.words) + 256;
                batch.calls.iter().map(call).sum::<usize>() + lines(&batch.assets)
            }
            Self::Message(message) => 2 * message.message.len() + 256,
            Self::TypedData(data) => fields(&data.domain) + fields(&data.fields) + lines(&data.words) + 256,
            Self::Transaction(tx) => fields(&tx.fields) + lines(&tx.words) + 256,
        }
    }
}

/// A batch to be approved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AskedBatch {
    /// Whether all calls are executed or none.
    pub atomic: bool,
    /// The code that the account is to be delegated to (EIP-7702). `None` if the batch needs no delegation.
    #[schemars(with = "Option<String>")]
    pub upgrade: Option<Address>,
    /// Number of transactions to be signed, including one that deploys the batch executor.
    pub transactions: usize,
    /// Maximum gas fees of the transactions in wei. Transactions with higher ones are not signed.
    #[schemars(with = "String")]
    pub most_fees: U256,
    /// The estimated fees that a chain of the OP stack takes in addition to gas, for data on L1 and for its operator,
    /// in wei.
    #[serde(default, skip_serializing_if = "U256::is_zero")]
    #[schemars(with = "String")]
    pub data_fees: U256,
    /// The calls, in order.
    pub calls: Vec<AskedCall>,
    /// The account's changes of assets in the simulation, in words. Gas fees are not among them.
    pub assets: Vec<String>,
}

/// A call as it is shown to an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AskedCall {
    /// The callee. `None` creates a contract.
    #[schemars(with = "Option<String>")]
    pub to: Option<Address>,
    /// Value in wei.
    #[schemars(with = "String")]
    pub value: U256,
    /// Call data.
    #[schemars(with = "String")]
    pub data: Bytes,
    /// The gas limit that the client set for this call (`gasLimitOverride`).
    pub gas_limit: Option<u64>,
    /// Result of the call in the simulation, as text.
    pub outcome: String,
    /// The call in words, in lines. Empty if its function is not known.
    pub words: Vec<String>,
}

/// A message to be signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AskedMessage {
    /// The message, without the prefix of EIP-191.
    #[schemars(with = "String")]
    pub message: Bytes,
    /// The hash that is signed.
    #[schemars(with = "String")]
    pub hash: B256,
}

/// Typed data to be signed (EIP-712).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AskedTypedData {
    /// The fields of the domain.
    pub domain: Vec<ShownField>,
    /// Name of the message's type.
    pub primary_type: String,
    /// The fields of the message.
    pub fields: Vec<ShownField>,
    /// The signature's use in words, in lines. Empty if the type is not known.
    pub words: Vec<String>,
    /// The hash that is signed.
    #[schemars(with = "String")]
    pub hash: B256,
}

/// A transaction to be signed and not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AskedTransaction {
    /// The fields of the transaction.
    pub fields: Vec<ShownField>,
    /// The call in words, in lines. Empty if its function is not known.
    pub words: Vec<String>,
    /// The hash that is signed.
    #[schemars(with = "String")]
    pub hash: B256,
}
