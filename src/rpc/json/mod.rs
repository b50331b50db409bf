//! Encodes results directly as JSON bytes, without a tree of values and without an allocation per field.

mod access_list;
mod block;
mod call_error;
mod difference;
pub mod form;
pub mod hex;
pub mod schema;
mod shape;
mod trace;

pub use self::access_list::AccountChanges;
pub use self::block::{
    AccessListItem, Authorization, Block, BlockTransaction, Header, Log, LogView, PreparedTransaction, Receipt, Seal,
    Transaction, TxPosition, TxView, Withdrawal, flashblock, pooled_transaction, transaction_with_receipt,
};
pub use self::call_error::CallError;
pub use self::difference::AccountDifference;
pub(crate) use self::shape::shapes;
pub use self::shape::{Fields, Json, OrNull, Shape, Signed, field_name};
pub use self::trace::{parity_results, trace};

use std::convert::Infallible;

use alloy_primitives::U256;
use serde::Serialize;

use super::protocol::error::{Result, RpcError};
use crate::meter::{Meter, Stopped};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes a JSON string.
pub fn string(out: &mut Vec<u8>, text: &str) {
    // Serializing a string to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Writes bytes as hex data.
pub fn data(out: &mut Vec<u8>, bytes: &[u8]) {
    // Includes room for the end of the response, so that long data is not moved for a closing bracket.
    out.reserve(2 * bytes.len() + 64);
    out.extend_from_slice(b"\"0x");
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    // The slice has exactly the required length, so this cannot fail.
    let _ = const_hex::encode_to_slice(bytes, &mut out[start..]);
    out.push(b'"');
}

/// Writes a number as a quantity: quoted hex without leading zeros.
pub fn quantity(out: &mut Vec<u8>, value: u64) {
    out.push(b'"');
    hex(out, value);
    out.push(b'"');
}

/// Writes a number in hex, without quotes.
pub fn hex(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(b"0x");
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        // The mask keeps four bits, so the index is below 16.
        out.push(DIGITS[((value >> (4 * digit)) & 15) as usize]);
    }
}

/// Writes a 256-bit number as a quantity.
pub fn quantity_u256(out: &mut Vec<u8>, value: U256) {
    match u64::try_from(value) {
        Ok(value) => quantity(out, value),
        Err(_) => {
            use std::io::Write;
            let _ = write!(out, "\"{value:#x}\"");
        }
    }
}

/// A JSON object that is written field by field. [`Object::end`] closes it.
pub struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    /// Opens an object at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    /// Writes a comma, unless the field is the first.
    fn begin_field(&mut self) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
    }

    /// Writes the key of a field and returns the buffer, to which the caller writes the value.
    pub fn key(&mut self, key: &str) -> &mut Vec<u8> {
        self.begin_field();
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// Writes a field that is hex data.
    pub fn data(&mut self, key: &str, bytes: &[u8]) -> &mut Self {
        data(self.key(key), bytes);
        self
    }

    /// Writes a field that is a quantity.
    pub fn quantity(&mut self, key: &str, value: u64) -> &mut Self {
        quantity(self.key(key), value);
        self
    }

    /// Writes a key that is hex data and returns the buffer, to which the caller writes the value.
    pub fn hex_key(&mut self, key: &[u8]) -> &mut Vec<u8> {
        self.begin_field();
        data(self.out, key);
        self.out.push(b':');
        self.out
    }

    /// Writes a member that is JSON already, with its name.
    pub fn member(&mut self, text: &[u8]) -> &mut Self {
        self.begin_field();
        self.out.extend_from_slice(text);
        self
    }

    /// Closes the object.
    pub fn end(self) {
        self.out.push(b'}');
    }
}

/// Writes null.
pub fn null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

/// Writes `items` as an array, each by `write`.
pub fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    let Ok(()) = try_list(out, items, |out, item| {
        write(out, item);
        Ok::<_, Infallible>(())
    });
}

/// Writes `items` as an array, each by `write`, up to the first error.
pub fn try_list<T, E>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T) -> Result<(), E>,
) -> Result<(), E> {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item)?;
    }
    out.push(b']');
    Ok(())
}

/// Writes `items` as an array, each by `write`, as work of a run that `meter` bounds.
///
/// # Errors
///
/// Returns the reason why the run must stop.
pub fn metered_list<T>(
    out: &mut Vec<u8>,
    meter: &mut Meter,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) -> Result<(), Stopped> {
    try_list(out, items, |out, item| {
        let start = out.len();
        write(out, item);
        count_bytes(meter, out.len() - start)
    })
}

/// Counts JSON that is written, as work of a run.
///
/// # Errors
///
/// Returns the reason why the run must stop.
pub fn count_bytes(meter: &mut Meter, bytes: usize) -> Result<(), Stopped> {
    /// Bytes that take at most as long to write as one tick of a meter.
    const PER_TICK: usize = 8;
    meter.count(u32::try_from(bytes / PER_TICK).unwrap_or(u32::MAX))
}

/// Returns the error -32005 for a response that is longer than `limit` bytes.
pub fn too_long(limit: usize) -> RpcError {
    RpcError::limit(format!("the response is longer than {limit} bytes: request less data at once"))
}

/// Writes a value with serde, for results off the hot path.
pub fn value(out: &mut Vec<u8>, value: &impl Serialize) {
    // Serializing plain data to memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

/// Writes a value with serde. Returns -32005 if the response becomes longer than `limit` bytes.
pub fn bounded_value(out: &mut Vec<u8>, value: &impl Serialize, limit: usize) -> Result<()> {
    struct Bounded<'a> {
        out: &'a mut Vec<u8>,
        limit: usize,
    }

    impl std::io::Write for Bounded<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.out.len() + bytes.len() > self.limit {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            self.out.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    serde_json::to_writer(Bounded { out, limit }, value).map_err(|_| too_long(limit))
}

/// Returns -32005 if the response is already longer than `limit` bytes.
pub fn check_length(out: &[u8], limit: usize) -> Result<()> {
    if out.len() > limit { Err(too_long(limit)) } else { Ok(()) }
}
