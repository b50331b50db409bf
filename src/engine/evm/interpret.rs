//! The interpreter loop of runs without an inspector.
//!
//! Two opcodes in three only move words, on the stack or in memory that is paid for already, or jump within the code.
//! revm calls a function for each of them, through a table, with all its state in memory, which takes most of a run's
//! time. Here a *stretch* of such opcodes runs with the state in registers. revm does the rest: all other opcodes, and
//! each of these that would fail, run out of gas, or grow the memory. A stretch ends before such an opcode, with the
//! state unchanged, and revm's instruction runs. So this module has no rule for how a run ends, and none that a fork
//! changes.

use alloy_primitives::U256;
use revm::{
    bytecode::{JumpTable, opcode},
    interpreter::{
        GasTable, InstructionResult, InstructionTable, Interpreter, InterpreterAction,
        interpreter::{EthInterpreter, STACK_LIMIT},
        interpreter_types::{Jumps, LoopControl, RuntimeFlag},
    },
    primitives::hardfork::SpecId,
};

use super::meter::Metered;
use crate::meter::Meter;

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
    let end = loop {
        stretch(frame, &mut host.db_mut().meter);
        if let Err(end) = frame.step(instructions, gas, host) {
            break end;
        }
    };
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
fn stretch(frame: &mut Interpreter, meter: &mut Meter) {
    let Interpreter { bytecode, gas: frame_gas, stack, memory, .. } = frame;
    let Some(jumps) = bytecode.legacy_jump_table() else { return };
    let mut pc = bytecode.pc();
    let mut gas = frame_gas.remaining();
    if stack.data().capacity() < STACK_LIMIT {
        return;
    }
    // The stack's address and length stay in registers if a local variable holds them.
    let mut words = std::mem::take(stack.data_mut());
    // The slice includes revm's padding.
    let code = bytecode.bytes_slice();
    let size = memory.len();
    let memory = &mut *memory.slice_mut(0, size);

    /// The gas left after `$cost`. Ends the stretch if there is not enough.
    macro_rules! pay {
        ($cost:expr) => {
            match gas.checked_sub($cost) {
                Some(left) => left,
                None => break,
            }
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
    macro_rules! push {
        ($cost:expr, $value:expr, $length:expr) => {{
            let left = pay!($cost);
            // The capacity is redundant, but shows the compiler that the stack does not grow and need not be in memory.
            if words.len() >= STACK_LIMIT || words.len() == words.capacity() {
                break;
            }
            words.push($value);
            gas = left;
            pc += $length;
        }};
    }
    /// Replaces the top word by `$value`.
    macro_rules! unary {
        ($cost:expr, |$a:ident| $value:expr) => {{
            let left = pay!($cost);
            let top = or_end!(words.last_mut());
            let $a = by_limbs(*top);
            *top = $value;
            gas = left;
            pc += 1;
        }};
    }
    /// Replaces the two top words by `$value`.
    macro_rules! binary {
        ($cost:expr, |$a:ident, $b:ident| $value:expr) => {{
            let left = pay!($cost);
            let [.., under, top] = words.as_mut_slice() else { break };
            let ($a, $b) = (by_limbs(*top), by_limbs(*under));
            *under = $value;
            words.pop();
            gas = left;
            pc += 1;
        }};
    }

    while let Some(&op) = code.get(pc) {
        match op {
            opcode::PUSH0 => push!(cost::BASE, U256::ZERO, 1),
            opcode::PUSH1..=opcode::PUSH8 => {
                let length = usize::from(op - opcode::PUSH0);
                let bytes = or_end!(code.get(pc + 1..).and_then(|after| after.first_chunk()));
                push!(cost::VERY_LOW, U256::from(u64::from_be_bytes(*bytes) >> (64 - 8 * length)), 1 + length)
            }
            opcode::PUSH9..=opcode::PUSH32 => {
                let length = usize::from(op - opcode::PUSH0);
                let bytes = or_end!(code.get(pc + 1..).and_then(|after| after.first_chunk()));
                push!(cost::VERY_LOW, U256::from_be_bytes::<32>(*bytes) >> (256 - 8 * length), 1 + length)
            }
            opcode::DUP1..=opcode::DUP16 => {
                let depth = usize::from(op - opcode::DUP1) + 1;
                let word = by_limbs(words[or_end!(words.len().checked_sub(depth))]);
                push!(cost::VERY_LOW, word, 1)
            }
            opcode::SWAP1..=opcode::SWAP16 => {
                let left = pay!(cost::VERY_LOW);
                let depth = usize::from(op - opcode::SWAP1) + 1;
                let [under @ .., top] = words.as_mut_slice() else { break };
                let index = or_end!(under.len().checked_sub(depth));
                (*top, under[index]) = (by_limbs(under[index]), by_limbs(*top));
                gas = left;
                pc += 1;
            }
            opcode::POP => {
                let left = pay!(cost::BASE);
                or_end!(words.pop());
                gas = left;
                pc += 1;
            }

            opcode::JUMPDEST => {
                let left = pay!(cost::JUMPDEST);
                if !meter.take(1) {
                    break;
                }
                gas = left;
                pc += 1;
            }
            opcode::JUMP => {
                let left = pay!(cost::MID);
                let to = or_end!(words.last().and_then(|word| destination(jumps, word)));
                words.pop();
                gas = left;
                pc = to;
            }
            opcode::JUMPI => {
                let left = pay!(cost::HIGH);
                let [.., condition, target] = words.as_slice() else { break };
                pc = if is_zero(condition) { pc + 1 } else { or_end!(destination(jumps, target)) };
                words.truncate(words.len() - 2);
                gas = left;
            }
            opcode::PC => push!(cost::BASE, U256::from(pc), 1),
            opcode::GAS => push!(cost::BASE, U256::from(gas - cost::BASE), 1),

            opcode::MLOAD => {
                let left = pay!(cost::VERY_LOW);
                let top = or_end!(words.last_mut());
                let bytes = or_end!(small(top).and_then(|at| memory.get(at..)?.first_chunk()));
                *top = U256::from_be_bytes::<32>(*bytes);
                gas = left;
                pc += 1;
            }
            opcode::MSTORE => {
                let left = pay!(cost::VERY_LOW);
                let [.., value, at] = words.as_slice() else { break };
                let bytes = or_end!(small(at).and_then(|at| memory.get_mut(at..)?.first_chunk_mut()));
                *bytes = value.to_be_bytes::<32>();
                words.truncate(words.len() - 2);
                gas = left;
                pc += 1;
            }
            opcode::MSIZE => push!(cost::BASE, U256::from(memory.len()), 1),

            opcode::ADD => binary!(cost::VERY_LOW, |a, b| a.wrapping_add(b)),
            opcode::SUB => binary!(cost::VERY_LOW, |a, b| a.wrapping_sub(b)),
            opcode::MUL => binary!(cost::LOW, |a, b| a.wrapping_mul(b)),
            opcode::DIV => binary!(cost::LOW, |a, b| a.checked_div(b).unwrap_or_default()),
            opcode::MOD => binary!(cost::LOW, |a, b| a.checked_rem(b).unwrap_or_default()),

            opcode::LT => binary!(cost::VERY_LOW, |a, b| U256::from(a < b)),
            opcode::GT => binary!(cost::VERY_LOW, |a, b| U256::from(a > b)),
            // For two words of the same sign, the signed order is the unsigned one.
            opcode::SLT => {
                binary!(cost::VERY_LOW, |a, b| U256::from(if a.bit(255) == b.bit(255) { a < b } else { a.bit(255) }))
            }
            opcode::SGT => {
                binary!(cost::VERY_LOW, |a, b| U256::from(if a.bit(255) == b.bit(255) { a > b } else { b.bit(255) }))
            }
            opcode::EQ => binary!(cost::VERY_LOW, |a, b| U256::from(a == b)),
            opcode::ISZERO => unary!(cost::VERY_LOW, |a| U256::from(is_zero(&a))),
            opcode::AND => binary!(cost::VERY_LOW, |a, b| a & b),
            opcode::OR => binary!(cost::VERY_LOW, |a, b| a | b),
            opcode::XOR => binary!(cost::VERY_LOW, |a, b| a ^ b),
            opcode::NOT => unary!(cost::VERY_LOW, |a| !a),
            opcode::SHL => binary!(cost::VERY_LOW, |a, b| bits(&a).map_or(U256::ZERO, |bits| b << bits)),
            opcode::SHR => binary!(cost::VERY_LOW, |a, b| bits(&a).map_or(U256::ZERO, |bits| b >> bits)),
            _ => break,
        }
    }
    *stack.data_mut() = words;
    frame_gas.set_remaining(gas);
    bytecode.absolute_jump(pc);
}

/// Returns `word`, read limb by limb.
///
/// Arithmetic writes a word as four stores of one limb each. A load that is wider than the store it depends on waits
/// until the store has reached the cache, some dozen cycles. The compiler emits such loads where it sees four limbs
/// copied or compared; this function hides that.
#[inline(always)]
fn by_limbs(word: U256) -> U256 {
    U256::from_limbs(word.into_limbs().map(|mut limb| {
        // SAFETY: the assembly has no instruction, and its operand is a limb in a register.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) limb, options(pure, nomem, nostack, preserves_flags)) };
        limb
    }))
}

#[inline(always)]
fn is_zero(word: &U256) -> bool {
    let [a, b, c, d] = by_limbs(*word).into_limbs();
    a | b | c | d == 0
}

/// Returns a word as an index, or `None` if it is too large.
fn small(word: &U256) -> Option<usize> {
    match *word.as_limbs() {
        [low, 0, 0, 0] => usize::try_from(low).ok(),
        _ => None,
    }
}

/// Returns by how many bits a word shifts another, or `None` if the shift leaves nothing.
fn bits(word: &U256) -> Option<usize> {
    small(word).filter(|bits| *bits < 256)
}

/// Returns the destination of a jump to `word`, or `None` if it is invalid.
fn destination(jumps: &JumpTable, word: &U256) -> Option<usize> {
    small(word).filter(|to| jumps.is_valid(*to))
}

#[cfg(test)]
mod tests;
