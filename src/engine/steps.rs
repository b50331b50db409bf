//! geth's struct logger: every opcode of a call, with the state of the machine before it.

use alloy_primitives::{Address, Bytes, U256};
use revm::{
    bytecode::opcode::{self, OpCode},
    context::result::HaltReason,
    interpreter::{
        InstructionResult, Interpreter, InterpreterAction, SuccessOrHalt,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps, LoopControl, MemoryTr, ReturnData},
    },
};

use super::error::HaltText;

/// The data that is recorded at each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepOptions {
    /// Whether to record the memory.
    pub memory: bool,
    /// Whether to record the stack.
    pub stack: bool,
    /// Whether to record the storage slots that the contract reads and writes.
    pub storage: bool,
    /// Whether to record the data that the last call returned.
    pub return_data: bool,
    /// The highest number of steps. Zero means no limit.
    pub limit: usize,
}

/// One opcode, and the state of the machine before it ran.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// The opcode's offset in the code.
    pub pc: usize,
    /// The opcode's byte.
    pub op: u8,
    /// Gas left before the opcode.
    pub gas: u64,
    /// Gas that the opcode cost, including gas passed on to a call.
    pub gas_cost: u64,
    /// Depth of the call; 1 for the outermost.
    pub depth: usize,
    /// The refund counter of the transaction.
    pub refund: u64,
    /// The reason why the opcode could not run, in geth's words.
    pub error: Option<Box<str>>,
    /// The stack, with its top last. `None` if not recorded.
    pub stack: Option<Box<[U256]>>,
    /// The memory. `None` if not recorded.
    pub memory: Option<Bytes>,
    /// The data that the last call returned. Empty if not recorded.
    pub return_data: Bytes,
    /// The slot that the opcode reads or writes. `None` for other opcodes, or if not recorded.
    pub slot: Option<Box<StepSlot>>,
}

/// A storage slot that a step reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct StepSlot {
    /// The contract that the slot belongs to.
    pub address: Address,
    /// The slot's key.
    pub key: U256,
    /// The slot's value after the step.
    pub value: U256,
}

/// The steps of a call, in order. They lie in blocks that never move, so that the bytes counted are the bytes used.
#[derive(Debug, Default)]
pub struct Steps(Vec<Vec<TraceStep>>);

impl Steps {
    const BLOCK: usize = 64;

    /// Returns the steps in order.
    pub fn iter(&self) -> impl Iterator<Item = &TraceStep> {
        self.0.iter().flatten()
    }

    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * Self::BLOCK + last.len())
    }

    /// Returns the bytes to allocate for the next step: zero if the last block has room.
    fn next_cost(&self) -> usize {
        match self.0.last() {
            Some(block) if block.len() < Self::BLOCK => 0,
            // The list of blocks doubles when it is full, and is moved.
            _ => Self::BLOCK * size_of::<TraceStep>() + 3 * size_of::<Vec<TraceStep>>(),
        }
    }

    fn last(&mut self) -> Option<&mut TraceStep> {
        self.0.last_mut().and_then(|block| block.last_mut())
    }

    fn push(&mut self, step: TraceStep) {
        match self.0.last_mut() {
            Some(block) if block.len() < Self::BLOCK => block.push(step),
            _ => {
                let mut block = Vec::with_capacity(Self::BLOCK);
                block.push(step);
                self.0.push(block);
            }
        }
    }
}

type At = Interpreter<EthInterpreter>;

#[derive(Debug, Default)]
pub(super) struct StepLog {
    options: StepOptions,
    steps: Steps,
    /// Whether the step that runs is recorded.
    recording: bool,
    /// The refund counters of the open frames after their last steps: revm counts per frame, geth per transaction.
    refunds: Vec<i64>,
}

impl StepLog {
    pub(super) fn new(options: StepOptions) -> Self {
        Self { options, ..Self::default() }
    }

    pub(super) fn finish(self) -> Steps {
        self.steps
    }

    pub(super) fn enter(&mut self) {
        self.refunds.push(0);
    }

    pub(super) fn leave(&mut self) {
        self.refunds.pop();
    }

