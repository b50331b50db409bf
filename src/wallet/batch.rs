//! A batch: what is asked for, already parsed, and what has become of it.

use alloy_primitives::{Address, Bytes, U256};

/// Names a batch: what its sender gave, or 32 random bytes in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchId(String);

/// `wallet_sendCalls`: api.md 2.6 and EIP-5792. Its form has been checked, its version too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// Its name, where its sender gave one.
    pub id: Option<BatchId>,
    /// The account that is to send it; the wallet's first where none is named.
    pub from: Option<Address>,
    /// EIP-155 chain id; none where it is past 64 bits, as no chain's is.
    pub chain_id: Option<u64>,
    /// All calls or none.
    pub atomic_required: bool,
    /// The calls, in order: at least one.
    pub calls: Vec<BatchCall>,
    /// The capabilities asked for the batch as a whole.
    pub capabilities: Vec<Requested>,
}

/// One call of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchCall {
    /// The callee; none creates a contract.
    pub to: Option<Address>,
    /// Wei.
    pub value: U256,
    /// Call data.
    pub data: Bytes,
    /// The capability `gasLimitOverride`: the gas limit of this call.
    pub gas_limit: Option<u64>,
    /// The other capabilities asked for this call.
    pub capabilities: Vec<Requested>,
}

/// A capability that a request asks for, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Its name.
    pub name: String,
    /// Whether the batch may be sent without it.
    pub optional: bool,
}

/// How far a batch has come: the codes of EIP-5792's `wallet_getCallsStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsState {
    /// 100: not all of it is in a block.
    Pending,
    /// 200: all of it is in a block, and nothing reverted.
    Confirmed,
    /// 400: none of it is in a block, and none can be any more.
    Failed,
    /// 500: it reverted, and nothing of it but its gas is on the chain.
    Reverted,
    /// 600: a part of it reverted or can be in no block any more, and another is on the chain.
    PartlyReverted,
}

impl BatchId {
    /// The most characters of an id: 4096 bytes in hex (EIP-5792).
    pub const LONGEST: usize = 8194;

    /// This text as an id, if it is not empty and not too long.
    pub fn new(text: String) -> Option<Self> {
        (1..=Self::LONGEST).contains(&text.len()).then_some(Self(text))
    }

    /// An id that nobody else has: 32 random bytes.
    pub fn random() -> Self {
        Self(format!("{:#x}", alloy_primitives::B256::random()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl CallsState {
    /// The code.
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
