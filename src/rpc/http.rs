//! The HTTP door: JSON-RPC in POST bodies, answered without going through a router of strings; health; the way to WebSocket.

use std::{
    convert::Infallible,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use bytestring::ByteString;
use futures::future::join_all;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use jsonrpsee::server::{HttpBody, HttpResponse};

use super::{
    access::{Access, Client},
    dialect::{Dialect, STANDARD},
    encode,
    envelope::{BadRequest, Body, Request as RpcRequest},
    error::RpcError,
    front::{Front, Job},
    ws,
};
use crate::state::{FeedState, Published};

/// What a connection's requests are served with.
#[derive(Debug)]
pub struct HttpService {
    pub front: Arc<Front>,
    pub access: Access,
    pub root: &'static Dialect,
    pub limits: HttpLimits,
    pub hosts: Hosts,
    pub sockets: ws::Sockets,
}

/// Limits of the door.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Bytes of a body.
    pub max_body: usize,
    /// Bytes of an answer.
    pub max_response: usize,
    /// Entries of a batch.
    pub max_batch: usize,
    /// For a body to arrive in.
    pub read_timeout: Duration,
}

/// Names that a `Host` header may bear: against pages that point a name of theirs at this machine.
#[derive(Debug)]
pub struct Hosts(pub Vec<String>);

impl Hosts {
    /// Whether requests may name this host; the port does not matter.
    fn allows(&self, headers: &HeaderMap, uri: &http::Uri) -> bool {
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
            return refuse(
                StatusCode::FORBIDDEN,
                RpcError::request("host not allowed: --allow-host names those that are"),
            );
        }
        let dialect = match request.uri().path() {
            "/" | "" => self.root,
            "/standard" | "/standard/" => &STANDARD,
            "/health" => return health(&self.front.published()),
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
        if jsonrpsee::server::ws::is_upgrade_request(&request) {
            let session = ws::Session { front: self.front.clone(), dialect, client, limits: self.limits };
            return self.sockets.accept(request, session).await;
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
            Ok(body) => self.answer(body, dialect, client).await,
            Err((status, error)) => refuse(status, error),
        }
    }

    async fn read(&self, body: Incoming) -> Result<ByteString, (StatusCode, RpcError)> {
        let limit = self.limits.max_body;
        let collected = tokio::time::timeout(self.limits.read_timeout, Limited::new(body, limit).collect()).await;
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

    async fn answer(&self, body: ByteString, dialect: &'static Dialect, client: Option<Arc<Client>>) -> HttpResponse {
        let published = self.front.published();
        let parsed = match Body::parse(&body, self.limits.max_batch) {
            Ok(parsed) => parsed,
            Err(error) => {
                let mut out = Vec::with_capacity(256);
                open(&mut out, "null");
                fail(&mut out, 0, "null", &error);
                return respond(out, Some(&published));
            }
        };
        match parsed {
            Body::Single(request) => {
                let out = self.one(request, &body, &published, dialect, client, true).await;
                respond(out, Some(&published))
            }
            Body::Batch(requests) => {
                let entries = requests
                    .into_iter()
                    .map(|request| self.one(request, &body, &published, dialect, client.clone(), false));
                let answers = join_all(entries).await;
                respond(self.join(answers), None)
            }
        }
    }

    /// The answers of a batch in order, as one array.
    fn join(&self, answers: Vec<Vec<u8>>) -> Vec<u8> {
        let total = answers.iter().map(|answer| answer.len() + 1).sum::<usize>() + 1;
        let mut out = Vec::with_capacity(total);
        if total > self.limits.max_response {
            open(&mut out, "null");
            fail(&mut out, 0, "null", &encode::too_long(self.limits.max_response));
            return out;
        }
        out.push(b'[');
        for (index, answer) in answers.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(answer);
        }
        out.push(b']');
        out
    }

