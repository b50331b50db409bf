//! Look-ups of blocks and of the transactions in them.

use alloy_primitives::B256;
use serde::Deserialize;

use super::{SelectorParam, parse};
use crate::{
    rpc::{
        dialect::Dialect,
        error::RpcError,
        hex::{Fixed, Quantity},
    },
    state::Selector,
};

/// A block, and whether its transactions are wanted in full.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: block, whether to show transactions in full")]
struct BlockParams(SelectorParam, #[serde(default)] Option<bool>);

/// A block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: block")]
struct OneBlock([SelectorParam; 1]);

/// A hash.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a transaction's hash")]
struct OneHash([Fixed<32>; 1]);

/// A block, and an index in it.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 parameters: block, index")]
struct PlaceParams(SelectorParam, Quantity<u64>);

/// A block, and whether its transactions are shown in full.
pub fn parse_block(params: &str, dialect: &Dialect) -> Result<(Selector, bool), RpcError> {
    let BlockParams(SelectorParam(selector), full) = parse(params, dialect)?;
    Ok((selector, full.unwrap_or_default()))
}

/// A block alone.
pub fn parse_one_block(params: &str, dialect: &Dialect) -> Result<Selector, RpcError> {
    let OneBlock([SelectorParam(selector)]) = parse(params, dialect)?;
    Ok(selector)
}

/// A transaction's hash.
pub fn parse_hash(params: &str, dialect: &Dialect) -> Result<B256, RpcError> {
    let OneHash([hash]) = parse(params, dialect)?;
    Ok(hash.into())
}

/// A block and an index in it.
pub fn parse_place(params: &str, dialect: &Dialect) -> Result<(Selector, usize), RpcError> {
    let PlaceParams(SelectorParam(selector), Quantity(index)) = parse(params, dialect)?;
    // An index past what memory holds is one past the block's end.
    Ok((selector, usize::try_from(index).unwrap_or(usize::MAX)))
}
