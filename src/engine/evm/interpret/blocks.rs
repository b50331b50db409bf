//! Blocks of hot code, as operations on words at fixed places.
//!
//! A *block* is a run of simple opcodes. It ends with a jump, before a destination, or before an opcode that is not simple.
//! It is translated when it runs for the first time. The translation follows which word is where on the stack, so pushes,
//! duplicates, swaps and pops become no operations: the other opcodes read their words where they are, or from a list of
//! constants. At the end of a block its words are moved to where they belong on the stack.
//!
//! The gas, the stack's limits and the meter are checked once, by the operation that begins a block. Where a check fails, a
//! stretch runs instead, with the state unchanged. Where an operation of a block cannot run, [`Blocks::restore`] puts the stack
//! into the state before its opcode. So this module, too, has no rule for how a run ends.

use alloy_primitives::{U256, map::HashMap};
use revm::{
    bytecode::{
        Bytecode,
        opcode::{self, OpCode},
    },
    context_interface::cfg::GasParams,
    interpreter::{
        GasTable, Interpreter,
        interpreter::STACK_LIMIT,
        interpreter_types::{Jumps, ReturnData},
    },
};

use super::words::{by_limbs, call_data, divide, grow, is_less_signed, is_zero, less, shift_left, shift_right, small};
use crate::meter::Meter;

/// The bytes of a word.
const WORD: usize = size_of::<U256>();
/// The most opcodes of a block.
const LONGEST: usize = 128;
/// The most words by which the stack may grow within a block. Above are the places of words whose own place is not free.
const SPARE: i32 = 24;

// Each opcode takes at most two words from the stack, and reaches at most 17 words deep. Each word that a block follows may
// have a place above, and need another one when it is moved. So a block needs less than the whole stack and the room above.
const _: () = assert!(3 * (2 * LONGEST + 17) + 3 * SPARE as usize + 8 < STACK_LIMIT);

/// The operations that are not opcodes, by numbers that no simple opcode has.
mod kind {
    /// Checks the needs of the block. `to` is its gas, `grow` the bytes that it needs on the stack, `a` how many more there may
    /// be, and `b` its position. `not` says that it begins with a destination.
    pub(super) const HEAD: u8 = 0xa0;
    /// Ends before the opcode at `to`.
    pub(super) const EXIT: u8 = 0xa1;
    /// Continues at the operation `to`.
    pub(super) const GOTO: u8 = 0xa2;
    /// Continues with the block at `to`, and becomes a `GOTO`.
    pub(super) const DECODE: u8 = 0xa3;
    /// Jumps to the word `a`. `to` is the position of the jump.
    pub(super) const FOLLOW: u8 = 0xa4;
    /// Copies the word `a`.
    pub(super) const MOVE: u8 = 0xa5;
    /// Continues with the next operation if the word `a` is not zero, and with the one behind it if it is.
    pub(super) const IF: u8 = 0xa6;
    /// The same, if `a` is less than `b`.
    pub(super) const IF_LESS: u8 = 0xa7;
    /// The same, if `a` equals `b`.
    pub(super) const IF_EQUAL: u8 = 0xa8;
    /// The same, if `a` and `b` have a bit in common.
    pub(super) const IF_AND: u8 = 0xa9;
}

/// An operation on the words `a` and `b`, with its result at the place `to`. Some have other numbers in these fields.
///
/// A word is given by the offset of its place, in bytes from the top of the stack where the block begins. An odd number is
/// one more than the offset of a constant.
#[derive(Clone, Copy)]
struct Op {
    kind: u8,
    /// Whether the condition is negated.
    not: bool,
    /// The bytes by which the stack has grown at the end of the block.
    grow: i16,
    to: i32,
    a: i32,
    b: i32,
}

/// Operands that are not used.
const NONE: [i32; 2] = [1; 2];

/// The blocks of a code that were translated, with the gas costs of one fork.
pub(super) struct Blocks {
    code: Bytecode,
    /// The static gas costs.
    gas: GasTable,
    ops: Vec<Op>,
    constants: Vec<U256>,
    /// The operands that are the constants.
    operands: HashMap<U256, i32>,
    /// By the position of a block: the index of its first operation plus one, or zero.
    index: Vec<u32>,
    /// About how many bytes the blocks and their code take, without those that were counted before.
    pub(super) uncounted: usize,
}

/// Set in the index of a block that is so short that a stretch is not slower.
const SHORT: u32 = 1 << 31;
/// The most bytes of a short block before the opcode that it ends with.
const SHORT_BYTES: usize = 6;

