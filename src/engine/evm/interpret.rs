//! The interpreter loop of runs without an inspector.
//!
//! Nearly all opcodes only move words, on the stack, in memory or from the call's data, or jump within the code. revm
//! calls a function for each of them, through a table, with all its state in memory, which takes most of a run's time.
//! Here a *stretch* of such opcodes runs with the state in registers. revm does the rest: it grows the memory, and runs
//! all other opcodes, and each of these that would fail or run out of gas. A stretch ends before such an opcode, with the
//! state unchanged, and revm's instruction runs. So this module has no rule for how a run ends, and none that a fork
//! changes.
//!
//! A code with long loops is [hot], and its frames run [blocks] of such opcodes, which are translated. Where a
//! block does not run, a stretch does.

use alloy_primitives::U256;
use revm::{
    bytecode::opcode,
    context::{Cfg, JournalTr},
    context_interface::cfg::GasParams,
    interpreter::{
        GasTable, InstructionResult, InstructionTable, Interpreter, InterpreterAction,
        interpreter::{EthInterpreter, STACK_LIMIT},
        interpreter_types::{Jumps, LoopControl, ReturnData, RuntimeFlag},
    },
    primitives::hardfork::SpecId,
};

use self::{
    blocks::Blocks,
    words::{by_limbs, call_data, divide, grow, is_less_signed, is_zero, less, shift_left, shift_right, small},
};
use super::meter::Metered;
use crate::meter::Meter;

mod blocks;
mod hot;
mod words;

/// Runs a frame until it ends or needs another frame.
pub(super) fn interpret<'a, C: Metered<'a>>(
    frame: &mut Interpreter,
    instructions: &InstructionTable<EthInterpreter, C>,
    gas: &GasTable,
    host: &mut C,
) -> InterpreterAction {
    // From this fork on, all opcodes of a stretch exist.
    if !frame.runtime_flag.spec_id().is_enabled_in(SpecId::SHANGHAI) {
        return frame.run_plain(instructions, gas, host);
    }
    // While an instruction ticks, another run may begin and end on this thread. So the blocks are taken from the table.
    let mut code = hot::take(frame);
    let begun = host.db_mut().meter.ticks();
    let end = loop {
        let (_, _, config, journal, ..) = host.all_mut();
        let (meter, params) = (&mut journal.db_mut().meter, config.gas_params());
        if code.as_ref().is_err_and(|cold| meter.ticks().wrapping_sub(begun) >= *cold) {
            code = Ok(Box::new(Blocks::new(&frame.bytecode, gas)));
        }
        let is_stretch = match &mut code {
            Ok(blocks) => blocks.is_short(frame.bytecode.pc()) || blocks::run(frame, meter, params, blocks),
            Err(_) => true,
        };
        if is_stretch {
            stretch(frame, meter, params);
        }
        if let Err(end) = frame.step(instructions, gas, host) {
            break end;
        }
    };
    hot::put(frame, host.db_mut().meter.ticks().wrapping_sub(begun), code.ok());
    next_action(frame, end)
}

/// Returns the action after a frame whose last instruction ended with `end`: the one that the instruction set, or the
/// end.
fn next_action(frame: &mut Interpreter, end: InstructionResult) -> InterpreterAction {
    if frame.bytecode.action().is_none() {
        frame.halt(end);
    }
    frame.take_next_action()
}

/// The gas costs of the opcodes of a stretch, by their names in the yellow paper.
mod cost {
    pub(super) const JUMPDEST: u64 = 1;
    pub(super) const BASE: u64 = 2;
    pub(super) const VERY_LOW: u64 = 3;
    pub(super) const LOW: u64 = 5;
    pub(super) const MID: u64 = 8;
    pub(super) const HIGH: u64 = 10;
}

