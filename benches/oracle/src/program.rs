//! Random programs: most statements leave the stack as it was, and write what they learn to storage.

use alloy_primitives::{Address, Bytes, U256};

use crate::{dice::Dice, precompiles};

/// Opcodes by their names.
pub mod op {
    pub const STOP: u8 = 0x00;
    pub const ADD: u8 = 0x01;
    pub const SUB: u8 = 0x03;
    pub const OR: u8 = 0x17;
    pub const XOR: u8 = 0x18;
    pub const SHL: u8 = 0x1b;
    pub const SHR: u8 = 0x1c;
    pub const KECCAK256: u8 = 0x20;
    pub const BALANCE: u8 = 0x31;
    pub const CALLER: u8 = 0x33;
    pub const CALLDATALOAD: u8 = 0x35;
    pub const CALLDATACOPY: u8 = 0x37;
    pub const CODECOPY: u8 = 0x39;
    pub const EXTCODECOPY: u8 = 0x3c;
    pub const RETURNDATASIZE: u8 = 0x3d;
    pub const RETURNDATACOPY: u8 = 0x3e;
    pub const BLOCKHASH: u8 = 0x40;
    pub const NUMBER: u8 = 0x43;
    pub const BLOBHASH: u8 = 0x49;
    pub const BLOBBASEFEE: u8 = 0x4a;
    pub const POP: u8 = 0x50;
    pub const MLOAD: u8 = 0x51;
    pub const MSTORE: u8 = 0x52;
    pub const SLOAD: u8 = 0x54;
    pub const SSTORE: u8 = 0x55;
    pub const JUMPI: u8 = 0x57;
    pub const GAS: u8 = 0x5a;
    pub const JUMPDEST: u8 = 0x5b;
    pub const TLOAD: u8 = 0x5c;
    pub const TSTORE: u8 = 0x5d;
    pub const MCOPY: u8 = 0x5e;
    pub const PUSH0: u8 = 0x5f;
    pub const PUSH1: u8 = 0x60;
    pub const PUSH2: u8 = 0x61;
    pub const DUP1: u8 = 0x80;
    pub const SWAP1: u8 = 0x90;
    pub const LOG0: u8 = 0xa0;
    pub const CREATE: u8 = 0xf0;
    pub const CALL: u8 = 0xf1;
    pub const CALLCODE: u8 = 0xf2;
    pub const RETURN: u8 = 0xf3;
    pub const DELEGATECALL: u8 = 0xf4;
    pub const CREATE2: u8 = 0xf5;
    pub const STATICCALL: u8 = 0xfa;
    pub const REVERT: u8 = 0xfd;
    pub const INVALID: u8 = 0xfe;
    pub const SELFDESTRUCT: u8 = 0xff;
}

/// Opcodes without an operand whose result depends on the transaction, the block or the frame.
const FACTS: [u8; 20] = [
    0x30, 0x32, 0x33, 0x34, 0x36, 0x38, 0x3a, 0x3d, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x58, 0x59, 0x5a,
    0x5a,
];
/// Opcodes of an account: BALANCE, EXTCODESIZE, EXTCODEHASH.
const ACCOUNT_FACTS: [u8; 3] = [0x31, 0x3b, 0x3f];
/// Opcodes with two operands.
const BINARY: [u8; 20] = [
    0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x13, 0x14, 0x16, 0x17, 0x1a, 0x1b, 0x1c,
    0x1d,
];
/// Init codes that deploy nothing, 32 zeros, code of a forbidden format and code that is too long; that revert, stop at
/// an invalid opcode, write a slot, and destroy themselves.
const INITS: [&[u8]; 8] = [
    &[],
    &[0x60, 0x20, 0x60, 0x00, 0xf3],
    &[0x60, 0xef, 0x60, 0x00, 0x53, 0x60, 0x01, 0x60, 0x00, 0xf3],
    &[0x61, 0x60, 0x01, 0x60, 0x00, 0xf3],
    &[0x60, 0x00, 0x60, 0x00, 0xfd],
    &[0xfe],
    &[0x60, 0x01, 0x60, 0x00, 0x55, 0x60, 0x01, 0x60, 0x00, 0xf3],
    &[0x33, 0xff],
];

/// A program that grows.
#[derive(Clone, Default)]
pub struct Program {
    code: Vec<u8>,
}

impl Program {
    /// Appends an opcode.
    pub fn op(mut self, op: u8) -> Self {
        self.code.push(op);
        self
    }

