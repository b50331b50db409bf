//! What the chain's rules refuse, with the codes of execution-apis.

use alloy_primitives::{Address, U256};
use revm::{
    context::result::{HaltReason, InvalidTransaction, OutOfGasError},
    interpreter::{InstructionResult, SuccessOrHalt},
};

use crate::meter::Stopped;

/// A request that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// -38010
    #[error("nonce too low: address {address}, tx: {tx} state: {state}")]
    NonceTooLow {
        #[doc = "The sender."]
        address: Address,
        #[doc = "The call's nonce."]
        tx: u64,
        #[doc = "The account's."]
        state: u64,
    },
    /// -38011
    #[error("nonce too high: address {address}, tx: {tx} state: {state}")]
    NonceTooHigh {
        #[doc = "The sender."]
        address: Address,
        #[doc = "The call's nonce."]
        tx: u64,
        #[doc = "The account's."]
        state: u64,
    },
    /// -38012
    #[error(
        "max fee per gas less than block base fee: address {address}, maxFeePerGas: {max_fee}, baseFee: {base_fee}"
    )]
    BaseFeeTooHigh {
        #[doc = "The sender."]
        address: Address,
        #[doc = "Offered, wei."]
        max_fee: u128,
        #[doc = "Asked, wei."]
        base_fee: u64,
    },
    /// -38013
    #[error("intrinsic gas too low: have {have}, want {want}")]
    IntrinsicGas {
        #[doc = "The call's gas."]
        have: u64,
        #[doc = "What it needs before it runs."]
        want: u64,
    },
    /// -38014
    #[error("insufficient funds for gas * price + value: address {address} have {have} want {want}")]
    InsufficientFunds {
        #[doc = "The sender."]
        address: Address,
        #[doc = "Its balance, wei."]
        have: U256,
        #[doc = "What the call may cost, wei."]
        want: U256,
    },
    /// -38015
    #[error("block gas limit reached: {used} used of {limit}, the call asks for {asked}")]
    BlockGasLimit {
        #[doc = "Used so far."]
        used: u64,
        #[doc = "The block's limit."]
        limit: u64,
        #[doc = "The call's gas."]
        asked: u64,
    },
    /// -38020
    #[error("block numbers must be in order: {number} <= {previous}")]
    BlockNumber {
        #[doc = "Asked for."]
        number: u64,
        #[doc = "The block before."]
        previous: u64,
    },
    /// -38021
    #[error("block timestamps must be in order: {time} <= {previous}")]
    BlockTime {
        #[doc = "Asked for."]
        time: u64,
        #[doc = "The block before."]
        previous: u64,
    },
    /// -38025
    #[error("max initcode size exceeded: code size {size}, limit {limit}")]
    InitCodeSize {
        #[doc = "Bytes of code."]
        size: usize,
        #[doc = "The most allowed (EIP-3860)."]
        limit: usize,
    },
    /// -38026
    #[error("too many blocks: {span} past the base, at most {limit}")]
    TooManyBlocks {
        #[doc = "How far the last block is."]
        span: u64,
        #[doc = "The most allowed."]
        limit: u64,
    },
    /// -32005
    #[error(
        "trace too long: it would take more than {limit} bytes (--max-trace-bytes): expected a call that does less, or a tracer that records less"
    )]
    TraceTooLong {
        #[doc = "Bytes that the traces of a request may take."]
        limit: usize,
    },
    /// -32602
    #[error("{0}")]
    Params(String),
    /// -32000
    #[error("{0}")]
    Refused(String),
    /// -32603: a transaction that the fork does not know or that breaks a rule of its type; geth's code for it.
    #[error("{0}")]
    Invalid(String),
    /// -32603
    #[error("{0}")]
    Internal(String),
    /// Stopped before its end: -32016, or nobody is left to answer.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl SimulationError {
    /// The JSON-RPC error code, as execution-apis and the errors of `design.md` have them.
    pub const fn code(&self) -> i32 {
        match self {
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
            Self::Refused(_) => -32000,
            Self::Invalid(_) | Self::Internal(_) => -32603,
            Self::Stopped(_) => -32016,
        }
    }

    /// What revm's validation of a call means to the client who sent it.
    pub(super) fn invalid(
        error: InvalidTransaction,
        from: Address,
        max_fee: u128,
        base_fee: u64,
        init_code: usize,
        balance: U256,
    ) -> Self {
        use InvalidTransaction as I;
        match error {
            I::NonceTooHigh { tx, state } => Self::NonceTooHigh { address: from, tx, state },
            I::NonceTooLow { tx, state } => Self::NonceTooLow { address: from, tx, state },
            I::GasPriceLessThanBasefee => Self::BaseFeeTooHigh { address: from, max_fee, base_fee },
            I::CallGasCostMoreThanGasLimit { initial_gas, gas_limit } => {
                Self::IntrinsicGas { have: gas_limit, want: initial_gas }
            }
            I::GasFloorMoreThanGasLimit { gas_floor, gas_limit } => {
                Self::IntrinsicGas { have: gas_limit, want: gas_floor }
            }
            I::LackOfFundForMaxFee { fee, balance } => {
                Self::InsufficientFunds { address: from, have: *balance, want: *fee }
            }
            I::CreateInitCodeSizeLimit => {
                Self::InitCodeSize { size: init_code, limit: revm::primitives::eip3860::MAX_INITCODE_SIZE }
            }
            I::PriorityFeeGreaterThanMaxFee => Self::Params(format!(
                "max priority fee per gas higher than max fee per gas: address {from}, maxFeePerGas: {max_fee}"
            )),
            I::OverflowPaymentInTransaction => {
                Self::InsufficientFunds { address: from, have: balance, want: U256::MAX }
            }
            other => Self::Invalid(other.to_string()),
        }
    }
}

/// The reason in the data of a revert: of `Error(string)`, or of `Panic(uint256)` in words.
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

/// Why a call stopped without a revert, in the words that geth uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaltText(pub HaltReason);

impl std::fmt::Display for HaltText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use HaltReason as H;
        f.write_str(match &self.0 {
            H::OutOfGas(OutOfGasError::MemoryLimit | OutOfGasError::Memory | OutOfGasError::InvalidOperand) => {
                "out of gas"
            }
            H::OutOfGas(_) => "out of gas",
            H::InvalidFEOpcode => "invalid opcode: INVALID",
            // revm does not say which.
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

/// Why a frame failed, in the words of geth's `callTracer`; none where it did not.
pub fn frame_error(result: InstructionResult) -> Option<String> {
    match SuccessOrHalt::<HaltReason>::from(result) {
        SuccessOrHalt::Revert => Some("execution reverted".to_owned()),
        SuccessOrHalt::Halt(HaltReason::InvalidFEOpcode) => Some("invalid opcode: INVALID".to_owned()),
        SuccessOrHalt::Halt(reason) => Some(HaltText(reason).to_string()),
        _ => None,
    }
}
