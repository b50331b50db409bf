//! Why the wallet refuses: the codes and texts of api.md 7.2, and of EIP-5792 where that is silent.

use alloy_primitives::{Address, Bytes};

use super::BatchId;
use crate::store::StoreError;

/// A batch that is refused, or an id that is not known.
///
/// `Display` is the message that api.md 7.2 gives; [`detail`](Self::detail) tells this case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalletError {
    /// -32000: `version` is not 2.0.0.
    #[error("Version not supported")]
    Version(String),
    /// -32602: not of the right form; the field and what was expected.
    #[error("The wallet cannot parse the request")]
    Shape(String),
    /// 5710: another chain.
    #[error("EIP-7702 not supported on the specified chain ID")]
    Chain(String),
    /// An atomic batch on a chain without EIP-7702: code and text are the dialect's.
    #[error("EIP-7702 not supported on the specified chain ID")]
    NotAtomic(String),
    /// 4100: the account is not the wallet's, or the client may not use the wallet.
    #[error("The requested account and/or method has not been authorized by the user")]
    Unauthorized(String),
    /// 4001: the approver said no, or nothing in time.
    #[error("User rejected the request")]
    Rejected(String),
    /// 5700: a capability that is not optional.
    #[error("The wallet does not support a capability that was not marked as optional")]
    Capability(String),
    /// 5720: the id is taken.
    #[error("There is already a batch submitted with the specified batch ID")]
    Duplicate(String),
    /// 5730: no batch has this id.
    #[error("No batch with the specified batch ID is known")]
    Unknown(String),
    /// 4444: the blocks that tell of the batch were pruned.
    #[error("pruned history unavailable")]
    Pruned(String),
    /// 5740: too many calls, or too large.
    #[error("The batch is too large for the wallet to process")]
    TooLarge(String),
    /// 5750: the account is not to be delegated.
    #[error("EIP-7702 upgrade rejected for this chain and account")]
    Upgrade(String),
    /// The simulation reverted with this data: code and text are the dialect's of a revert.
    #[error("execution reverted")]
    Reverted(Bytes),
    /// -32000: the chain's rules refuse it.
    #[error("{0}")]
    Refused(String),
    /// -32016: the simulation did not end in time.
    #[error("the request ran past its deadline")]
    Deadline,
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// -32005: a bound.
    #[error("{0}")]
    Limit(String),
    /// -32603: a fault of presim's.
    #[error("{0}")]
    Internal(String),
}

impl WalletError {
    /// 4100: the client has no token for the wallet.
    pub fn no_wallet_token() -> Self {
        Self::Unauthorized("expected a header `Authorization: Bearer TOKEN` with a token of --wallet-token-file".into())
    }

    /// 4100: the account that stands at `place` in the parameters is not the wallet's.
    pub fn foreign_account(place: &str, account: Address) -> Self {
        Self::Unauthorized(format!("{place}: {account} is no account of the wallet: expected one of eth_accounts"))
    }

    /// 5720: another batch has this id.
    pub fn taken(id: &BatchId) -> Self {
        Self::Duplicate(format!("params[0].id: {}: expected an id that no batch has", cut(id.as_str())))
    }

    /// 5730: no batch has this id.
    pub fn unknown(id: &BatchId) -> Self {
        Self::Unknown(format!("params[0]: {}: expected an id that wallet_sendCalls has answered", cut(id.as_str())))
    }

    /// 4444: the blocks that tell of this batch were pruned.
    pub fn pruned(id: &BatchId) -> Self {
        let id = cut(id.as_str());
        Self::Pruned(format!("params[0]: {id}: it was taken before the oldest block that is kept (--keep-history)"))
    }

    /// The code.
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

    /// What is wrong in this case and what was expected, where the message does not say so itself.
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

/// As much of a client's text as an error should show.
pub(super) fn cut(text: &str) -> String {
    cut_to(text, 80)
}

/// The first `most` characters of a text.
pub(super) fn cut_to(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
