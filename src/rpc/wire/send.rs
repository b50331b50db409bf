//! Transactions to send.

use std::time::Duration;

use alloy_primitives::Bytes;
use serde::Deserialize;

use super::{call::CallObject, parse};
use crate::{
    engine::Call,
    rpc::{
        dialect::Dialect,
        error::RpcError,
        hex::{Data, Number},
    },
};

/// `eth_sendRawTransaction`'s parameter.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a signed transaction")]
struct RawParams([Data; 1]);

/// `eth_sendRawTransactionSync`'s parameters: EIP-7966 writes the milliseconds as a plain integer in its examples, as a quantity in its table.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: a signed transaction, milliseconds to wait")]
struct RawSyncParams(Data, #[serde(default)] Option<Number<u64>>);

/// `eth_sendTransaction`'s parameter.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a transaction")]
struct SendTransactionParams([CallObject; 1]);

/// The bytes of a signed transaction.
pub fn parse_raw(params: &str, dialect: &Dialect) -> Result<Bytes, RpcError> {
    let RawParams([Data(raw)]) = parse(params, dialect)?;
    Ok(raw)
}

/// The bytes of a signed transaction, and how long its client wants to wait; none for the node's own time, as zero is too.
pub fn parse_raw_sync(params: &str, dialect: &Dialect) -> Result<(Bytes, Option<Duration>), RpcError> {
    let RawSyncParams(Data(raw), timeout) = parse(params, dialect)?;
    Ok((raw, timeout.filter(|timeout| timeout.0 > 0).map(|timeout| Duration::from_millis(timeout.0))))
}

/// A transaction that the node is to sign.
pub fn parse_sending(params: &str, dialect: &Dialect) -> Result<Call, RpcError> {
    let SendTransactionParams([call]) = parse(params, dialect)?;
    call.into_call("params[0]", dialect)
}
