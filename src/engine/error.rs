//! The errors of the engine, with the JSON-RPC codes of execution-apis.

use alloy_primitives::{Address, B256, U256};
use revm::{
    context::result::{EVMError, HaltReason, InvalidTransaction},
    interpreter::{InstructionResult, SuccessOrHalt},
};

use super::request::CallIndex;
use crate::{meter::Stopped, state::Overlay};

/// The reason why a request cannot be simulated. Balances and fees are in wei, times in seconds, sizes and traces in bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// -38010: the call's nonce is below the sender's.
    #[error("nonce too low: address {address}, tx: {tx} state: {state}")]
    NonceTooLow { address: Address, tx: u64, state: u64 },
    /// -38011: the call's nonce is above the sender's.
    #[error("nonce too high: address {address}, tx: {tx} state: {state}")]
    NonceTooHigh { address: Address, tx: u64, state: u64 },
    /// -38012: the call offers less for its gas than the block's base fee.
    #[error(
        "max fee per gas less than block base fee: address {address}, maxFeePerGas: {max_fee}, baseFee: {base_fee}"
    )]
    BaseFeeTooHigh { address: Address, max_fee: u128, base_fee: u64 },
    /// -38013: the call's gas is below its intrinsic cost or its floor.
    #[error("intrinsic gas too low: have {have}, want {want}")]
    IntrinsicGas { have: u64, want: u64 },
    /// -38014: the sender cannot pay for gas and value.
    #[error("insufficient funds for gas * price + value: address {address} have {have} want {want}")]
    InsufficientFunds { address: Address, have: U256, want: U256 },
    /// -38015: the call's gas limit is above the gas that the block has left.
    #[error("block gas limit reached: {used} used of {limit}, the call asks for {asked}")]
    BlockGasLimit { used: u64, limit: u64, asked: u64 },
    /// -38020: a block's number is not greater than the previous block's.
    #[error("block numbers must be in order: {number} <= {previous}")]
    BlockNumber { number: u64, previous: u64 },
    /// -38021: a block's timestamp is not greater than the previous block's.
    #[error("block timestamps must be in order: {time} <= {previous}")]
    BlockTime { time: u64, previous: u64 },
    /// -38025: the code that creates a contract is too long.
    #[error("max initcode size exceeded: code size {size}, limit {limit}")]
    InitCodeSize { size: usize, limit: usize },
    /// -38026: the simulation spans too many blocks, gaps included.
    #[error("too many blocks: {span} after the base block, at most {limit}")]
    TooManyBlocks { span: u64, limit: u64 },
    /// A call of a simulation is refused, for one of the reasons above.
    #[error("{error}")]
    InCall { index: CallIndex, error: Box<Self> },
    /// -32005: the traces of the request take too much memory.
    #[error(
        "trace too long: it would take more than {limit} bytes (--max-trace-bytes): expected a shorter call, or a tracer that records less"
    )]
    TraceTooLong { limit: usize },
    /// -32602: a parameter is invalid.
    #[error("{0}")]
    Params(String),
    /// -32000: the chain's rules, or the node's limits, refuse the request.
    #[error("{0}")]
    Refused(String),
    /// -32000: a block of an upstream cannot be replayed, because the state returned by the upstream is not the state
    /// after the block's parent.
    #[error(
        "block {number} cannot be replayed: it does not follow from the state that the upstream has returned for its parent, block {parent}: {mismatch}"
    )]
    WrongState { number: u64, parent: B256, mismatch: String },
    /// -32603, as in geth: the fork does not know the transaction's type, or the transaction breaks a rule of its type.
    #[error("{0}")]
    Invalid(String),
    /// -32603: a fault of the node.
    #[error("{0}")]
    Internal(String),
    /// -32016: the run was stopped before its end. If it was cancelled, no client is left to answer.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The reason why a request's calls did not run to their end.
#[derive(Debug)]
pub struct RunError {
    /// The refused call. `None` if the reason is not a single call: an override or the block is invalid, the meter
    /// stopped the run, or the node has a fault.
    pub index: Option<CallIndex>,
    /// The reason.
    pub error: Box<SimulationError>,
}

impl From<SimulationError> for RunError {
    fn from(error: SimulationError) -> Self {
        Self { index: None, error: error.into() }
    }
}

impl SimulationError {
    /// Returns the JSON-RPC error code. Codes from -38010 to -38026 are defined by execution-apis.
    pub fn code(&self) -> i32 {
        match self {
            Self::InCall { error, .. } => error.code(),
            Self::NonceTooLow { .. } => -38010,
            Self::NonceTooHigh { .. } => -38011,
            Self::BaseFeeTooHigh { .. } => -38012,
            Self::IntrinsicGas { .. } => -38013,
            Self::InsufficientFunds { .. } => -38014,
            Self::BlockGasLimit { .. } => -38015,
            Self::BlockNumber { .. } => -38020,
            Self::BlockTime { .. } => -38021,
            Self::InitCodeSize { .. } => -38025,
            Self::TooManyBlocks { .. } => -38026,
            Self::TraceTooLong { .. } => -32005,
            Self::Params(_) => -32602,
            Self::Refused(_) | Self::WrongState { .. } => -32000,
            Self::Invalid(_) | Self::Internal(_) => -32603,
            Self::Stopped(_) => -32016,
        }
    }
}

