//! Runs programs in this loop and in revm's own. Both must leave the same state.
//!
//! Each program runs in stretches alone, in blocks from its beginning on, and in blocks after some ticks.
//!
//! `PRESIM_FUZZ_PROGRAMS` sets how many programs each search runs.

#[path = "../../../../benches/world/computations.rs"]
mod computations;
mod hot_codes;
mod mutants;
#[path = "../../../../benches/world/pools.rs"]
mod pools;
mod programs;

use std::{collections::BTreeMap, time::Duration};

use alloy_evm::EvmEnv;
use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, B256, Bytes, keccak256};
use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, TestRunner},
};
use revm::{
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv, ContextTr, JournalTr, TxEnv, result::ExecutionResult},
    handler::{Handler, MainnetHandler},
    inspector::{InspectorHandler, NoOpInspector},
    interpreter::{CallInput, InputsImpl, SharedMemory, interpreter::ExtBytecode},
    state::AccountInfo,
};
use revm_inspectors::tracing::{CallTraceArena, TracingInspector, TracingInspectorConfig};

use self::programs::{Part, assemble, callers, calm, contract, parts};
use super::*;
use crate::{
    chain::{BlockHashes, ChainSpec},
    engine::{
        evm::{
            RunEvm, TxSetup,
            family::{Ethereum, InnerEvm, Instructions},
            inspect,
            run::{Memory, inner},
        },
        precompiles::RunPrecompiles,
    },
    state::{AccountChange, CodeCache, Overlay, World},
};

/// Returns a chain, whose precompiles follow from the fork alone.
fn chain() -> ChainSpec {
    ChainSpec::new(ChainConfig::default(), Duration::from_secs(12)).unwrap()
}

