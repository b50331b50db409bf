//! Errors of the wallet: the codes and messages of its JSON-RPC methods, most of them from EIP-5792.

use alloy_primitives::{Address, Bytes};

use super::BatchId;
use crate::{engine::SimulationError, meter::Stopped, pool::PoolError, shown, store::StoreError};

/// The reason why a request to the wallet fails. `Display` is the code's message, [`detail`](Self::detail) the case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalletError {
    /// -32000: `version` is not 2.0.0.
    #[error("Version not supported")]
    Version(String),
    /// -32602: the request has the wrong form. Names the field and the expected value.
    #[error("The wallet cannot parse the request")]
    Shape(String),
    /// 5710: `chainId` is not the wallet's chain.
    #[error("EIP-7702 not supported on the specified chain ID")]
    Chain(String),
    /// 5710 or the code of the dialect: an atomic batch on a chain without EIP-7702.
    #[error("EIP-7702 not supported on the specified chain ID")]
    NotAtomic(String),
    /// 4100: the account is not the wallet's, or the client may not use the wallet.
    #[error("The requested account and/or method has not been authorized by the user")]
    Unauthorized(String),
    /// 4001: the approver or the policy rejected the batch, or no decision came in time.
    #[error("User rejected the request")]
    Rejected(String),
    /// 5700: a capability that is requested, and not optional, is not supported.
    #[error("The wallet does not support a capability that was not marked as optional")]
    Capability(String),
    /// 5720: another batch has the id.
    #[error("There is already a batch submitted with the specified batch ID")]
    Duplicate(String),
    /// 5730: no batch has this id.
    #[error("No batch with the specified batch ID is known")]
    Unknown(String),
    /// 4444: the blocks that hold the batch were pruned.
    #[error("pruned history unavailable")]
    Pruned(String),
    /// 5740: the batch has too many calls or too much data, or needs too much gas.
    #[error("The batch is too large for the wallet to process")]
    TooLarge(String),
    /// 5750: the account cannot or may not be delegated to the batch executor.
    #[error("EIP-7702 upgrade rejected for this chain and account")]
    Upgrade(String),
    /// The simulation reverted with this data. Code and message are the dialect's for a revert.
    #[error("execution reverted")]
    Reverted(Bytes),
    /// -32000: the rules of the chain or the pool reject the batch.
    #[error("{0}")]
    Refused(String),
    /// -32016: the simulation ran past the deadline of the request.
    #[error("the request ran past its deadline")]
    Deadline,
    /// -32005 if the store is busy, else -32603: the store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// -32005: a limit is exceeded.
    #[error("{0}")]
    Limit(String),
    /// -32603: an internal error.
    #[error("{0}")]
    Internal(String),
}

impl WalletError {
    /// Returns 4100 for a client without a token of the wallet.
    pub fn no_wallet_token() -> Self {
        Self::Unauthorized("expected a header `Authorization: Bearer TOKEN` with a token of --wallet-token-file".into())
    }

    /// Returns 4100 for a client whose token was removed from its file while its request waited.
    pub fn token_withdrawn() -> Self {
        Self::Unauthorized("the token of the request was withdrawn while the request waited for approval".into())
    }

    /// Returns 4100 for an account that is not the wallet's. `path` names the parameter.
    pub fn foreign_account(path: &str, account: Address) -> Self {
        Self::Unauthorized(format!("{path}: {account} is not an account of the wallet: expected one of eth_accounts"))
    }

    /// Returns 5720 for an id that another batch has.
    pub fn taken(id: &BatchId) -> Self {
        Self::Duplicate(format!("params[0].id: {}: expected an id that no batch has", cut(id.as_str())))
    }

    /// Returns 5730 for an id that no batch has.
    pub fn unknown(id: &BatchId) -> Self {
        Self::Unknown(format!("params[0]: {}: expected an id that wallet_sendCalls has returned", cut(id.as_str())))
    }

    /// Returns 4444 for a batch whose blocks were pruned.
    pub fn pruned(id: &BatchId) -> Self {
        let id = cut(id.as_str());
        Self::Pruned(format!("params[0]: {id}: the batch is older than the oldest block that is kept (--keep-history)"))
    }

    /// Returns the JSON-RPC error code, and the detail of an error whose message is EIP-5792's.
    fn code_and_detail(&self) -> (i32, Option<&str>) {
        match self {
            Self::Version(detail) => (-32000, Some(detail)),
            Self::Shape(detail) => (-32602, Some(detail)),
            Self::Chain(detail) | Self::NotAtomic(detail) => (5710, Some(detail)),
            Self::Unauthorized(detail) => (4100, Some(detail)),
            Self::Rejected(detail) => (4001, Some(detail)),
            Self::Capability(detail) => (5700, Some(detail)),
            Self::Duplicate(detail) => (5720, Some(detail)),
            Self::Unknown(detail) => (5730, Some(detail)),
            Self::Pruned(detail) => (4444, Some(detail)),
            Self::TooLarge(detail) => (5740, Some(detail)),
            Self::Upgrade(detail) => (5750, Some(detail)),
            Self::Reverted(_) | Self::Refused(_) => (-32000, None),
            Self::Deadline => (-32016, None),
            Self::Limit(_) | Self::Store(StoreError::Busy) => (-32005, None),
            Self::Store(_) | Self::Internal(_) => (-32603, None),
        }
    }

    /// Returns the JSON-RPC error code.
    pub fn code(&self) -> i32 {
        self.code_and_detail().0
    }

    /// Returns the details of the problem and the expected value, or `None` if the message is complete.
    pub fn detail(&self) -> Option<&str> {
        self.code_and_detail().1
    }
}

impl From<PoolError> for WalletError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Store(error) => error.into(),
            PoolError::Full | PoolError::AccountLimit { .. } => Self::Limit(error.to_string()),
            PoolError::Oversized { .. }
            | PoolError::InitCode { .. }
            | PoolError::GasCap { .. }
            | PoolError::BlockGas => Self::TooLarge(format!("params[0].calls: {error}")),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<SimulationError> for WalletError {
    fn from(error: SimulationError) -> Self {
        match error {
            SimulationError::Stopped(Stopped::Deadline) => Self::Deadline,
            SimulationError::Internal(problem) => Self::Internal(problem),
            other => Self::Refused(other.to_string()),
        }
    }
}

/// Maximum length of a client's text in an error, in characters.
const MAX_TEXT: usize = 80;

/// Cuts a client's text to a length that fits in an error.
pub(super) fn cut(text: &str) -> String {
    shown::cut(text, MAX_TEXT)
}
