//! The inspector behind all tracers. It bounds the bytes that traces take.

use std::convert::Infallible;

use alloy_consensus::transaction::TransactionInfo;
use alloy_primitives::{Address, Log, map::HashSet};
use alloy_rpc_types_trace::{
    geth::{CallConfig, FlatCallConfig, FourByteFrame, PreStateConfig, PreStateFrame},
    parity::{LocalizedTransactionTrace, TraceType, VmInstruction},
};
use revm::{
    Inspector,
    context::{
        Transaction,
        result::{EVMError, ResultAndState},
    },
    context_interface::{ContextTr, JournalTr, context::ContextError},
    inspector::JournalExt,
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, InstructionResult, Interpreter,
        interpreter::EthInterpreter,
    },
    primitives::U256,
};
use revm_inspectors::tracing::{
    FourByteInspector, GethTraceBuilder, TracingInspector, TracingInspectorConfig,
    types::{CallLog, CallTraceNode, CallTraceStep, StepDelta, TraceMemberOrder},
};

use super::{
    access_list::AccessRecorder,
    error::{SimulationError, frame_error},
    evm::{FamilyEvm, TxSetup, inspect},
    steps::StepLog,
    trace::{Trace, TraceBudget, TracedGas, Tracer},
};
use crate::state::Overlay;

/// Bytes of a frame: its node in a vector that doubles and is moved, and its entry among its parent's children.
const FRAME: usize = 3 * size_of::<CallTraceNode>() + 64;
/// Bytes of a frame in Parity's form, and of a self-destruction in it, in a vector that doubles too. Their addresses among the frames are
/// counted by their lengths.
const FLAT_FRAME: usize = 6 * size_of::<LocalizedTransactionTrace>() + 128;
/// Bytes of an opcode of a `vmTrace`, as recorded and in the answer, each with the at most 17 words that it pushes.
/// The memory that it writes is counted by its length.
const VM_STEP: usize = 3 * (size_of::<CallTraceStep>() + size_of::<StepDelta>() + size_of::<TraceMemberOrder>())
    + size_of::<VmInstruction>()
    + 2 * 17 * size_of::<U256>();
/// Bytes of a recording without any frame: its first nodes.
const RECORDING: usize = size_of::<Recording>() + 8 * size_of::<CallTraceNode>();
/// Bytes of a log, in a vector that doubles too, with its topics.
const LOG: usize = 3 * size_of::<CallLog>() + 4 * 32 + 64;
/// Bytes of one function in the counts of `4byteTracer`, with its name in the answer.
const SELECTOR: usize = 256;
/// Bytes of an account, and of a slot, in an answer of `prestateTracer`, before and after.
const ACCOUNT: usize = 1024;
const SLOT: usize = 512;

/// Records what a [`Tracer`] requests, within a budget of bytes.
///
/// Each hook first takes from the budget the most that its record may cost. If too little is left, recording ends and
/// the run stops. So the memory of a trace never exceeds the budget.
#[derive(Debug)]
struct Recorder<'b> {
    recordings: Vec<Recording>,
    /// The names of the recordings of a mux. `None` for any other tracer.
    names: Option<Vec<&'static str>>,
    budget: &'b mut TraceBudget,
    /// Whether the run was stopped because the trace exceeds the budget.
    over: bool,
    /// Number of open frames.
    depth: usize,
}

#[derive(Debug)]
enum Recording {
    Steps(StepLog),
    Calls(TracingInspector, CallConfig),
    /// Without a config, the frames of `trace_block`.
    FlatCalls(TracingInspector, Option<FlatCallConfig>),
    PreState(PreStateConfig),
    FourByte(FourByteInspector),
    StateGas,
    Parity(TracingInspector, HashSet<TraceType>),
    Noop,
}

