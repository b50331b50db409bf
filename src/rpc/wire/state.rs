//! Look-ups in the state of a block.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, U256};
use serde::Deserialize;

use super::{SelectorParam, call::AddressKey, parse, require, select};
use crate::{
    rpc::{
        dialect::Dialect,
        error::RpcError,
        hex::{Data, Fixed, SlotKey, Word},
    },
    state::Selector,
};

/// Storage slots that one request may ask for: geth's bound.
const MOST_SLOTS: usize = 1024;

/// Address, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: address, block")]
struct AccountParams(Fixed<20>, #[serde(default)] Option<SelectorParam>);

/// `eth_getStorageAt`'s parameters: address, slot, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 or 3 parameters: address, storage slot, block")]
struct SlotParams(Fixed<20>, Word, #[serde(default)] Option<SelectorParam>);

/// `eth_getStorageValues`' parameters: slots by address, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: storage slots by address, block")]
struct SlotsParams(BTreeMap<AddressKey, Vec<Word>>, #[serde(default)] Option<SelectorParam>);

/// `eth_getProof`'s parameters: address, slots, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 or 3 parameters: address, storage slots, block")]
struct ProofParams(Fixed<20>, Vec<SlotKey>, #[serde(default)] Option<SelectorParam>);

/// What `eth_getProof` asks for.
#[derive(Debug)]
pub struct ProofRequest {
    /// The account.
    pub address: Address,
    /// Its slots.
    pub slots: Vec<SlotKey>,
    /// The state.
    pub selector: Selector,
}

/// An address and the state that it is looked up in.
pub fn parse_account(params: &str, dialect: &Dialect) -> Result<(Address, Selector), RpcError> {
    let AccountParams(address, selector) = parse(params, dialect)?;
    Ok((address.into(), select(selector)))
}

/// `eth_getCode`: the same, where the state must be named on `/`.
pub fn parse_code(params: &str, dialect: &Dialect) -> Result<(Address, Selector), RpcError> {
    let AccountParams(address, selector) = parse(params, dialect)?;
    Ok((address.into(), require(selector, dialect)?))
}

/// A storage slot and the state that it is looked up in.
pub fn parse_slot(params: &str, dialect: &Dialect) -> Result<(Address, U256, Selector), RpcError> {
    let SlotParams(address, slot, selector) = parse(params, dialect)?;
    Ok((address.into(), slot.0, select(selector)))
}

/// The slots that are asked for of each account.
pub type Slots = Vec<(Address, Vec<U256>)>;

/// Storage slots by their account, and the state that they are looked up in.
pub fn parse_slots(params: &str, dialect: &Dialect) -> Result<(Slots, Selector), RpcError> {
    let SlotsParams(accounts, selector) = parse(params, dialect)?;
    bound_slots("params[0]", accounts.values().map(Vec::len).sum())?;
    let accounts =
        accounts.into_iter().map(|(address, slots)| (address.0.into(), slots.iter().map(|slot| slot.0).collect()));
    Ok((accounts.collect(), select(selector)))
}

/// An account, its slots, and the state that they are proved in.
pub fn parse_proof(params: &str, dialect: &Dialect) -> Result<ProofRequest, RpcError> {
    let ProofParams(address, slots, selector) = parse(params, dialect)?;
    bound_slots("params[1]", slots.len())?;
    Ok(ProofRequest { address: address.into(), slots, selector: select(selector) })
}

fn bound_slots(place: &str, count: usize) -> Result<(), RpcError> {
    if count > MOST_SLOTS {
        return Err(RpcError::params(format!("{place}: too many storage slots: {count}, at most {MOST_SLOTS}")));
    }
    Ok(())
}

/// Bytes to hash.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: bytes in hex")]
struct OneData(Data, #[serde(skip)] ());

/// Some bytes.
pub fn parse_bytes(params: &str, dialect: &Dialect) -> Result<Bytes, RpcError> {
    let OneData(Data(bytes), ()) = parse(params, dialect)?;
    Ok(bytes)
}
