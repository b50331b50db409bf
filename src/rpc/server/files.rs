//! Files that the node serves to browsers in addition to JSON-RPC: a page and its resources.

use alloy_primitives::keccak256;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, Request, StatusCode, header};

use super::{
    response::{HttpResponse, allow, refuse, respond},
    ws,
};
use crate::rpc::protocol::error::RpcError;

/// A file that browsers may read without a token.
#[derive(Clone, Debug)]
pub struct ServedFile {
    path: &'static str,
    kind: HeaderValue,
    body: Bytes,
    /// The strong validator of the body (RFC 9110, 8.8.3).
    etag: HeaderValue,
}

impl ServedFile {
    /// Creates a file of a media type.
    pub fn new(path: &'static str, kind: &'static str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let etag = format!("\"{}\"", const_hex::encode(&keccak256(&body)[..12]));
        // Hex digits and quotes are valid in a header.
        let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
        Self { path, kind: HeaderValue::from_static(kind), body, etag }
    }
}

/// The files of a node, by path.
///
/// A file at `/` is served to a `GET` that accepts `text/html`, which browsers do and JSON-RPC clients do not. All
/// other requests to `/` stay JSON-RPC's.
#[derive(Clone, Debug, Default)]
pub struct ServedFiles(pub Vec<ServedFile>);

/// The rules for the browser: nothing but the node's own files and its own connections, and no page around this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of every file.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // Another build of presim serves other files under the same paths.
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

impl ServedFiles {
    /// Returns the answer to a request for one of the files. Returns `None` if the request is for something else.
    pub fn answer<B>(&self, request: &Request<B>) -> Option<HttpResponse> {
        if self.0.is_empty() || ws::is_upgrade(request) {
            return None;
        }
        let path = request.uri().path();
        let reads = matches!(*request.method(), HttpMethod::GET | HttpMethod::HEAD);
        let at_root = matches!(path, "/" | "");
        if at_root && !(reads && accepts_html(request.headers())) {
            return None;
        }
        let file = self.0.iter().find(|file| file.path == if at_root { "/" } else { path })?;
        if !reads {
            let error = RpcError::request(format!("{path} is a file of the node's page: expected GET"));
            return Some(allow(refuse(StatusCode::METHOD_NOT_ALLOWED, error), "GET, HEAD"));
        }
        let is_known = request.headers().get_all(header::IF_NONE_MATCH).iter().any(|known| matches(known, &file.etag));
        let mut response = respond(if is_known { Bytes::new() } else { file.body.clone() }, None);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, file.kind.clone());
        headers.insert(header::ETAG, file.etag.clone());
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if at_root {
            headers.insert(header::VARY, HeaderValue::from_static("accept"));
        }
        Some(response)
    }
}

/// Returns whether a browser sent the request, because it accepts HTML by name. Other clients send only `*/*`.
fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"))
            && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

/// Returns whether the validators of an `If-None-Match` include this one, by weak comparison (RFC 9110, 13.1.2).
fn matches(known: &HeaderValue, etag: &HeaderValue) -> bool {
    let (Ok(known), Ok(etag)) = (known.to_str(), etag.to_str()) else { return false };
    known.trim() == "*" || known.split(',').any(|one| one.trim().trim_start_matches("W/") == etag)
}
