//! HTTP responses: bodies in parts, cache headers, and errors.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use jsonrpsee::types::Id;

use crate::rpc::{
    dispatch::service::failure,
    json,
    limits::stalls::{UnderWay, Windowed},
    protocol::error::RpcError,
    run::ExecutedBy,
};
use crate::{chain::ChainSpec, ledger::Chain};

/// The facts of a single request that its response names.
#[derive(Clone, Copy)]
pub struct AnsweredOn<'a> {
    /// The publication when it arrived.
    pub published: &'a Chain,
    /// The rules of the chain, if the fork is named.
    pub spec: Option<&'a ChainSpec>,
    /// The rules by which it was executed, and the node.
    pub by: ExecutedBy,
}

/// A response whose body is complete in memory.
pub type HttpResponse = Response<AnswerBody>;

/// The bytes of a response, sent in parts.
///
/// A part is sent when the peer has room for it, so that a stalled HTTP/2 response is noticed. The request counts as
/// under way until all parts are sent.
#[derive(Debug, Default)]
pub struct AnswerBody {
    pub unsent: Bytes,
    pub under_way: Option<UnderWay>,
    pub window: Option<Windowed>,
}

impl AnswerBody {
    /// The bytes of a part.
    const PART: usize = 64 << 10;

    fn new(bytes: impl Into<Bytes>) -> Self {
        Self { unsent: bytes.into(), under_way: None, window: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.unsent.is_empty() {
            return Poll::Ready(None);
        }
        let part = self.unsent.len().min(Self::PART);
        self.window.as_ref().inspect(|window| window.moves());
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.unsent.len() as u64)
    }
}

/// Returns a response with a JSON body. A response to a request names the newest snapshot at its arrival, the fork, and whether the
/// upstream executed the request.
pub fn respond(body: impl Into<Bytes>, answered: Option<AnsweredOn<'_>>) -> HttpResponse {
    let mut response = Response::new(AnswerBody::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(freshness) = answered.and_then(freshness) {
        headers.insert("x-presim-snapshot", freshness);
    }
    response
}

/// Returns an error of HTTP's, with a JSON-RPC body.
pub fn refuse(status: StatusCode, error: RpcError) -> HttpResponse {
    let mut response = respond(failure(&Id::Null, error), None);
    *response.status_mut() = status;
    response
}

/// Names the methods of the path in `Allow`, if the response refuses another method (RFC 9110, 15.5.6).
pub fn allow(mut response: HttpResponse, methods: &'static str) -> HttpResponse {
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// Returns the header with the newest snapshot, for answers to a single request.
fn freshness(AnsweredOn { published, spec, by }: AnsweredOn<'_>) -> Option<HeaderValue> {
    let newest = &published.newest;
    let mut text = Vec::with_capacity(128);
    let mut decimal = itoa::Buffer::new();
    text.extend_from_slice(b"id=");
    json::hex(&mut text, newest.id.0);
    text.extend_from_slice(b", block=");
    text.extend_from_slice(decimal.format(newest.header().number).as_bytes());
    text.extend_from_slice(b", index=");
    text.extend_from_slice(decimal.format(newest.index()).as_bytes());
    text.extend_from_slice(b", age_ms=");
    text.extend_from_slice(decimal.format(newest.published.elapsed().as_millis()).as_bytes());
    text.extend_from_slice(b", feed=");
    let feed = published.feed();
    text.extend_from_slice(feed.as_str().as_bytes());
    if let Some(lag) = feed.lag() {
        text.extend_from_slice(b", lag_ms=");
        text.extend_from_slice(decimal.format(lag.ms()).as_bytes());
        text.extend_from_slice(b", lag_sub_blocks=");
        text.extend_from_slice(decimal.format(lag.waiting).as_bytes());
    }
    text.extend_from_slice(b", verified=");
    text.extend_from_slice(newest.verified.as_str().as_bytes());
    let own_fork = || spec.map(|spec| spec.fork_name(newest.header()));
    if let Some(fork) = if let ExecutedBy::Under(fork) = by { Some(fork) } else { own_fork() } {
        text.extend_from_slice(b", fork=");
        text.extend_from_slice(fork.as_bytes());
    }
    if by == ExecutedBy::Upstream {
        text.extend_from_slice(b", execution=upstream");
    }
    HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
}