impl From<RunError> for SimulationError {
    /// Names the call where the reason is one that execution-apis has for calls.
    fn from(RunError { index, error }: RunError) -> Self {
        match (index, error.code()) {
            (Some(index), -38015..=-38010 | -38025) => Self::InCall { index, error },
            _ => *error,
        }
    }
}

/// Converts an error of the EVM into the error for the sender of a call. A stop by the meter takes precedence. The
/// errors name the maximum price that the call pays per unit of gas, and the length of its data in bytes.
pub(super) fn explain<E: std::fmt::Display>(
    error: EVMError<E>,
    (address, max_fee, data): (Address, u128, usize),
    base_fee: u64,
    overlay: &mut Overlay,
) -> SimulationError {
    use InvalidTransaction as I;
    use SimulationError as S;
    if let Some(stopped) = overlay.meter.stopped() {
        return stopped.into();
    }
    let EVMError::Transaction(invalid) = error else { return S::Internal(error.to_string()) };
    match invalid {
        I::NonceTooHigh { tx, state } => S::NonceTooHigh { address, tx, state },
        I::NonceTooLow { tx, state } => S::NonceTooLow { address, tx, state },
        I::GasPriceLessThanBasefee => S::BaseFeeTooHigh { address, max_fee, base_fee },
        I::CallGasCostMoreThanGasLimit { initial_gas: want, gas_limit: have }
        | I::GasFloorMoreThanGasLimit { gas_floor: want, gas_limit: have } => S::IntrinsicGas { have, want },
        I::LackOfFundForMaxFee { fee, balance } => S::InsufficientFunds { address, have: *balance, want: *fee },
        I::CreateInitCodeSizeLimit => {
            S::InitCodeSize { size: data, limit: revm::primitives::eip3860::MAX_INITCODE_SIZE }
        }
        I::PriorityFeeGreaterThanMaxFee => S::Params(format!(
            "max priority fee per gas higher than max fee per gas: address {address}, maxFeePerGas: {max_fee}"
        )),
        I::OverflowPaymentInTransaction => {
            S::InsufficientFunds { address, have: overlay.balance_and_nonce(address).0, want: U256::MAX }
        }
        other => S::Invalid(other.to_string()),
    }
}

/// Returns the reason in a revert's data: the text of `Error(string)`, or a text for the code of `Panic(uint256)`.
pub fn revert_reason(data: &[u8]) -> Option<String> {
    use alloy_sol_types::{Panic, Revert, SolError};
    if let Ok(revert) = Revert::abi_decode(data) {
        return Some(revert.reason);
    }
    let panic = Panic::abi_decode(data).ok()?;
    Some(match panic.kind() {
        Some(kind) => kind.as_str().to_owned(),
        None => format!("unknown panic code: {:#x}", panic.code),
    })
}

/// The reason why a call ended without a revert. Displays geth's text for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaltText(pub HaltReason);

impl std::fmt::Display for HaltText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use HaltReason as H;
        f.write_str(match &self.0 {
            H::OutOfGas(_) => "out of gas",
            H::InvalidFEOpcode => "invalid opcode: INVALID",
            // revm does not report which opcode it was.
            H::OpcodeNotFound | H::NotActivated => "invalid opcode",
            H::InvalidJump => "invalid jump destination",
            H::StackUnderflow => "stack underflow",
            H::StackOverflow => "stack limit reached 1024 (1023)",
            H::OutOfOffset => "return data out of bounds",
            H::CreateCollision => "contract address collision",
            H::PrecompileError | H::PrecompileErrorWithContext(_) => "precompile failed",
            H::NonceOverflow => "nonce uint64 overflow",
            H::CreateContractSizeLimit => "max code size exceeded",
            H::CreateContractStartingWithEF => "invalid code: must not begin with 0xef",
            H::CreateInitCodeSizeLimit => "max initcode size exceeded",
            H::OverflowPayment | H::OutOfFunds => "insufficient balance for transfer",
            H::StateChangeDuringStaticCall | H::CallNotAllowedInsideStatic => "write protection",
            H::CallTooDeep => "max call depth exceeded",
        })
    }
}

/// Returns why a frame failed, in the words of geth's `callTracer`, or `None` if it did not fail.
pub fn frame_error(result: InstructionResult) -> Option<String> {
    match SuccessOrHalt::<HaltReason>::from(result) {
        SuccessOrHalt::Revert => Some("execution reverted".to_owned()),
        SuccessOrHalt::Halt(reason) => Some(HaltText(reason).to_string()),
        _ => None,
    }
}
