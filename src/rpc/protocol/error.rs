//! JSON-RPC errors: their codes, a text that a client can act on, and optional data.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::{B256, Bytes};
use jsonrpsee::types::{ErrorObject, ErrorObjectOwned};
use serde::Serialize;

use crate::{
    chain::Unexecutable,
    engine::SimulationError,
    ledger::UnknownBlock,
    meter::Stopped,
    pool::{BundleRefusal, PoolError},
    scheduler::{Rejected, TaskError},
    state::FetchError,
    store::StoreError,
};

/// geth's code of a revert.
pub const REVERTED: i32 = 3;
/// EIP-7966: no receipt came in time.
const RECEIPT_TIMEOUT: i32 = 4;
/// EIP-7966: a transaction cannot be mined at present.
const UNREADY: i32 = 5;

/// geth's code for pruned blocks (EIP-4444).
const PRUNED_HISTORY: i32 = 4444;

/// The reason why a request has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RpcError {
    /// The error object that answers the request.
    #[error("{}", .0.message())]
    Answer(ErrorObjectOwned),
    /// The request names a block that this node does not have. An upstream may have it.
    #[error(transparent)]
    UnknownBlock(#[from] UnknownBlock),
    /// presim cannot execute the run. An upstream may.
    #[error("{0}")]
    Unexecutable(Unexecutable),
    /// The executor did not run the request, or did not run it to its end.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// The run was stopped by its bounds.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A result that may fail with an [`RpcError`].
pub type Result<T, E = RpcError> = std::result::Result<T, E>;

impl RpcError {
    /// Creates an error with this code and text.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Answer(match message.into() {
            Cow::Borrowed(text) => ErrorObject::borrowed(code, text, None),
            Cow::Owned(text) => ErrorObject::owned(code, text, None::<()>),
        })
    }

    /// Creates geth's error of a revert: code 3, and the reason in the message.
    pub fn reverted(reason: Option<String>, data: Bytes) -> Self {
        let message = match reason {
            Some(reason) => format!("execution reverted: {reason}"),
            None => "execution reverted".to_owned(),
        };
        Self::with_data(REVERTED, message, data)
    }

    /// Creates an error with this code, text and `data`.
    pub fn with_data(code: i32, message: impl Into<String>, data: impl Serialize) -> Self {
        Self::Answer(ErrorObject::owned(code, message, Some(data)))
    }

    /// Creates -32700: the text is not JSON.
    pub fn parse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32700, message)
    }

    /// Creates -32600: the text is JSON, but not a request.
    pub fn request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32600, message)
    }

    /// Creates -32602: the parameters are wrong. The text names the field.
    pub fn params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32602, message)
    }

    /// Creates -32005: a limit is reached.
    pub fn limit(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32005, message)
    }

    /// Creates 4: the receipt of a transaction did not arrive in time (EIP-7966). `data` is the transaction's hash.
    pub fn receipt_timeout(hash: B256, message: impl Into<String>) -> Self {
        Self::with_data(RECEIPT_TIMEOUT, message, hash)
    }

    /// Creates 5: a transaction was accepted, but is not ready to be mined (EIP-7966). `data` is the transaction's
    /// hash.
    pub fn unready(hash: B256, message: impl Into<String>) -> Self {
        Self::with_data(UNREADY, message, hash)
    }

    /// Creates -32603: an internal error. The text names an id under which the log has more.
    pub fn internal(problem: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        tracing::error!(id, problem, "an internal error was answered");
        Self::new(-32603, format!("internal error e{id:x}: search the log for this id"))
    }

    /// Returns the error of a simulation, answered by another method: the codes from -38010 on are reserved for
    /// `eth_simulateV1`.
    pub fn outside_simulation(self) -> Self {
        let error = self.into_object();
        match error.code() {
            -38099..=-38000 | -32603 => Self::Answer(ErrorObject::owned(-32000, error.message(), error.data())),
            _ => Self::Answer(error),
        }
    }

    /// Changes the text of the error.
    pub fn with_message(self, change: impl FnOnce(&str) -> String) -> Self {
        let error = self.into_object();
        Self::Answer(ErrorObject::owned(error.code(), change(error.message()), error.data()))
    }

    /// Returns the code of the error object.
    pub fn code(&self) -> i32 {
        match self {
            Self::Answer(error) => error.code(),
            Self::UnknownBlock(UnknownBlock::History { .. }) => PRUNED_HISTORY,
            Self::Rejected(Rejected::QueueFull { .. } | Rejected::Overloaded { .. }) => -32005,
            Self::Rejected(Rejected::Deadline) | Self::Stopped(_) => -32016,
            Self::Rejected(Rejected::Panicked { .. } | Rejected::Store(_)) => -32603,
            Self::Rejected(Rejected::Stopping) | Self::UnknownBlock(_) | Self::Unexecutable(_) => -32000,
        }
    }

    /// Returns whether the run did not end by the deadline.
    pub const fn is_deadline(&self) -> bool {
        matches!(self, Self::Rejected(Rejected::Deadline) | Self::Stopped(Stopped::Deadline))
    }

    /// Returns whether the request was rejected because too much else is to be done.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Rejected(_)) && self.code() == -32005
    }

    /// Returns the error object that answers the request.
    pub fn into_object(self) -> ErrorObjectOwned {
        if let Self::Answer(error) = self {
            return error;
        }
        let (code, text) = (self.code(), self.to_string());
        match self {
            Self::UnknownBlock(UnknownBlock::History { number, oldest }) => {
                let data = format!(
                    "block {number} is pruned: the oldest after genesis is {oldest} (--keep-history, --keep-history-mb)"
                );
                ErrorObject::owned(code, text, Some(data))
            }
            Self::Rejected(rejected) => {
                let data = rejected.busy().map(|(lane, wait, flag)| Rejection {
                    full: format!("the {lane} lane"),
                    expected_wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                    flag,
                });
                ErrorObject::owned(code, text, data)
            }
            _ => ErrorObject::owned(code, text, None::<()>),
        }
    }

    /// Returns the outcome of the request, for the metrics.
    pub fn outcome(&self) -> Outcome {
        match self.code() {
            -32700 | -32600 | -32601 | -32602 => Outcome::Invalid,
            -32005 => Outcome::Limited,
            -32016 | RECEIPT_TIMEOUT => Outcome::Deadline,
            -32603 => Outcome::Internal,
            _ => Outcome::Refused,
        }
    }
}

