//! Look-ups of blocks and of the transactions in them.

use alloy_primitives::B256;
use serde::{Deserialize, de::DeserializeOwned};

use super::parse;
use crate::{
    rpc::{
        dialect::Dialect,
        error::RpcError,
        hex::{Fixed, Quantity},
    },
    state::Selector,
};

/// What a method takes a block by: any selector, or a hash alone.
pub trait NamesBlock: DeserializeOwned + Into<Selector> {}

impl<B: DeserializeOwned + Into<Selector>> NamesBlock for B {}

/// A block, and whether its transactions are wanted in full.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: block, whether to show transactions in full")]
struct BlockParams<B>(B, #[serde(default)] Option<bool>);

/// A block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: block")]
struct OneBlock<B>(B, #[serde(skip)] ());

/// A hash.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a transaction's hash")]
struct OneHash(Fixed<32>, #[serde(skip)] ());

/// A block, and an index in it.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 parameters: block, index")]
struct PlaceParams<B>(B, Quantity<u64>);

/// A block, and whether its transactions are shown in full.
pub fn parse_block<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<(Selector, bool), RpcError> {
    let BlockParams::<B>(block, full) = parse(params, dialect)?;
    Ok((block.into(), full.unwrap_or_default()))
}

/// A block alone.
pub fn parse_one_block<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<Selector, RpcError> {
    let OneBlock::<B>(block, ()) = parse(params, dialect)?;
    Ok(block.into())
}

/// A transaction's hash.
pub fn parse_hash(params: &str, dialect: &Dialect) -> Result<B256, RpcError> {
    let OneHash(hash, ()) = parse(params, dialect)?;
    Ok(hash.into())
}

/// A block and an index in it.
pub fn parse_place<B: NamesBlock>(params: &str, dialect: &Dialect) -> Result<(Selector, usize), RpcError> {
    let PlaceParams::<B>(block, Quantity(index)) = parse(params, dialect)?;
    // An index past what memory holds is one past the block's end.
    Ok((block.into(), usize::try_from(index).unwrap_or(usize::MAX)))
}
