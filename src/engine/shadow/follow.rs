//! Two runs of a transaction, step by step: the first is recorded, and the second is compared with it as it runs.

use std::hash::{DefaultHasher, Hash, Hasher};

use alloy_primitives::{Address, U256};
use revm::{
    Inspector,
    bytecode::opcode,
    context_interface::{ContextTr, JournalTr, context::ContextError},
    inspector::JournalExt,
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, InstructionResult, Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps, ReturnData},
    },
};

use super::divergence::{Cause, DivergentStep, StepKind, StepPlace, has_effect, is_call};
use crate::{
    engine::evm::{FamilyEvm, TxSetup, inspect},
    meter::Meter,
    state::Overlay,
};

/// The bytes of memory that can be hashed in about the time of an opcode.
const BYTES_PER_TICK: usize = 256;

type At = Interpreter<EthInterpreter>;

/// The place and the cause of a divergence.
pub(super) struct Followed {
    pub at: Option<DivergentStep>,
    pub cause: Cause,
    /// The contracts that run where the runs diverge, the innermost first.
    pub contracts: Vec<Address>,
}

/// The compared parts of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    /// The index of its frame, in the order in which frames begin.
    frame: u32,
    pc: u32,
    op: u8,
    /// The hash of the operands, if the opcode has effects besides the stack and the memory.
    operands: u64,
    /// The hash of the top of the stack before the step, and of the data that the last call has returned if that was the step before.
    value: u64,
}

/// A frame that has run.
#[derive(Clone, Copy, Default)]
struct Frame {
    contract: Address,
    code: Address,
    depth: u32,
    parent: Option<u32>,
    /// The result with which it ended, and the number of steps until then.
    end: Option<(InstructionResult, usize)>,
    /// Whether it is a precompile.
    is_precompile: bool,
    has_steps: bool,
}

/// The frames of a run so far.
#[derive(Default)]
struct Frames {
    all: Vec<Frame>,
    /// The open frames, by their indices, the innermost last.
    open: Vec<u32>,
}

impl Frames {
    fn enter(&mut self, contract: Address, code: Address, is_precompile: bool) {
        let index = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let depth = u32::try_from(self.open.len() + 1).unwrap_or(u32::MAX);
        let parent = self.open.last().copied();
        self.all.push(Frame { contract, code, depth, parent, is_precompile, ..Frame::default() });
        self.open.push(index);
    }

    fn leave(&mut self, end: InstructionResult, steps: usize) -> Option<u32> {
        let index = self.open.pop()?;
        let frame = self.all.get_mut(index as usize)?;
        frame.end = Some((end, steps));
        Some(index)
    }

    fn get(&self, index: u32) -> Frame {
        self.all.get(index as usize).copied().unwrap_or_default()
    }

    /// Returns the step that is about to run. Ticks `meter` for the memory that is read.
    fn step(&mut self, at: &At, before: Option<u8>, meter: &mut Meter) -> Step {
        let frame = self.open.last().copied().unwrap_or_default();
        if let Some(open) = self.all.get_mut(frame as usize).filter(|open| !open.has_steps) {
            // The address of a contract that is created is known from here on.
            open.has_steps = true;
            open.contract = at.input.target_address();
            open.code = at.input.bytecode_address().copied().unwrap_or(open.contract);
        }
        let op = at.bytecode.opcode();
        let pc = u32::try_from(at.bytecode.pc()).unwrap_or(u32::MAX);
        Step { frame, pc, op, operands: operands(op, at, meter), value: value(at, before) }
    }

    fn place(&self, step: &Step) -> StepPlace {
        let Frame { contract, code, depth, .. } = self.get(step.frame);
        StepPlace { contract, code, pc: step.pc as usize, op: step.op, depth: depth as usize }
    }

