//! The step at which two runs of a transaction diverge, and the cause.

use std::fmt;

use alloy_primitives::Address;
use revm::{
    bytecode::opcode::{self, OpCode},
    context::result::InvalidTransaction,
    interpreter::InstructionResult,
};

/// The step at which two runs of a transaction diverge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivergentStep {
    /// The difference.
    pub kind: StepKind,
    /// The last step that both runs executed, or whose operands differ, or that ran out of gas.
    pub step: StepPlace,
    /// The first step of the run by the block's own rules that the other does not have. `None` if that run has ended, or for other kinds.
    pub own: Option<StepPlace>,
    /// The first step of the run by the other rules that the block's own does not have.
    pub under: Option<StepPlace>,
}

/// The difference between two runs at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The program counters.
    Pc,
    /// The operands of a write, a log, a call, or a return. The gas of a call is left aside.
    Operands,
    /// The gas: one of the runs has too little.
    OutOfGas,
}

/// The place of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlace {
    /// The contract in whose name the code runs.
    pub contract: Address,
    /// The account whose code runs. The contract itself while it is created.
    pub code: Address,
    /// The opcode's offset in the code.
    pub pc: usize,
    /// The opcode's byte.
    pub op: u8,
    /// Depth of the call; 1 for the outermost.
    pub depth: usize,
}

/// The cause of a difference, as sums count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The transaction is invalid.
    Invalid(&'static str),
    /// A frame has too little gas.
    OutOfGas,
    /// An opcode that one of the forks does not have, or that does something else.
    Opcode(u8),
    /// The remaining gas, on which a contract bases a decision.
    GasLeft,
    /// A precompile.
    Precompile(Address),
    /// A bound on a contract, such as its code size.
    Bound(&'static str),
    /// Changes of the state by the protocol, not by a step.
    Protocol,
    /// The steps take more memory than a trace may, so that they were not compared.
    Unknown,
}

impl Cause {
    /// Returns the cause for which a transaction is invalid.
    pub(super) const fn of_invalid(invalid: &InvalidTransaction) -> Self {
        use InvalidTransaction as I;
        Self::Invalid(match invalid {
            I::CallGasCostMoreThanGasLimit { .. } => "intrinsic gas",
            I::GasFloorMoreThanGasLimit { .. } => "floor of gas",
            I::TxGasLimitGreaterThanCap { .. } => "cap on gas",
            I::CallerGasLimitMoreThanBlock => "gas limit of the block",
            I::CreateInitCodeSizeLimit => "size of init code",
            I::LackOfFundForMaxFee { .. } => "funds",
            I::TooManyBlobs { .. } => "number of blobs",
            I::BlobGasPriceGreaterThanMax { .. } => "price of blob gas",
            I::Eip2930NotSupported
            | I::Eip1559NotSupported
            | I::Eip4844NotSupported
            | I::Eip7702NotSupported
            | I::Eip7873NotSupported => "type of the transaction",
            _ => "other rules",
        })
    }

    /// Returns the cause that shows in how a frame has ended at an opcode. `None` if it may end so by any rules.
    pub(super) const fn of_end(end: InstructionResult, op: u8) -> Option<Self> {
        use InstructionResult as R;
        Some(match end {
            R::OutOfGas
            | R::MemoryOOG
            | R::MemoryLimitOOG
            | R::PrecompileOOG
            | R::InvalidOperandOOG
            | R::ReentrancySentryOOG => Self::OutOfGas,
            R::OpcodeNotFound | R::NotActivated | R::InvalidFEOpcode | R::InvalidImmediateEncoding => Self::Opcode(op),
            R::CreateContractSizeLimit => Self::Bound("size of code"),
            R::CreateInitCodeSizeLimit => Self::Bound("size of init code"),
            R::CreateContractStartingWithEF => Self::Bound("code that begins with 0xef"),
            R::CreateCollision => Self::Bound("address in use"),
            R::CallTooDeep => Self::Bound("depth of calls"),
            _ => return None,
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(rule) => write!(f, "invalid: {rule}"),
            Self::OutOfGas => f.write_str("out of gas"),
            Self::Opcode(op) => write!(f, "opcode {}", op_name(*op)),
            Self::GasLeft => f.write_str("gas left"),
            Self::Precompile(address) => write!(f, "precompile {address}"),
            Self::Bound(bound) => f.write_str(bound),
            Self::Protocol => f.write_str("protocol"),
            Self::Unknown => f.write_str("unknown: the steps take too much memory (--max-trace-bytes)"),
        }
    }
}

/// Returns the name of an opcode, or its byte.
pub fn op_name(op: u8) -> String {
    OpCode::new(op).map_or_else(|| format!("0x{op:02x}"), |op| op.as_str().to_owned())
}

/// Returns whether an opcode writes state, logs, calls, creates, or returns.
pub(super) const fn has_effect(op: u8) -> bool {
    matches!(
        op,
        opcode::SSTORE | opcode::TSTORE | opcode::LOG0
            ..=opcode::LOG4 | opcode::CREATE | opcode::CREATE2 | opcode::RETURN | opcode::REVERT | opcode::SELFDESTRUCT
    ) || is_call(op)
}

/// Returns whether an opcode calls.
pub(super) const fn is_call(op: u8) -> bool {
    matches!(op, opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL)
}
