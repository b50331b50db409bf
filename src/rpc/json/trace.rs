//! Traces in the formats of geth and Parity. Trees are written without recursion, because they are as deep as the calls are.

use std::collections::{BTreeMap, HashMap};

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use alloy_rpc_types_trace::{
    geth::{CallFrame, StructLog},
    parity::{TraceResults, VmInstruction, VmTrace},
};
use revm::bytecode::opcode::OpCode;
use revm_inspectors::tracing::types::CallTraceNode;

use super::{Object, bounded_value, check_length, quantity, try_list, value};
use crate::{
    engine::{Steps, Trace, TraceStep, TracedGas, frame_error},
    rpc::protocol::error::{Result, RpcError},
};

/// Writes a trace. Returns -32005 if the response becomes longer than `limit` bytes.
pub fn trace(out: &mut Vec<u8>, trace: &Trace, limit: usize) -> Result<()> {
    match trace {
        Trace::Steps { steps, gas, failed, output } => self::steps(out, (steps, gas, *failed, output), limit),
        Trace::Calls { frames, with_logs, gas } => calls(out, frames, *with_logs, gas, limit),
        Trace::FlatCalls(frames) => bounded_value(out, frames, limit),
        Trace::PreState(frame) => bounded_value(out, frame, limit),
        Trace::FourByte(frame) => bounded_value(out, frame, limit),
        Trace::StateGas(gas) => {
            let mut object = Object::new(out);
            object.quantity("gasUsed", gas.gas.tx_gas_used());
            for (name, gas) in dimensions(gas) {
                object.quantity(name, gas);
            }
            object.end();
            Ok(())
        }
        Trace::Noop => {
            out.extend_from_slice(b"{}");
            Ok(())
        }
        Trace::Parity(trace) => parity_results(out, trace, None, limit),
        Trace::Mux(traces) => {
            let mut object = Object::new(out);
            for (name, one) in traces {
                self::trace(object.key(name), one, limit)?;
            }
            object.end();
            Ok(())
        }
    }
}

/// Writes the struct logger's result, as the `opcode-tracer` schema of execution-apis defines it.
fn steps(
    out: &mut Vec<u8>,
    (steps, gas, failed, output): (&Steps, &TracedGas, bool, &Bytes),
    limit: usize,
) -> Result<()> {
    // The slots that each contract has read or written so far.
    let mut storage: HashMap<Address, BTreeMap<B256, B256>> = HashMap::new();
    let mut object = Object::new(out);
    value(object.key("gas"), &gas.gas.tx_gas_used());
    for (name, gas) in dimensions(gas).into_iter().filter(|_| gas.has_two_dimensions) {
        value(object.key(name), &gas);
    }
    value(object.key("failed"), &failed);
    object.data("returnValue", output);
    try_list(object.key("structLogs"), steps.iter(), |out, one| {
        let slots = one.slot.as_ref().map(|slot| {
            let slots = storage.entry(slot.address).or_default();
            slots.insert(slot.key.into(), slot.value.into());
            slots.clone()
        });
        bounded_value(out, &struct_log(one, slots), limit)
    })?;
    object.end();
    Ok(())
}

/// Returns a step in geth's form, with the slots that its contract has read or written so far.
fn struct_log(step: &TraceStep, storage: Option<BTreeMap<B256, B256>>) -> StructLog {
    StructLog {
        pc: step.pc as u64,
        op: match OpCode::new(step.op) {
            Some(op) => op.as_str().into(),
            None => format!("opcode {:#x} not defined", step.op).into(),
        },
        gas: step.gas,
        gas_cost: step.gas_cost,
        depth: step.depth as u64,
        error: step.error.clone().map(String::from),
        stack: step.stack.clone().map(Vec::from),
        return_data: Some(step.return_data.clone()).filter(|data| !data.is_empty()),
        memory: step
            .memory
            .as_ref()
            .filter(|memory| !memory.is_empty())
            .map(|memory| memory.chunks(32).map(hex::encode_prefixed).collect()),
        storage,
        refund_counter: Some(step.refund).filter(|refund| *refund > 0),
        ..StructLog::default()
    }
}

