//! The EVM of the hot path: it has no inspector, and reuses its memory.

use std::cell::RefCell;

use alloy_evm::{Evm, EvmEnv};
use alloy_primitives::{Address, Bytes, KECCAK256_EMPTY};
use revm::{
    Context, Inspector, Journal, JournalEntry,
    context::{
        BlockEnv, CfgEnv, ContextSetters, Evm as Inner, FrameStack, JournalInner, JournalTr, LocalContext, TxEnv,
        journaled_state::account::JournaledAccountTr,
        result::{ExecutionResult, HaltReason, ResultAndState},
    },
    handler::{
        EthFrame, EvmTr, FrameData, FrameInitOrResult, FrameResult, ItemOrResult, SystemCallTx,
        evm::{ContextDbError, FrameInitResult},
        instructions::{EthInstructions, InstructionProvider},
    },
    inspector::{InspectorEvmTr, NoOpInspector},
    interpreter::{
        CreateOutcome, FrameInput, Gas, InstructionResult, InterpreterResult, interpreter_action::FrameInit,
    },
    primitives::{constants::CALL_STACK_LIMIT, hardfork::SpecId},
    state::EvmState,
};

use super::{
    family::{Error, FamilyEvm, Host, InnerEvm, Instructions, RunEvm},
    interpret::interpret,
    meter::meter,
    reads::record,
};
use crate::{
    chain::{ActiveNatives, Fork},
    engine::{precompiles::RunPrecompiles, transfers::Transfer},
    state::{LogOrigin, Overlay, TransferLogs},
};

impl<'a, F: FamilyEvm> RunEvm<'a, F> {
    /// Creates an EVM over `overlay` in `env`.
    pub fn new(overlay: &'a mut Overlay, env: EvmEnv<F::Spec>, precompiles: RunPrecompiles) -> Self {
        let memory = Memory::take(env.cfg_env.spec.into());
        let inner = inner::<F, _>(overlay, env, precompiles, NoOpInspector, memory);
        Self { inner, transfers: false, deepest: 0 }
    }

    /// Moves to another block, so that the next runs are in `env`.
    pub fn enter(&mut self, env: EvmEnv<F::Spec>, precompiles: RunPrecompiles) {
        let EvmEnv { cfg_env, block_env } = env;
        let Inner { ctx, instruction, precompiles: old_precompiles, .. } = &mut self.inner;
        if cfg_env.spec != ctx.cfg.spec {
            // The journal holds the addresses of the fork's precompiles.
            ctx.journaled_state.inner = JournalInner::new();
            *instruction = instructions::<F>(cfg_env.spec, ctx.journaled_state.database.records_reads());
        }
        guard(ctx.journaled_state.database, &precompiles, &block_env);
        *old_precompiles = precompiles;
        (ctx.block, ctx.chain) = (block_env, F::Chain::default());
        ctx.modify_cfg(|cfg| *cfg = cfg_env);
    }

    /// Sets whether to log transfers of the native currency in addition to the real logs.
    pub fn with_transfers(mut self, transfers: TransferLogs) -> Self {
        self.transfers = transfers != TransferLogs::Hidden;
        self.inner.ctx.journaled_state.database.log_numbers.show_transfers(transfers);
        self
    }

    /// Returns the configuration of the next run.
    pub const fn cfg_mut(&mut self) -> &mut CfgEnv<F::Spec> {
        &mut self.inner.ctx.cfg
    }

    /// Returns the block of the next run.
    pub const fn block_mut(&mut self) -> &mut BlockEnv {
        &mut self.inner.ctx.block
    }

    /// Runs an unsigned call, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`](revm::context::result::EVMError) if the call is invalid, or if the meter stopped the run.
    pub fn run(&mut self, call: TxEnv) -> Result<ExecutionResult, Error> {
        self.inner.ctx.chain = F::waived();
        let result = self.execute(call.into(), false);
        self.discard();
        result
    }

