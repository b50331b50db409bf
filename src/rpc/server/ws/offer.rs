//! The subprotocols that the request of a WebSocket offers, of which one may be a token.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use http::{HeaderValue, Request, header};

use crate::rpc::protocol::error::{Result, RpcError};

/// The subprotocol of presim's page.
const PROTOCOL: &str = "presim";
/// The beginning of the subprotocol that is a token: `presim.token.` and the token in base64url (RFC 4648, 5).
const TOKEN_PROTOCOL: &str = "presim.token.";

/// Returns the subprotocols that a request offers, in order.
fn offered<B>(request: &Request<B>) -> impl Iterator<Item = &str> {
    let values = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

/// Returns the token that a WebSocket upgrade offers among its subprotocols.
///
/// # Errors
///
/// Returns -32000 if it is no base64url. The token is not shown.
pub fn offered_token<B>(request: &Request<B>) -> Option<Result<Vec<u8>>> {
    let text = offered(request).find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL))?;
    is_upgrade(request).then(|| BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| not_base64url()))
}

#[cold]
fn not_base64url() -> RpcError {
    RpcError::new(
        -32000,
        format!(
            "unauthorized: the subprotocol {TOKEN_PROTOCOL}…: no base64url: expected the token in base64url without padding"
        ),
    )
}

/// Returns the subprotocol that the node selects among the ones offered by a request (RFC 6455, 4.2.2): the page's, so
/// that the answer does not repeat the token, or else the one with the token, because a browser ends a connection
/// whose offers are all declined.
pub fn selected<B>(request: &Request<B>) -> Option<HeaderValue> {
    let named = offered(request).find(|protocol| *protocol == PROTOCOL);
    let selected = named.or_else(|| offered(request).find(|protocol| protocol.starts_with(TOKEN_PROTOCOL)))?;
    let mut selected = HeaderValue::from_str(selected).ok()?;
    selected.set_sensitive(true);
    Some(selected)
}

/// Returns whether a request asks for a WebSocket.
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    let upgrade = request.headers().get(header::UPGRADE).map(HeaderValue::as_bytes);
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
}