/// Runs `check` on this many values of `strategy`, unless `PRESIM_FUZZ_PROGRAMS` sets another number.
fn search<S: Strategy>(programs: u32, strategy: &S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let cases = std::env::var("PRESIM_FUZZ_PROGRAMS").map_or(programs, |text| {
        text.parse().unwrap_or_else(|_| panic!("PRESIM_FUZZ_PROGRAMS is {text}: expected a number of programs"))
    });
    let run = TestRunner::new(Config { cases, ..Config::default() }).run(strategy, check);
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The ticks after which a code is hot: never, at once, and in the middle of a run.
const THRESHOLDS: [u32; 3] = [u32::MAX, 0, 2];

const FORKS: [SpecId; 6] =
    [SpecId::MERGE, SpecId::SHANGHAI, SpecId::CANCUN, SpecId::PRAGUE, SpecId::OSAKA, SpecId::AMSTERDAM];

/// A program in a frame of its own.
#[derive(Clone, Debug)]
struct FrameRun {
    code: Bytes,
    hash: B256,
    spec: SpecId,
    gas: u64,
}

/// The last opcodes of a program, at which its gas may end.
const LAST_STEPS: usize = 24;

/// A program, which runs with enough gas, and with as much as ends at one of its last opcodes or one unit before.
#[derive(Clone, Debug)]
struct Program {
    run: FrameRun,
    ends: Vec<Index>,
}

fn frame_programs() -> impl Strategy<Value = Program> {
    let gas = prop_oneof![0_u64..20_000, Just(300_000)];
    (parts(), select(FORKS.to_vec()), gas, vec(any::<Index>(), 8))
        .prop_map(|(parts, spec, gas, ends)| Program { run: FrameRun::new(assemble(&parts), spec, gas), ends })
}

impl Program {
    /// Returns the runs of the program.
    fn runs(&self) -> Vec<FrameRun> {
        let mut spent = Vec::new();
        self.run.run(Meter::default(), |frame, instructions, host| {
            let end = loop {
                if let Err(end) = step(frame, instructions, host) {
                    break end;
                }
                spent.push(self.run.gas.saturating_sub(frame.gas.remaining()));
            };
            let action = next_action(frame, end);
            spent.push(self.run.gas.saturating_sub(frame.gas.remaining()));
            action
        });
        let exact = self.ends.iter().flat_map(|end| {
            let last = &spent[spent.len().saturating_sub(LAST_STEPS)..];
            let gas = last[end.index(last.len())];
            [gas, gas.saturating_sub(1)].map(|gas| FrameRun { gas, ..self.run.clone() })
        });
        std::iter::once(self.run.clone()).chain(exact).collect()
    }
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

impl FrameRun {
    fn new(code: Bytes, spec: SpecId, gas: u64) -> Self {
        Self { hash: keccak256(&code), code, spec, gas }
    }

    fn ours(&self, meter: Meter) -> End {
        self.run(meter, |frame, instructions, host| {
            interpret(frame, instructions.instruction_table(), instructions.gas_table(), host)
        })
    }

    fn revms(&self, meter: Meter) -> End {
        self.run(meter, |frame, instructions, host| {
            frame.run_plain(instructions.instruction_table(), instructions.gas_table(), host)
        })
    }

    fn run(
        &self,
        meter: Meter,
        run: impl for<'a> FnOnce(&mut Interpreter, &Instructions<'a, Ethereum>, &mut FrameHost<'a>) -> InterpreterAction,
    ) -> End {
        let mut overlay = Overlay::new(World::default(), BlockHashes::default());
        overlay.meter = meter;
        let env = EvmEnv::new(CfgEnv::new_with_spec(self.spec), BlockEnv::default());
        let evm: InnerEvm<'_, Ethereum, _> = inner::<Ethereum, _>(
            &mut overlay,
            env,
            RunPrecompiles::of(&chain(), self.spec),
            NoOpInspector,
            Memory::fresh(),
        );
        let mut host = evm.ctx;
        host.journal_mut().load_account(Address::ZERO).unwrap();
        let input = InputsImpl { input: CallInput::Bytes(Bytes::from_static(&[7; 40])), ..InputsImpl::default() };
        let bytecode = ExtBytecode::new_with_hash(Bytecode::new_legacy(self.code.clone()), self.hash);
        let mut frame = Interpreter::new(SharedMemory::new(), bytecode, input, false, self.spec, self.gas);
        let action = run(&mut frame, &evm.instruction, &mut host);
        let memory = frame.memory.context_memory().to_vec();
        let stopped = host.journaled_state.database.meter.stopped().is_some();
        End { action, gas: frame.gas, pc: frame.bytecode.pc(), words: frame.stack.data().clone(), memory, stopped }
    }
}

type FrameHost<'a> = crate::engine::evm::Host<'a, Ethereum>;

/// Runs one instruction.
fn step<'a>(
    frame: &mut Interpreter,
    instructions: &Instructions<'a, Ethereum>,
    host: &mut FrameHost<'a>,
) -> Result<(), InstructionResult> {
    frame.step(instructions.instruction_table(), instructions.gas_table(), host)
}

#[test]
fn a_call_without_data_reads_zeros() {
    // The place that revm gives to no data.
    let nothing = CallInput::SharedBuffer(usize::MAX..usize::MAX);
    assert_eq!(call_data(&nothing, &SharedMemory::new(), &U256::ZERO), U256::ZERO);
}

#[test]
fn a_program_ends_as_in_revms_own_loop() {
    search(10_000, &frame_programs(), |program| {
        let runs: Vec<_> = program.runs().into_iter().map(|run| (run.revms(Meter::default()), run)).collect();
        for threshold in THRESHOLDS {
            hot::tests::forget(threshold);
            for (end, run) in &runs {
                prop_assert_eq!(&run.ours(Meter::default()), end, "with {} gas, {} ticks", run.gas, threshold);
            }
        }
        Ok(())
    });
}

/// A transaction that calls the first of some contracts.
#[derive(Clone, Debug)]
struct TxRun {
    contracts: Vec<Bytes>,
    spec: SpecId,
    gas: u64,
    /// The strides after which the run is stopped, and the ticks that are taken from the first one.
    bound: Option<(u32, u32)>,
}