    /// Runs an unsigned call that pays nothing and whose sender does not matter, and discards its changes. Its sender is
    /// not recorded as read.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`](revm::context::result::EVMError) if the call is invalid, or if the meter stopped the run.
    pub fn ask(&mut self, call: TxEnv) -> Result<ExecutionResult, Error> {
        let lifted = self.inner.ctx.cfg.clone();
        let cfg = &mut self.inner.ctx.cfg;
        (cfg.disable_base_fee, cfg.disable_nonce_check) = (true, true);
        self.inner.ctx.chain = F::waived();
        self.inner.ctx.set_tx(call.into());
        let result = F::handle(self);
        self.discard();
        self.inner.ctx.cfg = lifted;
        result
    }

    /// Runs a transaction, and keeps its changes in the overlay. `waived` is the fee data of an unsigned call; a signed transaction has
    /// none, and pays all fees of its chain. Shows the state that the transaction has touched to `see`.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`](revm::context::result::EVMError) if the transaction is invalid, or if the meter stopped the run.
    pub fn commit(
        &mut self,
        tx: F::Tx,
        waived: Option<F::Chain>,
        see: impl FnOnce(&EvmState, &Overlay),
    ) -> Result<ExecutionResult, Error> {
        let is_signed = waived.is_none();
        self.inner.ctx.chain = waived.unwrap_or_default();
        let result = self.execute(tx, is_signed);
        let journal = &mut self.inner.ctx.journaled_state;
        let mut state = journal.inner.finalize();
        if result.is_ok() {
            see(&state, journal.database);
            journal.database.absorb(&mut state);
        }
        state.clear();
        journal.inner.state = state;
        result
    }

    /// Returns the overlay, and keeps the memory for the next run on this thread.
    pub fn finish(self) -> &'a mut Overlay {
        let Context { cfg, journaled_state: Journal { database, inner: journal }, local, .. } = self.inner.ctx;
        let frames = self.inner.frame_stack;
        let frames = if self.deepest < Memory::KEPT_FRAMES { frames } else { FrameStack::default() };
        Memory { fork: Some(cfg.spec.into()), journal, local, frames }.give_back();
        database
    }

    #[inline]
    fn execute(&mut self, tx: F::Tx, is_signed: bool) -> Result<ExecutionResult, Error> {
        self.inner.ctx.set_tx(tx);
        self.note_transaction_if_recorded(is_signed);
        F::handle(self)
    }

    fn finalized(&mut self, result: Result<ExecutionResult, Error>) -> Result<ResultAndState, Error> {
        let state = self.inner.ctx.journaled_state.inner.finalize();
        result.map(|result| ResultAndState::new(result, state))
    }
}

/// Creates revm's EVM over `overlay` in `env`, with metered opcodes.
pub(super) fn inner<'a, F: FamilyEvm, I>(
    overlay: &'a mut Overlay,
    env: EvmEnv<F::Spec>,
    precompiles: RunPrecompiles,
    inspector: I,
    memory: Memory,
) -> InnerEvm<'a, F, I> {
    let EvmEnv { cfg_env, block_env } = env;
    let Memory { journal, local, frames, .. } = memory;
    let instruction = instructions::<F>(cfg_env.spec, overlay.records_reads());
    guard(overlay, &precompiles, &block_env);
    let ctx: Host<'a, F> = Context {
        block: block_env,
        tx: F::Tx::default(),
        cfg: CfgEnv::<F::Spec>::default(),
        journaled_state: Journal { database: overlay, inner: journal },
        chain: F::Chain::default(),
        local,
        error: Ok(()),
    };
    Inner { ctx: ctx.with_cfg(cfg_env), inspector, instruction, precompiles, frame_stack: frames }
}

/// Returns the metered opcodes of a fork.
fn instructions<'a, F: FamilyEvm>(fork: F::Spec, records: bool) -> Instructions<'a, F> {
    let mut instructions = EthInstructions::new_mainnet_with_spec(fork.into());
    meter(&mut instructions);
    if records {
        record(&mut instructions);
    }
    instructions
}