    /// Returns the contracts of a frame and of its enclosing frames, the innermost first.
    fn contracts(&self, innermost: u32) -> Vec<Address> {
        let mut contracts = Vec::new();
        let mut next = Some(innermost);
        while let Some(index) = next {
            let Frame { contract, code, parent, .. } = self.get(index);
            contracts.push(code);
            contracts.push(contract);
            next = parent;
        }
        contracts
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns the hash of the operands of an opcode that has effects, except for the gas of a call.
fn operands(op: u8, at: &At, meter: &mut Meter) -> u64 {
    if !has_effect(op) {
        return 0;
    }
    let stack = at.stack.data();
    let operand =
        |index: usize| stack.len().checked_sub(index + 1).and_then(|at| stack.get(at)).copied().unwrap_or_default();
    // The operands on the stack, and the part of the memory that they name.
    let (words, data) = match op {
        opcode::SSTORE | opcode::TSTORE => (0..2, None),
        opcode::LOG0..=opcode::LOG4 => (2..2 + usize::from(op - opcode::LOG0), Some(0)),
        opcode::CREATE => (0..1, Some(1)),
        opcode::CREATE2 => (0..4, Some(1)),
        opcode::CALL | opcode::CALLCODE => (1..3, Some(3)),
        opcode::DELEGATECALL | opcode::STATICCALL => (1..2, Some(2)),
        opcode::RETURN | opcode::REVERT => (0..0, Some(0)),
        _ => (0..1, None),
    };
    let mut hasher = DefaultHasher::new();
    words.for_each(|index| operand(index).hash(&mut hasher));
    if let Some(data) = data {
        let memory = at.memory.context_memory();
        let clamp = |word: U256| usize::try_from(word).unwrap_or(usize::MAX);
        let (start, length) = (clamp(operand(data)), clamp(operand(data + 1)));
        // Bytes beyond the memory are zero.
        length.hash(&mut hasher);
        let bytes = memory.get(start.min(memory.len())..start.saturating_add(length).min(memory.len()));
        meter.tick(u32::try_from(bytes.map_or(0, <[u8]>::len) / BYTES_PER_TICK).unwrap_or(u32::MAX));
        bytes.hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns the hash of the values left on the stack by the previous step.
fn value(at: &At, before: Option<u8>) -> u64 {
    let top = at.stack.data().last();
    match before {
        Some(op) if is_call(op) => hash((top, at.return_data.buffer())),
        _ => hash(top),
    }
}

/// Records a run.
struct Record {
    frames: Frames,
    steps: Vec<Step>,
    /// The maximum number of steps.
    most: usize,
    /// Whether there were more.
    over: bool,
}

/// Compares a run with a record.
struct Follower<'a> {
    own: &'a Record,
    frames: Frames,
    /// The number of steps so far.
    steps: usize,
    last: Option<Step>,
    /// The steps at which the program counters, operands, and stack values first differ. The values are grouped by
    /// their origin.
    pcs: Option<(usize, Step)>,
    operands: Option<(usize, Step)>,
    values: Values,
    /// The first frame whose end differs, the ends of both runs, and the number of steps until then.
    end: Option<FrameEnds>,
    destroys: bool,
    /// The first precompile that exists in only one run, or ends differently.
    precompile: Option<Address>,
}

#[derive(Clone, Copy)]
struct FrameEnds {
    frame: u32,
    own: InstructionResult,
    under: InstructionResult,
    steps: usize,
}

/// The first opcodes that produce different values.
#[derive(Default)]
struct Values {
    /// An opcode that reads a field of the block.
    source: Option<u8>,
    /// The gas that is left, not as the gas of a call.
    gas: bool,
    /// Any other opcode.
    other: Option<u8>,
}

/// Runs a transaction by both rules, and returns where the runs diverge. Keeps at most `limit` bytes of steps.
pub(super) fn follow<F: FamilyEvm>(
    own: TxSetup<F>,
    under: TxSetup<F>,
    limit: usize,
    overlay: &mut Overlay,
) -> Followed {
    let most = limit / (2 * size_of::<Step>());
    let mut record = Record { frames: Frames::default(), steps: Vec::new(), most, over: false };
    // The two runs have ended before: their results are known.
    let _ = inspect::<F, _>(&mut *overlay, own, &mut record);
    if record.over {
        let contracts = record.frames.contracts(0);
        return Followed { at: None, cause: Cause::Unknown, contracts };
    }
    let mut follower = Follower {
        own: &record,
        frames: Frames::default(),
        steps: 0,
        last: None,
        pcs: None,
        operands: None,
        values: Values::default(),
        end: None,
        destroys: false,
        precompile: None,
    };
    let _ = inspect::<F, _>(&mut *overlay, under, &mut follower);
    follower.followed()
}

impl Follower<'_> {
    fn followed(self) -> Followed {
        let own = self.own;
        let place_before = |index: usize| index.checked_sub(1).and_then(|index| own.steps.get(index));
        let (kind, step, next) = match (self.pcs, self.operands, self.end) {
            (Some((index, under)), ..) => {
                let next = (own.steps.get(index).map(|step| own.frames.place(step)), Some(self.frames.place(&under)));
                (StepKind::Pc, place_before(index).or(own.steps.first()), next)
            }
            // The other run may have ended before.
            (None, Some((_, under)), _) => {
                let place = self.frames.place(&under);
                let contracts = self.frames.contracts(under.frame);
                let at = DivergentStep { kind: StepKind::Operands, step: place, own: None, under: None };
                return Followed { at: Some(at), cause: self.cause(), contracts };
            }
            (None, None, Some(ends)) if is_out_of_gas(ends.own) || is_out_of_gas(ends.under) => {
                (StepKind::OutOfGas, place_before(ends.steps), (None, None))
            }
            // The run by the other rules has ended, and the block's own continues.
            (None, None, Some(ends)) if ends.steps < own.steps.len() => {
                let next = own.steps.get(ends.steps).map(|step| own.frames.place(step));
                (StepKind::Pc, place_before(ends.steps), (next, None))
            }
            (None, None, _) => {
                let contracts = self.end.map_or_else(Vec::new, |ends| self.frames.contracts(ends.frame));
                return Followed { at: None, cause: self.cause(), contracts };
            }
        };
        // A frame that has ended otherwise is where the runs diverge, even if that shows in its caller.
        let step = self.end.and_then(|ends| place_before(ends.steps)).or(step);
        let innermost = self.end.map(|ends| ends.frame).or(step.map(|step| step.frame));
        let contracts = innermost.map_or_else(Vec::new, |frame| own.frames.contracts(frame));
        let at = step.map(|step| DivergentStep { kind, step: own.frames.place(step), own: next.0, under: next.1 });
        Followed { at, cause: self.cause(), contracts }
    }

    fn cause(&self) -> Cause {
        let own = self.own;
        let op_before =
            |steps: usize| steps.checked_sub(1).and_then(|index| own.steps.get(index)).map_or(0, |step| step.op);
        if let Some(FrameEnds { own, under, steps, .. }) = self.end
            && let Some(cause) = Cause::of_end(under, op_before(steps)).or(Cause::of_end(own, op_before(steps)))
        {
            return cause;
        }
        // The frame of the block's own run that ended where the other went on.
        if let Some((index, _)) = self.pcs {
            let ended = own.frames.all.iter().filter_map(|frame| frame.end.filter(|(_, steps)| *steps == index));
            let mut causes = ended.filter_map(|(end, _)| Cause::of_end(end, op_before(index)));
            if let Some(cause) = causes.next() {
                return cause;
            }
        }
        match (self.precompile, &self.values) {
            (Some(precompile), _) => Cause::Precompile(precompile),
            (None, Values { source: Some(op), .. }) => Cause::Opcode(*op),
            (None, Values { gas: true, .. }) => Cause::GasLeft,
            (None, Values { other: Some(op), .. }) => Cause::Opcode(*op),
            _ if self.destroys => Cause::Opcode(opcode::SELFDESTRUCT),
            _ => Cause::Protocol,
        }
    }

    /// Compares a step. Returns whether the runs diverge here.
    fn compare(&mut self, step: Step) -> bool {
        let own = self.own.steps.get(self.steps);
        let before = self.last.replace(step).map(|step| step.op);
        let Some(own) = own.filter(|own| (own.frame, own.pc, own.op) == (step.frame, step.pc, step.op)) else {
            self.pcs = Some((self.steps, step));
            return true;
        };
        if own.value != step.value
            && let Some(before) = before
        {
            self.values.note(before, step.op);
        }
        if own.operands != step.operands && self.operands.is_none() {
            self.operands = Some((self.steps, step));
        }
        self.destroys |= step.op == opcode::SELFDESTRUCT;
        self.steps += 1;
        false
    }

    fn leave(&mut self, end: InstructionResult) {
        let Some(index) = self.frames.leave(end, self.steps) else { return };
        let (own, under) = (self.own.frames.get(index), self.frames.get(index));
        let Some((own_end, own_steps)) = own.end else { return };
        if self.pcs.is_some() {
            return;
        }
        let (is_one, is_other) = (under.is_precompile, own.is_precompile);
        let fails = own_end != end && !is_out_of_gas(end) && !is_out_of_gas(own_end);
        // The precompile exists under only one of the forks, or fails under one.
        if is_one != is_other || is_one && fails {
            self.precompile = self.precompile.or(Some(under.code));
            return;
        }
        // Both may run out of gas, one of them earlier.
        if own_end == end && own_steps == self.steps || self.end.is_some() {
            return;
        }
        self.end = Some(FrameEnds { frame: index, own: own_end, under: end, steps: self.steps });
    }
}

impl Values {
    /// Notes that `op` has left another value, which `next` may use.
    fn note(&mut self, op: u8, next: u8) {
        match op {
            // A JUMPDEST leaves nothing on the stack, so a difference there is older.
            opcode::JUMPDEST => {}
            // The gas of a call is left aside.
            opcode::GAS if is_call(next) => {}
            opcode::GAS => self.gas |= self.other.is_none(),
            opcode::SELFBALANCE => self.other = self.other.or(Some(op)),
            opcode::COINBASE..=opcode::SLOTNUM => self.source = self.source.or(Some(op)),
            _ => self.other = self.other.or(Some(op)),
        }
    }
}

const fn is_out_of_gas(end: InstructionResult) -> bool {
    matches!(Cause::of_end(end, 0), Some(Cause::OutOfGas))
}

fn stop(context: &mut impl ContextTr) {
    *context.error() = Err(ContextError::Custom(String::new()));
}

/// Returns the contract, the account of the code, and whether that is a precompile, of a call.
fn callee<C: ContextTr<Journal: JournalExt>>(context: &C, inputs: &CallInputs) -> (Address, Address, bool) {
    let code = inputs.bytecode_address;
    (inputs.target_address, code, context.journal_ref().precompile_addresses().contains(&code))
}

impl<'a, C: ContextTr<Db = &'a mut Overlay, Journal: JournalExt>> Inspector<C> for Record {
    fn step(&mut self, at: &mut At, context: &mut C) {
        if self.steps.len() >= self.most {
            self.over = true;
            stop(context);
            at.halt(InstructionResult::FatalExternalError);
            return;
        }
        let before = self.steps.last().map(|step| step.op);
        let step = self.frames.step(at, before, &mut context.db_mut().meter);
        self.steps.push(step);
    }

    fn call(&mut self, context: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        let (contract, code, is_precompile) = callee(context, inputs);
        self.frames.enter(contract, code, is_precompile);
        None
    }

    fn call_end(&mut self, _: &mut C, _: &CallInputs, outcome: &mut CallOutcome) {
        self.frames.leave(outcome.result.result, self.steps.len());
    }

    fn create(&mut self, _: &mut C, _: &mut CreateInputs) -> Option<CreateOutcome> {
        self.frames.enter(Address::ZERO, Address::ZERO, false);
        None
    }

    fn create_end(&mut self, _: &mut C, _: &CreateInputs, outcome: &mut CreateOutcome) {
        self.frames.leave(outcome.result.result, self.steps.len());
    }
}

impl<'a, C: ContextTr<Db = &'a mut Overlay, Journal: JournalExt>> Inspector<C> for Follower<'_> {
    fn step(&mut self, at: &mut At, context: &mut C) {
        let before = self.last.map(|step| step.op);
        let step = self.frames.step(at, before, &mut context.db_mut().meter);
        if self.compare(step) {
            stop(context);
            at.halt(InstructionResult::FatalExternalError);
        }
    }

    fn call(&mut self, context: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        let (contract, code, is_precompile) = callee(context, inputs);
        self.frames.enter(contract, code, is_precompile);
        None
    }

    fn call_end(&mut self, _: &mut C, _: &CallInputs, outcome: &mut CallOutcome) {
        self.leave(outcome.result.result);
    }

    fn create(&mut self, _: &mut C, _: &mut CreateInputs) -> Option<CreateOutcome> {
        self.frames.enter(Address::ZERO, Address::ZERO, false);
        None
    }

    fn create_end(&mut self, _: &mut C, _: &CreateInputs, outcome: &mut CreateOutcome) {
        self.leave(outcome.result.result);
    }
}