/// A run that has ended, with its transaction and its initial state.
struct EndedRun<'a> {
    ran: &'a ResultAndState,
    /// The gas limit of the transaction, and its sender.
    gas_limit: u64,
    caller: Address,
    /// The position of the transaction. A call has only the number of its block.
    position: TransactionInfo,
    /// Whether state gas is a separate dimension (EIP-8037).
    has_two_dimensions: bool,
    /// The state before the run.
    before: &'a Overlay,
}

impl EndedRun<'_> {
    /// Takes from `budget` the bytes of the state that the run has touched. Returns `None` if too few are left.
    fn take_state(&self, budget: &mut TraceBudget) -> Option<()> {
        let state = &self.ran.state;
        let slots: usize = state.values().map(|account| account.storage.len()).sum();
        let codes = state.values().filter_map(|account| account.info.code.as_ref());
        let code: usize = codes.map(revm::bytecode::Bytecode::len).sum();
        let accounts = state.len().saturating_mul(ACCOUNT);
        budget.take(accounts.saturating_add(slots.saturating_mul(SLOT)).saturating_add(code)).then_some(())
    }
}

impl<'b> Recorder<'b> {
    fn new(tracer: &Tracer, budget: &'b mut TraceBudget) -> Self {
        let (names, recordings) = match tracer {
            Tracer::Mux(tracers) => {
                (Some(tracers.iter().map(Tracer::name).collect()), tracers.iter().map(Recording::from).collect())
            }
            one => (None, vec![one.into()]),
        };
        let mut recorder = Self { recordings, names, budget, over: false, depth: 0 };
        recorder.take(RECORDING.saturating_mul(recorder.recordings.len()));
        recorder
    }

    /// Returns the trace, or `None` if it exceeds the budget.
    fn finish(self, seen: &EndedRun<'_>) -> Option<Trace> {
        let Self { recordings, names, budget, .. } = self;
        let traces = recordings.into_iter().map(|recording| recording.finish(seen, budget));
        let mut traces = traces.collect::<Option<Vec<_>>>()?;
        match names {
            Some(names) => Some(Trace::Mux(names.into_iter().zip(traces).collect())),
            None => traces.pop(),
        }
    }

    /// Takes bytes from the budget. Once too few are left, always returns false, and nothing may be recorded any more.
    fn take(&mut self, bytes: usize) -> bool {
        self.over = self.over || !self.budget.take(bytes);
        !self.over
    }

    fn stop(context: &mut impl ContextTr) {
        *context.error() = Err(ContextError::Custom(String::new()));
    }

    /// Returns the inspectors that record a frame, given whether it is the outermost.
    fn frames(&mut self, outermost: bool) -> impl Iterator<Item = &mut TracingInspector> {
        self.recordings.iter_mut().filter_map(move |one| one.frames(outermost))
    }

    fn steps(&mut self) -> impl Iterator<Item = &mut StepLog> {
        self.recordings.iter_mut().filter_map(|one| match one {
            Recording::Steps(log) => Some(log),
            _ => None,
        })
    }

    /// Runs a hook of the inspector that records a `vmTrace`, if there is one, and takes the bytes of memory that the
    /// hook has copied. Only these bytes are taken after they are recorded. A hook copies no more than the memory of a
    /// frame.
    fn vm_hook(&mut self, hook: impl FnOnce(&mut TracingInspector)) {
        if let Some(vm) = self.recordings.iter_mut().find_map(Recording::vm).filter(|_| !self.over) {
            let before = vm.recorded_bytes();
            hook(vm);
            let copied = vm.recorded_bytes() - before;
            self.take(copied);
        }
    }

    /// Begins a frame with `bytes` of input. Returns whether it is the outermost, or `None` if the budget is exceeded.
    fn enter(&mut self, context: &mut impl ContextTr, bytes: usize) -> Option<bool> {
        let outermost = self.depth == 0;
        self.depth += 1;
        self.steps().for_each(StepLog::enter);
        let (depth, frames) = (self.depth, self.recordings.iter_mut());
        let frames = frames.filter_map(|one| one.frames(outermost).is_some().then(|| one.frame_cost(depth)));
        let cost = frames.map(|cost| cost + bytes).sum();
        if !self.take(cost) {
            Self::stop(context);
            return None;
        }
        Some(outermost)
    }