/// Sets the native contracts that runs in a block cannot execute.
fn guard(overlay: &mut Overlay, precompiles: &RunPrecompiles, block: &BlockEnv) {
    // Another run in the same overlay may have had the rules of another fork.
    overlay.guard(match precompiles.natives.is_empty() {
        true => ActiveNatives::default(),
        false => precompiles.natives.at(block.timestamp.saturating_to()),
    });
}

impl<'a, F: FamilyEvm, I> RunEvm<'a, F, I> {
    /// Creates an EVM over `overlay` in `env`. `inspector` sees its steps.
    pub(super) fn inspected(
        overlay: &'a mut Overlay,
        env: EvmEnv<F::Spec>,
        precompiles: RunPrecompiles,
        inspector: I,
    ) -> Self {
        let transfers = overlay.log_numbers.shows_transfers();
        Self { inner: inner::<F, I>(overlay, env, precompiles, inspector, Memory::fresh()), transfers, deepest: 0 }
    }

    /// Drops the changes of a run, and keeps their memory.
    pub(super) fn discard(&mut self) {
        let journal = &mut self.inner.ctx.journaled_state.inner;
        let mut state = journal.finalize();
        state.clear();
        journal.state = state;
    }

    /// Begins a frame, unless it is a creation that collides.
    fn begin(&mut self, init: FrameInit) -> Result<FrameInitResult<'_, EthFrame>, ContextDbError<Host<'a, F>>> {
        match self.collision(&init)? {
            Some(collision) => Ok(ItemOrResult::Result(collision)),
            None => self.inner.frame_init(init),
        }
    }

    /// Begins a frame of Amsterdam, and numbers the log of its transfer (EIP-7708).
    fn begin_with_log(
        &mut self,
        init: FrameInit,
    ) -> Result<FrameInitResult<'_, EthFrame>, ContextDbError<Host<'a, F>>> {
        use InstructionResult::{CallTooDeep, OutOfFunds, OverflowPayment};
        let before = self.inner.ctx.journaled_state.inner.logs.len();
        let is_call = matches!(init.frame_input, FrameInput::Call(_));
        let transfers = is_call && Transfer::of_frame(&init.frame_input).is_some();
        let ended = match self.begin(init)? {
            ItemOrResult::Result(result) => Some(result),
            ItemOrResult::Item(_) => None,
        };
        let journal = &mut self.inner.ctx.journaled_state;
        for before in before..journal.inner.logs.len() {
            journal.database.log_numbers.push(before, LogOrigin::Protocol);
        }
        let Some(ended) = ended else { return Ok(ItemOrResult::Item(self.inner.frame_stack.get())) };
        let end = ended.interpreter_result().result;
        // The precompile failed after the transfer, and the transfer's log has already taken a number.
        if transfers && !end.is_ok() && !matches!(end, CallTooDeep | OutOfFunds | OverflowPayment) {
            journal.database.log_numbers.skip(LogOrigin::Protocol);
        }
        Ok(ItemOrResult::Result(ended))
    }

    /// Returns the end of a creation at an address that has storage, but neither code nor a nonce (EIP-7610). revm's
    /// journal knows only code and nonce. The caller's nonce is used, and all gas, as for other collisions. From Amsterdam on
    /// such a creation does not collide: EIP-684 alone decides.
    ///
    /// A remote base does not show whether an account has storage, so the rule is not enforced there. No chain has had
    /// such accounts since EIP-158.
    fn collision(&mut self, init: &FrameInit) -> Result<Option<FrameResult>, ContextDbError<Host<'a, F>>> {
        let FrameInput::Create(inputs) = &init.frame_input else { return Ok(None) };
        let fork: SpecId = self.inner.ctx.cfg.spec.into();
        if fork.is_enabled_in(SpecId::AMSTERDAM) {
            return Ok(None);
        }
        let journal = &mut self.inner.ctx.journaled_state;
        let caller = &journal.load_account(inputs.caller())?.data.info;
        let nonce = caller.nonce;
        if init.depth > CALL_STACK_LIMIT as usize || caller.balance < inputs.value() || nonce == u64::MAX {
            return Ok(None);
        }
        let address = inputs.created_address(nonce);
        if !journal.database.has_storage(address) {
            return Ok(None);
        }
        let there = &journal.load_account(address)?.data.info;
        if there.nonce != 0 || there.code_hash != KECCAK256_EMPTY {
            return Ok(None);
        }
        journal.load_account_mut(inputs.caller())?.bump_nonce();
        let gas = Gas::new_with_regular_gas_and_reservoir(inputs.gas_limit(), inputs.reservoir());
        let result = InterpreterResult { result: InstructionResult::CreateCollision, gas, output: Bytes::new() };
        let charged_create_state_gas = inputs.charged_create_state_gas();
        Ok(Some(FrameResult::Create(CreateOutcome { result, address: None, charged_create_state_gas })))
    }
}

