//! The reasons to refuse a batch, with the codes and texts of the wallet's contract, and of EIP-5792 where that is
//! silent.

use alloy_primitives::{Address, Bytes};

use super::BatchId;
use crate::store::StoreError;

/// The reason to refuse a batch, or to reject an id.
///
/// `Display` is the message of the wallet's contract (`src/rpc/README.md`). [`detail`](Self::detail) describes this
/// case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalletError {
    /// -32000: `version` is not 2.0.0.
    #[error("Version not supported")]
    Version(String),
    /// -32602: the request is malformed. Names the field and the expected form.
    #[error("The wallet cannot parse the request")]
    Shape(String),
    /// 5710: the request is for another chain.
    #[error("EIP-7702 not supported on the specified chain ID")]
    Chain(String),
    /// The batch is atomic, but the chain has no EIP-7702. Code and text depend on the dialect.
    #[error("EIP-7702 not supported on the specified chain ID")]
    NotAtomic(String),
    /// 4100: the account is not the wallet's, or the client may not use the wallet.
    #[error("The requested account and/or method has not been authorized by the user")]
    Unauthorized(String),
    /// 4001: the approver has rejected the batch, or not decided in time.
    #[error("User rejected the request")]
    Rejected(String),
    /// 5700: a required capability is not supported.
    #[error("The wallet does not support a capability that was not marked as optional")]
    Capability(String),
    /// 5720: the id is taken.
    #[error("There is already a batch submitted with the specified batch ID")]
    Duplicate(String),
    /// 5730: no batch has this id.
    #[error("No batch with the specified batch ID is known")]
    Unknown(String),
    /// 4444: the blocks with the batch were pruned.
    #[error("pruned history unavailable")]
    Pruned(String),
    /// 5740: the batch has too many calls, or too much data.
    #[error("The batch is too large for the wallet to process")]
    TooLarge(String),
    /// 5750: the account may not be delegated.
    #[error("EIP-7702 upgrade rejected for this chain and account")]
    Upgrade(String),
    /// The simulation reverted with this data. Code and text are the dialect's for a revert.
    #[error("execution reverted")]
    Reverted(Bytes),
    /// -32000: the chain's rules reject the batch.
    #[error("{0}")]
    Refused(String),
    /// -32016: the simulation did not end in time.
    #[error("the request ran past its deadline")]
    Deadline,
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// -32005: a bound is exceeded.
    #[error("{0}")]
    Limit(String),
    /// -32603: an internal error.
    #[error("{0}")]
    Internal(String),
}

impl WalletError {
    /// Returns 4100: the client has no token for the wallet.
    pub fn no_wallet_token() -> Self {
        Self::Unauthorized("expected a header `Authorization: Bearer TOKEN` with a token of --wallet-token-file".into())
    }

    /// Returns 4100: the account at `place` in the parameters is not the wallet's.
    pub fn foreign_account(place: &str, account: Address) -> Self {
        Self::Unauthorized(format!("{place}: {account} is no account of the wallet: expected one of eth_accounts"))
    }

    /// Returns 5720: another batch has this id.
    pub fn taken(id: &BatchId) -> Self {
        Self::Duplicate(format!("params[0].id: {}: expected an id that no batch has", cut(id.as_str())))
    }

    /// Returns 5730: no batch has this id.
    pub fn unknown(id: &BatchId) -> Self {
        Self::Unknown(format!("params[0]: {}: expected an id that wallet_sendCalls has answered", cut(id.as_str())))
    }

    /// Returns 4444: the blocks with this batch were pruned.
    pub fn pruned(id: &BatchId) -> Self {
        let id = cut(id.as_str());
        Self::Pruned(format!("params[0]: {id}: it was taken before the oldest block that is kept (--keep-history)"))
    }

    /// Returns the code.
    pub const fn code(&self) -> i32 {
        match self {
            Self::Version(_) | Self::Reverted(_) | Self::Refused(_) => -32000,
            Self::Shape(_) => -32602,
            Self::Chain(_) | Self::NotAtomic(_) => 5710,
            Self::Unauthorized(_) => 4100,
            Self::Rejected(_) => 4001,
            Self::Capability(_) => 5700,
            Self::Duplicate(_) => 5720,
            Self::Unknown(_) => 5730,
            Self::Pruned(_) => 4444,
            Self::TooLarge(_) => 5740,
            Self::Upgrade(_) => 5750,
            Self::Deadline => -32016,
            Self::Limit(_) | Self::Store(StoreError::Busy) => -32005,
            Self::Store(_) | Self::Internal(_) => -32603,
        }
    }

    /// Returns the problem and the expected value, if the message does not contain them.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Version(detail)
            | Self::Shape(detail)
            | Self::Chain(detail)
            | Self::NotAtomic(detail)
            | Self::Unauthorized(detail)
            | Self::Rejected(detail)
            | Self::Capability(detail)
            | Self::Duplicate(detail)
            | Self::Unknown(detail)
            | Self::Pruned(detail)
            | Self::TooLarge(detail)
            | Self::Upgrade(detail) => Some(detail),
            Self::Reverted(_)
            | Self::Refused(_)
            | Self::Deadline
            | Self::Store(_)
            | Self::Limit(_)
            | Self::Internal(_) => None,
        }
    }
}

/// Returns as much of a client's text as an error should show.
pub(super) fn cut(text: &str) -> String {
    cut_to(text, 80)
}

/// Returns the first `most` characters of a text.
pub(super) fn cut_to(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