    /// Ends a frame with `bytes` of output. Returns the same as [`Self::enter`].
    fn leave(&mut self, context: &mut impl ContextTr, bytes: usize) -> Option<bool> {
        self.depth -= 1;
        let outermost = self.depth == 0;
        self.steps().for_each(StepLog::leave);
        let frames = self.frames(outermost).count();
        // Once the budget is exceeded, frames end that were never recorded.
        if self.over || !self.take(frames.saturating_mul(bytes)) {
            Self::stop(context);
            return None;
        }
        Some(outermost)
    }
}

impl From<&Tracer> for Recording {
    fn from(tracer: &Tracer) -> Self {
        match tracer {
            Tracer::Steps(options) => Self::Steps(StepLog::new(*options)),
            Tracer::Calls(config) => {
                Self::Calls(TracingInspector::new(TracingInspectorConfig::from_geth_call_config(config)), *config)
            }
            Tracer::FlatCalls(config) => Self::FlatCalls(
                TracingInspector::new(TracingInspectorConfig::from_flat_call_config(config)),
                Some(*config),
            ),
            Tracer::Frames => Self::FlatCalls(TracingInspector::new(TracingInspectorConfig::default_parity()), None),
            Tracer::PreState(config) => Self::PreState(*config),
            Tracer::FourByte => Self::FourByte(FourByteInspector::default()),
            Tracer::Parity(types) => {
                Self::Parity(TracingInspector::new(TracingInspectorConfig::from_parity_config(types)), types.clone())
            }
            Tracer::StateGas => Self::StateGas,
            // The parser of requests rejects a mux in a mux.
            Tracer::Noop | Tracer::Mux(_) => Self::Noop,
        }
    }
}

impl Recording {
    /// Returns the inspector of frames if it records this frame, given whether the frame is the outermost.
    fn frames(&mut self, outermost: bool) -> Option<&mut TracingInspector> {
        match self {
            Self::FlatCalls(inspector, _) => Some(inspector),
            Self::Parity(inspector, types) if types.iter().any(|one| *one != TraceType::StateDiff) => Some(inspector),
            Self::Calls(inspector, config) if outermost || !config.only_top_call.unwrap_or_default() => Some(inspector),
            _ => None,
        }
    }

    /// Returns the inspector of frames if it records this frame and its logs.
    fn logs(&mut self, outermost: bool) -> Option<&mut TracingInspector> {
        match self {
            Self::Calls(_, config) if config.with_log.unwrap_or_default() => self.frames(outermost),
            _ => None,
        }
    }

    /// Returns the inspector of opcodes if it records a `vmTrace`.
    fn vm(&mut self) -> Option<&mut TracingInspector> {
        match self {
            Self::Parity(inspector, _) if inspector.config().record_steps => Some(inspector),
            _ => None,
        }
    }

    /// Returns the bytes of a frame without its data, which is `depth` frames deep.
    const fn frame_cost(&self, depth: usize) -> usize {
        match self {
            Self::Calls(..) => FRAME,
            _ => FRAME + FLAT_FRAME + 2 * depth * size_of::<usize>(),
        }
    }

