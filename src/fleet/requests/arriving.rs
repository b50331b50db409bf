//! Requests that arrive over NATS, and the interface that answers them.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::future::BoxFuture;

use super::{LEFT, MIN_SNAPSHOT, PAGE, PATH};

/// The error for a request whose `Authorization` has a token of the wallet. It is rejected because any client that can
/// listen on NATS could use the token, and any replica may receive the message.
pub const WALLET_TOKEN_REJECTED: &str = "unauthorized: a token of --wallet-token-file is not taken over NATS, where others hear it: send the request over HTTP, and replace the token";

/// Returns the error of an answer of `bytes` bytes that exceeds the `most` bytes of a message.
pub fn too_large(bytes: usize, most: usize) -> String {
    format!("the answer has {bytes} bytes, and NATS takes {most} (max_payload): ask for less, or over HTTP")
}

/// Answers the requests that arrive over NATS.
pub trait Answers: std::fmt::Debug + Send + Sync {
    /// Returns the answer to a request, in at most [`max_answer`](ArrivedRequest::max_answer) bytes.
    fn answer<'a>(&'a self, request: &'a ArrivedRequest<'a>) -> BoxFuture<'a, Bytes>;
}

/// A request that has arrived over NATS, with its caller as named in the headers.
#[derive(Debug)]
pub struct ArrivedRequest<'a> {
    /// The JSON of the request.
    pub text: Bytes,
    /// The most bytes of the answer.
    pub max_answer: usize,
    /// The path that the request would have over HTTP.
    pub path: Option<&'a str>,
    /// The id of the oldest snapshot that may answer.
    pub min_snapshot: Option<&'a str>,
    /// The `Authorization` of the client.
    pub authorization: Option<&'a str>,
    /// The node that forwards the request of its client; `None` if it is a client's own.
    pub node: Option<ForwardingNode<'a>>,
}

/// The client of a forwarded request, as reported by the forwarding node.
#[derive(Debug)]
pub struct ForwardingNode<'a> {
    /// The origin of the page that calls.
    pub page: Option<&'a str>,
    /// The time by which the node wants the answer.
    pub until: Option<Instant>,
}

impl<'a> ArrivedRequest<'a> {
    /// Reads a request: a client's own, or one that another node forwards.
    pub(super) fn read(text: &'a Bytes, headers: Option<&'a HeaderMap>, max_answer: usize, is_forwarded: bool) -> Self {
        let header = |name| headers?.get(name).map(|value| value.as_str());
        let left = || header(LEFT)?.parse().ok().map(Duration::from_millis);
        Self {
            text: text.clone(),
            max_answer,
            path: header(PATH),
            min_snapshot: header(MIN_SNAPSHOT),
            authorization: header("Authorization"),
            node: is_forwarded
                .then(|| ForwardingNode { page: header(PAGE), until: left().map(|left| Instant::now() + left) }),
        }
    }
}
