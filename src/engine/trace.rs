//! Traces of calls: which there are.

use alloy_primitives::Bytes;
use alloy_rpc_types_trace::geth::{CallConfig, FlatCallConfig, FourByteFrame, PreStateConfig, PreStateFrame};
use revm_inspectors::tracing::types::CallTraceNode;

use super::steps::{StepOptions, Steps};

/// What of a call is traced: geth's native tracers and its struct logger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// The struct logger: each opcode.
    Steps(StepOptions),
    /// `callTracer`: the frames as a tree.
    Calls(CallConfig),
    /// `flatCallTracer`: the frames as a list, in Parity's form.
    FlatCalls(FlatCallConfig),
    /// `prestateTracer`: the accounts and slots that the call needs, or how it changes them.
    PreState(PreStateConfig),
    /// `4byteTracer`: how often which function was called with how much data.
    FourByte,
    /// `noopTracer`: nothing.
    Noop,
    /// `muxTracer`: several at once, by their names; never one of these in another.
    Mux(Vec<Tracer>),
}

impl Tracer {
    /// geth's name for it; the struct logger has none.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Steps(_) => "",
            Self::Calls(_) => "callTracer",
            Self::FlatCalls(_) => "flatCallTracer",
            Self::PreState(_) => "prestateTracer",
            Self::FourByte => "4byteTracer",
            Self::Noop => "noopTracer",
            Self::Mux(_) => "muxTracer",
        }
    }
}

/// What a tracer recorded of a call.
#[derive(Debug)]
pub enum Trace {
    /// Of [`Tracer::Steps`].
    Steps {
        /// In order.
        steps: Steps,
        /// Gas that the call used.
        gas_used: u64,
        /// Whether it reverted or was stopped.
        failed: bool,
        /// What it returned, or the data of its revert.
        output: Bytes,
    },
    /// Of [`Tracer::Calls`].
    Calls {
        /// The frames; each after its parent, the outermost first.
        frames: Vec<CallTraceNode>,
        /// Whether logs were asked for.
        with_logs: bool,
        /// Gas that the call used.
        gas_used: u64,
    },
    /// Of [`Tracer::FlatCalls`].
    FlatCalls {
        /// The frames; each after its parent, the outermost first.
        frames: Vec<CallTraceNode>,
        /// The block that the call saw.
        block_number: u64,
        /// Whether errors are told in Parity's words, not in geth's.
        parity_errors: bool,
    },
    /// Of [`Tracer::PreState`].
    PreState(PreStateFrame),
    /// Of [`Tracer::FourByte`].
    FourByte(FourByteFrame),
    /// Of [`Tracer::Noop`].
    Noop,
    /// Of [`Tracer::Mux`].
    Mux(Vec<(&'static str, Trace)>),
}

/// How much memory the traces of a request may take.
#[derive(Clone, Copy, Debug)]
pub struct TraceBudget {
    /// Bytes in all: the setting.
    pub limit: usize,
    /// Bytes of it that are left.
    pub left: usize,
}

impl TraceBudget {
    /// All of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, left: limit }
    }

    /// Takes `bytes` away. False when there are not so many.
    pub(super) const fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}