/// Writes `callTracer`'s result. Frames that failed, and the frames inside them, have no logs.
fn calls(out: &mut Vec<u8>, frames: &[CallTraceNode], with_logs: bool, gas: &TracedGas, limit: usize) -> Result<()> {
    let open = |out: &mut Vec<u8>, node: &CallTraceNode, logs: bool| {
        let mut frame = node.geth_empty_call_frame(logs);
        frame.error = node.status().and_then(frame_error);
        if node.parent.is_none() {
            frame.gas_used = U256::from(gas.gas.tx_gas_used());
        }
        open_frame(out, &frame, limit)
    };
    let Some(root) = frames.first() else { return Err(RpcError::internal("a call that ran has no frame")) };
    // The open frames, each with whether it has logs and with the number of its children that are written.
    let logs = with_logs && root.trace.success;
    let mut path = vec![(root, logs, 0)];
    open(out, root, logs)?;
    for (name, gas) in dimensions(gas).into_iter().filter(|_| gas.has_two_dimensions) {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        quantity(out, gas);
    }
    while let Some((node, logs, written)) = path.last_mut() {
        let Some(child) = node.children.get(*written).and_then(|index| frames.get(*index)) else {
            // geth shows a self-destruction as the last call of its frame.
            if let Some(selfdestruct) = node.geth_selfdestruct_call_trace() {
                begin_call(out, *written);
                open_frame(out, &selfdestruct, limit)?;
                out.push(b'}');
                *written += 1;
            }
            out.extend_from_slice(if *written > 0 { b"]}" } else { b"}" });
            path.pop();
            continue;
        };
        begin_call(out, *written);
        *written += 1;
        let logs = *logs && child.trace.success;
        open(out, child, logs)?;
        path.push((child, logs, 0));
    }
    Ok(())
}

/// Returns the gas of a traced call in both dimensions, as a block counts them, and its refund. The names, and the
/// traces that have them, follow execution-apis (<https://github.com/ethereum/execution-apis/pull/852>).
fn dimensions(gas: &TracedGas) -> [(&'static str, u64); 3] {
    [
        ("regularGasUsed", gas.gas.block_regular_gas_used()),
        ("stateGasUsed", gas.gas.block_state_gas_used()),
        ("gasRefund", gas.gas.final_refunded()),
    ]
}

/// Writes a frame without its calls and without its end.
fn open_frame(out: &mut Vec<u8>, frame: &CallFrame, limit: usize) -> Result<()> {
    bounded_value(out, frame, limit)?;
    out.pop();
    Ok(())
}

fn begin_call(out: &mut Vec<u8>, written: usize) {
    out.extend_from_slice(if written == 0 { b",\"calls\":[" } else { b"," });
}

/// Writes one of Parity's traces, for a replayed transaction with its hash. Returns -32005 if the response becomes
/// longer than `limit` bytes.
pub fn parity_results(out: &mut Vec<u8>, trace: &TraceResults, hash: Option<B256>, limit: usize) -> Result<()> {
    let mut object = Object::new(out);
    object.data("output", &trace.output);
    bounded_value(object.key("stateDiff"), &trace.state_diff, limit)?;
    bounded_value(object.key("trace"), &trace.trace, limit)?;
    match &trace.vm_trace {
        Some(vm) => vm_trace(object.key("vmTrace"), vm, limit)?,
        None => object.key("vmTrace").extend_from_slice(b"null"),
    }
    if let Some(hash) = hash {
        object.data("transactionHash", hash.as_slice());
    }
    object.end();
    check_length(out, limit)
}

fn vm_trace(out: &mut Vec<u8>, outermost: &VmTrace, limit: usize) -> Result<()> {
    // The open frames, each with its opcodes that are not written.
    let mut open = vec![open_vm_frame(out, outermost)];
    while let Some(ops) = open.last_mut() {
        let Some(op) = ops.next() else {
            // The end of the frame, and of the opcode that called it.
            open.pop();
            out.extend_from_slice(if open.is_empty() { b"]}" } else { b"]}}" });
            continue;
        };
        if !out.ends_with(b"[") {
            out.push(b',');
        }
        let mut object = Object::new(out);
        value(object.key("cost"), &op.cost);
        bounded_value(object.key("ex"), &op.ex, limit)?;
        value(object.key("pc"), &op.pc);
        value(object.key("op"), &op.op);
        match &op.sub {
            Some(frame) => open.push(open_vm_frame(object.key("sub"), frame)),
            None => object.key("sub").extend_from_slice(b"null}"),
        }
    }
    Ok(())
}

/// Writes a frame of a `vmTrace` without its opcodes and without its end. Returns the opcodes.
fn open_vm_frame<'a>(out: &mut Vec<u8>, frame: &'a VmTrace) -> std::slice::Iter<'a, VmInstruction> {
    Object::new(out).data("code", &frame.code).key("ops").push(b'[');
    frame.ops.iter()
}
