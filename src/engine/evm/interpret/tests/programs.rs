//! Random programs, biased to the opcodes of a stretch and to the boundaries at which one ends.

use alloy_primitives::{Address, Bytes, U256};
use proptest::{collection::vec, prelude::*, sample::select};
use revm::bytecode::opcode::*;

/// A part of a program.
#[derive(Clone, Debug)]
pub enum Part {
    /// Any byte, which need not be an opcode.
    Byte(u8),
    Push(Vec<u8>),
    /// A push of zeros and `word`, in as many bytes as the opcode has.
    PushAs(u8, u8),
    /// A jump destination.
    Label,
    /// The byte of a jump destination within the data of a push, where no jump may go.
    HiddenLabel,
    /// A push of a label, whose index wraps around.
    PushLabel(usize),
    /// A jump to a label, or to a hidden one. The index wraps around. In a program without such a label, the jump goes
    /// to byte 3.
    Jump {
        label: usize,
        hidden: bool,
        /// Whether the word has a higher limb too, so that it is no destination.
        far: bool,
        conditional: bool,
    },
    /// A call or a creation, with all gas or a little.
    Call {
        kind: u8,
        to: u8,
        gas: Option<u16>,
        value: bool,
    },
}

/// Returns the address of one of the contracts that a program may call.
pub const fn contract(index: u8) -> Address {
    Address::with_last_byte(0x80 + index)
}

/// Generates words, many at the edges of arithmetic, shifts, signs and offsets.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let bit = |bit: usize| U256::from(1) << bit;
    let edges = [0_u64, 1, 2, 7, 8, 31, 32, 33, 63, 64, 96, 255, 256, 257, u64::MAX]
        .map(U256::from)
        .into_iter()
        .chain([
            bit(64),
            bit(128),
            bit(255),
            bit(255) - U256::from(1),
            !bit(255),
            U256::MAX,
            U256::MAX - U256::from(31),
        ])
        .map(|word| word.to_be_bytes_trimmed_vec())
        .collect::<Vec<_>>();
    prop_oneof![3 => select(edges), 1 => vec(any::<u8>(), 1..=32), 2 => vec(0_u8..96, 1)]
}

/// The opcodes of a stretch that take words, and some that end it.
const PLAIN: [[u8; 7]; 8] = [
    [ADD, MUL, SUB, DIV, MOD, LT, GT],
    [SLT, SGT, EQ, ISZERO, AND, OR, XOR],
    [NOT, SHL, SHR, POP, MLOAD, MLOAD, MSTORE],
    [MSTORE, MSTORE8, PC, MSIZE, GAS, JUMP, JUMPI],
    [JUMPDEST, KECCAK256, SLOAD, SSTORE, CALLDATALOAD, CALLER, SDIV],
    [SMOD, BYTE, SAR, SIGNEXTEND, MULMOD, MCOPY, LOG1],
    [ADDRESS, RETURNDATASIZE, CALLDATASIZE, CALLVALUE, EXP, TLOAD, TSTORE],
    [CALLDATALOAD, CALLER, CLZ, ADDMOD, ORIGIN, CODESIZE, SELFBALANCE],
];

fn arithmetic() -> impl Strategy<Value = u8> {
    select(vec![ADD, MUL, SUB, DIV, MOD, LT, GT, SLT, SGT, EQ, AND, OR, XOR, SHL, SHR])
}

/// Generates operations on words at the edges of signs and limbs, on memory at its end, and on a condition.
fn edged() -> impl Strategy<Value = Vec<Part>> {
    let bit = |bit: usize| U256::from(1) << bit;
    let [high, one] = [bit(255), U256::from(1)];
    let edges = [U256::ZERO, one, bit(64), bit(64) + one, bit(128), high - one, high, high + one, U256::MAX];
    let word = || select(edges.map(|word| word.to_be_bytes_trimmed_vec()).to_vec());
    let push = Part::Push;
    let operation = (arithmetic(), word(), prop_oneof![3 => word().prop_map(Some), 1 => Just(None)]);
    let operation = operation.prop_map(move |(op, under, top)| {
        let top = top.unwrap_or_else(|| under.clone());
        vec![push(under), push(top), Part::Byte(op)]
    });
    let bits = prop_oneof![3 => select(vec![0_u16, 1, 63, 64, 255, 256, 257]), 2 => 0_u16..256];
    let shift = (select(vec![SHL, SHR]), word(), bits);
    let shift =
        shift.prop_map(move |(op, word, bits)| vec![push(word), push(bits.to_be_bytes().to_vec()), Part::Byte(op)]);
    let last = (select(vec![0_u8, 1, 31]), select(vec![MLOAD, MSTORE])).prop_map(move |(beyond, op)| {
        let memory = vec![push(vec![7]), push(vec![0]), Part::Byte(MSTORE)];
        let at = vec![push(vec![7]), push(vec![32 - beyond]), Part::Byte(MSIZE), Part::Byte(SUB), Part::Byte(op)];
        [memory, at].concat()
    });
    let condition = word().prop_map(move |word| vec![push(word), Part::Byte(ISZERO)]);
    let no_jump = word().prop_map(move |to| vec![push(vec![0]), push(to), Part::Byte(JUMPI)]);
    prop_oneof![8 => operation, 2 => shift, 2 => last, 1 => condition, 1 => no_jump]
}

