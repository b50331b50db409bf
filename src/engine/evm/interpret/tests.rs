//! Runs programs in this loop and in revm's own. Both must leave the same state.

use alloy_evm::EvmEnv;
use alloy_primitives::{Address, Bytes};
use proptest::{collection::vec, prelude::*, sample::select};
use revm::{
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv, ContextTr, JournalTr},
    inspector::NoOpInspector,
    interpreter::{CallInput, InputsImpl, SharedMemory, interpreter::ExtBytecode},
};

use super::*;
use crate::{
    chain::BlockHashes,
    engine::{
        evm::{
            family::{Ethereum, InnerEvm},
            run::{Memory, inner},
        },
        precompiles::RunPrecompiles,
    },
    state::{Overlay, World},
};

/// A part of a program.
#[derive(Clone, Debug)]
enum Part {
    /// Any byte, which need not be an opcode.
    Byte(u8),
    Push(Vec<u8>),
    /// A jump destination.
    Label,
    /// A jump to a label. The index wraps around. In a program without labels, the jump goes to byte 3.
    Jump {
        label: usize,
        conditional: bool,
    },
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

fn parts() -> impl Strategy<Value = Vec<Part>> {
    use opcode::*;
    let plain = vec![
        ADD,
        MUL,
        SUB,
        DIV,
        MOD,
        LT,
        GT,
        SLT,
        SGT,
        EQ,
        ISZERO,
        AND,
        OR,
        XOR,
        NOT,
        SHL,
        SHR,
        POP,
        MLOAD,
        MSTORE,
        MSTORE8,
        PC,
        MSIZE,
        GAS,
        PUSH0,
        DUP1,
        DUP2,
        DUP3,
        DUP7,
        DUP16,
        SWAP1,
        SWAP2,
        SWAP3,
        SWAP16,
        JUMP,
        JUMPI,
        JUMPDEST,
        KECCAK256,
        SLOAD,
        SSTORE,
        CALLDATALOAD,
        CALLER,
        SDIV,
        SMOD,
        BYTE,
        SAR,
        SIGNEXTEND,
        MULMOD,
        MCOPY,
        LOG1,
    ];
    let part = prop_oneof![
        10 => select(plain).prop_map(Part::Byte),
        10 => words().prop_map(Part::Push),
        1 => any::<u8>().prop_map(Part::Byte),
        1 => Just(Part::Label),
        1 => (0_usize..8, any::<bool>()).prop_map(|(label, conditional)| Part::Jump { label, conditional }),
    ];
    // Some programs begin with enough words on the stack, and some with a stack that is full or nearly so.
    let filled = prop_oneof![6 => Just(0_usize), 6 => Just(20), 1 => 1015_usize..=1024];
    (filled, vec(part, 1..120)).prop_map(|(filled, parts)| {
        (0..filled).map(|index| Part::Push(vec![index as u8])).chain(parts).collect::<Vec<_>>()
    })
}

fn assemble(parts: &[Part]) -> Bytes {
    let mut code = Vec::new();
    let (mut labels, mut jumps) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Byte(byte) => code.push(*byte),
            Part::Push(word) => {
                code.push(opcode::PUSH0 + word.len() as u8);
                code.extend_from_slice(word);
            }
            Part::Label => {
                labels.push(code.len() as u16);
                code.push(opcode::JUMPDEST);
            }
            Part::Jump { label, conditional } => {
                code.push(opcode::PUSH2);
                jumps.push((code.len(), *label));
                code.extend([0, 3, if *conditional { opcode::JUMPI } else { opcode::JUMP }]);
            }
        }
    }
    if !labels.is_empty() {
        for (at, label) in jumps {
            code[at..at + 2].copy_from_slice(&labels[label % labels.len()].to_be_bytes());
        }
    }
    code.into()
}

/// The reason why a frame ended, and its final state, including gas and memory.
#[derive(Debug, PartialEq)]
struct End {
    action: InterpreterAction,
    gas: revm::interpreter::Gas,
    pc: usize,
    words: Vec<U256>,
    memory: Vec<u8>,
    stopped: bool,
}

enum Loop {
    Ours,
    Revms,
}

fn run(code: &Bytes, spec: SpecId, gas: u64, meter: Meter, whose: Loop) -> End {
    let mut overlay = Overlay::new(World::default(), BlockHashes::default());
    overlay.meter = meter;
    let env = EvmEnv::new(CfgEnv::new_with_spec(spec), BlockEnv::default());
    let evm: InnerEvm<'_, Ethereum, _> =
        inner::<Ethereum, _>(&mut overlay, env, RunPrecompiles::of(spec), NoOpInspector, Memory::fresh());
    let mut host = evm.ctx;
    host.journal_mut().load_account(Address::ZERO).unwrap();
    let input = InputsImpl { input: CallInput::Bytes(Bytes::from_static(&[7; 40])), ..InputsImpl::default() };
    let bytecode = ExtBytecode::new(Bytecode::new_legacy(code.clone()));
    let mut frame = Interpreter::new(SharedMemory::new(), bytecode, input, false, spec, gas);
    let instructions = &evm.instruction.instruction_table;
    let action = match whose {
        Loop::Ours => interpret(&mut frame, instructions, &mut host),
        Loop::Revms => frame.run_plain(instructions, &mut host),
    };
    let memory = frame.memory.context_memory().to_vec();
    let stopped = host.journaled_state.database.meter.stopped().is_some();
    End { action, gas: frame.gas, pc: frame.bytecode.pc(), words: frame.stack.data().clone(), memory, stopped }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_program_ends_as_in_revms_own_loop(
        parts in parts(),
        spec in select(vec![SpecId::MERGE, SpecId::SHANGHAI, SpecId::CANCUN, SpecId::PRAGUE, SpecId::OSAKA, SpecId::AMSTERDAM]),
        gas in prop_oneof![0_u64..400, 0_u64..20_000, Just(300_000)],
    ) {
        let code = assemble(&parts);
        let end = run(&code, spec, gas, Meter::default(), Loop::Ours);
        prop_assert_eq!(end, run(&code, spec, gas, Meter::default(), Loop::Revms));
    }
}

#[test]
fn a_stretch_costs_what_revms_instructions_cost() {
    // Runs each opcode alone, with every amount of gas around its price.
    for spec in [SpecId::SHANGHAI, SpecId::CANCUN, SpecId::PRAGUE, SpecId::OSAKA, SpecId::AMSTERDAM] {
        for op in 0..=u8::MAX {
            let code = assemble(&(0..17).map(|_| Part::Push(vec![40])).chain([Part::Byte(op)]).collect::<Vec<_>>());
            for gas in 17 * 3..17 * 3 + 120 {
                let end = run(&code, spec, gas, Meter::default(), Loop::Ours);
                let expected = run(&code, spec, gas, Meter::default(), Loop::Revms);
                assert_eq!(end, expected, "{op:#x} of {spec:?} with {gas} gas");
            }
        }
    }
}

#[test]
fn a_loop_is_stopped_where_revms_own_would_be() {
    let code = assemble(&[Part::Label, Part::Jump { label: 0, conditional: false }]);
    for strides in 0..3 {
        let end = run(&code, SpecId::PRAGUE, u64::MAX, Meter::short(strides), Loop::Ours);
        assert!(end.stopped, "{end:?}");
        assert_eq!(end, run(&code, SpecId::PRAGUE, u64::MAX, Meter::short(strides), Loop::Revms));
    }
}