fn tx_runs() -> impl Strategy<Value = TxRun> {
    let gas = prop_oneof![4 => 21_000_u64..200_000, 2 => Just(2_000_000_u64), 1 => Just(30_000_000)];
    let bound = prop_oneof![3 => Just(None), 1 => (0_u32..3, 0_u32..4096).prop_map(Some)];
    (vec(callers(), 1..4), select(FORKS.to_vec()), gas, bound).prop_map(|(contracts, spec, gas, bound)| TxRun {
        contracts: contracts.iter().map(|parts| assemble(parts)).collect(),
        spec,
        gas,
        bound,
    })
}

/// The outcome of a transaction, and the state that it left.
#[derive(Debug, PartialEq)]
struct TxEnd {
    result: Result<ExecutionResult, String>,
    changes: BTreeMap<Address, AccountEnd>,
    stopped: bool,
}

/// An account after a transaction, whether its earlier slots were deleted, and its written slots.
type AccountEnd = (Option<AccountInfo>, bool, BTreeMap<U256, U256>);

impl TxEnd {
    fn new(result: Result<ExecutionResult, String>, overlay: &Overlay) -> Self {
        let change = |change: &AccountChange| {
            let slots = change.slots.iter().map(|(slot, value)| (*slot, *value)).collect();
            (change.address, (change.info.clone(), change.storage_cleared, slots))
        };
        Self { result, changes: overlay.changes().map(change).collect(), stopped: overlay.meter.stopped().is_some() }
    }
}

impl TxRun {
    fn overlay(&self) -> Overlay {
        let mut overlay = Overlay::new(World::default(), BlockHashes::default());
        let codes = CodeCache::new(0);
        for (index, code) in self.contracts.iter().enumerate() {
            let balance = Some(U256::from(index));
            overlay.set(contract(index as u8), balance, Some(1), Some(codes.chain(code.clone())));
        }
        if let Some((strides, ticks)) = self.bound {
            overlay.meter = Meter::short(strides + 1);
            overlay.meter.poll();
            overlay.meter.take(ticks);
        }
        overlay
    }

    fn env(&self) -> EvmEnv {
        let mut config = CfgEnv::new_with_spec(self.spec);
        config.tx_gas_limit_cap = Some(u64::MAX);
        EvmEnv::new(config, BlockEnv::default())
    }

    fn tx(&self) -> TxEnv {
        TxEnv { kind: contract(0).into(), gas_limit: self.gas, chain_id: None, ..TxEnv::default() }
    }

    fn ours(&self) -> TxEnd {
        let mut overlay = self.overlay();
        let mut evm = RunEvm::<Ethereum>::new(&mut overlay, self.env(), RunPrecompiles::of(&chain(), self.spec));
        let result = evm.commit(self.tx(), Some(()), |_, _| ());
        evm.finish();
        TxEnd::new(result.map_err(|error| error.to_string()), &overlay)
    }

    fn revms(&self) -> TxEnd {
        let mut overlay = self.overlay();
        let mut evm = inner::<Ethereum, _>(
            &mut overlay,
            self.env(),
            RunPrecompiles::of(&chain(), self.spec),
            NoOpInspector,
            Memory::fresh(),
        );
        evm.ctx.tx = self.tx();
        let result: Result<_, revm::context::result::EVMError<_>> = MainnetHandler::default().run(&mut evm);
        let mut state = evm.ctx.journaled_state.inner.finalize();
        if result.is_ok() {
            evm.ctx.journaled_state.database.absorb(&mut state);
        }
        TxEnd::new(result.map_err(|error| error.to_string()), &overlay)
    }
}

