//! The tracers of calls, their traces, and the memory that traces may take.

use alloy_primitives::{Bytes, map::HashSet};
use alloy_rpc_types_trace::{
    geth::{CallConfig, FlatCallConfig, FourByteFrame, PreStateConfig, PreStateFrame},
    parity::{LocalizedTransactionTrace, TraceResults, TraceType},
};
use revm::context::result::ResultGas;
use revm_inspectors::tracing::types::CallTraceNode;

use super::steps::{StepOptions, Steps};

/// A tracer of calls: geth's struct logger, or one of geth's native tracers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// The struct logger: each opcode.
    Steps(StepOptions),
    /// `callTracer`: the frames as a tree.
    Calls(CallConfig),
    /// `flatCallTracer`: the frames as a list, in Parity's form.
    FlatCalls(FlatCallConfig),
    /// The frames as `trace_block` lists them: like [`Tracer::FlatCalls`], but in Parity's format and with only the
    /// EVM's gas.
    Frames,
    /// `prestateTracer`: the accounts and slots that the call needs, or how it changes them.
    PreState(PreStateConfig),
    /// `4byteTracer`: the number of calls per function selector and size of the data.
    FourByte,
    /// `stateGasTracer`: the gas of the call in both dimensions (EIP-8037).
    StateGas,
    /// `noopTracer`: records nothing.
    Noop,
    /// Parity's traces, with some of their parts.
    Parity(HashSet<TraceType>),
    /// `muxTracer`: several tracers at once. A mux never contains another mux.
    Mux(Vec<Tracer>),
}

impl Tracer {
    /// Returns geth's name of the tracer. The struct logger and Parity's traces have no name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Steps(_) | Self::Frames | Self::Parity(_) => "",
            Self::Calls(_) => "callTracer",
            Self::FlatCalls(_) => "flatCallTracer",
            Self::PreState(_) => "prestateTracer",
            Self::FourByte => "4byteTracer",
            Self::StateGas => "stateGasTracer",
            Self::Noop => "noopTracer",
            Self::Mux(_) => "muxTracer",
        }
    }
}

/// The trace of a call.
#[derive(Debug)]
pub enum Trace {
    /// The trace of [`Tracer::Steps`].
    Steps {
        /// The steps, in order.
        steps: Steps,
        /// Gas that the call used.
        gas: TracedGas,
        /// Whether the call reverted, or the EVM stopped it.
        failed: bool,
        /// The call's output, or the data of its revert.
        output: Bytes,
    },
    /// The trace of [`Tracer::Calls`].
    Calls {
        /// The frames: the outermost first, and each after its parent.
        frames: Vec<CallTraceNode>,
        /// Whether the trace includes logs.
        with_logs: bool,
        /// Gas that the call used.
        gas: TracedGas,
    },
    /// The trace of [`Tracer::FlatCalls`], or of [`Tracer::Frames`].
    FlatCalls(Vec<LocalizedTransactionTrace>),
    /// The trace of [`Tracer::PreState`].
    PreState(PreStateFrame),
    /// The trace of [`Tracer::FourByte`].
    FourByte(FourByteFrame),
    /// The trace of [`Tracer::StateGas`].
    StateGas(TracedGas),
    /// The empty trace of [`Tracer::Noop`].
    Noop,
    /// The trace of [`Tracer::Parity`].
    Parity(Box<TraceResults>),
    /// The traces of [`Tracer::Mux`], with the names of their tracers.
    Mux(Vec<(&'static str, Trace)>),
}

/// Gas that a traced call used.
#[derive(Clone, Copy, Debug)]
pub struct TracedGas {
    /// The gas, which the EVM counts in both dimensions.
    pub gas: ResultGas,
    /// Whether state gas is a separate dimension (EIP-8037): from Amsterdam on.
    pub has_two_dimensions: bool,
}

/// The memory that the traces of a request may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceBudget {
    /// Bytes in total, as set by `--max-trace-bytes`.
    pub limit: usize,
    /// Bytes left.
    pub left: usize,
}

impl TraceBudget {
    /// Returns an unused budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, left: limit }
    }

    /// Takes `bytes` from the budget. Returns false, and takes nothing, if fewer are left.
    pub(super) const fn take(&mut self, bytes: usize) -> bool {
        let Some(left) = self.left.checked_sub(bytes) else { return false };
        self.left = left;
        true
    }
}
