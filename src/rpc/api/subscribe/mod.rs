//! Notifications over WebSocket: what of each snapshot the subscribers are told.

mod announce;
mod changes;
mod feed;
mod logs;
mod round;

pub use announce::announce;

use crate::rpc::{
    protocol::error::{Result, RpcError},
    run::{
        request::{Request, begin},
        subscriptions::Starting,
    },
};

/// Answers `eth_subscribe`.
///
/// # Errors
///
/// Returns -32601 over HTTP, and the errors of [`Starting::subscribe`].
pub fn subscribe(request: &Request) -> Result<Vec<u8>> {
    let mut out = begin(&request.id, "result");
    starting(request)?.subscribe(&request.params, &mut out)?;
    Ok(out)
}

/// Answers `eth_unsubscribe`.
///
/// # Errors
///
/// Returns -32601 over HTTP, and the errors of [`Starting::unsubscribe`].
pub fn unsubscribe(request: &Request) -> Result<Vec<u8>> {
    let mut out = begin(&request.id, "result");
    starting(request)?.unsubscribe(&request.params, &mut out)?;
    Ok(out)
}

/// Returns the subscriptions that a message starts, if its connection can subscribe.
fn starting(request: &Request) -> Result<&Starting> {
    let name = request.method.name;
    request.starting.as_deref().ok_or_else(|| {
        RpcError::new(-32601, format!("{name} needs a WebSocket connection: notifications cannot be sent over HTTP"))
    })
}
