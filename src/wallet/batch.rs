//! The parsed request for a batch, and the state of a batch.

use alloy_eips::eip2930::AccessList;
use alloy_primitives::{Address, Bytes, U256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::CallFees;

/// The id of a batch: the text that its sender gave, or 32 random bytes in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("minLength" = 1, "maxLength" = 8194))]
pub struct BatchId(String);

/// The request of `wallet_sendCalls` (EIP-5792). Its form and its version have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// The id. `None` if the sender gave none.
    pub id: Option<BatchId>,
    /// The sender's account. `None` selects the wallet's first.
    pub from: Option<Address>,
    /// EIP-155 chain id. `None` if it exceeds 64 bits, which no chain's does.
    pub chain_id: Option<u64>,
    /// Whether all calls must be executed or none.
    pub atomic_required: bool,
    /// The calls, in order. At least one.
    pub calls: Vec<BatchCall>,
    /// The capabilities requested for the whole batch.
    pub capabilities: Vec<Requested>,
    /// The choices of the client of `eth_sendTransaction` for the only call. `None` for a batch of `wallet_sendCalls`.
    pub transaction: Option<ChosenFields>,
}

/// The fields of a transaction, other than its call, that its client has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenFields {
    /// The fees. The wallet fills in missing ones.
    pub fees: CallFees,
    /// The nonce, which must be the account's next.
    pub nonce: Option<u64>,
    /// Access list (EIP-2930).
    pub access_list: Option<AccessList>,
}

/// A call of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchCall {
    /// The callee. `None` creates a contract.
    pub to: Option<Address>,
    /// Value in wei.
    pub value: U256,
    /// Call data.
    pub data: Bytes,
    /// The gas limit of this call, from the capability `gasLimitOverride`.
    pub gas_limit: Option<u64>,
    /// The other capabilities requested for this call.
    pub capabilities: Vec<Requested>,
}

/// A capability that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Name of the capability.
    pub name: String,
    /// Whether the batch may be sent without it.
    pub optional: bool,
}

/// The state of a batch: the status codes of EIP-5792's `wallet_getCallsStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsState {
    /// Not every transaction is in a block yet.
    Pending = 100,
    /// Every transaction is in a block, and none reverted.
    Confirmed = 200,
    /// No transaction is in a block, and none can be any more.
    Failed = 400,
    /// The batch reverted, and only its gas was spent.
    Reverted = 500,
    /// One part of the batch reverted or can be in no block any more, and another part is on the chain.
    PartlyReverted = 600,
}

impl BatchId {
    /// Maximum length of an id in bytes: 4096 bytes in hex (EIP-5792).
    pub const MAX_LENGTH: usize = 8194;

    /// Creates an id from `text`. Returns `None` if the text is empty or longer than [`MAX_LENGTH`](Self::MAX_LENGTH).
    pub fn new(text: String) -> Option<Self> {
        (1..=Self::MAX_LENGTH).contains(&text.len()).then_some(Self(text))
    }

    /// Creates an id of 32 random bytes, which no other batch has.
    pub fn random() -> Self {
        Self(format!("{:#x}", alloy_primitives::B256::random()))
    }

    /// Returns the text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