/// The `data` of a rejection.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rejection {
    /// The name of the full queue.
    full: String,
    /// The expected wait of the request in milliseconds.
    expected_wait_ms: u64,
    /// The flag that bounds the wait, or the number of waiting requests.
    flag: &'static str,
}

/// The outcome of a request, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Outcome {
    /// The request has a result.
    Ok,
    /// The request is invalid.
    Invalid,
    /// The chain's rules rejected the request, reverts included.
    Refused,
    /// A limit was reached.
    Limited,
    /// The deadline passed.
    Deadline,
    /// An internal error.
    Internal,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 6] = [Self::Ok, Self::Invalid, Self::Refused, Self::Limited, Self::Deadline, Self::Internal];

    /// Returns the label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl From<SimulationError> for RpcError {
    fn from(error: SimulationError) -> Self {
        let text = error.to_string();
        if let SimulationError::Internal(problem) = &error {
            return Self::internal(problem);
        }
        match error {
            // geth begins the errors of a call with this text.
            SimulationError::NonceTooLow { .. }
            | SimulationError::NonceTooHigh { .. }
            | SimulationError::BaseFeeTooHigh { .. }
            | SimulationError::IntrinsicGas { .. }
            | SimulationError::InsufficientFunds { .. } => Self::new(error.code(), format!("err: {text}")),
            SimulationError::InCall { error, .. } => Self::from(*error),
            SimulationError::Stopped(stopped) => Self::Stopped(stopped),
            _ => Self::new(error.code(), text),
        }
    }
}

impl From<PoolError> for RpcError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Store(error) => error.into(),
            other => Self::new(-32000, other.to_string()),
        }
    }
}

impl From<BundleRefusal> for RpcError {
    fn from(error: BundleRefusal) -> Self {
        match &error {
            BundleRefusal::TooMany { .. } | BundleRefusal::Full { .. } => Self::limit(error.to_string()),
            BundleRefusal::Size { .. } => Self::limit(format!("params[0].txs: {error}")),
            BundleRefusal::MaxBlock { .. } => Self::new(-32000, format!("params[0].maxBlockNumber: {error}")),
            BundleRefusal::Block { .. } => Self::new(-32000, format!("params[0].blockNumber: {error}")),
            BundleRefusal::Transaction { index, hash, error } => {
                Self::new(-32000, format!("params[0].txs[{index}] ({hash}): {error}"))
            }
            BundleRefusal::Static | BundleRefusal::Upstream | BundleRefusal::Degraded(_) => {
                Self::new(-32000, error.to_string())
            }
        }
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy => Self::limit(error.to_string()),
            // The failure was logged when it happened. Here it would be logged again for every request.
            StoreError::Failed(_) => Self::new(-32603, error.to_string()),
            other => Self::internal(&other.to_string()),
        }
    }
}

impl From<TaskError> for RpcError {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Rejected(rejected) => rejected.into(),
            TaskError::Fetch(error) => error.into(),
            TaskError::Unexecutable(why) => Self::Unexecutable(why),
        }
    }
}

impl From<FetchError> for RpcError {
    fn from(error: FetchError) -> Self {
        let code = match error {
            FetchError::Unavailable(_)
            | FetchError::Deadline(_)
            | FetchError::Rounds(_)
            | FetchError::Missing { .. } => -32603,
            FetchError::Abandoned { .. } | FetchError::NotKept { .. } => -32000,
            FetchError::Busy(_) => -32005,
            FetchError::Local => return Self::internal(&error.to_string()),
        };
        Self::new(code, error.to_string())
    }
}