    /// Appends a PUSH. Zero takes a byte of its own: PUSH0 is newer than the oldest forks.
    pub fn push(mut self, word: U256) -> Self {
        let bytes = word.to_be_bytes_trimmed_vec();
        let bytes = if bytes.is_empty() { vec![0] } else { bytes };
        self.code.push(op::PUSH1 + bytes.len() as u8 - 1);
        self.code.extend(bytes);
        self
    }

    pub fn push_address(mut self, address: Address) -> Self {
        self.code.push(op::PUSH1 + 19);
        self.code.extend(address);
        self
    }

    /// Appends a PUSH for each word, the last first, so that the first is on top.
    pub fn operands(mut self, words: &[U256]) -> Self {
        for word in words.iter().rev() {
            self = self.push(*word);
        }
        self
    }

    /// Appends code that stores the top of the stack in a slot.
    pub fn store(self, slot: u64) -> Self {
        self.push(U256::from(slot)).op(op::SSTORE)
    }

    /// Appends code that copies bytes to memory.
    pub fn memory(mut self, offset: u64, bytes: &[u8]) -> Self {
        for (at, chunk) in bytes.chunks(32).enumerate().filter(|(_, chunk)| chunk.iter().any(|byte| *byte != 0)) {
            let mut word = [0; 32];
            word[..chunk.len()].copy_from_slice(chunk);
            self = self.push(U256::from_be_bytes(word)).push(U256::from(offset + 32 * at as u64)).op(op::MSTORE);
        }
        self
    }

    /// Appends code that ends with these bytes as output.
    pub fn end(self, how: u8, offset: u64, length: u64) -> Self {
        self.push(U256::from(length)).push(U256::from(offset)).op(how)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.code.extend(bytes);
        self
    }

    pub fn length(&self) -> usize {
        self.code.len()
    }

    pub fn code(self) -> Bytes {
        self.code.into()
    }
}

/// Returns a random program that calls, pays and looks at `targets`.
pub fn random(dice: &mut Dice, targets: &[Address]) -> Program {
    let mut program = Program::default();
    for _ in 0..dice.below(12) {
        program = statement(dice, targets, program, 0);
    }
    match dice.below(12) {
        0 => program.op(op::INVALID),
        1 | 2 => program.end(op::REVERT, dice.below(64), dice.below(70)),
        3 => program.push_address(dice.pick(targets)).op(op::SELFDESTRUCT),
        4 | 5 => program.op(op::STOP),
        6 => program,
        _ => program.end(op::RETURN, dice.below(64), dice.below(70)),
    }
}

/// Returns init code: a random program that ends with code to deploy, or not.
pub fn init(dice: &mut Dice, targets: &[Address]) -> Bytes {
    if dice.percent(25) {
        return dice.pick(&INITS).to_vec().into();
    }
    let mut program = Program::default();
    for _ in 0..dice.below(5) {
        program = statement(dice, targets, program, 0);
    }
    let deployed = if dice.percent(70) { random(dice, targets).code() } else { dice.data(40) };
    let length = deployed.len() as u64;
    program.memory(0, &deployed).end(op::RETURN, 0, length).code()
}

fn small(dice: &mut Dice) -> U256 {
    U256::from(dice.below(6))
}

