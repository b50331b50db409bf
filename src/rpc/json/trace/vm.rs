//! Parity's `vmTrace`: the opcodes of each frame, and what each of them changed.

use alloy_primitives::{Bytes, U256};
use revm::bytecode::opcode::{self, OpCode};

use crate::{
    engine::{Steps, TraceStep},
    rpc::{
        json::{Object, check_length, data, list, quantity_u256, string, value},
        protocol::error::Result,
    },
};

/// A frame whose end is not written yet.
struct OpenFrame<'a> {
    depth: usize,
    code: &'a [u8],
    /// The opcode whose changes the frame's next step shows.
    last: Option<&'a TraceStep>,
    /// Whether the last opcode's own frame is written.
    has_sub: bool,
    is_empty: bool,
}

/// Writes the steps of a transaction as a tree of frames. `codes` are the codes of the frames that have steps, in the
/// order of their start. Returns -32005 if the response becomes longer than `limit` bytes.
pub(super) fn vm_trace(out: &mut Vec<u8>, steps: &Steps, codes: &[Bytes], limit: usize) -> Result<()> {
    let mut codes = codes.iter();
    let mut open: Vec<OpenFrame<'_>> = Vec::new();
    for step in steps.iter() {
        while open.last().is_some_and(|frame| frame.depth > step.depth) {
            close(out, &mut open);
        }
        match open.last_mut().filter(|frame| frame.depth == step.depth) {
            Some(frame) => frame.end_last(out, Some(step)),
            None => {
                if let Some(caller) = open.last_mut() {
                    caller.has_sub = true;
                    out.extend_from_slice(b",\"sub\":");
                }
                let code = codes.next().map_or(&[][..], |code| code);
                out.extend_from_slice(b"{\"code\":");
                data(out, code);
                out.extend_from_slice(b",\"ops\":[");
                open.push(OpenFrame { depth: step.depth, code, last: None, has_sub: false, is_empty: true });
            }
        }
        if let Some(frame) = open.last_mut() {
            frame.begin(out, step);
        }
        check_length(out, limit)?;
    }
    if open.is_empty() {
        out.extend_from_slice(b"{\"code\":\"0x\",\"ops\":[]}");
    }
    while !open.is_empty() {
        close(out, &mut open);
    }
    check_length(out, limit)
}

/// Writes the end of the innermost frame.
fn close(out: &mut Vec<u8>, open: &mut Vec<OpenFrame<'_>>) {
    if let Some(mut frame) = open.pop() {
        frame.end_last(out, None);
        out.extend_from_slice(b"]}");
    }
}

impl<'a> OpenFrame<'a> {
    /// Writes an opcode without its changes and its end.
    fn begin(&mut self, out: &mut Vec<u8>, step: &'a TraceStep) {
        // The machine stops after the last opcode of a code as if a STOP followed.
        if step.pc >= self.code.len() {
            return;
        }
        if !std::mem::take(&mut self.is_empty) {
            out.push(b',');
        }
        let mut object = Object::new(out);
        value(object.key("cost"), &step.gas_cost);
        value(object.key("pc"), &step.pc);
        if let Some(op) = OpCode::new(step.op) {
            string(object.key("op"), op.as_str());
        }
        (self.last, self.has_sub) = (Some(step), false);
    }

    /// Writes the changes of the last opcode, which show in the frame's `next` step, and the opcode's end.
    fn end_last(&mut self, out: &mut Vec<u8>, next: Option<&TraceStep>) {
        let Some(step) = self.last.take() else { return };
        if !self.has_sub {
            out.extend_from_slice(b",\"sub\":null");
        }
        out.extend_from_slice(b",\"ex\":");
        executed(out, step, next);
        out.push(b'}');
    }
}

/// Writes the changes of an opcode, or null if it failed.
fn executed(out: &mut Vec<u8>, step: &TraceStep, next: Option<&TraceStep>) {
    const ENDS: [u8; 4] = [opcode::STOP, opcode::RETURN, opcode::REVERT, opcode::SELFDESTRUCT];
    if step.error.is_some() || next.is_none() && !ENDS.contains(&step.op) {
        return out.extend_from_slice(b"null");
    }
    let left = next.map_or_else(|| step.gas.saturating_sub(step.gas_cost), |next| next.gas);
    let mut object = Object::new(out);
    match next.and_then(|next| written(step, next)) {
        Some((offset, bytes)) => {
            let mut memory = Object::new(object.key("mem"));
            memory.data("data", bytes);
            value(memory.key("off"), &offset);
            memory.end();
        }
        None => object.key("mem").extend_from_slice(b"null"),
    }
    let stack = next.and_then(|next| next.stack.as_deref()).unwrap_or_default();
    let pushed = OpCode::new(step.op).map_or(0, |op| usize::from(op.outputs()));
    let pushed = &stack[stack.len().saturating_sub(pushed)..];
    list(object.key("push"), pushed, |out, word| quantity_u256(out, *word));
    match step.slot.as_ref().filter(|_| step.op == opcode::SSTORE) {
        Some(slot) => {
            let mut store = Object::new(object.key("store"));
            store.u256("key", slot.key).u256("val", slot.value);
            store.end();
        }
        None => object.key("store").extend_from_slice(b"null"),
    }
    value(object.key("used"), &left);
    object.end();
}

/// Returns the memory that an opcode writes, or reads as MLOAD does, with its offset.
fn written<'a>(step: &TraceStep, next: &'a TraceStep) -> Option<(usize, &'a [u8])> {
    let stack = step.stack.as_deref()?;
    let operand = |nth: usize| -> Option<U256> { stack.get(stack.len().checked_sub(nth + 1)?).copied() };
    let (offset, length) = match step.op {
        opcode::MSTORE | opcode::MLOAD => (operand(0)?, U256::from(32)),
        opcode::MSTORE8 => (operand(0)?, U256::from(1)),
        opcode::CALLDATACOPY | opcode::CODECOPY | opcode::RETURNDATACOPY | opcode::MCOPY => (operand(0)?, operand(2)?),
        opcode::EXTCODECOPY => (operand(1)?, operand(3)?),
        opcode::CALL | opcode::CALLCODE => (operand(5)?, operand(6)?),
        opcode::DELEGATECALL | opcode::STATICCALL => (operand(4)?, operand(5)?),
        _ => return None,
    };
    let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
    let bytes = next.memory.as_deref()?.get(offset..offset.checked_add(length)?)?;
    (!bytes.is_empty()).then_some((offset, bytes))
}
