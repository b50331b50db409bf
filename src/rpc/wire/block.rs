//! Parameters of look-ups of blocks and of their transactions.

use alloy_primitives::B256;
use serde::de::DeserializeOwned;

use super::parse;
use crate::{
    ledger::Selector,
    rpc::{
        dialect::Dialect,
        error::Result,
        hex::{Fixed, Quantity},
    },
};

/// A parameter that names a block: any selector, or a hash alone.
pub trait NamesBlock: DeserializeOwned + Into<Selector> {}

impl<B: DeserializeOwned + Into<Selector>> NamesBlock for B {}

params! {
    BlockParams<B>(B; bool) = "1 or 2 parameters: block, whether to show transactions in full";
    OneBlock<B>(B) = "1 parameter: block";
    OneHash(Fixed<32>) = "1 parameter: a transaction's hash";
    PlaceParams<B>(B, Quantity<u64>) = "2 parameters: block, index";
}

/// Parses a block selector and whether to show the block's transactions in full.
pub fn parse_block<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<(Selector, bool)> {
    let BlockParams::<B>(block, full, ()) = parse(params, dialect)?;
    Ok((block.into(), full.unwrap_or_default()))
}

/// Parses a block selector alone.
pub fn parse_one_block<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<Selector> {
    let OneBlock::<B>(block, ()) = parse(params, dialect)?;
    Ok(block.into())
}

/// Parses the hash of a transaction.
pub fn parse_hash(params: &str, dialect: &Dialect) -> Result<B256> {
    let OneHash(hash, ()) = parse(params, dialect)?;
    Ok(hash.into())
}

/// Parses a block selector and the index of a transaction in the block.
pub fn parse_place<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<(Selector, usize)> {
    let PlaceParams::<B>(block, Quantity(index), ()) = parse(params, dialect)?;
    // An index that does not fit `usize` is past the end of any block.
    Ok((block.into(), usize::try_from(index).unwrap_or(usize::MAX)))
}