impl<'a, F: FamilyEvm, I> EvmTr for RunEvm<'a, F, I> {
    type Context = Host<'a, F>;
    type Instructions = Instructions<'a, F>;
    type Precompiles = RunPrecompiles;
    type Frame = EthFrame;

    fn all(&self) -> (&Self::Context, &Self::Instructions, &Self::Precompiles, &FrameStack<Self::Frame>) {
        self.inner.all()
    }

    fn all_mut(
        &mut self,
    ) -> (&mut Self::Context, &mut Self::Instructions, &mut Self::Precompiles, &mut FrameStack<Self::Frame>) {
        self.inner.all_mut()
    }

    fn frame_init(
        &mut self,
        init: FrameInit,
    ) -> Result<FrameInitResult<'_, Self::Frame>, ContextDbError<Self::Context>> {
        self.deepest = self.deepest.max(init.depth);
        if self.inner.ctx.journaled_state.database.records_reads() {
            self.note_frame(&init);
        }
        if self.inner.ctx.cfg.enable_amsterdam_eip8037 {
            return self.begin_with_log(init);
        }
        if !self.transfers {
            return self.begin(init);
        }
        let Some(mut transfer) = Transfer::of_frame(&init.frame_input) else { return self.begin(init) };
        match self.begin(init)? {
            // The frame has ended: at a precompile, without code, or because it may not begin. Only calls can succeed.
            ItemOrResult::Result(result) => {
                if result.interpreter_result().is_ok() {
                    transfer.write_log(&mut self.inner.ctx);
                } else {
                    // geth writes the log first, then reverts it, so the log has a number.
                    self.inner.ctx.journaled_state.database.log_numbers.skip(LogOrigin::Simulation);
                }
                return Ok(ItemOrResult::Result(result));
            }
            ItemOrResult::Item(frame) => {
                if let FrameData::Create(create) = &frame.data {
                    transfer.to = create.created_address;
                }
            }
        }
        transfer.write_log(&mut self.inner.ctx);
        Ok(ItemOrResult::Item(self.inner.frame_stack.get()))
    }

    fn frame_run(&mut self) -> Result<FrameInitOrResult<Self::Frame>, ContextDbError<Self::Context>> {
        let Inner { ctx, instruction, frame_stack, .. } = &mut self.inner;
        let frame = frame_stack.get();
        let action = interpret(&mut frame.interpreter, instruction.instruction_table(), instruction.gas_table(), ctx);
        let next = frame.process_next_action::<_, ContextDbError<Self::Context>>(ctx, action)?;
        if next.is_result() {
            frame.set_finished(true);
        }
        Ok(next)
    }

    fn frame_return_result(
        &mut self,
        result: FrameResult,
    ) -> Result<Option<FrameResult>, ContextDbError<Self::Context>> {
        self.inner.frame_return_result(result)
    }
}

impl<'a, F: FamilyEvm, I: Inspector<Host<'a, F>>> InspectorEvmTr for RunEvm<'a, F, I> {
    type Inspector = I;

    fn all_inspector(
        &self,
    ) -> (&Self::Context, &Self::Instructions, &Self::Precompiles, &FrameStack<Self::Frame>, &Self::Inspector) {
        self.inner.all_inspector()
    }

    fn all_mut_inspector(
        &mut self,
    ) -> (
        &mut Self::Context,
        &mut Self::Instructions,
        &mut Self::Precompiles,
        &mut FrameStack<Self::Frame>,
        &mut Self::Inspector,
    ) {
        self.inner.all_mut_inspector()
    }
}

