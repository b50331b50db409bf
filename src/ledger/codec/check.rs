//! The comparison of blocks that were not executed here with their headers.

use std::fmt::Display;

use alloy_consensus::{Header, TxReceipt};

use super::decode::EntryError;
use crate::{
    chain::{BlockBody, BlockTotals, SealedBlock, agrees_with_receipts, receipts_root_and_bloom},
    ledger::{Record, Snapshot},
    state::LocalWorld,
};

/// Checks the blocks of a change that was read: what follows from the receipts, and of a block that its leader has built, all of
/// its header that follows from its content and its state.
///
/// # Errors
///
/// Returns [`EntryError::Mismatch`] with the first value that differs.
pub fn check(record: &Record) -> Result<(), EntryError> {
    match record {
        Record::Seal { sealed, .. } => check_sealed(sealed),
        Record::Canonical { block, .. } | Record::Content(block) | Record::Restart { block, .. } => {
            check_receipts(block)
        }
        Record::Preconfirmed { complete: Some(complete), .. } => check_receipts(&complete.head),
        _ => Ok(()),
    }
}

fn check_sealed(sealed: &Snapshot) -> Result<(), EntryError> {
    let (header, body) = (&sealed.head.header, sealed.head.body());
    let totals =
        BlockTotals::of(&body.transactions, &body.receipts, header.gas_used, header.blob_gas_used.unwrap_or_default());
    let mut closed = header.inner().clone();
    totals.close(&mut closed);
    let number = header.number;
    check_gas(header, &body)?;
    unless_equal(number, "transactionsRoot", &header.transactions_root, &closed.transactions_root)?;
    unless_equal(number, "receiptsRoot", &header.receipts_root, &closed.receipts_root)?;
    unless_equal(number, "logsBloom", &header.logs_bloom, &closed.logs_bloom)?;
    let root = sealed.world.local().map_or(header.state_root, LocalWorld::state_root_in_parallel);
    unless_equal(number, "stateRoot", &header.state_root, &root)
}

/// Checks the receipts of an upstream's block against its header, if they are known. Its transactions are as the upstream
/// has them.
fn check_receipts(block: &SealedBlock) -> Result<(), EntryError> {
    let (header, Some(body)) = (&block.header, block.find_body()) else { return Ok(()) };
    let (root, bloom) = receipts_root_and_bloom(&body.receipts);
    check_gas(header, &body)?;
    unless_equal(header.number, "receiptsRoot", &header.receipts_root, &root)?;
    unless_equal(header.number, "logsBloom", &header.logs_bloom, &bloom)
}

/// Checks the gas that the transactions of a block have used by their receipts.
fn check_gas(header: &Header, body: &BlockBody) -> Result<(), EntryError> {
    let gas = body.receipts.last().map_or(0, TxReceipt::cumulative_gas_used);
    match agrees_with_receipts(header, gas) {
        true => Ok(()),
        false => unless_equal(header.number, "gasUsed", &header.gas_used, &gas),
    }
}

fn unless_equal<T: PartialEq + Display>(
    number: u64,
    what: &'static str,
    expected: &T,
    got: &T,
) -> Result<(), EntryError> {
    if expected == got {
        return Ok(());
    }
    Err(EntryError::Mismatch { number, what, expected: expected.to_string(), got: got.to_string() })
}