    fn finish(self, seen: &EndedRun<'_>, budget: &mut TraceBudget) -> Option<Trace> {
        let gas = TracedGas { gas: *seen.ran.result.gas(), has_two_dimensions: seen.has_two_dimensions };
        let of_transaction = |inspector: &mut TracingInspector| {
            inspector.set_transaction_gas_limit(seen.gas_limit);
            inspector.set_transaction_caller(seen.caller);
        };
        Some(match self {
            Self::Steps(log) => Trace::Steps {
                steps: log.finish(),
                gas,
                failed: !seen.ran.result.is_success(),
                output: seen.ran.result.output().cloned().unwrap_or_default(),
            },
            Self::Calls(mut inspector, config) => {
                of_transaction(&mut inspector);
                let frames = inspector.into_traces().into_nodes();
                Trace::Calls { frames, with_logs: config.with_log.unwrap_or_default(), gas }
            }
            Self::FlatCalls(mut inspector, config) => {
                let mut errors = Vec::new();
                if let Some(config) = config {
                    of_transaction(&mut inspector);
                    inspector.set_transaction_gas_used(gas.gas.tx_gas_used());
                    if !config.convert_parity_errors.unwrap_or_default() {
                        let shown = inspector.traces().nodes().iter().filter(|node| !node.is_precompile());
                        errors.extend(shown.map(|node| node.status().and_then(frame_error)));
                    }
                }
                let mut frames = inspector.into_parity_builder().into_localized_transaction_traces(seen.position);
                // The list has the frames in the order of the nodes, and the self-destructions between them.
                let calls = frames.iter_mut().filter(|frame| !frame.trace.action.is_selfdestruct());
                calls.zip(errors).for_each(|(frame, error)| frame.trace.error = error);
                Trace::FlatCalls(frames)
            }
            Self::PreState(config) => {
                seen.take_state(budget)?;
                let Ok(mut frame) =
                    GethTraceBuilder::new(Vec::new()).geth_prestate_traces(seen.ran, &config, seen.before);
                if let PreStateFrame::Default(accounts) = &mut frame {
                    // As in geth, a contract that the call creates had no state before, unless it already held ether.
                    let created = seen.ran.state.iter().filter(|(_, account)| account.is_created());
                    for (address, _) in created {
                        if accounts.0.get(address).is_some_and(|before| before.balance == Some(U256::ZERO)) {
                            accounts.0.remove(address);
                        }
                    }
                }
                Trace::PreState(frame)
            }
            Self::FourByte(inspector) => Trace::FourByte(FourByteFrame::from(inspector)),
            Self::Parity(inspector, types) => {
                if types.contains(&TraceType::StateDiff) {
                    seen.take_state(budget)?;
                }
                let builder = inspector.into_parity_builder();
                let Ok(results) = builder.into_trace_results_with_state(seen.ran, &types, seen.before);
                Trace::Parity(Box::new(results))
            }
            Self::StateGas => Trace::StateGas(gas),
            Self::Noop => Trace::Noop,
        })
    }
}

