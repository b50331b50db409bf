//! An address, bytes, and a page of a contract's storage.

use alloy_primitives::{Address, B256};

use super::{SelectorParam, parse};
use crate::{
    ledger::Selector,
    rpc::{
        json::hex::{Data, Fixed, Number},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

params! {
    StorageRangeParams(SelectorParam, Number<u64>, Fixed<20>, Data, Number<u64>)
        = "5 parameters: block, transaction index, address, first hashed key, most results";
}

/// A page of a contract's storage, in the middle of a block.
#[derive(Clone, Copy, Debug)]
pub struct StorageRangeRequest {
    /// The block.
    pub selector: Selector,
    /// The number of the block's transactions that run first.
    pub index: u64,
    /// The contract.
    pub address: Address,
    /// The first hashed key.
    pub start: B256,
    /// The most slots to return.
    pub most: usize,
}

/// Parses the parameters of `debug_storageRangeAt`.
pub fn parse_storage_range(params: &str, dialect: &Dialect) -> Result<StorageRangeRequest> {
    let StorageRangeParams(block, index, address, Data(start), most, ()) = parse(params, dialect)?;
    if start.len() > 32 {
        let text = format!("params[3]: {} bytes: expected at most 32, the beginning of a hashed key", start.len());
        return Err(RpcError::params(text));
    }
    Ok(StorageRangeRequest {
        selector: block.into(),
        index: index.0,
        address: address.into(),
        start: B256::right_padding_from(&start),
        most: usize::try_from(most.0).unwrap_or(usize::MAX),
    })
}
