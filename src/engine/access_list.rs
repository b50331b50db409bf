//! `eth_createAccessList`: the access list (EIP-2930) of all accounts and slots that a call with this list touches.

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::Header;
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_primitives::{Address, B256};
use revm::{
    Inspector, Journal,
    bytecode::opcode,
    context::{ContextTr, TxEnv, result::ExecutionResult, transaction::TransactionType},
    handler::FrameResult,
    interpreter::{FrameInput, Interpreter, interpreter_types::Jumps},
    state::Account,
};

use super::{
    Engine,
    call::PreparedCall,
    error::{SimulationError, explain},
    evm::{FamilyEvm, TxSetup, delegate_of, inspect},
    request::CallRequest,
};
use crate::state::Overlay;

/// The accounts and slots that a call touches.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The access list, ordered by address and slot. It has accounts that are warm without it only for their slots.
    pub list: AccessList,
    /// The result of the call with this list.
    pub result: ExecutionResult,
    /// Gas used by all runs together.
    pub simulated: u64,
}

impl Engine<'_> {
    pub(super) fn access_list_on<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<Accessed, SimulationError> {
        let prepared = self.prepare::<F>(header, request)?;
        let overlay = &mut *self.overlay;
        let base_fee = prepared.env.block_env.basefee;
        let mut recorder = AccessRecorder::of(prepared.tx.access_list.clone());
        let mut simulated: u64 = 0;
        loop {
            overlay.meter.check()?;
            let PreparedCall { env, precompiles, tx } = prepared.clone();
            let before = recorder.list();
            let setup = TxSetup::unsigned(with_list(tx, before.clone()), env, precompiles);
            let ran = inspect::<F, _>(&mut *overlay, setup, &mut recorder);
            let result = ran.map_err(|error| explain(error, request.call.named(), base_fee, overlay))?.result;
            simulated = simulated.saturating_add(result.tx_gas_used());
            let list = recorder.list();
            if list == before {
                return Ok(Accessed { list, result, simulated });
            }
        }
    }
}

/// Returns the call with an access list. A legacy call with a list becomes a call of type EIP-2930.
fn with_list(tx: TxEnv, access_list: AccessList) -> TxEnv {
    let legacy = tx.tx_type == TransactionType::Legacy as u8;
    let tx_type = if legacy && !access_list.is_empty() { TransactionType::Eip2930 as u8 } else { tx.tx_type };
    TxEnv { tx_type, access_list, ..tx }
}

/// An inspector that records the accounts and slots for which a run would pay less if an access list had them.
///
/// These are slots, and the accounts that an opcode accesses while they are cold without the access list (EIP-2929).
/// An account that is warm from the start is not recorded: the sender, the callee with the account that its code is
/// delegated to (EIP-7702), the authorities, the precompiles, and the fee recipient (EIP-3651). A contract that the
/// run creates is not recorded either, nor are its slots, unless the run accesses the account before it creates the
/// contract.
#[derive(Debug, Default)]
pub(super) struct AccessRecorder(BTreeMap<Address, BTreeSet<B256>>);

impl AccessRecorder {
    /// Creates a recorder of the entries of `list` and of the run's other accesses.
    fn of(list: AccessList) -> Self {
        let mut recorder = Self::default();
        for item in list.0 {
            recorder.0.entry(item.address).or_default().extend(item.storage_keys);
        }
        recorder
    }

    /// Returns the entries recorded so far, ordered by address and slot.
    pub(super) fn list(&self) -> AccessList {
        let item = |(address, keys): (&Address, &BTreeSet<B256>)| AccessListItem {
            address: *address,
            storage_keys: keys.iter().copied().collect(),
        };
        AccessList(self.0.iter().map(item).collect())
    }

    fn account(&mut self, address: Address, journal: &Journal<&mut Overlay>) {
        if is_cold(address, journal) {
            self.0.entry(address).or_default();
        }
    }
}

/// Returns whether an account is cold, ignoring the access list.
fn is_cold(address: Address, journal: &Journal<&mut Overlay>) -> bool {
    let warm = &journal.warm_addresses;
    let is_loaded = journal.state.get(&address).is_some_and(|one| !one.is_cold_transaction_id(journal.transaction_id));
    !is_loaded && warm.coinbase() != Some(address) && !warm.precompiles().contains(&address)
}

impl<'a, C: ContextTr<Db = &'a mut Overlay, Journal = Journal<&'a mut Overlay>>> Inspector<C> for AccessRecorder {
    /// Drops, of the list with which the recorder began, the contract that the run itself creates, and the accounts
    /// without slots that are warm before the first frame.
    fn frame_start(&mut self, context: &mut C, frame: &mut FrameInput) -> Option<FrameResult> {
        let journal = context.journal();
        if journal.depth == 0 {
            let created = match frame {
                FrameInput::Create(create) => {
                    let nonce = journal.state.get(&create.caller()).map_or(0, |caller| caller.info.nonce);
                    Some(create.created_address(nonce))
                }
                _ => None,
            };
            self.0.retain(|address, slots| {
                created != Some(*address) && (!slots.is_empty() || is_cold(*address, journal))
            });
        }
        None
    }

    fn step(&mut self, at: &mut Interpreter, context: &mut C) {
        let depth = match at.bytecode.opcode() {
            opcode::SLOAD | opcode::SSTORE => {
                let contract = at.input.target_address;
                let is_new = context.journal().state.get(&contract).is_some_and(Account::is_created_locally);
                if let Ok(slot) = at.stack.peek(0)
                    && !is_new
                {
                    self.0.entry(contract).or_default().insert(slot.into());
                }
                return;
            }
            opcode::BALANCE
            | opcode::EXTCODESIZE
            | opcode::EXTCODECOPY
            | opcode::EXTCODEHASH
            | opcode::SELFDESTRUCT => 0,
            opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL => 1,
            _ => return,
        };
        let Ok(word) = at.stack.peek(depth) else { return };
        let (address, journal) = (Address::from_word(word.into()), context.journal_mut());
        self.account(address, journal);
        if depth == 1
            && let Some(delegate) = delegate_of(journal, address)
        {
            // A call also accesses the account to which the callee's code is delegated.
            self.account(delegate, journal);
        }
    }
}
