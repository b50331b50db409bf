//! Parameters of the methods that send transactions.

use std::time::Duration;

use alloy_primitives::Bytes;

use super::{call::CallObject, parse};
use crate::{
    engine::Call,
    rpc::{
        json::hex::{Data, Number},
        protocol::{dialect::Dialect, error::Result},
    },
};

params! {
    RawParams(Data) = "1 parameter: a signed transaction";
    /// The parameters of `eth_sendRawTransactionSync`. The examples of EIP-7966 write the timeout as an integer, its table
    /// as a quantity.
    RawSyncParams(Data; Number<u64>) = "1 or 2 parameters: a signed transaction, milliseconds to wait";
    SendTransactionParams(CallObject) = "1 parameter: a transaction";
}

/// Parses the bytes of a signed transaction.
pub fn parse_raw(params: &str, dialect: &Dialect) -> Result<Bytes> {
    let RawParams(Data(raw), ()) = parse(params, dialect)?;
    Ok(raw)
}

/// Parses the bytes of a signed transaction and the client's timeout. Zero becomes `None`, the node's own timeout.
pub fn parse_raw_sync(params: &str, dialect: &Dialect) -> Result<(Bytes, Option<Duration>)> {
    let RawSyncParams(Data(raw), timeout, ()) = parse(params, dialect)?;
    Ok((raw, timeout.filter(|timeout| timeout.0 > 0).map(|timeout| Duration::from_millis(timeout.0))))
}

/// Parses a transaction that the node signs.
pub fn parse_sending(params: &str, dialect: &Dialect) -> Result<Call> {
    let SendTransactionParams(call, ()) = parse(params, dialect)?;
    call.into_call("params[0]", dialect)
}
