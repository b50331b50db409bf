//! The predeploy `L1Block`, and the deposit at the start of each block that sets it.

use alloy_primitives::{B256, Bytes, U256, keccak256};

use crate::{
    block_case::BlockTransaction,
    case::PreAccount,
    dice::Dice,
    execute::Deposit,
    generate::{DEPOSITOR, L1_BLOCK, L1Fees},
    program::{Program, op},
    transactions::{Envelope, Fields, encode_by},
};

/// The slots of `L1Block` that the deposit sets, each with the place of its value in the data: the first byte, and the
/// number of bytes ([Jovian](https://specs.optimism.io/protocol/jovian/l1-attributes.html)).
const SLOTS: [(u64, u64, u64); 6] = [
    // The time and the number of the L1 block.
    (0, 20, 16),
    // The base fee of the L1 block.
    (1, 36, 32),
    // The hash of the L1 block.
    (2, 100, 32),
    // The scalars of the base fee and of the blob base fee, and the sequence number.
    (3, 4, 16),
    // The batcher's hash.
    (4, 132, 32),
    // The blob base fee.
    (7, 68, 32),
];

/// Returns the predeploy with these fees in its storage, and code that stores the data of the depositor's calls.
pub fn contract(fees: &L1Fees, sequence_number: u64) -> PreAccount {
    let mut body = Program::default();
    for (slot, first, length) in SLOTS {
        body = load(body, first, length).store(slot);
    }
    // The scalar of the DA footprint is the last in the data, and in front of the operator's in slot 8.
    let body = load(body, 176, 2).push(U256::from(96)).op(op::SHL);
    let body = load(body, 164, 12).op(op::OR).store(8).code();
    let check = Program::default().push_address(DEPOSITOR).op(op::CALLER).op(op::XOR);
    let end = (check.length() + 4 + body.len()) as u16;
    let code =
        check.op(op::PUSH2).raw(&end.to_be_bytes()).op(op::JUMPI).raw(&body).op(op::JUMPDEST).op(op::STOP).code();
    PreAccount { code, ..fees.account(sequence_number) }
}

/// Appends code that loads `length` bytes of the data as a number.
fn load(program: Program, first: u64, length: u64) -> Program {
    let program = program.push(U256::from(first)).op(op::CALLDATALOAD);
    if length == 32 { program } else { program.push(U256::from(256 - 8 * length)).op(op::SHR) }
}

/// Returns the deposit that sets these fees.
pub fn deposit(dice: &mut Dice, fees: &L1Fees, sequence_number: u64) -> BlockTransaction {
    let word = |number: U256| number.to_be_bytes::<32>();
    let input: Bytes = [
        &keccak256("setL1BlockValuesJovian()")[..4],
        &fees.base_fee_scalar.to_be_bytes(),
        &fees.blob_base_fee_scalar.to_be_bytes(),
        &sequence_number.to_be_bytes(),
        &1_700_000_000_u64.to_be_bytes(),
        &20_000_000_u64.to_be_bytes(),
        &word(fees.base_fee),
        &word(fees.blob_base_fee),
        &[0x11; 32],
        &[0x22; 32],
        &fees.operator_scalar.to_be_bytes(),
        &fees.operator_constant.to_be_bytes(),
        &fees.footprint_scalar.to_be_bytes(),
    ]
    .concat()
    .into();
    let fields = Fields { gas_limit: 500_000, to: L1_BLOCK.into(), input, ..Fields::default() };
    let deposit = Deposit::by(DEPOSITOR, B256::from_slice(&dice.bytes(32)));
    let tx = encode_by(dice, DEPOSITOR, Envelope::Deposit, fields, &deposit);
    BlockTransaction { sender: DEPOSITOR, tx }
}
