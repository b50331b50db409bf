//! The opcodes that tick the meter of their run, and number its logs.

use alloy_primitives::Address;
use revm::{
    Journal,
    bytecode::opcode,
    context_interface::{Cfg, ContextTr, Host, JournalTr, context::ContextError},
    handler::instructions::{EthInstructions, InstructionProvider},
    interpreter::{
        Instruction, InstructionContext, InstructionExecResult, InstructionResult,
        instructions::{contract, host, memory, system},
        interpreter::EthInterpreter,
    },
};

use crate::{
    engine::transfers::Transfer,
    state::{LogOrigin, Overlay},
};

/// The host of a metered run: a context over an overlay.
pub(super) trait Metered<'a>:
    ContextTr<Db = &'a mut Overlay, Journal = Journal<&'a mut Overlay>> + Host
{
}

impl<'a, C: ContextTr<Db = &'a mut Overlay, Journal = Journal<&'a mut Overlay>> + Host> Metered<'a> for C {}

pub(super) type At<'i, C> = InstructionContext<'i, C, EthInterpreter>;

/// Replaces the instruction of an opcode, and keeps its static gas.
pub(super) fn put<C: Host>(
    instructions: &mut EthInstructions<EthInterpreter, C>,
    code: u8,
    run: fn(At<'_, C>) -> InstructionExecResult,
) {
    let gas = instructions.gas_table()[usize::from(code)];
    instructions.insert_instruction(code, Instruction::new(run), gas);
}

/// Replaces opcodes of revm by the metered ones.
pub(super) fn meter<'a, C: Metered<'a>>(instructions: &mut EthInstructions<EthInterpreter, C>) {
    let mut put = |code: u8, run: fn(At<'_, C>) -> InstructionExecResult| put(instructions, code, run);
    put(opcode::JUMPDEST, |mut at| tick(&mut at));
    put(opcode::CALL, call::<{ opcode::CALL }, C>);
    put(opcode::CALLCODE, call::<{ opcode::CALLCODE }, C>);
    put(opcode::DELEGATECALL, call::<{ opcode::DELEGATECALL }, C>);
    put(opcode::STATICCALL, call::<{ opcode::STATICCALL }, C>);
    put(opcode::CREATE, |mut at| {
        tick(&mut at)?;
        contract::create::<false, _, _>(at)
    });
    put(opcode::CREATE2, |mut at| {
        tick(&mut at)?;
        contract::create::<true, _, _>(at)
    });
    /// Meters an opcode whose cost grows with a length, by the position of the length on the stack and the bytes per
    /// tick.
    macro_rules! by_length {
        ($code:ident, $depth:expr, $bytes_a_tick:expr, $run:path) => {
            put(opcode::$code, |mut at| {
                tick_bytes(&mut at, $depth, $bytes_a_tick)?;
                $run(at)
            })
        };
    }
    by_length!(KECCAK256, 1, 64, system::keccak256);
    by_length!(CALLDATACOPY, 2, 1024, system::calldatacopy);
    by_length!(CODECOPY, 2, 1024, system::codecopy);
    by_length!(RETURNDATACOPY, 2, 1024, system::returndatacopy);
    by_length!(MCOPY, 2, 1024, memory::mcopy);
    put(opcode::EXTCODECOPY, extcodecopy::<C>);
    put(opcode::SELFDESTRUCT, selfdestruct::<C>);
    put(opcode::LOG0, log::<0, C>);
    put(opcode::LOG1, log::<1, C>);
    put(opcode::LOG2, log::<2, C>);
    put(opcode::LOG3, log::<3, C>);
    put(opcode::LOG4, log::<4, C>);
}

/// Ticks, then runs the call opcode `OP`.
pub(super) fn call<'a, const OP: u8, C: Metered<'a>>(mut at: At<'_, C>) -> InstructionExecResult {
    tick(&mut at)?;
    contract::call::<OP, _, _>(at)
}

pub(super) fn extcodecopy<'a, C: Metered<'a>>(mut at: At<'_, C>) -> InstructionExecResult {
    tick_bytes(&mut at, 3, 1024)?;
    host::extcodecopy(at)
}

#[inline(always)]
fn tick<'a, C: Metered<'a>>(at: &mut At<'_, C>) -> InstructionExecResult {
    if at.host.db_mut().meter.tick(1) { Ok(()) } else { stop(at) }
}

/// Ticks once, and once more for each `bytes_a_tick` of the length that is `depth` below the top of the stack. A length
/// that no gas can pay for ends the frame anyway, so it is not counted.
#[inline(always)]
fn tick_bytes<'a, C: Metered<'a>>(at: &mut At<'_, C>, depth: usize, bytes_a_tick: u32) -> InstructionExecResult {
    const PAYABLE: u32 = 1 << 24;
    let length = at.interpreter.stack.peek(depth).ok().and_then(|length| u32::try_from(length).ok());
    let cost = 1 + length.filter(|length| *length < PAYABLE).unwrap_or(0) / bytes_a_tick;
    if at.host.db_mut().meter.tick(cost) { Ok(()) } else { stop(at) }
}

#[cold]
fn stop<'a, C: Metered<'a>>(at: &mut At<'_, C>) -> InstructionExecResult {
    *at.host.error() = Err(ContextError::Custom(String::new()));
    Err(InstructionResult::FatalExternalError)
}

/// Runs the opcode, then numbers the log that it wrote, if any.
fn log<'a, const N: usize, C: Metered<'a>>(at: At<'_, C>) -> InstructionExecResult {
    let InstructionContext { interpreter, host } = at;
    let before = host.journal().logs().len();
    host::log::<N, _>(InstructionContext { interpreter, host: &mut *host })?;
    host.db_mut().log_numbers.push(before, LogOrigin::Contract);
    Ok(())
}

/// Runs the opcode, then logs the transfer of the contract's balance, if transfers are shown. The journal cannot show
/// it, because after Cancun it has no entry for ether that stays where it is.
pub(super) fn selfdestruct<'a, C: Metered<'a>>(at: At<'_, C>) -> InstructionExecResult {
    let InstructionContext { interpreter, host } = at;
    if ContextTr::cfg(host).is_amsterdam_eip8037_enabled() {
        // The journal logs the transfer (EIP-7708).
        let before = host.journal().logs().len();
        let ended = host::selfdestruct(InstructionContext { interpreter, host: &mut *host });
        if host.journal().logs().len() > before {
            host.db_mut().log_numbers.push(before, LogOrigin::Protocol);
        }
        return ended;
    }
    if !host.db_mut().log_numbers.shows_transfers() {
        return host::selfdestruct(InstructionContext { interpreter, host });
    }
    let from = interpreter.input.target_address;
    let to = Address::from_word(interpreter.stack.peek(0).unwrap_or_default().into());
    let value = host.journal_mut().load_account(from).ok().map(|account| account.data.info.balance);
    let ended = host::selfdestruct(InstructionContext { interpreter, host: &mut *host });
    if let Some(value) = value.filter(|value| ended == Err(InstructionResult::SelfDestruct) && !value.is_zero()) {
        Transfer { from, to, value }.write_log(host);
    }
    ended
}