/// Generates the code that blocks translate in special ways: orders of words, conditions, and jumps to computed places.
fn shaped() -> impl Strategy<Value = Vec<Part>> {
    let bytes = |ops: Vec<u8>| ops.into_iter().map(Part::Byte).collect::<Vec<_>>();
    let order = vec(select(vec![DUP1, DUP2, DUP4, SWAP1, SWAP2, SWAP3, SWAP4, SWAP7, POP, GAS, CALLDATASIZE]), 2..40);
    let operands =
        prop_oneof![2 => Just(vec![]), 1 => words().prop_map(|word| vec![Part::Push(word), Part::Byte(DUP2)])];
    let compare = (
        operands,
        select(vec![LT, GT, SLT, SGT, EQ, ISZERO, SUB, AND]),
        0_usize..3,
        select(vec![vec![], vec![DUP1], vec![POP]]),
        0_usize..8,
    );
    let branch = compare.prop_map(move |(operands, op, nots, then, label)| {
        let condition = bytes([vec![op], vec![ISZERO; nots], then].concat());
        let jump = Part::Jump { label, hidden: false, far: false, conditional: true };
        [operands, condition, vec![jump]].concat()
    });
    let function = (0_usize..8, words(), select(vec![vec![], vec![SWAP1], vec![SWAP1, POP, SWAP1], vec![DUP2]]));
    let function = function.prop_map(move |(label, word, order)| {
        let enter = vec![Part::PushLabel(label), Part::Push(word), Part::Label];
        [enter, bytes(order), vec![Part::Byte(JUMP)]].concat()
    });
    prop_oneof![3 => order.prop_map(bytes), 3 => branch, 1 => function]
}

/// Generates the parts of a program without calls.
pub fn parts() -> impl Strategy<Value = Vec<Part>> {
    let one = |part: BoxedStrategy<Part>| part.prop_map(|part| vec![part]).boxed();
    let rarely = prop::bool::weighted(0.1);
    let jump = (0_usize..8, rarely, rarely, any::<bool>());
    let jump = jump.prop_map(|(label, hidden, far, conditional)| Part::Jump { label, hidden, far, conditional });
    let part = prop_oneof![
        10 => one(select(PLAIN.concat()).prop_map(Part::Byte).boxed()),
        5 => one((DUP1..=SWAP16).prop_map(Part::Byte).boxed()),
        6 => one(words().prop_map(Part::Push).boxed()),
        4 => one(push_of_length().boxed()),
        6 => edged().boxed(),
        2 => shaped().boxed(),
        1 => one(any::<u8>().prop_map(Part::Byte).boxed()),
        1 => one(Just(Part::Label).boxed()),
        1 => one(Just(Part::HiddenLabel).boxed()),
        2 => one(jump.boxed()),
    ];
    let usual = (prop_oneof![1 => Just(0), 2 => Just(20)], vec(part, 1..80));
    let usual = usual.prop_map(|(filled, parts)| fill(filled).chain(parts.into_iter().flatten()).collect());
    let far = |op| vec![Part::Push(vec![1, 0, 0, 0, 0, 0, 0, 0, 0]), Part::Byte(op)];
    let far_jump = |conditional| vec![Part::Label, Part::Jump { label: 0, hidden: false, far: true, conditional }];
    let end = select(vec![far(MLOAD), far(MSTORE), far_jump(false), far_jump(true), vec![]]);
    let edges = (vec(edged(), 1..30), end).prop_map(|(parts, end)| parts.into_iter().flatten().chain(end).collect());
    // The stack becomes full again and again, and is full in the end.
    let pushing = prop_oneof![
        5 => push_of_length(),
        2 => (DUP1..=DUP16).prop_map(Part::Byte),
        2 => select(vec![PC, GAS, MSIZE, CALLDATASIZE, CALLVALUE, CALLER, ADDRESS, RETURNDATASIZE]).prop_map(Part::Byte),
    ];
    let full = (vec(pushing.clone(), 6), vec(pushing, 2)).prop_map(|(tried, last)| {
        let tried = tried.into_iter().flat_map(|part| [part, Part::Byte(POP)]);
        fill(1023).chain(tried).chain(last).collect()
    });
    // The stack has just the words that an opcode takes, or one less.
    let short = (DUP1..=SWAP16, prop::bool::weighted(0.2)).prop_map(|(op, enough)| {
        let taken = if op < SWAP1 { op - DUP1 + 1 } else { op - SWAP1 + 2 };
        fill(usize::from(taken) - usize::from(!enough)).chain([Part::Byte(op)]).collect()
    });
    prop_oneof![4 => usual, 3 => edges, 8 => full, 5 => short]
}

/// Returns pushes of `count` words.
fn fill(count: usize) -> impl Iterator<Item = Part> {
    (0..count).map(|index| Part::Push(vec![index as u8]))
}

