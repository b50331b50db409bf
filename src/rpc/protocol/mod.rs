//! Errors, and the dialects of JSON-RPC.

pub mod dialect;
pub mod error;