impl<'a, C: ContextTr<Db = &'a mut Overlay, Journal: JournalExt>> Inspector<C> for Recorder<'_> {
    fn initialize_interp(&mut self, at: &mut Interpreter<EthInterpreter>, context: &mut C) {
        self.vm_hook(|vm| vm.initialize_interp(at, context));
    }

    fn step(&mut self, at: &mut Interpreter<EthInterpreter>, context: &mut C) {
        let vm = if self.recordings.iter_mut().any(|one| one.vm().is_some()) { VM_STEP } else { 0 };
        let cost = self.steps().map(|log| log.cost(at)).sum::<usize>() + vm;
        if !self.take(cost) {
            Self::stop(context);
            at.halt(InstructionResult::FatalExternalError);
            return;
        }
        let spared: usize = self.steps().map(|log| log.begin(at)).sum();
        self.budget.left += spared;
        self.vm_hook(|vm| vm.step(at, context));
    }

    fn step_end(&mut self, at: &mut Interpreter<EthInterpreter>, context: &mut C) {
        self.steps().for_each(|log| log.end(at));
        self.vm_hook(|vm| vm.step_end(at, context));
    }

    fn log(&mut self, context: &mut C, log: Log) {
        let outermost = self.depth == 1;
        let count = self.recordings.iter_mut().filter_map(|one| one.logs(outermost)).count();
        if !self.take(count.saturating_mul(LOG + log.data.data.len())) {
            return Self::stop(context);
        }
        for inspector in self.recordings.iter_mut().filter_map(|one| one.logs(outermost)) {
            // Numbering a log visits every frame so far, so the meter ticks for that, too.
            let frames = u32::try_from(inspector.traces().nodes().len() / 64).unwrap_or(u32::MAX);
            context.db_mut().meter.tick(1 + frames);
            Inspector::<C>::log(inspector, context, log.clone());
        }
    }

    fn call(&mut self, context: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        let outermost = self.enter(context, inputs.input.len())?;
        for inspector in self.frames(outermost) {
            inspector.call(context, inputs);
        }
        // As in geth, a precompile counts as an opcode, not as a contract with functions.
        let is_precompile = context.journal_ref().precompile_addresses().contains(&inputs.bytecode_address);
        let mut added = 0;
        for recording in &mut self.recordings {
            if let Recording::FourByte(inspector) = recording
                && !is_precompile
            {
                let before = inspector.inner().len();
                inspector.call(context, inputs);
                added += inspector.inner().len() - before;
            }
        }
        if !self.take(added * SELECTOR) {
            Self::stop(context);
        }
        None
    }

    fn call_end(&mut self, context: &mut C, inputs: &CallInputs, outcome: &mut CallOutcome) {
        if let Some(outermost) = self.leave(context, outcome.result.output.len()) {
            self.frames(outermost).for_each(|inspector| inspector.call_end(context, inputs, outcome));
        }
    }

    fn create(&mut self, context: &mut C, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        let outermost = self.enter(context, inputs.init_code().len())?;
        for inspector in self.frames(outermost) {
            inspector.create(context, inputs);
        }
        None
    }

    fn create_end(&mut self, context: &mut C, inputs: &CreateInputs, outcome: &mut CreateOutcome) {
        if let Some(outermost) = self.leave(context, outcome.result.output.len()) {
            self.frames(outermost).for_each(|inspector| inspector.create_end(context, inputs, outcome));
        }
    }

    fn selfdestruct(&mut self, contract: Address, target: Address, value: U256) {
        // geth shows a self-destruct as a frame within the contract's, so `onlyTopCall` omits it.
        for inspector in self.frames(false) {
            Inspector::<C>::selfdestruct(inspector, contract, target, value);
        }
    }
}

/// Runs a transaction at a position. Returns its trace and its result, and discards its changes. Also records the
/// run's accesses in `accesses`. `explain` converts an error of the EVM.
pub(super) fn trace<F: FamilyEvm>(
    setup: TxSetup<F>,
    position: TransactionInfo,
    tracer: &Tracer,
    accesses: Option<&mut AccessRecorder>,
    budget: &mut TraceBudget,
    overlay: &mut Overlay,
    explain: impl FnOnce(EVMError<Infallible>, &mut Overlay) -> SimulationError,
) -> Result<(Trace, ResultAndState), SimulationError> {
    let (gas_limit, caller) = (setup.tx.gas_limit(), setup.tx.caller());
    let has_two_dimensions = setup.env.cfg_env.enable_amsterdam_eip8037;
    let too_long = SimulationError::TraceTooLong { limit: budget.limit };
    let mut recorder = Recorder::new(tracer, budget);
    let ran = match accesses {
        Some(accesses) => inspect::<F, _>(&mut *overlay, setup, (&mut recorder, accesses)),
        None => inspect::<F, _>(&mut *overlay, setup, &mut recorder),
    };
    if recorder.over {
        return Err(too_long);
    }
    let ran = ran.map_err(|error| explain(error, overlay))?;
    let seen = EndedRun { ran: &ran, gas_limit, caller, position, has_two_dimensions, before: overlay };
    let trace = recorder.finish(&seen).ok_or(too_long)?;
    Ok((trace, ran))
}
