//! The record of the reads of transactions, frames and opcodes.
//!
//! Slots and block hashes are recorded where the overlay reads them from its base. All else is recorded here: by the
//! opcodes that show it to code, where a frame begins, and where a transaction begins. A run that records nothing uses
//! none of these opcodes. The record may contain more than decides the result, but never less.

use alloy_primitives::{Address, U256};
use revm::{
    Database, Journal,
    bytecode::opcode,
    context_interface::{Transaction, transaction::AuthorizationTr},
    handler::instructions::EthInstructions,
    interpreter::{
        FrameInput, InstructionExecResult,
        instructions::{block_info, host},
        interpreter::EthInterpreter,
        interpreter_action::FrameInit,
        interpreter_types::RuntimeFlag,
    },
    primitives::hardfork::SpecId,
    state::AccountInfo,
};

use super::{
    family::{FamilyEvm, RunEvm},
    meter::{At, Metered, call, extcodecopy, put, selfdestruct},
};
use crate::state::{AccountReads, BlockReads, Overlay};

/// Replaces the metered opcodes that show state or a field of the block by ones that also record this.
pub(super) fn record<'a, C: Metered<'a>>(instructions: &mut EthInstructions<EthInterpreter, C>) {
    let mut put = |code: u8, run: fn(At<'_, C>) -> InstructionExecResult| put(instructions, code, run);
    put(opcode::BALANCE, |mut at| {
        account(&mut at, 0, AccountReads::BALANCE);
        host::balance(at)
    });
    put(opcode::SELFBALANCE, |at| {
        at.host.db_mut().note_account(at.interpreter.input.target_address, AccountReads::BALANCE);
        host::selfbalance(at)
    });
    put(opcode::EXTCODESIZE, |mut at| {
        account(&mut at, 0, AccountReads::CODE);
        host::extcodesize(at)
    });
    put(opcode::EXTCODECOPY, |mut at| {
        account(&mut at, 0, AccountReads::CODE);
        extcodecopy(at)
    });
    put(opcode::EXTCODEHASH, |mut at| {
        account(&mut at, 0, AccountReads::CODE | AccountReads::EXISTENCE);
        host::extcodehash(at)
    });
    put(opcode::CALL, |mut at| {
        // Before EIP-161, a call without value also pays for an account that does not exist.
        let transfers = at.interpreter.stack.peek(2).is_ok_and(|value| !value.is_zero());
        let pays = transfers || !at.interpreter.runtime_flag.spec_id().is_enabled_in(SpecId::SPURIOUS_DRAGON);
        let existence = if pays { AccountReads::EXISTENCE } else { AccountReads::empty() };
        account(&mut at, 1, AccountReads::CODE | existence);
        delegate(&mut at);
        call::<{ opcode::CALL }, C>(at)
    });
    put(opcode::CALLCODE, call_code_of::<{ opcode::CALLCODE }, C>);
    put(opcode::DELEGATECALL, call_code_of::<{ opcode::DELEGATECALL }, C>);
    put(opcode::STATICCALL, call_code_of::<{ opcode::STATICCALL }, C>);
    put(opcode::SELFDESTRUCT, |at| {
        let (from, to) = (at.interpreter.input.target_address, at.interpreter.stack.peek(0));
        at.host.db_mut().note_account(from, AccountReads::BALANCE);
        if let Ok(to) = to {
            let journal = at.host.journal_mut();
            let value = balance(journal, from);
            note_receiver(journal, Address::from_word(to.into()), value);
        }
        selfdestruct(at)
    });
    /// Records a field of the block before the opcode that shows it runs.
    macro_rules! field {
        ($code:ident, $field:ident, $run:path) => {
            put(opcode::$code, |at| {
                at.host.db_mut().note_block(BlockReads::$field);
                $run(at)
            })
        };
    }
    field!(BLOCKHASH, NUMBER, host::blockhash);
    field!(NUMBER, NUMBER, block_info::block_number);
    field!(TIMESTAMP, TIMESTAMP, block_info::timestamp);
    field!(COINBASE, FEE_RECIPIENT, block_info::coinbase);
    field!(DIFFICULTY, PREV_RANDAO, block_info::difficulty);
    field!(GASLIMIT, GAS_LIMIT, block_info::gaslimit);
    field!(BASEFEE, BASE_FEE, block_info::basefee);
    field!(BLOBBASEFEE, BLOB_BASE_FEE, block_info::blob_basefee);
    field!(SLOTNUM, SLOT_NUMBER, block_info::slot_num);
}

/// Records the callee's code, then runs the call opcode `OP`, which transfers nothing to the callee.
fn call_code_of<'a, const OP: u8, C: Metered<'a>>(mut at: At<'_, C>) -> InstructionExecResult {
    account(&mut at, 1, AccountReads::CODE);
    delegate(&mut at);
    call::<OP, C>(at)
}

/// Records that the opcode reads `parts` of the account whose address is `depth` below the top of the stack.
fn account<'a, C: Metered<'a>>(at: &mut At<'_, C>, depth: usize, parts: AccountReads) {
    if let Ok(word) = at.interpreter.stack.peek(depth) {
        at.host.db_mut().note_account(Address::from_word(word.into()), parts);
    }
}

/// Records that the call opcode accesses the account to which the callee's code is delegated (EIP-7702). A call that
/// ends before its frame begins has paid for that access.
fn delegate<'a, C: Metered<'a>>(at: &mut At<'_, C>) {
    let Ok(word) = at.interpreter.stack.peek(1) else { return };
    if let Some(delegate) = delegate_of(at.host.journal_mut(), Address::from_word(word.into())) {
        at.host.db_mut().note_account(delegate, AccountReads::empty());
    }
}

/// Records the reads that a transfer of `value` makes of the receiving account.
fn note_receiver(journal: &mut Journal<&mut Overlay>, receiver: Address, value: U256) {
    // Whether the transfer overflows follows from whether the balance is in the upper half, as long as the sum is not.
    let overflows = balance(journal, receiver).checked_add(value).is_none_or(|sum| sum.bit(255));
    let balance = if overflows { AccountReads::BALANCE } else { AccountReads::empty() };
    journal.database.note_account(receiver, AccountReads::EXISTENCE | balance);
}

/// Returns the balance of an account as the transaction sees it now.
fn balance(journal: &mut Journal<&mut Overlay>, address: Address) -> U256 {
    seen_info(journal, address).map_or(U256::ZERO, |info| info.balance)
}

/// Returns the account to which the code of an account is delegated (EIP-7702), as the transaction sees it now.
pub(in crate::engine) fn delegate_of(journal: &mut Journal<&mut Overlay>, address: Address) -> Option<Address> {
    seen_info(journal, address)?.code?.eip7702_address()
}

/// Returns an account as the transaction sees it now. Neither warms it nor loads it.
fn seen_info(journal: &mut Journal<&mut Overlay>, address: Address) -> Option<AccountInfo> {
    match journal.inner.state.get(&address) {
        Some(account) => Some(account.info.clone()),
        None => journal.database.basic(address).ok().flatten(),
    }
}

impl<'a, F: FamilyEvm, I> RunEvm<'a, F, I> {
    /// Records the reads of a transaction before its first frame: the sender's balance and the fields that the chain
    /// checks, and, for each account that it delegates (EIP-7702), the fields that decide whether the delegation is
    /// valid.
    ///
    /// An unsigned call that offers and sends nothing does not depend on the balance.
    pub(super) fn note_transaction_if_recorded(&mut self, is_signed: bool) {
        if self.inner.ctx.journaled_state.database.records_reads() {
            self.note_transaction(is_signed);
        }
    }

    #[cold]
    fn note_transaction(&mut self, is_signed: bool) {
        let tx = &self.inner.ctx.tx;
        let authorities: Vec<Address> =
            tx.authorization_list().filter_map(|authorization| authorization.authority()).collect();
        let caller = tx.caller();
        let pays = is_signed || !tx.max_balance_spending().is_ok_and(|most| most.is_zero());
        let mut parts = AccountReads::NONCE;
        parts.set(AccountReads::BALANCE, pays);
        parts.set(AccountReads::CODE, !self.inner.ctx.cfg.disable_eip3607);
        let overlay = &mut *self.inner.ctx.journaled_state.database;
        overlay.note_account(caller, parts);
        for authority in authorities {
            overlay.note_account(authority, AccountReads::CODE | AccountReads::NONCE | AccountReads::EXISTENCE);
        }
    }

    /// Records the reads at the start of a frame: the codes that it runs, the funds that it transfers, and whether a
    /// contract may be created.
    #[cold]
    pub(super) fn note_frame(&mut self, init: &FrameInit) {
        let journal = &mut self.inner.ctx.journaled_state;
        match &init.frame_input {
            FrameInput::Call(call) => {
                journal.database.note_account(call.bytecode_address, AccountReads::CODE);
                if let Some(value) = call.transfer_value().filter(|value| !value.is_zero()) {
                    journal.database.note_account(call.transfer_from(), AccountReads::BALANCE);
                    note_receiver(journal, call.transfer_to(), value);
                }
                if let Some(delegate) = delegate_of(journal, call.bytecode_address) {
                    journal.database.note_account(delegate, AccountReads::CODE);
                }
            }
            FrameInput::Create(create) => {
                let nonce = seen_info(journal, create.caller()).map_or(0, |info| info.nonce);
                let created = create.created_address(nonce);
                journal.database.note_account(create.caller(), AccountReads::NONCE);
                journal.database.note_account(created, AccountReads::CODE | AccountReads::NONCE);
                if !create.value().is_zero() {
                    journal.database.note_account(create.caller(), AccountReads::BALANCE);
                    note_receiver(journal, created, create.value());
                }
            }
            FrameInput::Empty => {}
        }
    }
}
