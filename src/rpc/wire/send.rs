//! Transactions to send.

use std::{fmt, time::Duration};

use alloy_primitives::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

use super::{call::CallObject, parse};
use crate::{
    engine::Call,
    rpc::{dialect::Dialect, error::RpcError, hex::Data},
};

/// `eth_sendRawTransaction`'s parameter.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a signed transaction")]
struct RawParams([Data; 1]);

/// `eth_sendRawTransactionSync`'s parameters (EIP-7966).
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: a signed transaction, milliseconds to wait")]
struct RawSyncParams(Data, #[serde(default)] Option<Milliseconds>);

/// `eth_sendTransaction`'s parameter.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: a transaction")]
struct SendParams([CallObject; 1]);

/// Milliseconds: a plain integer, as EIP-7966's examples have it, or a quantity, as its table has.
#[derive(Clone, Copy, Debug)]
struct Milliseconds(u64);

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
    let SendParams([call]) = parse(params, dialect)?;
    call.into_call("params[0]", dialect)
}

impl<'de> Deserialize<'de> for Milliseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MillisecondsVisitor;

        impl Visitor<'_> for MillisecondsVisitor {
            type Value = Milliseconds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("milliseconds, like 5000 or \"0x1388\"")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Milliseconds, E> {
                Ok(Milliseconds(value))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Milliseconds, E> {
                let value = crate::rpc::hex::parse_quantity(text).map_err(E::custom)?;
                // Longer than anybody waits is cut to what the node allows.
                Ok(Milliseconds(value.saturating_to()))
            }
        }

        deserializer.deserialize_any(MillisecondsVisitor)
    }
}