impl Blocks {
    pub(super) fn new(code: &Bytecode, gas: &GasTable) -> Self {
        let (code, gas, index) = (code.clone(), *gas, vec![0; code.bytes_slice().len()]);
        let uncounted = size_of::<Self>() + 5 * index.len();
        Self { code, gas, ops: vec![], constants: vec![], operands: HashMap::default(), index, uncounted }
    }

    /// Whether these are the blocks of `code`. They must not run for another. Equal codes at two places are compared once.
    pub(super) fn are_of(&mut self, code: &Bytecode) -> bool {
        if !std::ptr::eq(self.code.bytes_slice(), code.bytes_slice()) {
            if self.code != *code {
                return false;
            }
            self.code = code.clone();
        }
        true
    }

    /// Whether the block at `pc` is known to be short.
    #[inline(always)]
    pub(super) fn is_short(&self, pc: usize) -> bool {
        self.index.get(pc).is_some_and(|at| at & SHORT != 0)
    }

    /// Returns the constant that an operand is, if it is one.
    fn value(&self, operand: i32) -> Option<U256> {
        (operand & 1 != 0).then(|| self.constants[operand as usize / WORD])
    }
}

/// A block in translation.
struct Block<'a> {
    blocks: &'a mut Blocks,
    ops: Vec<Op>,
    /// The words of the stack, as far down as the block has reached, by their operands.
    stack: Vec<i32>,
    /// The words that must be on the stack at the beginning.
    need: i32,
    /// The words for which there must be room above.
    room: i32,
    gas: u64,
}

impl Block<'_> {
    /// Returns where the word at `index` of the stack belongs.
    fn own(&self, index: usize) -> i32 {
        (index as i32 - self.need) * WORD as i32
    }

    fn push_constant(&mut self, value: U256) {
        let next = (self.blocks.constants.len() * WORD) as i32 + 1;
        let operand = *self.blocks.operands.entry(value).or_insert(next);
        if operand == next {
            self.blocks.constants.push(value);
            self.blocks.uncounted += 6 * WORD;
        }
        self.stack.push(operand);
    }

    fn emit(&mut self, kind: u8, to: i32, a: i32, b: i32) {
        self.ops.push(Op { kind, not: false, grow: 0, to, a, b });
    }

    /// Returns a place above that has no word of the stack, and is none of `others`.
    fn spare(&mut self, others: &[i32]) -> i32 {
        let mut place = SPARE * WORD as i32;
        while self.stack.contains(&place) || others.contains(&place) {
            place += WORD as i32;
        }
        self.room = self.room.max(place / WORD as i32 + 1);
        place
    }

    /// Emits an operation whose result is pushed.
    fn push_result(&mut self, kind: u8, [a, b]: [i32; 2]) {
        let own = self.own(self.stack.len());
        let to = if self.stack.contains(&own) { self.spare(&[]) } else { own };
        self.emit(kind, to, a, b);
        self.stack.push(to);
    }

    /// Pushes the result of an opcode that depends on its words alone.
    fn compute(&mut self, kind: u8, words: [i32; 2]) {
        match words.map(|word| self.blocks.value(word)) {
            [Some(a), Some(b)] => self.push_constant(compute(kind, a, b)),
            _ => self.push_result(kind, words),
        }
    }

    /// Ends the block by an operation, before which all words move to where they belong. Its operands move away if their places
    /// are written.
    fn end(mut self, kind: u8, not: bool, to: usize, mut operands: [i32; 2]) -> Self {
        let mut moves: Vec<_> = (0..self.stack.len()).map(|index| (self.own(index), self.stack[index])).collect();
        moves.retain(|(to, from)| to != from);
        let mut others = operands.to_vec();
        let mut save = |block: &mut Self, word| {
            others.push(block.spare(&others));
            block.emit(kind::MOVE, others[others.len() - 1], word, 0);
            others[others.len() - 1]
        };
        for operand in operands.iter_mut().filter(|operand| moves.iter().any(|(to, _)| to == *operand)) {
            *operand = save(&mut self, *operand);
        }
        while let Some(&(first, _)) = moves.first() {
            if let Some(free) = moves.iter().position(|(to, _)| moves.iter().all(|(_, from)| from != to)) {
                let (to, from) = moves.swap_remove(free);
                self.emit(kind::MOVE, to, from, 0);
            } else {
                // All moves are parts of circles.
                let spare = save(&mut self, first);
                moves.iter_mut().filter(|(_, from)| *from == first).for_each(|(_, from)| *from = spare);
            }
        }
        let ([a, b], grow) = (operands, self.own(self.stack.len()) as i16);
        self.ops.push(Op { kind, not, grow, to: to as i32, a, b });
        self
    }

    /// Ends the block by a jump to `to` if `condition` is not zero, and to `next` if it is.
    fn branch(mut self, condition: i32, to: usize, next: usize) -> Self {
        let (mut kind, mut not, mut operands) = (kind::IF, false, [condition; 2]);
        // The comparisons whose result is the condition need not be computed before.
        while let Some(&Op { kind: last, to, a, b, .. }) = self.ops.last()
            && kind == kind::IF
            && to == operands[0]
            && !self.stack.contains(&to)
        {
            (kind, not, operands) = match last {
                opcode::ISZERO => (kind, !not, [a; 2]),
                opcode::LT => (kind::IF_LESS, not, [a, b]),
                opcode::GT => (kind::IF_LESS, not, [b, a]),
                opcode::EQ => (kind::IF_EQUAL, not, [a, b]),
                opcode::AND => (kind::IF_AND, not, [a, b]),
                _ => break,
            };
            self.ops.pop();
        }
        let mut block = self.end(kind, not, 0, operands);
        block.emit(kind::DECODE, to as i32, 0, 0);
        block.emit(kind::DECODE, next as i32, 0, 0);
        block
    }
}

