//! A batch, parsed, and the states that it goes through.

use alloy_primitives::{Address, Bytes, U256};

/// The id of a batch: given by its client, or 32 random bytes in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchId(String);

/// The request of `wallet_sendCalls` (EIP-5792). Its form and its version are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// The id, if the client gave one.
    pub id: Option<BatchId>,
    /// The account that is to send the batch; `None` for the wallet's first.
    pub from: Option<Address>,
    /// The chain id (EIP-155); `None` if it exceeds 64 bits, as no chain's does.
    pub chain_id: Option<u64>,
    /// Whether all calls must be made or none.
    pub atomic_required: bool,
    /// The calls, in order: at least one.
    pub calls: Vec<BatchCall>,
    /// The capabilities requested for the batch as a whole.
    pub capabilities: Vec<Requested>,
}

/// One call of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchCall {
    /// The callee; `None` for the creation of a contract.
    pub to: Option<Address>,
    /// The value in wei.
    pub value: U256,
    /// The call data.
    pub data: Bytes,
    /// The gas limit of this call (the capability `gasLimitOverride`).
    pub gas_limit: Option<u64>,
    /// The other capabilities requested for this call.
    pub capabilities: Vec<Requested>,
}

/// A requested capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The capability's name.
    pub name: String,
    /// Whether the batch may be sent without the capability.
    pub optional: bool,
}

/// The state of a batch, by the codes of EIP-5792's `wallet_getCallsStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsState {
    /// 100: a part of the batch is not in a block yet.
    Pending,
    /// 200: the whole batch is in blocks, and nothing reverted.
    Confirmed,
    /// 400: nothing of the batch is in a block, or can be any more.
    Failed,
    /// 500: the batch reverted, and only its gas is on the chain.
    Reverted,
    /// 600: a part of the batch reverted or can no longer be in a block, and another part is on the chain.
    PartlyReverted,
}

impl BatchId {
    /// The most characters of an id: 4096 bytes in hex (EIP-5792).
    pub const LONGEST: usize = 8194;

    /// Returns this text as an id; `None` if it is empty or too long.
    pub fn new(text: String) -> Option<Self> {
        (1..=Self::LONGEST).contains(&text.len()).then_some(Self(text))
    }

    /// Creates an id of 32 random bytes.
    pub fn random() -> Self {
        Self(format!("{:#x}", alloy_primitives::B256::random()))
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl CallsState {
    /// Returns the code.
    pub const fn code(self) -> u16 {
        match self {
            Self::Pending => 100,
            Self::Confirmed => 200,
            Self::Failed => 400,
            Self::Reverted => 500,
            Self::PartlyReverted => 600,
        }
    }
}
