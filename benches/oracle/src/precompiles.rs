//! Calls of precompiles, with inputs whose sizes are at the limits of the forks.

use alloy_primitives::{Address, U256, hex};

use crate::{
    dice::Dice,
    program::{Program, op},
};

pub const MODEXP: u64 = 0x05;
pub const PAIRING: u64 = 0x08;
pub const G1_MSM: u64 = 0x0c;
pub const G2_MSM: u64 = 0x0e;
pub const BLS_PAIRING: u64 = 0x0f;
pub const P256_VERIFY: u64 = 0x100;

/// All precompiles of any fork.
pub const ALL: [u64; 18] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 0x100];

/// A precompile whose input a fork limits: the size of one element, and the limits of the forks, in bytes.
pub const LIMITED: [(u64, u64, &[u64]); 4] = [
    (PAIRING, 192, &[112_687, 81_984, 57_600]),
    (G1_MSM, 160, &[513_760, 288_960]),
    (G2_MSM, 288, &[488_448, 278_784]),
    (BLS_PAIRING, 384, &[235_008, 156_672]),
];

/// A valid signature, with the hash and the key (RIP-7212's first example).
const P256_VALID: [u8; 160] = hex!(
    "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d"
    "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac"
    "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60"
    "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3"
    "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e"
);

pub fn address(number: u64) -> Address {
    Address::left_padding_from(&number.to_be_bytes())
}

/// Appends a call of a precompile with `size` bytes of memory as input, whose result is on the stack.
pub fn call(program: Program, to: u64, size: u64, gas: Option<u64>) -> Program {
    let program = program.operands(&[U256::ZERO, U256::from(size), U256::from(size), U256::from(64)]);
    let program = program.push_address(address(to));
    match gas {
        None => program.op(op::GAS),
        Some(gas) => program.push(U256::from(gas)),
    }
    .op(op::STATICCALL)
}

/// Appends a call of any precompile with an input of an expected size, or of a size near it.
pub fn random_call(dice: &mut Dice, program: Program) -> Program {
    let to = dice.pick(&ALL);
    let input = input(dice, to);
    let size = input.len() as u64;
    let gas = dice.percent(20).then(|| dice.number(18));
    let program = call(program.memory(0, &input), to, size, gas);
    // The length and the first word of the output change what is stored, too.
    program.op(op::RETURNDATASIZE).op(op::ADD).push(U256::from(size)).op(op::MLOAD).op(op::XOR)
}

/// Returns an input for a precompile, as it expects it or almost.
pub fn input(dice: &mut Dice, to: u64) -> Vec<u8> {
    let mut input = expected_input(dice, to);
    match dice.below(10) {
        0 => drop(input.pop()),
        1 => input.push(0),
        2 if !input.is_empty() => {
            let at = dice.below(input.len() as u64) as usize;
            input[at] ^= 1 << dice.below(8);
        }
        _ => (),
    }
    input
}

/// Returns an input as a precompile expects it.
pub fn expected_input(dice: &mut Dice, to: u64) -> Vec<u8> {
    let word = |number: u64| U256::from(number).to_be_bytes::<32>();
    match to {
        1 => [&dice.bytes(32)[..], &word(27 + dice.below(3)), &dice.bytes(64)].concat(),
        MODEXP => {
            let length = |dice: &mut Dice| match dice.below(8) {
                0 => dice.pick(&[1_023, 1_024, 1_025]),
                1 => dice.number(12),
                _ => dice.below(40),
            };
            let lengths = [length(dice), length(dice), length(dice)];
            let rest = lengths.iter().sum::<u64>().min(100) as usize;
            [&lengths.map(word).concat()[..], &dice.bytes(rest)].concat()
        }
        // The generator and its double of the first curve of bn254, and points that are not on it.
        6 => [word(1), word(2), word(dice.below(2)), word(2 * dice.below(2))].concat(),
        7 => [word(1), word(2), dice.word().to_be_bytes()].concat(),
        PAIRING => vec![0; 192 * dice.below(4) as usize],
        9 => {
            let mut input = dice.bytes(213);
            input[..4].copy_from_slice(&(dice.number(9) as u32).to_be_bytes());
            input[212] = dice.below(3) as u8;
            input
        }
        10 => dice.bytes(192),
        11 => vec![0; 256],
        G1_MSM => vec![0; 160 * dice.below(4) as usize],
        13 => vec![0; 512],
        G2_MSM => vec![0; 288 * dice.below(4) as usize],
        BLS_PAIRING => vec![0; 384 * dice.below(4) as usize],
        16 => [&[0; 16], &dice.bytes(48)[..]].concat(),
        17 => [&[0; 16], &dice.bytes(48)[..], &[0; 16], &dice.bytes(48)[..]].concat(),
        P256_VERIFY => P256_VALID.to_vec(),
        _ => dice.data(100).to_vec(),
    }
}

/// Returns a program that calls a precompile with an input at the limit of a fork, and the gas that it needs.
pub fn at_limit(dice: &mut Dice) -> (Program, u64) {
    let (to, element, limits) = dice.pick(&LIMITED);
    let limit = dice.pick(limits);
    let size = limit / element * element;
    let size = dice.pick(&[size, size + element, size - element, limit + 1, limit]);
    // Below EIP-7825's cap, or enough for the precompile at the highest limit.
    let gas = dice.pick(&[16_777_216, 24_000_000]);
    (call(Program::default(), to, size, None).store(0).op(op::RETURNDATASIZE).store(1).op(op::GAS).store(2), gas)
}