#[test]
fn a_transaction_ends_as_in_revms_own_evm() {
    search(5_000, &tx_runs(), |run| {
        let end = run.revms();
        for threshold in THRESHOLDS {
            hot::tests::forget(threshold);
            for _ in 0..2 {
                prop_assert_eq!(&run.ours(), &end, "with {} ticks", threshold);
            }
        }
        Ok(())
    });
}

/// The frames of a transaction with each of their opcodes, and its result.
type Traced = (Result<ExecutionResult, String>, CallTraceArena);

impl TxRun {
    fn traced(&self) -> Traced {
        let (mut overlay, mut inspector) = (self.overlay(), TracingInspector::new(TracingInspectorConfig::all()));
        let precompiles = RunPrecompiles::of(&chain(), self.spec);
        let setup = TxSetup::<Ethereum>::unsigned(self.tx(), self.env(), precompiles);
        let traced = inspect(&mut overlay, setup, &mut inspector);
        (traced.map(|run| run.result).map_err(|error| error.to_string()), inspector.into_traces())
    }

    fn traced_by_revm(&self) -> Traced {
        let (mut overlay, mut inspector) = (self.overlay(), TracingInspector::new(TracingInspectorConfig::all()));
        let precompiles = RunPrecompiles::of(&chain(), self.spec);
        let mut evm = inner::<Ethereum, _>(&mut overlay, self.env(), precompiles, &mut inspector, Memory::fresh());
        evm.ctx.tx = self.tx();
        let result: Result<_, revm::context::result::EVMError<_>> = MainnetHandler::default().inspect_run(&mut evm);
        (result.map_err(|error| error.to_string()), inspector.into_traces())
    }
}

#[test]
fn a_transaction_has_revms_trace_and_ends_as_its_trace_does() {
    search(1_000, &tx_runs(), |run| {
        let traced = run.traced();
        prop_assert_eq!(&traced, &run.traced_by_revm());
        for threshold in THRESHOLDS {
            hot::tests::forget(threshold);
            prop_assert_eq!(&run.ours().result, &traced.0, "with {} ticks", threshold);
        }
        Ok(())
    });
}

/// A contract that calls itself with all gas, and returns the depth of the deepest frame that has ended well.
fn deep_runs() -> impl Strategy<Value = TxRun> {
    use opcode::*;
    let step = || vec(calm(), 0..3).prop_map(|parts| parts.concat());
    (step(), step(), select(FORKS[1..].to_vec())).prop_map(|(before, after, spec)| {
        let bytes = |bytes: &[u8]| bytes.iter().map(|byte| Part::Byte(*byte)).collect::<Vec<_>>();
        // The memory's first word is the depth; the other parts write behind it.
        let enter = bytes(&[PUSH1, 0, CALLDATALOAD, PUSH1, 1, ADD, PUSH1, 0, MSTORE]);
        let call = bytes(&[PUSH1, 32, PUSH1, 0, PUSH1, 32, PUSH1, 0, PUSH1, 0, ADDRESS, GAS, CALL]);
        let leave = bytes(&[PUSH1, 32, PUSH1, 0, RETURN]);
        let parts = [enter, before, call, after, leave].concat();
        // From Amsterdam on, 32 bits bound a transaction's gas.
        let gas = if spec == SpecId::AMSTERDAM { u32::MAX.into() } else { 1 << 36 };
        TxRun { contracts: vec![assemble(&parts)], spec, gas, bound: None }
    })
}