fn push_of_length() -> impl Strategy<Value = Part> {
    (PUSH0..=PUSH32, any::<u8>()).prop_map(|(op, word)| Part::PushAs(op, word))
}

/// Generates parts that seldom fail, so that most frames go on behind them. They leave the memory's first word alone.
pub fn calm() -> impl Strategy<Value = Vec<Part>> + Clone {
    prop_oneof![
        3 => (words(), words(), arithmetic()).prop_map(|(a, b, op)| vec![Part::Push(a), Part::Push(b), Part::Byte(op)]),
        1 => words().prop_map(|word| vec![Part::Push(word), Part::Push(vec![64]), Part::Byte(MSTORE)]),
        1 => (0_u8..4).prop_map(|slot| vec![Part::Byte(GAS), Part::Push(vec![slot]), Part::Byte(SSTORE)]),
        1 => (0_u8..4).prop_map(|slot| vec![Part::Push(vec![slot]), Part::Byte(SLOAD)]),
        1 => Just(vec![Part::Label]),
        1 => Just(vec![Part::Push(vec![32]), Part::Push(vec![64]), Part::Byte(LOG0)]),
    ]
    .boxed()
}

/// Generates the parts of a contract that calls others, or itself in as many frames as its gas allows.
pub fn callers() -> impl Strategy<Value = Vec<Part>> {
    let kind = select(vec![CALL, CALL, DELEGATECALL, STATICCALL, CALLCODE, CREATE, CREATE2]);
    let gas = prop_oneof![3 => Just(None), 1 => (0_u16..5_000).prop_map(Some)];
    let call = (kind, 0_u8..4, gas, prop::bool::weighted(0.1));
    let call = call.prop_map(|(kind, to, gas, value)| vec![Part::Call { kind, to, gas, value }]);
    let end = prop_oneof![
        2 => Just(vec![]),
        1 => select(vec![RETURN, REVERT]).prop_map(|op| vec![Part::Push(vec![32]), Part::Push(vec![64]), Part::Byte(op)]),
        1 => parts(),
    ];
    (vec(calm(), 0..12), call.clone(), vec(prop_oneof![6 => calm(), 1 => call], 0..12), end).prop_map(
        |(before, call, after, end)| {
            before.into_iter().flatten().chain(call).chain(after.into_iter().flatten()).chain(end).collect()
        },
    )
}

/// Returns the code of a program.
pub fn assemble(parts: &[Part]) -> Bytes {
    let mut code = Vec::new();
    let (mut labels, mut hidden_labels, mut jumps) = (Vec::new(), Vec::new(), Vec::new());
    let push = |code: &mut Vec<u8>, word: &[u8]| {
        code.push(PUSH0 + word.len() as u8);
        code.extend_from_slice(word);
    };
    for part in parts {
        match part {
            Part::PushLabel(label) => {
                code.push(PUSH2);
                jumps.push((code.len(), *label, false));
                code.extend([0, 3]);
            }
            Part::Byte(byte) => code.push(*byte),
            Part::Push(word) => push(&mut code, word),
            Part::PushAs(op, word) => {
                let mut bytes = vec![0; usize::from(op - PUSH0)];
                if let Some(last) = bytes.last_mut() {
                    *last = *word;
                }
                push(&mut code, &bytes);
            }
            Part::Label => {
                labels.push(code.len() as u16);
                code.push(JUMPDEST);
            }
            Part::HiddenLabel => {
                hidden_labels.push(code.len() as u16 + 1);
                push(&mut code, &[JUMPDEST]);
            }
            Part::Jump { label, hidden, far, conditional } => {
                if *far {
                    push(&mut code, &[1, 0, 0, 0, 0, 0, 0, 0, 0]);
                }
                code.push(PUSH2);
                jumps.push((code.len(), *label, *hidden));
                code.extend([0, 3]);
                if *far {
                    code.push(OR);
                }
                code.push(if *conditional { JUMPI } else { JUMP });
            }
            Part::Call { kind, to, gas, value } => {
                let value = [u8::from(*value)];
                if matches!(*kind, CREATE | CREATE2) {
                    // The code of the contract is the end of the word at 64, with a salt that is not used twice.
                    code.push(GAS);
                    push(&mut code, &[8]);
                    push(&mut code, &[88]);
                    push(&mut code, &value);
                } else {
                    for word in [[32], [0], [32], [64]] {
                        push(&mut code, &word);
                    }
                    if matches!(*kind, CALL | CALLCODE) {
                        push(&mut code, &value);
                    }
                    push(&mut code, contract(*to).as_slice());
                    match gas {
                        Some(gas) => push(&mut code, &gas.to_be_bytes()),
                        None => code.push(GAS),
                    }
                }
                code.push(*kind);
            }
        }
    }
    for (at, label, hidden) in jumps {
        let labels = if hidden { &hidden_labels } else { &labels };
        if !labels.is_empty() {
            code[at..at + 2].copy_from_slice(&labels[label % labels.len()].to_be_bytes());
        }
    }
    code.into()
}
