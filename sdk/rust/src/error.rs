//! The codes of presim's errors.

use alloy_transport::TransportError;
use serde::{Deserialize, Serialize};

/// The call has reverted or is invalid, or its block, state or watch is unknown.
pub const REJECTED: i64 = -32000;
/// A limit was exceeded, or the node is overloaded: [`PresimError::overload`] tells which.
pub const LIMIT: i64 = -32005;
/// The request did not finish before its deadline.
pub const DEADLINE: i64 = -32016;
/// A parameter is invalid. The message begins with its path.
pub const INVALID_PARAMS: i64 = -32602;
/// The method does not exist, or needs another transport or a flag of the node.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// An internal error, or a failure of the upstream.
pub const INTERNAL: i64 = -32603;

/// The bound at which an overloaded node has rejected a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Overload {
    /// The lane or queue that was full.
    pub full: String,
    /// The wait in milliseconds that the node expected. A client may try again after it, or ask another node.
    pub expected_wait_ms: u64,
    /// The flag of the node that sets the bound.
    pub flag: String,
}

/// The parts of a provider's error that are presim's.
///
/// Errors pass through as alloy's [`TransportError`]. Failures of the connection have no code.
pub trait PresimError {
    /// Returns the code with which the node has answered. The constants of the [module](crate::error) name the usual ones.
    fn presim_code(&self) -> Option<i64>;

    /// Returns the bound at which the node has rejected the request, if it was overloaded.
    fn overload(&self) -> Option<Overload>;
}

impl PresimError for TransportError {
    fn presim_code(&self) -> Option<i64> {
        Some(self.as_error_resp()?.code)
    }

    fn overload(&self) -> Option<Overload> {
        let error = self.as_error_resp().filter(|error| error.code == LIMIT)?;
        serde_json::from_str(error.data.as_ref()?.get()).ok()
    }
}
