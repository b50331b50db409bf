//! Small programs of the EVM, which bodies put at addresses or create contracts with.

use alloy_primitives::Bytes;

const STOP: u8 = 0x00;
const MUL: u8 = 0x02;
const SUB: u8 = 0x03;
const CALLER: u8 = 0x33;
const CALLVALUE: u8 = 0x34;
const CALLDATASIZE: u8 = 0x36;
const CALLDATACOPY: u8 = 0x37;
const CODECOPY: u8 = 0x39;
const SLOAD: u8 = 0x54;
const SSTORE: u8 = 0x55;
const POP: u8 = 0x50;
const JUMPI: u8 = 0x57;
const JUMPDEST: u8 = 0x5b;
const PUSH0: u8 = 0x5f;
const PUSH1: u8 = 0x60;
const PUSH3: u8 = 0x62;
const DUP1: u8 = 0x80;
const SWAP1: u8 = 0x90;
const LOG0: u8 = 0xa0;
const CREATE: u8 = 0xf0;
const RETURN: u8 = 0xf3;
const REVERT: u8 = 0xfd;
const SELFDESTRUCT: u8 = 0xff;

/// Pushes a number below 2^24.
fn push(number: usize) -> [u8; 4] {
    let [.., high, middle, low] = (number as u32).to_be_bytes();
    [PUSH3, high, middle, low]
}

fn program(parts: &[&[u8]]) -> Bytes {
    parts.concat().into()
}

/// Multiplies `rounds` times in a loop.
pub fn arithmetic(rounds: usize) -> Bytes {
    const LOOP: u8 = 4;
    program(&[
        &push(rounds.max(1)),
        &[JUMPDEST, DUP1, DUP1, MUL, POP, PUSH1, 1, SWAP1, SUB, DUP1, PUSH1, LOOP, JUMPI, STOP],
    ])
}

/// Returns `length` bytes.
pub fn answer(length: usize) -> Bytes {
    program(&[&push(length), &[PUSH0, RETURN]])
}

/// Reverts with `length` bytes.
pub fn revert(length: usize) -> Bytes {
    program(&[&push(length), &[PUSH0, REVERT]])
}

/// Emits logs of these lengths, without topics.
pub fn logs(lengths: &[usize]) -> Bytes {
    let each: Vec<u8> = lengths.iter().flat_map(|length| [push(*length).as_slice(), &[PUSH0, LOG0]].concat()).collect();
    program(&[&each, &[STOP]])
}

/// Loads the slots from 0 on, and writes the last of them.
pub fn loads(count: usize) -> Bytes {
    let each: Vec<u8> = (0..count).flat_map(|slot| [push(slot).as_slice(), &[SLOAD, POP]].concat()).collect();
    program(&[&each, &push(1), &push(count), &[SSTORE, STOP]])
}

/// Destroys the contract and gives its ether to the caller.
pub fn selfdestruct() -> Bytes {
    program(&[&[CALLER, SELFDESTRUCT]])
}

/// Creates a contract by the call data, with the ether of the call.
pub fn factory() -> Bytes {
    program(&[&[CALLDATASIZE, PUSH0, PUSH0, CALLDATACOPY, CALLDATASIZE, PUSH0, CALLVALUE, CREATE, STOP]])
}

/// Creates a contract of this code.
pub fn creation(code: &[u8]) -> Bytes {
    // PUSH3 length, DUP1, PUSH1 start of the code, PUSH0, CODECOPY, PUSH0, RETURN.
    const START: u8 = 11;
    program(&[&push(code.len()), &[DUP1, PUSH1, START, PUSH0, CODECOPY, PUSH0, RETURN], code])
}
