//! Trees of calls in the style that users of foundry know, written by the writer of revm-inspectors.

use std::io::Write;

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::U256;
use alloy_rpc_types_trace::geth::CallFrame;
use revm::interpreter::InstructionResult;
use revm_inspectors::tracing::{
    CallTraceArena, TraceWriter, TraceWriterConfig,
    types::{
        CallKind, CallLog, CallTrace, CallTraceNode, DecodedCallData, DecodedCallLog, DecodedCallTrace,
        TraceMemberOrder,
    },
};
use serde_json::value::RawValue;

use super::{error::CommandError, names::Labels};
use crate::{
    abi::{AbiBook, NamedValue, hinted, output},
    engine::frame_error,
    objects,
    shown::printable,
};

/// The ends of a frame that have an error text.
const ENDS: [InstructionResult; 18] = [
    InstructionResult::Revert,
    InstructionResult::OutOfGas,
    InstructionResult::OutOfFunds,
    InstructionResult::CallTooDeep,
    InstructionResult::OpcodeNotFound,
    InstructionResult::InvalidFEOpcode,
    InstructionResult::InvalidJump,
    InstructionResult::NotActivated,
    InstructionResult::StackUnderflow,
    InstructionResult::StackOverflow,
    InstructionResult::OutOfOffset,
    InstructionResult::StateChangeDuringStaticCall,
    InstructionResult::CreateCollision,
    InstructionResult::CreateContractSizeLimit,
    InstructionResult::CreateContractStartingWithEF,
    InstructionResult::CreateInitCodeSizeLimit,
    InstructionResult::NonceOverflow,
    InstructionResult::PrecompileError,
];

/// Writes the tree of a trace of `callTracer`.
///
/// # Errors
///
/// Returns [`CommandError::Output`] if the output cannot be written.
pub fn write_tree(trace: &RawValue, book: &AbiBook, labels: &Labels, out: &mut impl Write) -> Result<(), CommandError> {
    let frame: CallFrame = match objects::from_str(trace.get()) {
        Ok(frame) => frame,
        Err(error) => {
            writeln!(out, "  (no tree: {}: --json has the trace)", printable(&error.to_string()))?;
            return Ok(());
        }
    };
    let mut arena = CallTraceArena::default();
    arena.nodes_mut().clear();
    Frames { book, labels }.add(arena.nodes_mut(), &frame, None);
    TraceWriter::with_config(out, TraceWriterConfig::new()).write_arena(&arena)?;
    Ok(())
}

/// The names by which frames are decoded.
struct Frames<'a> {
    book: &'a AbiBook,
    labels: &'a Labels,
}

impl Frames<'_> {
    /// Adds a frame and its inner frames, and returns its index.
    fn add(&self, nodes: &mut Vec<CallTraceNode>, frame: &CallFrame, parent: Option<usize>) -> usize {
        let idx = nodes.len();
        nodes.push(CallTraceNode { parent, idx, trace: self.trace(frame), ..Default::default() });
        let children: Vec<usize> = frame.calls.iter().map(|call| self.add(nodes, call, Some(idx))).collect();
        let logs: Vec<CallLog> = frame.logs.iter().map(|log| self.log(log)).collect();
        // A log's position is the number of the call that follows it.
        let mut ordering: Vec<(u64, u8, TraceMemberOrder)> = Vec::with_capacity(children.len() + logs.len());
        ordering.extend((0..children.len()).map(|at| (at as u64, 1, TraceMemberOrder::Call(at))));
        ordering.extend(logs.iter().enumerate().map(|(at, log)| (log.position, 0, TraceMemberOrder::Log(at))));
        ordering.sort_by_key(|(position, kind, _)| (*position, *kind));
        let node = &mut nodes[idx];
        node.ordering = ordering.into_iter().map(|(.., member)| member).collect();
        (node.children, node.logs) = (children, logs);
        idx
    }

    fn trace(&self, frame: &CallFrame) -> CallTrace {
        let kind = match frame.typ.as_str() {
            "STATICCALL" => CallKind::StaticCall,
            "DELEGATECALL" => CallKind::DelegateCall,
            "CALLCODE" => CallKind::CallCode,
            "CREATE" => CallKind::Create,
            "CREATE2" => CallKind::Create2,
            _ => CallKind::Call,
        };
        let output_data = frame.output.clone().unwrap_or_default();
        let input = (!kind.is_any_create()).then(|| self.book.input(&frame.input)).flatten();
        let (status, told) = match &frame.error {
            None if output_data.is_empty() => (InstructionResult::Stop, None),
            None => (InstructionResult::Return, None),
            Some(error) => {
                let known = ENDS.into_iter().find(|end| frame_error(*end).as_ref() == Some(error));
                let told = known.is_none().then(|| printable(error));
                (known.unwrap_or(InstructionResult::FatalExternalError), told)
            }
        };
        let results = match frame.error {
            Some(_) => told.or_else(|| self.book.revert(&output_data)),
            None => input
                .as_ref()
                .and_then(|input| output(input.function, &output_data))
                .map(|values| values.iter().map(|one| self.text(&one.value)).collect::<Vec<_>>().join(", ")),
        };
        let call_data = input.map(|input| DecodedCallData {
            signature: input.function.signature(),
            args: input.params.iter().map(|param| self.text(&param.value)).collect(),
        });
        let address = frame.to.unwrap_or_default();
        let label = self.labels.name(&address).map(str::to_owned);
        CallTrace {
            success: frame.error.is_none(),
            caller: frame.from,
            address,
            kind,
            value: frame.value.unwrap_or_default(),
            data: frame.input.clone(),
            output: output_data,
            gas_used: frame.gas_used.saturating_to(),
            gas_limit: frame.gas.saturating_to(),
            status: Some(status),
            decoded: Some(Box::new(DecodedCallTrace { label, return_data: results, call_data })),
            ..Default::default()
        }
    }

    fn log(&self, log: &alloy_rpc_types_trace::geth::CallLogFrame) -> CallLog {
        let topics = log.topics.clone().unwrap_or_default();
        let raw_log = alloy_primitives::LogData::new_unchecked(topics, log.data.clone().unwrap_or_default());
        let decoded = self.book.log(&raw_log).map(|decoded| {
            let param = |NamedValue { name, value }: &NamedValue| (printable(name), self.text(value));
            let params = decoded.params.iter().map(param).collect();
            Box::new(DecodedCallLog { name: Some(decoded.event.name.clone()), params: Some(params) })
        });
        let position = log.position.unwrap_or_default();
        CallLog { address: log.address.unwrap_or_default(), raw_log, decoded, position, index: 0 }
    }

    /// Returns a value with its magnitude, or an address with its name.
    fn text(&self, value: &DynSolValue) -> String {
        match value.as_address().and_then(|address| Some((address, self.labels.name(&address)?))) {
            Some((address, name)) => format!("{name}: [{address}]"),
            None if value.as_uint() == Some((U256::MAX, 256)) => "2^256 - 1".to_owned(),
            None => hinted(value),
        }
    }
}