    /// Returns the maximum bytes that the record of the next step may take.
    pub(super) fn cost(&self, at: &At) -> usize {
        if self.is_full() {
            return 0;
        }
        let stack = if self.options.stack { size_of::<U256>() * at.stack.len() } else { 0 };
        let memory = if self.options.memory { at.memory.size() } else { 0 };
        let returned = if self.options.return_data { at.return_data.buffer().len() } else { 0 };
        self.steps.next_cost() + size_of::<StepSlot>() + stack + memory + returned
    }

    fn is_full(&self) -> bool {
        self.options.limit != 0 && self.steps.len() >= self.options.limit
    }

    /// Records the state before a step. Returns the bytes of [`StepLog::cost`] that the record did not need.
    pub(super) fn begin(&mut self, at: &At) -> usize {
        self.recording = !self.is_full();
        if !self.recording {
            return 0;
        }
        let op = at.bytecode.opcode();
        let depth = self.refunds.len();
        let slot = self.options.storage.then(|| slot(op, at)).flatten();
        let mut spared = if slot.is_none() { size_of::<StepSlot>() } else { 0 };
        let memory = self.options.memory.then(|| match self.unchanged_memory(depth, at.memory.size()) {
            Some(memory) => {
                spared += memory.len();
                memory
            }
            None => Bytes::copy_from_slice(&at.memory.context_memory()),
        });
        let outer: i64 = self.refunds[..depth.saturating_sub(1)].iter().sum();
        self.steps.push(TraceStep {
            pc: at.bytecode.pc(),
            op,
            gas: at.gas.remaining(),
            gas_cost: 0,
            depth,
            refund: u64::try_from(outer + at.gas.refunded()).unwrap_or(0),
            error: None,
            stack: self.options.stack.then(|| at.stack.data().as_slice().into()),
            memory,
            return_data: if self.options.return_data { at.return_data.buffer().clone() } else { Bytes::new() },
            slot: slot.map(Box::new),
        });
        spared
    }

    /// Completes the record of the step that has run.
    pub(super) fn end(&mut self, at: &mut At) {
        if let Some(refund) = self.refunds.last_mut() {
            *refund = at.gas.refunded();
        }
        if !self.recording {
            return;
        }
        let Some(step) = self.steps.last() else { return };
        step.gas_cost = step.gas.saturating_sub(at.gas.remaining());
        let ended = at.bytecode.action().as_ref().and_then(InterpreterAction::instruction_result);
        match ended {
            Some(result) => step.error = unable(result, step.op, at.stack.len()),
            None if step.op == opcode::SLOAD => {
                if let (Some(slot), Some(value)) = (&mut step.slot, at.stack.data().last()) {
                    slot.value = *value;
                }
            }
            None => {}
        }
    }

    /// Returns the memory of the previous step if it is still the same.
    fn unchanged_memory(&mut self, depth: usize, size: usize) -> Option<Bytes> {
        let before = self.steps.last().filter(|step| step.depth == depth)?;
        let memory = before.memory.as_ref().filter(|memory| memory.len() == size)?;
        OpCode::new(before.op).is_some_and(|op| !op.modifies_memory()).then(|| memory.clone())
    }
}

/// Returns the slot that `op` reads or writes. A slot that is read gets its value after the step.
fn slot(op: u8, at: &At) -> Option<StepSlot> {
    let address = at.input.target_address();
    let stack = at.stack.data();
    let key = *stack.last()?;
    match op {
        opcode::SLOAD => Some(StepSlot { address, key, value: U256::ZERO }),
        opcode::SSTORE => Some(StepSlot { address, key, value: *stack.get(stack.len().checked_sub(2)?)? }),
        _ => None,
    }
}

/// Returns why an opcode could not begin. As in geth, a failure in its course belongs to its frame, not to its step.
fn unable(result: InstructionResult, op: u8, stack: usize) -> Option<Box<str>> {
    let (inputs, outputs) = OpCode::new(op).map_or((0, 0), |op| (op.inputs(), op.outputs()));
    let SuccessOrHalt::<HaltReason>::Halt(reason) = SuccessOrHalt::from(result) else { return None };
    let text = match reason {
        HaltReason::StackUnderflow => format!("stack underflow ({stack} <=> {inputs})"),
        HaltReason::StackOverflow => {
            format!("stack limit reached {stack} ({})", 1024 + usize::from(inputs) - usize::from(outputs))
        }
        HaltReason::OutOfGas(_) => HaltText(reason).to_string(),
        _ => return None,
    };
    Some(text.into())
}
