//! Parameters of look-ups in the state of a block.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256};

use super::{SelectorParam, call::AddressKey, parse, require, select};
use crate::{
    ledger::Selector,
    rpc::{
        dialect::Dialect,
        error::{Result, RpcError},
        hex::{Data, Fixed, Number, SlotKey, Word},
    },
};

/// Maximum number of storage slots in a request, as in geth.
const MAX_SLOTS: usize = 1024;

params! {
    OneAddress(Fixed<20>) = "1 parameter: address";
    AccountParams(Fixed<20>; SelectorParam) = "1 or 2 parameters: address, block";
    SlotParams(Fixed<20>, Word; SelectorParam) = "2 or 3 parameters: address, storage slot, block";
    SlotsParams(BTreeMap<AddressKey, Vec<Word>>; SelectorParam) = "1 or 2 parameters: storage slots by address, block";
    ProofParams(Fixed<20>, Vec<SlotKey>; SelectorParam) = "2 or 3 parameters: address, storage slots, block";
    OneData(Data) = "1 parameter: bytes in hex";
    StorageRangeParams(SelectorParam, Number<u64>, Fixed<20>, Data, Number<u64>)
        = "5 parameters: block, transaction index, address, first hashed key, most results";
}

/// The parsed parameters of `eth_getProof`.
#[derive(Debug)]
pub struct ProofRequest {
    /// The account to prove.
    pub address: Address,
    /// The account's storage slots to prove.
    pub slots: Vec<SlotKey>,
    /// The block in whose state they are proved.
    pub selector: Selector,
}

/// Parses an address alone.
pub fn parse_address(params: &str, dialect: &Dialect) -> Result<Address> {
    let OneAddress(address, ()) = parse(params, dialect)?;
    Ok(address.into())
}

/// Parses an address and the block in whose state it is looked up.
pub fn parse_account(params: &str, dialect: &Dialect) -> Result<(Address, Selector)> {
    let AccountParams(address, selector, ()) = parse(params, dialect)?;
    Ok((address.into(), select(selector)))
}

/// Parses the parameters of `eth_getCode`: an address, and a block, which `/` requires.
pub fn parse_code(params: &str, dialect: &Dialect) -> Result<(Address, Selector)> {
    let AccountParams(address, selector, ()) = parse(params, dialect)?;
    Ok((address.into(), require(selector, dialect)?))
}

/// Parses an address, a storage slot, and the block in whose state it is looked up.
pub fn parse_slot(params: &str, dialect: &Dialect) -> Result<(Address, U256, Selector)> {
    let SlotParams(address, slot, selector, ()) = parse(params, dialect)?;
    Ok((address.into(), slot.0, select(selector)))
}

/// The requested storage slots of each account.
pub type Slots = Vec<(Address, Vec<U256>)>;

/// Parses storage slots by account, and the block in whose state they are looked up.
pub fn parse_slots(params: &str, dialect: &Dialect) -> Result<(Slots, Selector)> {
    let SlotsParams(accounts, selector, ()) = parse(params, dialect)?;
    if accounts.is_empty() {
        return Err(RpcError::params("params[0]: empty: expected at least one account"));
    }
    bound_slots("params[0]", accounts.values().map(Vec::len).sum())?;
    let accounts =
        accounts.into_iter().map(|(address, slots)| (address.0.into(), slots.iter().map(|slot| slot.0).collect()));
    Ok((accounts.collect(), select(selector)))
}

/// Parses an account, its storage slots, and the block in whose state they are proved.
pub fn parse_proof(params: &str, dialect: &Dialect) -> Result<ProofRequest> {
    let ProofParams(address, slots, selector, ()) = parse(params, dialect)?;
    bound_slots("params[1]", slots.len())?;
    Ok(ProofRequest { address: address.into(), slots, selector: select(selector) })
}

fn bound_slots(place: &str, count: usize) -> Result<()> {
    if count > MAX_SLOTS {
        return Err(RpcError::params(format!("{place}: too many storage slots: {count}, at most {MAX_SLOTS}")));
    }
    Ok(())
}

/// Parses bytes of any length.
pub fn parse_bytes(params: &str, dialect: &Dialect) -> Result<Bytes> {
    let OneData(Data(bytes), ()) = parse(params, dialect)?;
    Ok(bytes)
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
