//! `rpc.discover`: what this node answers, as an OpenRPC document.

/// The document.
pub const DOCUMENT: &str = include_str!("openrpc.json");