impl<'a, F: FamilyEvm> Evm for RunEvm<'a, F> {
    type DB = &'a mut Overlay;
    type Tx = F::Tx;
    type Error = Error;
    type HaltReason = HaltReason;
    type Spec = F::Spec;
    type BlockEnv = BlockEnv;
    type Precompiles = RunPrecompiles;
    type Inspector = NoOpInspector;

    fn block(&self) -> &BlockEnv {
        &self.inner.ctx.block
    }

    fn cfg_env(&self) -> &CfgEnv<F::Spec> {
        &self.inner.ctx.cfg
    }

    fn chain_id(&self) -> u64 {
        self.inner.ctx.cfg.chain_id
    }

    fn transact_raw(&mut self, tx: F::Tx) -> Result<ResultAndState, Error> {
        let result = self.execute(tx, true);
        self.finalized(result)
    }

    fn transact_system_call(
        &mut self,
        caller: Address,
        contract: Address,
        data: Bytes,
    ) -> Result<ResultAndState, Error> {
        self.inner.ctx.set_tx(F::Tx::new_system_tx_with_caller(caller, contract, data));
        let result = F::handle_system_call(self);
        self.finalized(result)
    }

    fn finish(self) -> (Self::DB, EvmEnv<F::Spec>) {
        let env = EvmEnv { block_env: self.inner.ctx.block.clone(), cfg_env: self.inner.ctx.cfg.clone() };
        (self.finish(), env)
    }

    /// Does nothing, because there is no inspector.
    fn set_inspector_enabled(&mut self, _: bool) {}

    fn components(&self) -> (&Self::DB, &Self::Inspector, &Self::Precompiles) {
        (&self.inner.ctx.journaled_state.database, &self.inner.inspector, &self.inner.precompiles)
    }

    fn components_mut(&mut self) -> (&mut Self::DB, &mut Self::Inspector, &mut Self::Precompiles) {
        let inner = &mut self.inner;
        (&mut inner.ctx.journaled_state.database, &mut inner.inspector, &mut inner.precompiles)
    }
}

/// The allocations of a run.
pub(super) struct Memory {
    /// The fork whose precompiles' addresses the journal holds. `None` if it holds none yet.
    fork: Option<Fork>,
    journal: JournalInner<JournalEntry>,
    local: LocalContext,
    frames: FrameStack<EthFrame>,
}

thread_local! {
    /// One for each run in progress on this thread, because a short call may run between two calls of a bundle.
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

impl Memory {
    /// The maximum that a usual run needs. Memory beyond it is freed.
    const KEPT_FRAMES: usize = 32;
    const KEPT_ACCOUNTS: usize = 1 << 10;
    const KEPT_ENTRIES: usize = 1 << 14;
    const KEPT_BYTES: usize = 1 << 20;
    const KEPT: usize = 2;

    pub(super) fn fresh() -> Self {
        Self { fork: None, journal: JournalInner::new(), local: LocalContext::default(), frames: FrameStack::default() }
    }

    fn take(fork: Fork) -> Self {
        let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(Self::fresh);
        if memory.fork != Some(fork) {
            (memory.fork, memory.journal) = (Some(fork), JournalInner::new());
        }
        memory
    }

    fn give_back(mut self) {
        // A run that was stopped may have left changes in the journal.
        let mut state: EvmState = self.journal.finalize();
        state.clear();
        if state.capacity() <= Self::KEPT_ACCOUNTS {
            self.journal.state = state;
        }
        if self.journal.journal.capacity() > Self::KEPT_ENTRIES {
            self.journal.journal = Vec::new();
        }
        if self.local.shared_memory_buffer.borrow().capacity() > Self::KEPT_BYTES {
            // The frames hold references to the buffer.
            (self.local, self.frames) = (LocalContext::default(), FrameStack::default());
        }
        self.frames.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < Self::KEPT {
                spare.push(self);
            }
        });
    }
}
