//! Reads of a simulation besides its calls' reads: by its plan, by the headers of its blocks, and by its outputs.

use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_primitives::Address;

use super::{outputs::AccountDiff, plan::PlannedBlock, results::SimulatedBlock};
use crate::{
    chain::{BASE_TIME, ChainSpec},
    engine::{
        evm::FamilyEvm,
        request::{Outputs, Simulation},
    },
    state::{AccountReads, BlockReads, Overlay},
};

/// The contracts that are written before the calls of a block.
const BEFORE_CALLS: [Address; 3] = [HISTORY_STORAGE_ADDRESS, BEACON_ROOTS_ADDRESS, BASE_TIME];
/// The contracts that system calls run after the calls of a block, if another block follows.
const AFTER_CALLS: [Address; 2] = [WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS];

/// Records the reads of a simulation's plan, without its calls' reads. `plan` is `None` if it is refused.
pub(super) fn note_plan(
    spec: &ChainSpec,
    simulation: &Simulation,
    plan: Option<&[PlannedBlock<'_>]>,
    overlay: &mut Overlay,
) {
    if simulation.outputs.intersects(Outputs::HEADER | Outputs::BLOCK_ACCESS_LIST) {
        overlay.note_everything();
    }
    if let Some([first, _, ..]) = plan
        && spec.changes_after(first.number, first.time)
    {
        // A later block may be the first of a fork.
        overlay.note_block(BlockReads::NUMBER | BlockReads::TIMESTAMP);
    }
    for block in &simulation.blocks {
        // A block with a given number must follow the snapshot's block, and the gap between the two is filled.
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

/// The reads of a run of blocks, as far as they are noted when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunReads {
    /// The fields of the first block that have been read so far, or that follow from such.
    pub fields: BlockReads,
    /// Whether any block so far has begun with its system calls.
    begun: bool,
}

impl RunReads {
    /// Records the reads of a block's run, without its calls' reads: converts the fields of the block to the fields of
    /// the first block from which they follow. If the block has `ended`, also records the reads that its outputs show.
    pub fn note_block<F: FamilyEvm>(
        &mut self,
        planned: &PlannedBlock<'_>,
        is_first: bool,
        simulation: &Simulation,
        ended: Option<&SimulatedBlock>,
        overlay: &mut Overlay,
    ) {
        if !overlay.records_reads() {
            return;
        }
        self.begun |= planned.continues.is_none();
        let mut read = overlay.take_block_reads();
        // A vault that is the fee recipient gets more than the producer's fees.
        if F::HAS_VAULTS && simulation.counts_income() {
            read |= BlockReads::FEE_RECIPIENT;
        }
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
            if !is_first {
                // The fees follow from the header of the block before, and from the gas of the block that it continues.
                read |= BlockReads::NUMBER | BlockReads::TIMESTAMP | BlockReads::GAS_LIMIT | BlockReads::HEADER | fees;
                read |= BlockReads::GAS_LEFT;
            } else if set.time.is_some() || set.fork.is_some() {
                // The fees follow from the parent by the rules of this time or fork.
                read |= BlockReads::HEADER;
            }
        }
        // Unrecorded writes have changed these contracts: the parent's hash and the block's time before the calls, and
        // the effects of requests after the calls.
        let has_accessed = |contract: &Address| overlay.has_accessed(contract);
        if self.begun && BEFORE_CALLS.iter().any(has_accessed) {
            read = BlockReads::all();
        }
        let follows =
            !is_first && (self.begun && BEFORE_CALLS.iter().any(has_accessed) || AFTER_CALLS.iter().any(has_accessed));
        if follows {
            overlay.note_everything();
        }
        self.fields |= read;
        let Some(ended) = ended else { return };
        // The fees add less to a balance where the sum would overflow.
        let recipient = ended.fee_recipient;
        let shows_fees =
            !ended.fees.is_zero() && simulation.outputs.intersects(Outputs::STATE_DIFF | Outputs::COINBASE);
        if shows_fees {
            overlay.note_account(recipient, AccountReads::EXISTENCE);
        }
        let names_recipient = ended.diff.as_ref().is_some_and(|diff| shows_fees || diff.contains_key(&recipient));
        if names_recipient && planned.block.block.fee_recipient.is_none() {
            self.fields |= BlockReads::FEE_RECIPIENT;
        }
        for (address, change) in ended.diff.iter().flatten() {
            note_diff(*address, change, overlay);
        }
    }
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
