//! `traceTransfers`: transfers of the native currency as ERC-20 logs among the real ones, in the order of what happened.

use alloy_primitives::{Address, B256, Log, LogData, U256, address, b256};
use revm::{
    Inspector,
    bytecode::opcode,
    context_interface::{ContextTr, JournalTr},
    interpreter::{
        CallInputs, CallOutcome, CreateInputs, CreateOutcome, InstructionResult, Interpreter, InterpreterAction,
        InterpreterTypes,
        interpreter_types::{InputsTr, Jumps, LoopControl, StackTr},
    },
};

/// The address that such a log bears (execution-apis, `eth_simulateV1`).
const EMITTER: Address = address!("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
/// The topic of `Transfer(address,address,uint256)`.
const TRANSFER: B256 = b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A log, and its number among all that its block wrote, those included that were reverted.
#[derive(Clone, Debug)]
pub struct NumberedLog {
    /// The number, from 0.
    pub number: u64,
    /// The log.
    pub log: Log,
}

/// Collects the logs of a call, transfers included. A frame that fails takes its logs with it.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    logs: Vec<NumberedLog>,
    /// The next log's number in its block.
    next: u64,
    /// The contract that is about to destroy itself, who gets its ether, and how much that is.
    dying: Option<(Address, Address, U256)>,
    /// How many logs there were when each open frame began.
    frames: Vec<usize>,
}

impl Transfers {
    /// The logs of the call that has ended.
    pub(super) fn take(&mut self) -> Vec<NumberedLog> {
        self.frames.clear();
        std::mem::take(&mut self.logs)
    }

    fn push(&mut self, log: Log) {
        self.logs.push(NumberedLog { number: self.next, log });
        self.next += 1;
    }

    fn transfer(&mut self, from: Address, to: Address, value: U256) {
        if !value.is_zero() {
            let topics = vec![TRANSFER, from.into_word(), to.into_word()];
            let data = value.to_be_bytes::<32>().into();
            self.push(Log { address: EMITTER, data: LogData::new_unchecked(topics, data) });
        }
    }

    fn end(&mut self, succeeded: bool) {
        if let Some(before) = self.frames.pop()
            && !succeeded
        {
            self.logs.truncate(before);
        }
    }
}

impl<CTX: ContextTr, INTR: InterpreterTypes> Inspector<CTX, INTR> for Transfers {
    fn log(&mut self, _: &mut CTX, log: Log) {
        self.push(log);
    }

    fn call(&mut self, _: &mut CTX, inputs: &mut CallInputs) -> Option<CallOutcome> {
        self.frames.push(self.logs.len());
        if let Some(value) = inputs.transfer_value() {
            self.transfer(inputs.transfer_from(), inputs.transfer_to(), value);
        }
        None
    }

    fn call_end(&mut self, _: &mut CTX, _: &CallInputs, outcome: &mut CallOutcome) {
        self.end(outcome.result.result.is_ok());
    }

    fn create(&mut self, context: &mut CTX, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        self.frames.push(self.logs.len());
        if let Ok(creator) = context.journal_mut().load_account(inputs.caller()) {
            let created = inputs.created_address(creator.data.info.nonce);
            self.transfer(inputs.caller(), created, inputs.value());
        }
        None
    }

    fn create_end(&mut self, _: &mut CTX, _: &CreateInputs, outcome: &mut CreateOutcome) {
        self.end(outcome.result.result.is_ok());
    }

    fn step(&mut self, interpreter: &mut Interpreter<INTR>, context: &mut CTX) {
        if interpreter.bytecode.opcode() != opcode::SELFDESTRUCT {
            return;
        }
        let contract = interpreter.input.target_address();
        let to = interpreter.stack.data().last().map(|word| Address::from_word((*word).into()));
        let balance = context.journal_mut().load_account(contract).ok().map(|account| account.data.info.balance);
        self.dying = to.zip(balance).map(|(to, balance)| (contract, to, balance));
    }

    fn step_end(&mut self, interpreter: &mut Interpreter<INTR>, _: &mut CTX) {
        // It has happened if the opcode ended its frame well. The journal does not tell all: after Cancun, ether that stays where it
        // is leaves no trace there.
        let Some((contract, to, balance)) = self.dying.take() else { return };
        let ended = interpreter.bytecode.action().as_ref().and_then(InterpreterAction::instruction_result);
        if ended == Some(InstructionResult::SelfDestruct) {
            self.transfer(contract, to, balance);
        }
    }
}
