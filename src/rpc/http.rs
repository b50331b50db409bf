//! The HTTP door: JSON-RPC in POST bodies, answered without going through a router of strings; health; the way to WebSocket.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use bytestring::ByteString;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;

use super::{
    access::Access,
    dialect::{Dialect, STANDARD},
    encode,
    error::RpcError,
    front::Front,
    reply::{ReplyLimits, Session, failure},
    ws,
};
use crate::{
    feed::upstream::UpstreamState,
    state::{FeedProblem, FeedState, Published},
    store::StoreError,
};

/// An answer: always whole.
pub type HttpResponse = Response<Full<Bytes>>;

/// What a connection's requests are served with.
#[derive(Debug)]
pub struct HttpService {
    pub front: Arc<Front>,
    pub access: Access,
    pub root: &'static Dialect,
    pub limits: ReplyLimits,
    /// For a body to arrive in.
    pub read_timeout: Duration,
    pub hosts: Hosts,
    pub sockets: ws::Sockets,
}

/// Names that a `Host` header may bear: against pages that point a name of theirs at this machine.
#[derive(Debug)]
pub struct Hosts(pub Vec<String>);

impl Hosts {
    /// Whether requests may name this host; the port does not matter.
    pub(super) fn allows(&self, headers: &HeaderMap, uri: &http::Uri) -> bool {
        let named = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .or_else(|| uri.authority().map(|a| a.as_str()));
        let Some(named) = named else { return false };
        let name = match named.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => named,
        };
        self.0.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(name))
    }

    /// The answer to a request that names another host.
    pub(super) fn refuse() -> HttpResponse {
        refuse(StatusCode::FORBIDDEN, RpcError::request("host not allowed: --allow-host names those that are"))
    }
}

/// [`HttpService`] as tower has it.
#[derive(Clone, Debug)]
pub struct Door(pub Arc<HttpService>);

impl tower::Service<Request<Incoming>> for Door {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { Ok(service.serve(request).await) })
    }
}

impl HttpService {
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> HttpResponse {
        if !self.hosts.allows(request.headers(), request.uri()) {
            return Hosts::refuse();
        }
        let dialect = match request.uri().path() {
            "/" | "" => self.root,
            "/standard" | "/standard/" => &STANDARD,
            "/health" => return health(&self.front.published(), self.front.upstream(), self.front.store_failure()),
            _ => {
                return refuse(
                    StatusCode::NOT_FOUND,
                    RpcError::request("no such path: expected /, /standard or /health"),
                );
            }
        };
        let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let client = match self.access.client(authorization) {
            Ok(client) => client,
            Err(error) => return refuse(StatusCode::UNAUTHORIZED, error),
        };
        let may_use_wallet = self.access.may_use_wallet(client.as_deref());
        let session = Session { front: self.front.clone(), dialect, client, may_use_wallet, limits: self.limits };
        if ws::is_upgrade(&request) {
            return self.sockets.accept(request, session);
        }
        if request.method() != HttpMethod::POST {
            return refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                RpcError::request("expected a POST with a JSON-RPC body, or a WebSocket upgrade"),
            );
        }
        if !is_json(request.headers()) {
            return refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                RpcError::request("content-type: expected application/json"),
            );
        }
        match self.read(request.into_body()).await {
            Ok(body) => {
                let published = self.front.published();
                let reply = session.reply(body, &published, None).await;
                respond(reply.text, reply.single.then_some(&published))
            }
            Err((status, error)) => refuse(status, error),
        }
    }

    async fn read(&self, body: Incoming) -> Result<ByteString, (StatusCode, RpcError)> {
        let limit = self.limits.max_body;
        let collected = tokio::time::timeout(self.read_timeout, Limited::new(body, limit).collect()).await;
        match collected {
            Ok(Ok(collected)) => ByteString::try_from(collected.to_bytes()).map_err(|error| {
                (StatusCode::BAD_REQUEST, RpcError::parse(format!("parse error: not UTF-8: {error}")))
            }),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let text = format!("body too large: at most {limit} bytes");
                Err((StatusCode::PAYLOAD_TOO_LARGE, RpcError::limit(text)))
            }
            Ok(Err(error)) => Err((StatusCode::BAD_REQUEST, RpcError::parse(format!("the body broke off: {error}")))),
            Err(_) => Err((StatusCode::REQUEST_TIMEOUT, RpcError::new(-32016, "the body did not arrive in time"))),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let kind = value.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json") || kind.eq_ignore_ascii_case("application/json-rpc")
    })
}