/// Runs opcodes up to the first one that a stretch cannot run, which may be the very first.
///
/// Its state is in registers: `ip` points at an opcode, and `top` is the size of the stack in bytes. Each arm checks
/// everything before it changes anything, so that revm's instruction can run instead. These are the reasons why the raw
/// accesses are sound:
///
/// - *Code.* revm pads a code such that it ends with `STOP`, which no stretch runs, and such that the data of its last
///   push is within it. So behind an opcode that has run there is another one, and a destination that revm's jump table
///   has is one, too. More than an opcode's own data is read only up to `last_wide`.
/// - *Stack.* revm allocates all [`STACK_LIMIT`] words at once. Those below `top` are initialised. `need!` compares `top`
///   with the words that an opcode takes, and `room!` with the limit.
/// - *Memory.* A word is accessed at an offset below `memory_words` only. `view!` takes the pointer again after each use of
///   the memory by revm, which may have moved it.
fn stretch(frame: &mut Interpreter, meter: &mut Meter, params: &GasParams) {
    /// The bytes of a word.
    const WORD: usize = size_of::<U256>();
    /// The bytes that are read at once for a short push, with its opcode.
    const WIDE: usize = 9;

    let Interpreter { bytecode, gas: frame_gas, stack, memory: shared, input, return_data, .. } = frame;
    let Some(jumps) = bytecode.legacy_jump_table() else { return };
    let code = bytecode.bytes_slice();
    let words = stack.data_mut();
    if words.capacity() < STACK_LIMIT || code.len() < WIDE {
        return;
    }
    let last_wide: *const u8 = &raw const code[code.len() - WIDE];
    let start = code.as_ptr();
    let stack = words.as_mut_ptr();

    // SAFETY: revm's position is one in its code.
    let mut ip = unsafe { start.add(bytecode.pc()) };
    let mut top = words.len() * WORD;
    let mut gas = frame_gas.remaining();

    let (mut memory, mut memory_size, mut memory_words);
    /// Takes the memory's place and size from revm.
    macro_rules! view {
        () => {
            memory_size = shared.len();
            memory_words = memory_size.saturating_sub(WORD - 1);
            memory = shared.slice_mut(0, memory_size).as_mut_ptr();
        };
    }
    view!();

    /// The gas left after `$cost`. Ends the stretch if there is not enough.
    macro_rules! pay {
        ($cost:expr) => {
            or_end!(gas.checked_sub($cost))
        };
    }
    /// The content of `$value`. Ends the stretch if there is none.
    macro_rules! or_end {
        ($value:expr) => {
            match $value {
                Some(value) => value,
                None => break,
            }
        };
    }
    /// Ends the stretch if the stack has fewer than `$count` words.
    macro_rules! need {
        ($count:expr) => {
            if top < WORD * $count {
                break;
            }
        };
    }
    /// Ends the stretch if the stack is full.
    macro_rules! room {
        () => {
            if top == WORD * STACK_LIMIT {
                break;
            }
        };
    }
    /// The word at `$depth`, which is 1 for the top word. There must be as many words, see `need!`.
    macro_rules! word {
        ($depth:expr) => {
            // SAFETY: the word is below `top`.
            unsafe { &mut *stack.byte_add(top).sub($depth) }
        };
    }
    /// Puts `$value` on top. There must be room for it, see `room!`.
    macro_rules! put {
        ($value:expr) => {{
            // SAFETY: the place is within the stack's allocation.
            unsafe { stack.byte_add(top).write($value) };
            top += WORD;
        }};
    }
    /// Moves on by `$length` bytes, an opcode that has run and its data.
    macro_rules! pass {
        ($length:expr) => {
            // SAFETY: another opcode follows.
            ip = unsafe { ip.add($length) }
        };
    }
    /// The opcode at `ip`.
    macro_rules! opcode {
        () => {
            // SAFETY: `ip` points at an opcode.
            unsafe { *ip }
        };
    }
    /// The position of the opcode at `ip`.
    macro_rules! pc {
        () => {
            // SAFETY: both point into the code.
            unsafe { ip.offset_from_unsigned(start) }
        };
    }
    macro_rules! push {
        ($cost:expr, $value:expr, $length:expr) => {{
            let left = pay!($cost);
            room!();
            put!($value);
            gas = left;
            pass!($length);
        }};
    }
    /// Replaces the top word by `$value`.
    macro_rules! unary {
        ($cost:expr, |$a:ident| $value:expr) => {{
            let left = pay!($cost);
            need!(1);
            let $a = by_limbs(*word!(1));
            *word!(1) = $value;
            gas = left;
            pass!(1);
        }};
    }
    /// Replaces the two top words by `$value`.
    macro_rules! binary {
        ($cost:expr, |$a:ident, $b:ident| $value:expr) => {{
            let left = pay!($cost);
            need!(2);
            let ($a, $b) = (by_limbs(*word!(1)), by_limbs(*word!(2)));
            *word!(2) = $value;
            top -= WORD;
            gas = left;
            pass!(1);
        }};
    }
    /// Where a jump to `$to` leads. Ends the stretch if that is no destination.
    macro_rules! destination {
        ($to:expr) => {{
            let to = $to;
            if !jumps.is_valid(to) {
                break;
            }
            // SAFETY: the position is one in the code.
            unsafe { start.add(to) }
        }};
    }
    /// The place in memory at the offset that is the top word. Takes the gas for growing the memory from `$left`, and ends
    /// the stretch if that is not enough.
    macro_rules! place {
        ($left:ident) => {{
            let at = or_end!(small(word!(1)));
            if at >= memory_words {
                $left = or_end!(grow(frame_gas, shared, params, at, $left));
                view!();
            }
            // SAFETY: the word there is within the memory.
            unsafe { &mut *memory.add(at).cast::<[u8; WORD]>() }
        }};
    }

    loop {
        let op = opcode!();
        match op {
            opcode::PUSH0 => push!(cost::BASE, U256::ZERO, 1),
            opcode::PUSH1..=opcode::PUSH8 => {
                let left = pay!(cost::VERY_LOW);
                room!();
                if ip > last_wide {
                    break;
                }
                // SAFETY: eight bytes follow within the code.
                let bytes = unsafe { ip.add(1).cast::<[u8; WIDE - 1]>().read() };
                let length = usize::from(op - opcode::PUSH0);
                let value = u64::from_be_bytes(bytes) >> (64 - 8 * length);
                gas = left;
                pass!(1 + length);
                // Nearly all destinations are pushed right before their jump, and need not go through the stack.
                if opcode!() == opcode::JUMPI && top != 0 && gas >= cost::HIGH {
                    let condition = !is_zero(word!(1));
                    let to = usize::try_from(value).unwrap_or(usize::MAX);
                    if !condition || jumps.is_valid(to) {
                        // SAFETY: the position is one in the code, or another opcode follows.
                        ip = unsafe { if condition { start.add(to) } else { ip.add(1) } };
                        top -= WORD;
                        gas -= cost::HIGH;
                        continue;
                    }
                }
                put!(U256::from(value));
            }
            opcode::PUSH9..=opcode::PUSH32 => {
                let length = usize::from(op - opcode::PUSH0);
                // The word that ends with the data.
                // SAFETY: the data is within the code.
                let end = unsafe { ip.add(1 + length) };
                if end < start.wrapping_add(WORD) {
                    break;
                }
                // SAFETY: the word begins within the code.
                let bytes = unsafe { end.sub(WORD).cast::<[[u8; 8]; 4]>().read() };
                let [d, c, b, a] = bytes.map(u64::from_be_bytes);
                let [e, f, g, h] = DATA[length - 9];
                push!(cost::VERY_LOW, U256::from_limbs([a & e, b & f, c & g, d & h]), 1 + length)
            }
            opcode::DUP1..=opcode::DUP16 => {
                let depth = usize::from(op - opcode::DUP1) + 1;
                need!(depth);
                let word = by_limbs(*word!(depth));
                push!(cost::VERY_LOW, word, 1)
            }
            opcode::SWAP1..=opcode::SWAP16 => {
                let left = pay!(cost::VERY_LOW);
                let depth = usize::from(op - opcode::SWAP1) + 2;
                need!(depth);
                let (first, other) = (by_limbs(*word!(1)), by_limbs(*word!(depth)));
                (*word!(1), *word!(depth)) = (other, first);
                gas = left;
                pass!(1);
            }
            opcode::POP => {
                let left = pay!(cost::BASE);
                need!(1);
                top -= WORD;
                gas = left;
                pass!(1);
            }

            opcode::JUMPDEST => {
                let left = pay!(cost::JUMPDEST);
                if !meter.take(1) {
                    break;
                }
                gas = left;
                pass!(1);
            }
            opcode::JUMP => {
                let left = pay!(cost::MID);
                need!(1);
                ip = destination!(or_end!(small(word!(1))));
                top -= WORD;
                gas = left;
            }
            opcode::JUMPI => {
                let left = pay!(cost::HIGH);
                need!(2);
                if is_zero(word!(2)) {
                    pass!(1);
                } else {
                    ip = destination!(or_end!(small(word!(1))));
                }
                top -= 2 * WORD;
                gas = left;
            }
            opcode::PC => {
                let pc = pc!();
                push!(cost::BASE, U256::from(pc), 1)
            }
            opcode::GAS => push!(cost::BASE, U256::from(gas - cost::BASE), 1),

            opcode::MLOAD => {
                let mut left = pay!(cost::VERY_LOW);
                need!(1);
                *word!(1) = U256::from_be_bytes(*place!(left));
                gas = left;
                pass!(1);
            }
            opcode::MSTORE => {
                let mut left = pay!(cost::VERY_LOW);
                need!(2);
                *place!(left) = word!(2).to_be_bytes();
                top -= 2 * WORD;
                gas = left;
                pass!(1);
            }
            opcode::MSIZE => push!(cost::BASE, U256::from(memory_size), 1),

            opcode::CALLDATALOAD => {
                let left = pay!(cost::VERY_LOW);
                need!(1);
                *word!(1) = call_data(&input.input, shared, word!(1));
                view!();
                gas = left;
                pass!(1);
            }
            opcode::CALLDATASIZE => push!(cost::BASE, U256::from(input.input.len()), 1),
            opcode::CALLVALUE => push!(cost::BASE, input.call_value, 1),
            opcode::CALLER => push!(cost::BASE, input.caller_address.into_word().into(), 1),
            opcode::ADDRESS => push!(cost::BASE, input.target_address.into_word().into(), 1),
            opcode::RETURNDATASIZE => push!(cost::BASE, U256::from(return_data.buffer().len()), 1),

            opcode::ADD => binary!(cost::VERY_LOW, |a, b| a.wrapping_add(b)),
            opcode::SUB => binary!(cost::VERY_LOW, |a, b| a.wrapping_sub(b)),
            opcode::MUL => binary!(cost::LOW, |a, b| a.wrapping_mul(b)),
            opcode::DIV | opcode::MOD => {
                let left = pay!(cost::LOW);
                need!(2);
                let (a, b) = (word!(1), word!(2));
                if !is_zero(b) {
                    divide(a, b);
                    if op == opcode::DIV {
                        *b = by_limbs(*a);
                    }
                }
                top -= WORD;
                gas = left;
                pass!(1);
            }

            opcode::LT => binary!(cost::VERY_LOW, |a, b| U256::from(less(a, b))),
            opcode::GT => binary!(cost::VERY_LOW, |a, b| U256::from(less(b, a))),
            opcode::SLT => binary!(cost::VERY_LOW, |a, b| U256::from(is_less_signed(a, b))),
            opcode::SGT => binary!(cost::VERY_LOW, |a, b| U256::from(is_less_signed(b, a))),
            opcode::EQ => binary!(cost::VERY_LOW, |a, b| U256::from(a == b)),
            opcode::ISZERO => unary!(cost::VERY_LOW, |a| U256::from(is_zero(&a))),
            opcode::AND => binary!(cost::VERY_LOW, |a, b| a & b),
            opcode::OR => binary!(cost::VERY_LOW, |a, b| a | b),
            opcode::XOR => binary!(cost::VERY_LOW, |a, b| a ^ b),
            opcode::NOT => unary!(cost::VERY_LOW, |a| !a),
            opcode::SHL => binary!(cost::VERY_LOW, |a, b| shift_left(b, a)),
            opcode::SHR => binary!(cost::VERY_LOW, |a, b| shift_right(b, a)),
            _ => break,
        }
    }
    // SAFETY: the words below `top` are initialised.
    unsafe { words.set_len(top / WORD) };
    frame_gas.set_remaining(gas);
    bytecode.absolute_jump(pc!());
}

/// The limbs' bits that are data in the word that ends with the data of `PUSH9` to `PUSH32`.
static DATA: [[u64; 4]; 24] = {
    let mut masks = [[0; 4]; 24];
    let mut index = 0;
    while index < masks.len() {
        let mut byte = 0;
        while byte < 9 + index {
            masks[index][byte / 8] |= 0xff << (8 * (byte % 8));
            byte += 1;
        }
        index += 1;
    }
    masks
};

#[cfg(test)]
mod tests;
