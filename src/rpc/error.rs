//! JSON-RPC errors: the codes of `design.md`, a text that a client can act on, and data where there is some.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::{B256, Bytes};

use super::dialect::Dialect;
use crate::{
    engine::SimulationError,
    executor::Refused,
    feed::pool::PoolError,
    state::{Stopped, UnknownBlock},
    store::StoreError,
    wallet::WalletError,
};

/// EIP-7966: a receipt did not come in time.
const RECEIPT_TIMEOUT: i32 = 4;

/// What is in a block is not kept any more: geth's code (EIP-4444).
const PRUNED_HISTORY: i32 = 4444;

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcError {
    /// The code.
    pub code: i32,
    /// What was wrong, and what was expected.
    pub message: Cow<'static, str>,
    /// What says more, where something does.
    pub data: Option<ErrorData>,
    /// Whether the request was not even begun, because too much else is to be done.
    pub busy: bool,
    /// Whether it asks for a block that is not kept.
    pub unknown_block: bool,
}

/// What says more of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorData {
    /// Bytes, like the data of a revert: hex in JSON.
    Bytes(Bytes),
    /// What was wrong in this case, where the message is the same for all: a string in JSON.
    Text(String),
}

impl RpcError {
    /// An error of this code and text.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None, busy: false, unknown_block: false }
    }

    /// -32700: this is no JSON.
    pub fn parse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32700, message)
    }

    /// -32600: this is JSON and no request.
    pub fn request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32600, message)
    }

    /// -32601: no such method.
    pub fn method(name: &str) -> Self {
        let shown: String = name.chars().take(80).collect();
        Self::new(-32601, format!("method {shown:?} does not exist: rpc.discover lists those that do"))
    }

    /// -32602: parameters, the field named.
    pub fn params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32602, message)
    }

    /// -32005: a limit.
    pub fn limit(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(-32005, message)
    }

    /// 4: the receipt of a transaction did not come in time (EIP-7966).
    pub fn receipt_timeout(hash: B256, message: impl Into<Cow<'static, str>>) -> Self {
        Self { data: Some(ErrorData::Bytes(hash.into())), ..Self::new(RECEIPT_TIMEOUT, message) }
    }

    /// 5: a transaction was taken, and is not ready to be mined (EIP-7966).
    pub fn unready(hash: B256, message: impl Into<Cow<'static, str>>) -> Self {
        Self { data: Some(ErrorData::Bytes(hash.into())), ..Self::new(5, message) }
    }

    /// The same error of a method that is no simulation: the codes from -38010 on are those of `eth_simulateV1` alone.
    pub fn outside_simulation(mut self) -> Self {
        if (-38099..=-38000).contains(&self.code) || self.code == -32603 {
            self.code = -32000;
        }
        self
    }

    /// -32603: a fault of presim's. The log has more under the id that the text names.
    pub fn internal(problem: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Relaxed);
        tracing::error!(id, problem, "an internal error was answered");
        Self::new(-32603, format!("internal error e{id:x}: the log has more under this id"))
    }

    /// The same error, and something to know beside it.
    pub fn and(mut self, more: &str) -> Self {
        self.message = format!("{}: {more}", self.message).into();
        self
    }

    /// Its name in the metrics.
    pub const fn outcome(&self) -> Outcome {
        match self.code {
            -32700 | -32600 | -32601 | -32602 => Outcome::Invalid,
            -32005 => Outcome::Limited,
            -32016 | RECEIPT_TIMEOUT => Outcome::Deadline,
            -32603 => Outcome::Internal,
            _ => Outcome::Refused,
        }
    }

    /// The `error` object, as JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"code\":");
        out.extend_from_slice(itoa::Buffer::new().format(self.code).as_bytes());
        out.extend_from_slice(b",\"message\":");
        super::encode::string(out, &self.message);
        if let Some(data) = &self.data {
            out.extend_from_slice(b",\"data\":");
            match data {
                ErrorData::Bytes(bytes) => super::encode::data(out, bytes),
                ErrorData::Text(text) => super::encode::string(out, text),
            }
        }
        out.push(b'}');
    }
}

/// How a request ended, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a result.
    Ok,
    /// The request was not understood.
    Invalid,
    /// The chain's rules said no, a revert included.
    Refused,
    /// A limit was reached.
    Limited,
    /// The deadline passed.
    Deadline,
    /// A fault of presim's.
    Internal,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Ok, Self::Invalid, Self::Refused, Self::Limited, Self::Deadline, Self::Internal];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Limited => "limited",
            Self::Deadline => "deadline",
            Self::Internal => "internal",
        }
    }
}

impl From<SimulationError> for RpcError {
    fn from(error: SimulationError) -> Self {
        let text = error.to_string();
        if let SimulationError::Internal(problem) = &error {
            return Self::internal(problem);
        }
        match error {
            // geth's wording: what the chain's rules refuse of a call begins so.
            SimulationError::NonceTooLow { .. }
            | SimulationError::NonceTooHigh { .. }
            | SimulationError::BaseFeeTooHigh { .. }
            | SimulationError::IntrinsicGas { .. }
            | SimulationError::InsufficientFunds { .. } => Self::new(error.code(), format!("err: {text}")),
            _ => Self::new(error.code(), text),
        }
    }
}

impl From<UnknownBlock> for RpcError {
    fn from(error: UnknownBlock) -> Self {
        let text = error.to_string();
        let (code, data) = match error {
            UnknownBlock::History { number, oldest } => {
                let detail = format!("block {number} is pruned: the oldest after genesis is {oldest} (--keep-history)");
                (PRUNED_HISTORY, Some(ErrorData::Text(detail)))
            }
            _ => (-32000, None),
        };
        Self { unknown_block: true, data, ..Self::new(code, text) }
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

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy => Self::limit(error.to_string()),
            // The log has it from when it failed: every request from then on would repeat it there.
            StoreError::Failed(_) => Self::new(-32603, error.to_string()),
            other => Self::internal(&other.to_string()),
        }
    }
}

impl From<Refused> for RpcError {
    fn from(refused: Refused) -> Self {
        let code = match refused {
            Refused::QueueFull { .. } | Refused::Overloaded { .. } | Refused::ShareFull { .. } => -32005,
            Refused::Deadline => -32016,
            Refused::Panicked { .. } => -32603,
            Refused::Stopping => -32000,
        };
        Self { busy: code == -32005, ..Self::new(code, refused.to_string()) }
    }
}

impl From<Stopped> for RpcError {
    fn from(stopped: Stopped) -> Self {
        SimulationError::Stopped(stopped).into()
    }
}

/// The wallet's refusal: code and message of `api.md` 7.2, this case in `data`. The dialect says what a revert is, and a batch that cannot be atomic.
pub fn wallet_error(error: WalletError, dialect: &Dialect) -> RpcError {
    match error {
        WalletError::Reverted(data) => (dialect.revert)(data),
        WalletError::NotAtomic(detail) => {
            let (code, message) = dialect.not_atomic;
            RpcError { data: Some(ErrorData::Text(detail)), ..RpcError::new(code, message) }
        }
        WalletError::Internal(problem) => RpcError::internal(&problem),
        WalletError::Store(error) => error.into(),
        error => RpcError {
            data: error.detail().map(|detail| ErrorData::Text(detail.to_owned())),
            ..RpcError::new(error.code(), error.to_string())
        },
    }
}
