//! Reads of a simulation besides those of its calls: by its plan, by the headers of its blocks, and by its outputs.

use std::collections::BTreeMap;

use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::Evm;
use alloy_primitives::{Address, U256};

use super::{
    outputs::AccountDiff,
    plan::PlannedBlock,
    simulator::{BlockPlace, Simulator},
};
use crate::{
    chain::BASE_TIME,
    engine::{
        evm::{FamilyEvm, RunEvm},
        request::{Outputs, Simulation},
    },
    state::{AccountReads, BlockReads, Overlay},
};

/// The contracts that are written before the calls of a block.
const BEFORE_CALLS: [Address; 3] = [HISTORY_STORAGE_ADDRESS, BEACON_ROOTS_ADDRESS, BASE_TIME];
/// The contracts that system calls run after the calls of a block, if another block follows.
const AFTER_CALLS: [Address; 2] = [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS];

/// Records what the plan of a simulation reads, besides what its calls do.
pub(super) fn note_plan(simulation: &Simulation, overlay: &mut Overlay) {
    if simulation.outputs.intersects(Outputs::HEADER | Outputs::BLOCK_ACCESS_LIST) {
        overlay.note_everything();
    }
    for block in &simulation.blocks {
        // A block that is set must come after the snapshot's, and the gap between the two is filled.
        if block.block.number.is_some() {
            overlay.note_block(BlockReads::NUMBER);
        }
        if block.block.time.is_some() {
            overlay.note_block(BlockReads::TIMESTAMP);
        }
        // System calls, which are not recorded, run in the accounts as they are overridden.
        if block.state.iter().any(|(address, _)| BEFORE_CALLS.contains(address) || AFTER_CALLS.contains(address)) {
            overlay.note_everything();
        }
    }
}

impl<F: FamilyEvm> Simulator<'_, F> {
    /// Converts the fields that a block's calls have read to those of the first block from which they follow.
    pub(super) fn note_fields(&mut self, planned: &PlannedBlock<'_>, place: BlockPlace) {
        if !self.overlay().records_reads() {
            return;
        }
        self.state.begun |= planned.continues.is_none();
        let mut read = self.overlay().take_block_reads();
        let set = &planned.block.block;
        for (is_set, field) in [
            (set.gas_limit.is_some(), BlockReads::GAS_LIMIT),
            (set.fee_recipient.is_some(), BlockReads::FEE_RECIPIENT),
            (set.prev_randao.is_some(), BlockReads::PREV_RANDAO),
            (set.base_fee.is_some(), BlockReads::BASE_FEE),
            (set.blob_base_fee.is_some(), BlockReads::BLOB_BASE_FEE),
        ] {
            read.set(field, read.contains(field) && !is_set);
        }
        let fees = BlockReads::BASE_FEE | BlockReads::BLOB_BASE_FEE;
        if read.intersects(fees) {
            if !place.is_first {
                // The fees follow from the header of the block before, and from the gas of the block that it continues.
                read |= BlockReads::NUMBER | BlockReads::TIMESTAMP | BlockReads::GAS_LIMIT | BlockReads::HEADER | fees;
                read |= BlockReads::GAS_LEFT;
            } else if set.time.is_some() {
                // The fees follow from the parent by the rules of this time.
                read |= BlockReads::HEADER;
            }
        }
        // Writes that are not recorded have changed these contracts: before the calls the parent's hash and the block's
        // time, and after the calls what follows from requests.
        let overlay = self.evm.db_mut();
        let has_accessed = |contract: &Address| overlay.has_accessed(contract);
        if self.state.begun && BEFORE_CALLS.iter().any(has_accessed) {
            read = BlockReads::all();
        }
        let follows = !place.is_first
            && (self.state.begun && BEFORE_CALLS.iter().any(has_accessed) || AFTER_CALLS.iter().any(has_accessed));
        if follows {
            overlay.note_everything();
        }
        self.state.block_reads |= read;
    }

    /// Records what the outputs of a block show beside the results of its calls: the changes in `diff`, and what the fees
    /// add to a balance, which is less where that would overflow.
    pub(super) fn note_outputs(
        &mut self,
        planned: &PlannedBlock<'_>,
        fee_recipient: Address,
        has_fees: bool,
        diff: Option<&BTreeMap<Address, AccountDiff>>,
    ) {
        let shows_fees = has_fees && self.simulation.outputs.intersects(Outputs::STATE_DIFF | Outputs::COINBASE);
        if shows_fees {
            self.overlay().note_account(fee_recipient, AccountReads::EXISTENCE);
        }
        let names_recipient = diff.is_some_and(|diff| shows_fees || diff.contains_key(&fee_recipient));
        if names_recipient && planned.block.block.fee_recipient.is_none() {
            self.state.block_reads |= BlockReads::FEE_RECIPIENT;
        }
        for (address, change) in diff.into_iter().flatten() {
            note_diff(*address, change, self.overlay());
        }
    }
}

/// Returns the balance of the block's producer before the calls, to compare it with the one after them.
pub(super) fn producer_balance<F: FamilyEvm>(fee_recipient: Address, overlay: &mut Overlay) -> U256 {
    if F::HAS_VAULTS {
        // A vault that is the fee recipient gets more than the producer's fees.
        overlay.note_block(BlockReads::FEE_RECIPIENT);
    }
    overlay.balance_and_nonce(fee_recipient).0
}

/// Runs system calls without recording what they read. What they write is recorded as read where code reads it. Their
/// contracts are those of their EIPs, whose code never changes.
pub(super) fn unrecorded<F: FamilyEvm, T>(evm: &mut RunEvm<'_, F>, run: impl FnOnce(&mut RunEvm<'_, F>) -> T) -> T {
    let records = evm.db().records_reads();
    evm.db_mut().record_reads(false);
    let done = run(evm);
    evm.db_mut().record_reads(records);
    done
}

/// Records that an output shows the account's change.
fn note_diff(address: Address, diff: &AccountDiff, overlay: &mut Overlay) {
    let (from, to) = (diff.info.from.clone().unwrap_or_default(), diff.info.to.clone().unwrap_or_default());
    let mut parts = AccountReads::empty();
    parts.set(AccountReads::BALANCE, from.balance != to.balance && !diff.gets_fees);
    parts.set(AccountReads::NONCE, from.nonce != to.nonce);
    parts.set(AccountReads::CODE, from.code_hash != to.code_hash);
    if !parts.is_empty() {
        overlay.note_account(address, parts);
    }
}
