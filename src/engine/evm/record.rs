//! The record of what a run reads, in the overlay of the run.
//!
//! Slots and block hashes are recorded where the overlay reads them from its base. All else is recorded here: by the
//! opcodes that show it to code, where a frame begins, and where a transaction begins. A run that records nothing uses
//! none of these opcodes. What is recorded may exceed what decides the result, never fall short of it.

use alloy_primitives::Address;
use revm::{
    bytecode::opcode,
    context_interface::{JournalTr, Transaction, transaction::AuthorizationTr},
    handler::{evm::ContextDbError, instructions::EthInstructions},
    interpreter::{
        FrameInput, Instruction,
        instructions::{block_info, host},
        interpreter::EthInterpreter,
        interpreter_action::FrameInit,
        interpreter_types::RuntimeFlag,
    },
    primitives::hardfork::SpecId,
};

use super::{
    family::{FamilyEvm, Host},
    meter::{At, Metered, call, call_code, delegate_call, extcodecopy, selfdestruct, static_call},
    run::RunEvm,
};
use crate::state::{AccountReads, BlockReads};

/// Replaces the metered opcodes that show state or a field of the block by ones that also record this.
pub(super) fn record<'a, C: Metered<'a>>(instructions: &mut EthInstructions<EthInterpreter, C>) {
    let mut put = |code: u8, run: fn(At<'_, C>)| {
        let gas = instructions.instruction_table[usize::from(code)].static_gas();
        instructions.insert_instruction(code, Instruction::new(run, gas));
    };
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
        call(at)
    });
    put(opcode::CALLCODE, |mut at| {
        account(&mut at, 1, AccountReads::CODE);
        call_code(at)
    });
    put(opcode::DELEGATECALL, |mut at| {
        account(&mut at, 1, AccountReads::CODE);
        delegate_call(at)
    });
    put(opcode::STATICCALL, |mut at| {
        account(&mut at, 1, AccountReads::CODE);
        static_call(at)
    });
    put(opcode::SELFDESTRUCT, |mut at| {
        at.host.db_mut().note_account(at.interpreter.input.target_address, AccountReads::BALANCE);
        account(&mut at, 0, AccountReads::EXISTENCE);
        selfdestruct(at)
    });
    put(opcode::BLOCKHASH, |at| {
        at.host.db_mut().note_block(BlockReads::NUMBER);
        host::blockhash(at)
    });
    put(opcode::NUMBER, |at| {
        at.host.db_mut().note_block(BlockReads::NUMBER);
        block_info::block_number(at)
    });
    put(opcode::TIMESTAMP, |at| {
        at.host.db_mut().note_block(BlockReads::TIMESTAMP);
        block_info::timestamp(at)
    });
    put(opcode::COINBASE, |at| {
        at.host.db_mut().note_block(BlockReads::FEE_RECIPIENT);
        block_info::coinbase(at)
    });
    put(opcode::DIFFICULTY, |at| {
        at.host.db_mut().note_block(BlockReads::PREV_RANDAO);
        block_info::difficulty(at)
    });
    put(opcode::GASLIMIT, |at| {
        at.host.db_mut().note_block(BlockReads::GAS_LIMIT);
        block_info::gaslimit(at)
    });
    put(opcode::BASEFEE, |at| {
        at.host.db_mut().note_block(BlockReads::BASE_FEE);
        block_info::basefee(at)
    });
    put(opcode::BLOBBASEFEE, |at| {
        at.host.db_mut().note_block(BlockReads::BLOB_BASE_FEE);
        block_info::blob_basefee(at)
    });
}

/// Records that the opcode reads `parts` of the account whose address is `depth` below the top of the stack.
fn account<'a, C: Metered<'a>>(at: &mut At<'_, C>, depth: usize, parts: AccountReads) {
    if let Ok(word) = at.interpreter.stack.peek(depth) {
        at.host.db_mut().note_account(Address::from_word(word.into()), parts);
    }
}

impl<'a, F: FamilyEvm, I> RunEvm<'a, F, I> {
    /// Records what a transaction reads before its first frame: of its sender what pays and what the chain checks, and
    /// of each account that it delegates (EIP-7702) what decides whether the delegation is valid.
    pub(super) fn note_transaction_if_recorded(&mut self) {
        if self.inner.ctx.journaled_state.database.records_reads() {
            self.note_transaction();
        }
    }

    #[cold]
    fn note_transaction(&mut self) {
        let tx = &self.inner.ctx.tx;
        let authorities: Vec<Address> =
            tx.authorization_list().filter_map(|authorization| authorization.authority()).collect();
        let caller = tx.caller();
        let overlay = &mut *self.inner.ctx.journaled_state.database;
        let checks_code = !self.inner.ctx.cfg.disable_eip3607;
        let code = if checks_code { AccountReads::CODE } else { AccountReads::empty() };
        overlay.note_account(caller, AccountReads::BALANCE | AccountReads::NONCE | code);
        for authority in authorities {
            overlay.note_account(authority, AccountReads::CODE | AccountReads::NONCE | AccountReads::EXISTENCE);
        }
    }

    /// Records what a frame reads as it begins: the codes that it runs, the funds that it transfers, and whether a
    /// contract may be created.
    #[cold]
    pub(super) fn note_frame(&mut self, init: &FrameInit) -> Result<(), ContextDbError<Host<'a, F>>> {
        let journal = &mut self.inner.ctx.journaled_state;
        match &init.frame_input {
            FrameInput::Call(call) => {
                journal.database.note_account(call.bytecode_address, AccountReads::CODE);
                if call.transfer_value().is_some_and(|value| !value.is_zero()) {
                    journal.database.note_account(call.transfer_from(), AccountReads::BALANCE);
                    journal.database.note_account(call.transfer_to(), AccountReads::EXISTENCE);
                }
                // The journal has loaded the account already, to know its code.
                let code = journal.load_account(call.bytecode_address)?.data.info.code.as_ref();
                if let Some(delegate) = code.and_then(revm::bytecode::Bytecode::eip7702_address) {
                    journal.database.note_account(delegate, AccountReads::CODE);
                }
            }
            FrameInput::Create(create) => {
                let nonce = journal.load_account(create.caller())?.data.info.nonce;
                journal.database.note_account(create.caller(), AccountReads::BALANCE | AccountReads::NONCE);
                let parts = AccountReads::CODE | AccountReads::NONCE;
                journal.database.note_account(create.created_address(nonce), parts);
            }
            FrameInput::Empty => {}
        }
        Ok(())
    }
}
