//! An address, and bytes.

use alloy_primitives::{Address, Bytes};

use super::parse;
use crate::rpc::{
    json::hex::{Data, Fixed},
    protocol::{dialect::Dialect, error::Result},
};

params! {
    OneAddress(Fixed<20>) = "1 parameter: address";
    OneData(Data) = "1 parameter: bytes in hex";
}

/// Parses an address alone.
pub fn parse_address(params: &str, dialect: &Dialect) -> Result<Address> {
    let OneAddress(address, ()) = parse(params, dialect)?;
    Ok(address.into())
}

/// Parses bytes of any length.
pub fn parse_bytes(params: &str, dialect: &Dialect) -> Result<Bytes> {
    let OneData(Data(bytes), ()) = parse(params, dialect)?;
    Ok(bytes)
}