impl Blocks {
    /// Translates the block at `pc`, or its opcodes before `stop`.
    fn translate(&mut self, mut pc: usize, stop: usize) -> Block<'_> {
        let code = self.code.clone();
        let bytes = code.bytes_slice();
        let mut block = Block { blocks: self, ops: vec![], stack: vec![], need: 0, room: SPARE, gas: 0 };
        for count in 0.. {
            let op = bytes[pc];
            if pc == stop {
                break;
            }
            let is_long = count == LONGEST || block.own(block.stack.len()) >= SPARE * WORD as i32;
            if is_long || count > 0 && op == opcode::JUMPDEST {
                return block.end(kind::DECODE, false, pc, NONE);
            }
            let info = OpCode::new(op).filter(|_| is_simple(op));
            let inputs = info.map_or(0, |info| usize::from(info.inputs()));
            while block.stack.len() < inputs {
                block.need += 1;
                block.stack.insert(0, -block.need * WORD as i32);
            }
            let top = block.stack.len().wrapping_sub(1);
            let to = matches!(op, opcode::JUMP | opcode::JUMPI).then(|| block.blocks.value(block.stack[top])).flatten();
            let to = to.map(|to| small(&to).unwrap_or(usize::MAX));
            // Only a `JUMP` may lead to where is not known.
            let is_valid = |to| code.legacy_jump_table().is_some_and(|jumps| jumps.is_valid(to));
            let Some(info) = info.filter(|_| to.map_or(op != opcode::JUMPI, is_valid)) else {
                return block.end(kind::EXIT, false, pc, NONE);
            };
            let (at, data) = (pc as i32, &bytes[pc + 1..][..usize::from(info.info().immediate_size())]);
            pc += 1 + data.len();
            block.gas += u64::from(block.blocks.gas[usize::from(op)]);
            let takes = if op < opcode::DUP1 { inputs } else { 0 };
            let a = if takes > 0 { block.stack.remove(top) } else { 1 };
            let b = if takes > 1 { block.stack.remove(top - 1) } else { a };
            match op {
                opcode::JUMPDEST | opcode::POP => {}
                opcode::PUSH0..=opcode::PUSH32 => block.push_constant(U256::from_be_slice(data)),
                opcode::PC => block.push_constant(U256::from(at)),
                opcode::DUP1..=opcode::DUP16 => block.stack.push(block.stack[top + 1 - inputs]),
                opcode::SWAP1..=opcode::SWAP16 => block.stack.swap(top, top + 1 - inputs),
                // `b` becomes the gas of the rest of the block.
                opcode::GAS => block.push_result(op, [a, block.gas as i32]),
                opcode::MLOAD | opcode::CALLDATALOAD => block.push_result(op, [a, at]),
                opcode::MSTORE => block.emit(op, at, a, b),
                opcode::JUMP => {
                    let (kind, to) = to.map_or((kind::FOLLOW, at as usize), |to| (kind::DECODE, to));
                    return block.end(kind, false, to, [a; 2]);
                }
                opcode::JUMPI => return block.branch(b, to.unwrap_or_default(), pc),
                _ if takes == 0 => block.push_result(op, NONE),
                _ => block.compute(op, [a, b]),
            }
        }
        block
    }

    /// Returns where the operations of the block at `pc` begin.
    #[inline(never)]
    fn begin(&mut self, pc: usize) -> usize {
        if self.index[pc] != 0 {
            return (self.index[pc] & !SHORT) as usize - 1;
        }
        let Block { mut ops, need, room, gas, .. } = self.translate(pc, usize::MAX);
        for op in ops.iter_mut().filter(|op| op.kind == opcode::GAS) {
            op.b = gas as i32 - op.b;
        }
        let is_short = ops.last().is_some_and(|op| op.kind == kind::EXIT && op.to as usize <= pc + SHORT_BYTES);
        let begin = self.ops.len();
        self.index[pc] = (begin as u32 + 1) | if is_short { SHORT } else { 0 };
        let above = (STACK_LIMIT as i32 - need - room) * WORD as i32;
        let (not, grow) = (self.code.bytes_slice()[pc] == opcode::JUMPDEST, (need * WORD as i32) as i16);
        self.ops.push(Op { kind: kind::HEAD, not, grow, to: gas as i32, a: above, b: pc as i32 });
        self.ops.append(&mut ops);
        self.uncounted += 2 * size_of::<Op>() * (self.ops.len() - begin);
        begin
    }

    /// Puts the stack into the state before the opcode at `pc`, of which the operation `at` is. `base` is the top of the
    /// stack where the block began, whose check has passed. Returns the gas of the rest of the block, and the bytes by which
    /// the stack has grown.
    #[cold]
    #[inline(never)]
    fn restore(&mut self, at: usize, pc: usize, base: *mut U256) -> (u64, i32) {
        let head = self.ops[..at].iter().rfind(|op| op.kind == kind::HEAD).copied();
        let Some(Op { to: gas, b: start, .. }) = head else { unreachable!("a block begins with its head") };
        let block = self.translate(start as usize, pc);
        let word = |operand: &i32| {
            // SAFETY: the word is at a place that the block reads or has written.
            block.blocks.value(*operand).unwrap_or_else(|| unsafe { *base.byte_offset(*operand as isize) })
        };
        let words: Vec<_> = block.stack.iter().map(word).collect();
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: the place is one below `SPARE`, for which the block's head has checked that there is room.
            unsafe { base.byte_offset(block.own(index) as isize).write(word) };
        }
        (gas as u64 - block.gas, block.own(block.stack.len()))
    }
}

