//! The standard dialect of a chain under test: with the errors that libraries for tests know of anvil.

use alloy_primitives::{Bytes, hex};

use super::{Dialect, standard::like_geth};
use crate::{engine::revert_reason, rpc::protocol::error::RpcError};

/// The standard dialect of a chain under test.
pub static ANVIL: Dialect = like_geth(true, reverted, told);

/// anvil's code of a transaction that is rejected.
const REJECTED: i32 = -32003;
/// Beginnings of texts that presim has of geth, and anvil's code and text in their place.
const TEXTS: &[(&str, i32, &str)] = &[
    ("insufficient funds for gas * price + value", REJECTED, "Insufficient funds for gas * price + value"),
    ("insufficient funds for transfer", REJECTED, "Insufficient funds for gas * price + value"),
    ("nonce too low", REJECTED, "nonce too low"),
    ("nonce has max value", REJECTED, "nonce has max value"),
    ("intrinsic gas too low", -32000, "intrinsic gas too high -- CallGasCostMoreThanGasLimit"),
    ("insufficient gas for floor data gas cost", -32000, "intrinsic gas too high -- GasFloorMoreThanGasLimit"),
    ("exceeds block gas limit", -32000, "intrinsic gas too high -- CallerGasLimitMoreThanBlock"),
    ("max fee per gas less than block base fee", REJECTED, "max fee per gas less than block base fee"),
    (
        "max priority fee per gas higher than max fee per gas",
        REJECTED,
        "max priority fee per gas higher than max fee per gas",
    ),
    ("max initcode size exceeded", REJECTED, "max initcode size exceeded"),
    ("replacement transaction underpriced", REJECTED, "replacement transaction underpriced"),
    ("already known", REJECTED, "transaction already imported"),
    ("unknown account", -32602, "No Signer available"),
];

fn told(error: RpcError) -> RpcError {
    let error = error.into_object();
    let message = error.message();
    let of_anvil = |reason: &str| TEXTS.iter().find(|(of_geth, ..)| reason.starts_with(of_geth));
    match (error.code(), of_anvil(message)) {
        (-32000, _) => {}
        // `eth_simulateV1` has its own codes.
        (code @ -38999..=-38000, Some((.., text))) => return RpcError::new(code, *text),
        _ => return RpcError::Answer(error),
    }
    let gas = message.strip_prefix("gas required exceeds allowance (").and_then(|rest| rest.strip_suffix(')'));
    if let Some(gas) = gas {
        return RpcError::new(REJECTED, format!("Out of gas: gas required exceeds allowance: {gas}"));
    }
    // The reason why an estimate has failed.
    let reason =
        message.strip_prefix("failed with ").and_then(|rest| rest.split_once(" gas: ")).map(|(_, reason)| reason);
    // geth reports a call's revert like this.
    let reason = reason.unwrap_or(message.strip_prefix("err: ").unwrap_or(message));
    match of_anvil(reason) {
        Some((_, code, text)) => RpcError::new(*code, *text),
        None => RpcError::Answer(error),
    }
}

/// Returns the error of a revert. Where geth is silent, the text names a panic by its number, or shows the data.
fn reverted(data: Bytes) -> RpcError {
    use alloy_sol_types::{Panic, SolError};
    let reason = match (Panic::abi_decode(&data), data.split_first_chunk::<4>()) {
        (Ok(panic), _) => Some(panic.to_string()),
        (Err(_), Some((selector, rest))) => revert_reason(&data).or_else(|| Some(custom(selector, rest))),
        (Err(_), None) if data.is_empty() => None,
        (Err(_), None) => Some(format!("custom error bytes {data}")),
    };
    RpcError::reverted(reason, data)
}

/// Returns the text for an error that the contract has defined.
fn custom(selector: &[u8; 4], rest: &[u8]) -> String {
    let selector = hex::encode_prefixed(selector);
    match (rest.is_empty(), std::str::from_utf8(rest)) {
        (true, _) => format!("custom error {selector}"),
        (false, Ok(text)) => format!("custom error {selector}: {text}"),
        (false, Err(_)) => format!("custom error {selector}: {}", hex::encode(rest)),
    }
}