    /// The answer to one request, its envelope included.
    async fn one(
        &self,
        request: Result<RpcRequest<'_>, BadRequest<'_>>,
        body: &ByteString,
        published: &Arc<Published>,
        dialect: &'static Dialect,
        client: Option<Arc<Client>>,
        alone: bool,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let request = match request {
            Ok(request) => request,
            Err(BadRequest { id, error }) => {
                fail(&mut out, 0, id, &error);
                return out;
            }
        };
        if let Some(Err(error)) = client.as_ref().map(|client| client.admit(NonZeroU32::MIN)) {
            fail(&mut out, 0, request.id, &error);
            return out;
        }
        open(&mut out, request.id);
        let job = Job {
            params: request.params.map_or(ByteString::from_static("[]"), |params| body.slice_ref(params)),
            published: published.clone(),
            dialect,
            client,
            ticket: self.front.ticket(),
            alone,
        };
        let (mut out, result) = self.front.run(request.method, job, out).await;
        match result {
            Ok(()) => out.push(b'}'),
            Err(error) => fail(&mut out, 0, request.id, &error),
        }
        out
    }
}

/// Begins an answer with a result.
fn open(out: &mut Vec<u8>, id: &str) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
}

/// Writes an error answer in the place of what was begun at `start`.
fn fail(out: &mut Vec<u8>, start: usize, id: &str, error: &RpcError) {
    out.truncate(start);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"error\":");
    error.write(out);
    out.push(b'}');
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let kind = value.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json") || kind.eq_ignore_ascii_case("application/json-rpc")
    })
}

fn respond(body: Vec<u8>, published: Option<&Published>) -> HttpResponse {
    let mut response = Response::new(HttpBody::new(Full::new(Bytes::from(body))));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(freshness) = published.and_then(freshness) {
        headers.insert("x-presim-snapshot", freshness);
    }
    response
}

/// An error of HTTP's, with a JSON-RPC body.
pub(super) fn refuse(status: StatusCode, error: RpcError) -> HttpResponse {
    let mut out = Vec::with_capacity(256);
    fail(&mut out, 0, "null", &error);
    let mut response = respond(out, None);
    *response.status_mut() = status;
    response
}

/// The newest snapshot when the request arrived, for the header that every single answer bears.
fn freshness(published: &Published) -> Option<HeaderValue> {
    use std::io::Write;
    let newest = &published.newest;
    let mut text = Vec::with_capacity(96);
    let _ = write!(
        text,
        "id={:#x}, block={}, index={}, age_ms={}, feed={}",
        newest.id.0,
        newest.header().number,
        newest.index(),
        newest.published.elapsed().as_millis(),
        published.feed.as_str(),
    );
    HeaderValue::from_maybe_shared(Bytes::from(text)).ok()
}

/// Sub-block times without a snapshot after which a feed counts as stalled.
const STALLED_AFTER: u128 = 5;

fn health(published: &Published) -> HttpResponse {
    let age = published.newest.published.elapsed().as_millis();
    let problem = match published.feed {
        FeedState::Live { every_ms } if age > STALLED_AFTER * u128::from(every_ms) => {
            Some(format!("the newest snapshot is {age} ms old, and one should come every {every_ms} ms"))
        }
        FeedState::Degraded => Some("the feed is broken: pending is the canonical head".to_owned()),
        FeedState::Live { .. } | FeedState::Static => None,
    };
    let status = if problem.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"status\":");
    encode::string(&mut out, if problem.is_some() { "unhealthy" } else { "ok" });
    if let Some(problem) = &problem {
        out.extend_from_slice(b",\"reason\":");
        encode::string(&mut out, problem);
    }
    out.extend_from_slice(b",\"feed\":");
    encode::string(&mut out, published.feed.as_str());
    out.extend_from_slice(format!(",\"ageMs\":{age}}}").as_bytes());
    let mut response = respond(out, Some(published));
    *response.status_mut() = status;
    response
}