/// Whether a block may have an opcode. All of them exist in every fork that has stretches.
const fn is_simple(op: u8) -> bool {
    use opcode::*;
    matches!(op, ADD..=DIV | MOD | LT..=NOT | SHL | SHR | ADDRESS | CALLER..=CALLDATASIZE | RETURNDATASIZE)
        || matches!(op, POP..=MSTORE | JUMP..=JUMPDEST | PUSH0..=SWAP16)
}

/// Returns the result of an opcode that depends on its words alone.
#[inline(always)]
fn compute(op: u8, mut a: U256, mut b: U256) -> U256 {
    match op {
        opcode::ADD => a.wrapping_add(b),
        opcode::SUB => a.wrapping_sub(b),
        opcode::MUL => a.wrapping_mul(b),
        opcode::DIV | opcode::MOD if is_zero(&b) => U256::ZERO,
        opcode::DIV | opcode::MOD => {
            divide(&mut a, &mut b);
            by_limbs(if op == opcode::DIV { a } else { b })
        }
        opcode::LT => U256::from(less(a, b)),
        opcode::GT => U256::from(less(b, a)),
        opcode::SLT => U256::from(is_less_signed(a, b)),
        opcode::SGT => U256::from(is_less_signed(b, a)),
        opcode::EQ => U256::from(is_zero(&(a ^ b))),
        opcode::ISZERO => U256::from(is_zero(&a)),
        opcode::AND => a & b,
        opcode::OR => a | b,
        opcode::XOR => a ^ b,
        opcode::NOT => !a,
        opcode::SHL => shift_left(b, a),
        opcode::SHR => shift_right(b, a),
        _ => unreachable!("not computed from words alone"),
    }
}