pub(super) fn respond(body: Vec<u8>, published: Option<&Published>) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(freshness) = published.and_then(freshness) {
        headers.insert("x-presim-snapshot", freshness);
    }
    response
}

/// An error of HTTP's, with a JSON-RPC body.
pub(super) fn refuse(status: StatusCode, error: RpcError) -> HttpResponse {
    let mut response = respond(failure("null", &error), None);
    *response.status_mut() = status;
    response
}

/// The newest snapshot when the request arrived, for the header that every single answer bears.
fn freshness(published: &Published) -> Option<HeaderValue> {
    let newest = &published.newest;
    let mut text = Vec::with_capacity(96);
    let mut decimal = itoa::Buffer::new();
    text.extend_from_slice(b"id=");
    encode::hex(&mut text, newest.id.0);
    text.extend_from_slice(b", block=");
    text.extend_from_slice(decimal.format(newest.header().number).as_bytes());
    text.extend_from_slice(b", index=");
    text.extend_from_slice(decimal.format(newest.index()).as_bytes());
    text.extend_from_slice(b", age_ms=");
    text.extend_from_slice(decimal.format(newest.published.elapsed().as_millis()).as_bytes());
    text.extend_from_slice(b", feed=");
    text.extend_from_slice(published.feed.as_str().as_bytes());
    HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
}

/// Sub-block times without a snapshot after which a feed counts as stalled.
const STALLED_AFTER: u128 = 5;

fn health(published: &Published, upstream: Option<UpstreamState>, failure: Option<&StoreError>) -> HttpResponse {
    let age = published.newest.published.elapsed().as_millis();
    let broken = |why: &str| format!("the feed is broken: {why}; pending is the canonical head");
    // Clients whose requests need the store read the same of its failure.
    let problem = match (published.feed, failure.map(ToString::to_string)) {
        (FeedState::Degraded(FeedProblem::Store), Some(failure)) => Some((FeedProblem::Store, broken(&failure))),
        (FeedState::Degraded(problem), _) => Some((problem, broken(problem.meaning()))),
        (FeedState::Live { .. } | FeedState::Static, Some(failure)) => Some((FeedProblem::Store, failure)),
        (FeedState::Live { every_ms }, None) if age > STALLED_AFTER * u128::from(every_ms) => {
            let text = format!("the newest snapshot is {age} ms old, and one should come every {every_ms} ms");
            Some((FeedProblem::Lagging, text))
        }
        (FeedState::Live { .. } | FeedState::Static, None) => None,
    };
    let status = if problem.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"status\":");
    encode::string(&mut out, if problem.is_some() { "unhealthy" } else { "ok" });
    if let Some((cause, reason)) = &problem {
        out.extend_from_slice(b",\"reason\":");
        encode::string(&mut out, reason);
        out.extend_from_slice(b",\"cause\":");
        encode::string(&mut out, cause.as_str());
    }
    out.extend_from_slice(b",\"feed\":");
    encode::string(&mut out, published.feed.as_str());
    match upstream {
        None => {}
        Some(UpstreamState::Ok) => out.extend_from_slice(b",\"upstream\":\"ok\""),
        Some(UpstreamState::Degraded(problem)) => {
            out.extend_from_slice(b",\"upstream\":\"degraded\",\"upstreamProblem\":");
            encode::string(&mut out, &problem);
        }
    }
    out.extend_from_slice(format!(",\"ageMs\":{age}}}").as_bytes());
    let mut response = respond(out, Some(published));
    *response.status_mut() = status;
    response
}
