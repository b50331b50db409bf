//! A block alone, and the hash of a transaction.

use alloy_primitives::B256;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::parse;
use crate::{
    ledger::Selector,
    rpc::{
        json::hex::Fixed,
        protocol::{dialect::Dialect, error::Result},
    },
};

/// A parameter that names a block: any selector, or a hash alone.
pub trait NamesBlock: DeserializeOwned + JsonSchema + Into<Selector> {}

impl<B: DeserializeOwned + JsonSchema + Into<Selector>> NamesBlock for B {}

params! {
    OneBlock<B>(B) = "1 parameter: block";
    OneHash(Fixed<32>) = "1 parameter: a transaction's hash";
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
