//! The comparison of blocks that were not executed here with their headers.

use std::fmt::Display;

use alloy_consensus::{Header, TxReceipt};

use super::decode::EntryError;
use crate::{
    chain::{BlockBody, SealedBlock, agrees_with_receipts, receipts_root_and_bloom},
    ledger::Record,
};

/// Checks the values of a decoded change's blocks that follow from their receipts.
///
/// # Errors
///
/// Returns [`EntryError::Mismatch`] with the first value that differs.
pub fn check(record: &Record) -> Result<(), EntryError> {
    match record {
        Record::Canonical { block, .. } | Record::Content(block) | Record::Restart { block, .. } => {
            check_receipts(block)
        }
        Record::Preconfirmed { complete: Some(complete), .. } => check_receipts(&complete.head),
        _ => Ok(()),
    }
}

/// Checks the receipts of an upstream's block against its header, if they are known. Its transactions are not checked.
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

/// Checks a value that follows from the header of block `number`.
///
/// # Errors
///
/// Returns [`EntryError::Mismatch`] if it differs.
pub fn unless_equal<T: PartialEq + Display>(
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
