//! `rpc.discover`: an `OpenRPC` document of the node's methods.

/// The `OpenRPC` document.
pub const DOCUMENT: &str = include_str!("openrpc.json");
