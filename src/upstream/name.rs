//! The names of blocks: their numbers and hashes, as an upstream reports them.

use alloy_consensus::Header;
use alloy_primitives::{B256, Sealed, U64};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::objects;

/// The needed fields of a header. The others are in the full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct BlockName {
    /// The block's hash.
    pub hash: B256,
    /// The block's number.
    pub number: U64,
}

/// Reads the header of a block, and the hash that its upstream gives for it.
///
/// # Errors
///
/// Returns the reason if a field is missing or malformed.
pub fn named_header(block: &RawValue) -> Result<Sealed<Header>, serde_json::Error> {
    let BlockName { hash, .. } = objects::from_str(block.get())?;
    Ok(Sealed::new_unchecked(objects::from_str(block.get())?, hash))
}