#[test]
fn hundreds_of_frames_end_as_in_revms_own_evm() {
    let mut runner = TestRunner::new(Config { cases: 20, ..Config::default() });
    let run = runner.run(&deep_runs(), |run| {
        let end = run.ours();
        let depth =
            end.result.as_ref().ok().and_then(|result| result.output()).map(|output| U256::from_be_slice(output));
        let least = if run.spec == SpecId::AMSTERDAM { 300 } else { 600 };
        prop_assert!(depth > Some(U256::from(least)), "{:?}", end);
        prop_assert_eq!(end, run.revms());
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn an_opcode_costs_what_revms_instruction_costs() {
    // Runs each opcode alone, with every amount of gas around its price.
    for spec in [SpecId::SHANGHAI, SpecId::CANCUN, SpecId::PRAGUE, SpecId::OSAKA, SpecId::AMSTERDAM] {
        for op in 0..=u8::MAX {
            let code = assemble(&(0..17).map(|_| Part::Push(vec![40])).chain([Part::Byte(op)]).collect::<Vec<_>>());
            let run = FrameRun::new(code, spec, 0);
            let runs = (17 * 3..17 * 3 + 120).map(|gas| FrameRun { gas, ..run.clone() });
            let runs: Vec<_> = runs.map(|run| (run.revms(Meter::default()), run)).collect();
            for threshold in [u32::MAX, 0] {
                hot::tests::forget(threshold);
                for (end, run) in &runs {
                    assert_eq!(&run.ours(Meter::default()), end, "{op:#x}: {run:?}");
                }
            }
        }
    }
}

#[test]
fn a_computation_ends_as_in_revms_own_with_any_gas() {
    for (name, code) in computations::computations() {
        let run = FrameRun::new(code.into(), SpecId::OSAKA, 0);
        // Enough for all blocks of the pools, and for three rounds of the others.
        let runs = (0..2_000).chain((2_000..50_000).step_by(23)).map(|gas| FrameRun { gas, ..run.clone() });
        let runs: Vec<_> = runs.map(|run| (run.revms(Meter::default()), run)).collect();
        for threshold in THRESHOLDS {
            hot::tests::forget(threshold);
            for (end, run) in &runs {
                assert_eq!(&run.ours(Meter::default()), end, "{name} with {} gas, {threshold} ticks", run.gas);
            }
        }
    }
}

#[test]
fn each_order_of_words_before_a_branch_is_as_in_revms_own() {
    use opcode::*;
    const STEPS: [u8; 8] = [DUP1, DUP3, SWAP1, SWAP2, SWAP3, POP, NOT, MSIZE];
    const CONDITIONS: [&[u8]; 10] =
        [&[], &[ISZERO], &[LT], &[GT], &[EQ], &[AND], &[SLT], &[LT, ISZERO], &[DUP2, EQ], &[EQ, DUP1]];
    let steps = |number: usize| [STEPS[number % 8], STEPS[number / 8 % 8], STEPS[number / 64]];
    for words in [[0, 1, 2, 3, 4, 5, 6], [6, 5, 5, 4, 4, 0, 0]] {
        // The words lie on the stack before the block, and so are no constants.
        let before = [words.map(|word| [PUSH1, word]).as_flattened(), &[JUMPDEST]].concat();
        for (number, condition) in (0..8 * 64).flat_map(|number| CONDITIONS.map(|condition| (number, condition))) {
            let mut code = [&before, &steps(number)[..], condition].concat();
            let label = code.len() as u8 + 6;
            code.extend([PUSH1, label, JUMPI, PUSH1, 9, STOP, JUMPDEST, STOP]);
            hot::tests::forget(0);
            let run = FrameRun::new(code.into(), SpecId::OSAKA, 1_000);
            assert_eq!(run.ours(Meter::default()), run.revms(Meter::default()), "{run:?}");
        }
    }
}

#[test]
fn a_loop_is_stopped_where_revms_own_would_be() {
    let code = assemble(&[Part::Label, Part::Jump { label: 0, far: false, hidden: false, conditional: false }]);
    let run = FrameRun::new(code, SpecId::PRAGUE, u64::MAX);
    for (threshold, strides) in
        [u32::MAX, 0, 100].into_iter().flat_map(|threshold| [0, 1, 2].map(|strides| (threshold, strides)))
    {
        hot::tests::forget(threshold);
        let end = run.ours(Meter::short(strides));
        assert!(end.stopped, "{end:?}");
        assert_eq!(end, run.revms(Meter::short(strides)));
    }
}