/// Runs blocks from the frame's position on. Returns whether a stretch must run next, which is so if a check or an operation
/// has failed.
///
/// `blocks` must have been made for the frame's code with the gas costs of `table`. These are the reasons why the raw accesses are
/// sound:
///
/// - *Operations.* `op` points at an operation or right behind one that ended no block, so at another one. The last operation
///   of a block does not fall through. The operations and constants move only when a block is decoded, and `refresh!` takes
///   their places again after that.
/// - *Stack.* revm allocates all [`STACK_LIMIT`] words at once. A head checks that the block's `need` words are there, and
///   that there is room for `room` words above. All its places are within these, and each is written before it is read or
///   has one of the words that were there.
/// - *Memory.* A word is accessed at an offset below `memory_words` only. `view!` takes the pointer again after each use of
///   the memory by revm, which may have moved it.
/// - *Code.* A position is one of a block or a jump, which are all in the code.
pub(super) fn run(frame: &mut Interpreter, meter: &mut Meter, params: &GasParams, blocks: &mut Blocks) -> bool {
    let Interpreter { bytecode, gas: frame_gas, stack, memory: shared, input, return_data, .. } = frame;
    let words = stack.data_mut();
    let Some(jumps) = bytecode.legacy_jump_table().filter(|_| words.capacity() >= STACK_LIMIT) else { return true };
    let stack = words.as_mut_ptr();
    // SAFETY: the end of the words is within the stack.
    let mut base = unsafe { stack.add(words.len()) };
    let mut gas = frame_gas.remaining();

    let (mut ops, mut constants, mut op): (*mut Op, *mut U256, *const Op);
    /// Continues at the operation of an index.
    macro_rules! go {
        ($to:expr) => {
            // SAFETY: a block begins there.
            op = unsafe { ops.add($to) }
        };
    }
    /// Continues with the block at `$pc`. Decoding it may move all operations and constants.
    macro_rules! enter {
        ($pc:expr) => {{
            let begin = blocks.begin($pc);
            (ops, constants) = (blocks.ops.as_mut_ptr(), blocks.constants.as_mut_ptr().wrapping_byte_sub(1));
            go!(begin);
        }};
    }
    enter!(bytecode.pc());

    // The memory's place, and the number of offsets at which a word begins. Neither is known before the first access.
    let (mut memory, mut memory_words) = (std::ptr::null_mut::<u8>(), 0);
    macro_rules! view {
        () => {
            memory_words = shared.len().saturating_sub(WORD - 1);
            memory = shared.slice_mut(0, shared.len()).as_mut_ptr();
        };
    }
    /// The word that is an operand.
    macro_rules! word {
        ($operand:expr) => {{
            let from = if $operand & 1 == 0 { base } else { constants };
            // SAFETY: the operand is a place of the block, or one more than the offset of a constant.
            unsafe { &*from.wrapping_byte_offset($operand as isize) }
        }};
    }
    /// Writes the result of an operation.
    macro_rules! put {
        ($op:ident, $value:expr) => {{
            let value = $value;
            // SAFETY: the place is one of the block.
            unsafe { base.byte_offset($op.to as isize).write(value) }
        }};
    }
    /// Moves the top of the stack by `$bytes`, at the end of a block.
    macro_rules! grow {
        ($bytes:expr) => {
            // SAFETY: the words up to there are those that the block leaves.
            base = unsafe { base.byte_offset($bytes as isize) }
        };
    }
    /// Continues `$count` operations on, and at once where that one leads.
    macro_rules! skip {
        ($count:expr) => {
            // SAFETY: two operations follow a branch.
            op = unsafe { op.add($count) };
            // SAFETY: as above.
            let next = unsafe { &*op };
            if next.kind == kind::GOTO {
                go!(next.to as usize);
            }
        };
    }
    macro_rules! branch {
        ($op:ident, $condition:expr) => {{
            let condition: bool = $condition;
            grow!($op.grow);
            // Both ways have code, so that the processor predicts which one is taken, and need not wait for it.
            if condition == $op.not {
                skip!(1);
            } else {
                skip!(0);
            }
        }};
    }
    /// Ends before the opcode at `$pc`, whose operation cannot run.
    macro_rules! leave {
        ($op:ident, $pc:expr) => {{
            // SAFETY: both point into the operations.
            let (op, pc) = (unsafe { (&raw const *$op).offset_from_unsigned(ops) }, $pc as usize);
            let (rest, bytes) = blocks.restore(op, pc, base);
            gas += rest;
            grow!(bytes);
            break (pc, true);
        }};
    }
    /// The place in memory at the offset `$op.a`, for which the memory grows.
    macro_rules! place {
        ($op:ident, $pc:expr) => {{
            let Some(at) = small(word!($op.a)) else { leave!($op, $pc) };
            if at >= memory_words {
                view!();
                if at >= memory_words {
                    let Some(left) = grow(frame_gas, shared, params, at, gas) else { leave!($op, $pc) };
                    gas = left;
                    view!();
                }
            }
            // SAFETY: the word there is within the memory.
            unsafe { &mut *memory.add(at).cast::<[u8; WORD]>() }
        }};
    }
    macro_rules! run {
        ($op:ident, $($computed:ident)*) => { match $op.kind {
            $(opcode::$computed => {
                put!($op, compute(opcode::$computed, by_limbs(*word!($op.a)), by_limbs(*word!($op.b))));
            })*
            kind::HEAD => {
                // SAFETY: both point into the stack.
                let under = unsafe { base.byte_offset_from(stack) } as u32;
                let cost = u64::from($op.to as u32);
                if under.wrapping_sub($op.grow as u32) > $op.a as u32 || gas < cost || $op.not && !meter.take(1) {
                    break ($op.b as usize, true);
                }
                gas -= cost;
            }
            kind::EXIT => {
                grow!($op.grow);
                break ($op.to as usize, false);
            }
            kind::GOTO => {
                grow!($op.grow);
                go!($op.to as usize);
            }
            kind::DECODE => {
                // SAFETY: both point into the operations.
                let here = unsafe { (&raw const *$op).offset_from_unsigned(ops) };
                grow!($op.grow);
                enter!($op.to as usize);
                // SAFETY: the operation is the one that runs, and no reference to it is used any more.
                unsafe { ((*ops.add(here)).kind, (*ops.add(here)).to) = (kind::GOTO, op.offset_from(ops) as i32) };
            }
            kind::FOLLOW => {
                let (to, pc) = (*word!($op.a), $op.to as usize);
                grow!($op.grow);
                match small(&to).filter(|to| jumps.is_valid(*to)) {
                    Some(to) => enter!(to),
                    None => {
                        // SAFETY: the place is the one that the destination has on the stack.
                        unsafe { base.write(to) };
                        grow!(WORD);
                        gas += u64::from(blocks.gas[usize::from(opcode::JUMP)]);
                        break (pc, true);
                    }
                }
            }
            kind::MOVE => put!($op, by_limbs(*word!($op.a))),
            kind::IF => branch!($op, !is_zero(word!($op.a))),
            kind::IF_LESS => branch!($op, less(by_limbs(*word!($op.a)), by_limbs(*word!($op.b)))),
            kind::IF_AND => branch!($op, !is_zero(&(by_limbs(*word!($op.a)) & by_limbs(*word!($op.b))))),
            kind::IF_EQUAL => branch!($op, is_zero(&(by_limbs(*word!($op.a)) ^ by_limbs(*word!($op.b))))),

            opcode::MLOAD => put!($op, U256::from_be_bytes(*place!($op, $op.b))),
            opcode::MSTORE => *place!($op, $op.to) = word!($op.b).to_be_bytes(),
            opcode::CALLDATALOAD => {
                put!($op, call_data(&input.input, shared, word!($op.a)));
                memory_words = 0;
            }
            opcode::CALLDATASIZE => put!($op, U256::from(input.input.len())),
            opcode::CALLVALUE => put!($op, input.call_value),
            opcode::CALLER => put!($op, input.caller_address.into_word().into()),
            opcode::ADDRESS => put!($op, input.target_address.into_word().into()),
            opcode::RETURNDATASIZE => put!($op, U256::from(return_data.buffer().len())),
            opcode::MSIZE => put!($op, U256::from(shared.len())),
            opcode::GAS => put!($op, U256::from(gas + u64::from($op.b as u32))),
            _ => unreachable!("no such operation"),
        } };
    }
    let (pc, is_stretch) = loop {
        // SAFETY: `op` points at an operation.
        let current = unsafe { &*op };
        // SAFETY: the end of the operations at most.
        op = unsafe { op.add(1) };
        run!(current, ADD SUB MUL DIV MOD LT GT SLT SGT EQ ISZERO AND OR XOR NOT SHL SHR);
    };
    // SAFETY: the words below `base` are initialised.
    unsafe { words.set_len(base.offset_from_unsigned(stack)) };
    frame_gas.set_remaining(gas);
    bytecode.absolute_jump(pc);
    is_stretch
}