fn statement(dice: &mut Dice, targets: &[Address], program: Program, depth: u64) -> Program {
    let slot = dice.below(6);
    match dice.below(40) {
        0..=4 => {
            let value = if dice.percent(60) { small(dice) } else { dice.word() };
            program.push(value).store(slot)
        }
        5..=8 => program.op(dice.pick(&FACTS)).store(slot),
        9..=11 => program.push_address(dice.pick(targets)).op(dice.pick(&ACCOUNT_FACTS)).store(slot),
        12 => program.push(small(dice)).op(op::SLOAD).store(slot),
        13..=14 => program.memory(dice.below(200), &dice.bytes(32)),
        15 => {
            let words = [dice.below(200), dice.below(100)].map(U256::from);
            program.operands(&words).op(op::KECCAK256).store(slot)
        }
        16..=18 => {
            let topics = dice.below(5);
            let mut words = vec![U256::from(dice.below(100)), U256::from(dice.below(80))];
            words.extend((0..topics).map(|_| dice.word()));
            program.operands(&words).op(op::LOG0 + topics as u8)
        }
        19..=24 => call(dice, targets, program).store(slot),
        25..=26 => {
            let init = dice.pick(&INITS);
            let program = program.memory(0, init);
            let value = U256::from(if dice.percent(70) { 0 } else { dice.number(20) });
            let words = [value, U256::ZERO, U256::from(init.len())];
            match dice.percent(50) {
                true => program.operands(&words).op(op::CREATE).store(slot),
                false => {
                    let salted = [&words[..], &[small(dice)]].concat();
                    program.operands(&salted).op(op::CREATE2).store(slot)
                }
            }
        }
        27 if dice.percent(25) => program.push_address(dice.pick(targets)).op(op::SELFDESTRUCT),
        28 => newer(dice, program, slot),
        29..=30 if depth < 2 => {
            // A part that runs if the condition is zero.
            let inner = statement(dice, targets, Program::default(), 2).code;
            let condition = if dice.percent(50) { small(dice) } else { U256::from(dice.below(2)) };
            let program = program.push(condition);
            let end = (program.code.len() + 4 + inner.len()) as u16;
            let program = program.op(op::PUSH2).raw(&end.to_be_bytes()).op(op::JUMPI);
            program.raw(&inner).op(op::JUMPDEST)
        }
        31 if depth < 2 => {
            let program = program.push(U256::from(1 + dice.below(5))).op(op::JUMPDEST);
            let begin = program.code.len() as u16 - 1;
            let program = statement(dice, targets, program, 2);
            let program = program.push(U256::from(1)).op(op::SWAP1).op(op::SUB).op(op::DUP1);
            program.op(op::PUSH2).raw(&begin.to_be_bytes()).op(op::JUMPI).op(op::POP)
        }
        32..=33 => program.operands(&[dice.word(), dice.word()]).op(dice.pick(&BINARY)).store(slot),
        34 => {
            let program = program.push(U256::from(1 + dice.below(4))).op(op::NUMBER).op(op::SUB);
            program.op(op::BLOCKHASH).store(slot)
        }
        35 => {
            let words = [dice.below(100), dice.below(40), dice.below(80)].map(U256::from);
            match dice.below(4) {
                0 => program.push(small(dice)).op(op::CALLDATALOAD).store(slot),
                1 => program.operands(&words).op(op::CALLDATACOPY),
                2 => program.operands(&words).op(op::CODECOPY),
                _ => program.operands(&words).push_address(dice.pick(targets)).op(op::EXTCODECOPY),
            }
        }
        36..=37 => precompiles::random_call(dice, program).store(slot),
        38 if dice.percent(30) => {
            let length = 1 + dice.below(6) as usize;
            program.raw(&dice.bytes(length))
        }
        _ => program.push(dice.word()).op(op::POP),
    }
}

/// Appends a call, whose result is on the stack. It may copy what the call returns.
fn call(dice: &mut Dice, targets: &[Address], program: Program) -> Program {
    let memory = [dice.below(100), dice.below(70), dice.below(100), dice.below(70)].map(U256::from);
    let to = dice.pick(targets);
    let kind = dice.pick(&[op::CALL, op::CALL, op::CALL, op::CALLCODE, op::DELEGATECALL, op::STATICCALL]);
    let mut program = program.operands(&memory);
    if matches!(kind, op::CALL | op::CALLCODE) {
        program = program.push(match dice.below(10) {
            0..=4 => U256::ZERO,
            5..=8 => U256::from(dice.number(24)),
            _ => dice.word(),
        });
    }
    program = program.push_address(to);
    program = match dice.percent(70) {
        true => program.op(op::GAS),
        false => program.push(U256::from(dice.number(18))),
    };
    program = program.op(kind);
    if dice.percent(20) {
        program = program.op(op::RETURNDATASIZE).push(U256::ZERO).push(U256::ZERO).op(op::RETURNDATACOPY);
    }
    program
}

/// Appends an opcode that not every fork has.
fn newer(dice: &mut Dice, program: Program, slot: u64) -> Program {
    match dice.below(6) {
        0 => program.op(op::BLOBBASEFEE).store(slot),
        1 => program.push(small(dice)).op(op::BLOBHASH).store(slot),
        2 => program.operands(&[small(dice), dice.word()]).op(op::TSTORE).push(small(dice)).op(op::TLOAD).store(slot),
        3 => {
            let words = [dice.below(90), dice.below(90), dice.below(90)].map(U256::from);
            program.operands(&words).op(op::MCOPY).push(U256::ZERO).op(op::MLOAD).store(slot)
        }
        4 => program.op(op::PUSH0).store(slot),
        // CLZ, of Osaka.
        _ => program.push(dice.word()).op(0x1e).store(slot),
    }
}
