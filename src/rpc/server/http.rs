//! The HTTP transport: JSON-RPC in POST bodies without a router, `/health` and `/ready`, and the upgrade to WebSocket.

use std::{
    convert::Infallible,
    future::{self, Future, Ready},
    num::NonZeroU32,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use bytestring::ByteString;
use futures::{FutureExt, future::Either};
use http::{HeaderMap, Method as HttpMethod, Request, StatusCode, Uri, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::{
    auth::{origins::Origins, tokens::Access},
    connection::Connection,
    files::ServedFiles,
    phases::health::{health, is_for_operators, ready},
    response::{AnsweredOn, HttpResponse, allow, refuse, respond},
    session::Session,
    settings::ServerConfig,
    ws,
};
use crate::rpc::{
    dispatch::{
        front::Dispatcher,
        service::{Answer, Message, error_answer},
    },
    limits::{memory::HeldBytes, stalls::Progress},
    protocol::error::RpcError,
    run::{
        ExecutedBy,
        catch_up::{MIN_SNAPSHOT, min_snapshot, published_from},
        client::Client,
        request::Caller,
        subscriptions::Subscriptions,
    },
};

/// The service of a connection's requests.
#[derive(Debug)]
pub struct HttpService {
    /// The front that answers.
    pub front: Arc<Dispatcher>,
    /// The clients that may call.
    pub access: Arc<Access>,
    /// The settings of the server.
    pub config: ServerConfig,
    /// The subscriptions of connections.
    pub subscriptions: Arc<Subscriptions>,
    /// The files for browsers.
    pub files: ServedFiles,
}

impl HttpService {
    /// Returns the parts that serve a connection with many messages in progress.
    pub fn session(&self) -> Session {
        Session {
            front: self.front.clone(),
            subscriptions: self.subscriptions.clone(),
            bounds: self.config.sockets,
            max_body: self.config.max_body,
        }
    }
}

/// The first check of a request: the size of its head, its host, and the page that sends it.
#[derive(Clone, Debug)]
pub struct RequestGuard<S> {
    origins: Arc<Origins>,
    progress: Arc<Progress>,
    inner: S,
}

impl<S> RequestGuard<S> {
    /// The most bytes of a request's URI.
    const MAX_URI: usize = 2 << 10;
    /// The most bytes of a request's headers, names and values.
    const MAX_HEAD: usize = 16 << 10;

    /// Creates a guard before `inner`.
    pub const fn new(origins: Arc<Origins>, progress: Arc<Progress>, inner: S) -> Self {
        Self { origins, progress, inner }
    }

    fn check<B>(&self, request: &Request<B>) -> Result<(), (StatusCode, RpcError)> {
        let (uri, headers) = (request.uri(), request.headers());
        if length(uri) > Self::MAX_URI {
            let text = format!("URI of {} bytes: at most {}", length(uri), Self::MAX_URI);
            return Err((StatusCode::URI_TOO_LONG, RpcError::limit(text)));
        }
        let head: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        if head > Self::MAX_HEAD {
            let text = format!("headers of {head} bytes: at most {}", Self::MAX_HEAD);
            return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, RpcError::limit(text)));
        }
        Origins::check_one_host(headers).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
        if !is_for_operators(uri) {
            self.origins.check_host(headers, uri).map_err(|error| (StatusCode::FORBIDDEN, error))?;
        }
        // A page that merely reads, like a link or a tab, can do no harm.
        let looks = matches!(*request.method(), HttpMethod::GET | HttpMethod::HEAD) && !ws::is_upgrade(request);
        if !looks {
            self.origins.check_page(headers, uri).map_err(|error| (StatusCode::FORBIDDEN, error))?;
        }
        Ok(())
    }
}

/// Returns the length of a URI in bytes.
fn length(uri: &Uri) -> usize {
    uri.authority().map_or(0, |authority| authority.as_str().len())
        + uri.path_and_query().map_or(0, |path| path.as_str().len())
}

impl<S, B> tower::Service<Request<B>> for RequestGuard<S>
where
    S: tower::Service<Request<B>, Response = HttpResponse, Error = Infallible>,
{
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Either<Ready<Result<HttpResponse, Infallible>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.progress.on_head(request.version() < Version::HTTP_2 && !ws::is_upgrade(&request));
        match self.check(&request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err((status, error)) => {
                // A refused request has ended, too.
                drop(self.progress.begin());
                Either::Left(future::ready(Ok(refuse(status, error))))
            }
        }
    }
}

/// The [`HttpService`] of one connection, as a tower service.
#[derive(Clone, Debug)]
pub struct HttpConnection {
    pub service: Arc<HttpService>,
    pub connection: Arc<Connection>,
    /// The client of requests without a token.
    pub client: Arc<Client>,
}

impl tower::Service<Request<Incoming>> for HttpConnection {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let progress = &service.connection.progress;
            let under_way = progress.begin();
            let is_windowed = request.version() == Version::HTTP_2;
            let mut response = service.serve(request).await;
            let body = response.body_mut();
            body.under_way = Some(under_way);
            body.window = (is_windowed && !body.unsent.is_empty()).then(|| progress.open_window());
            Ok(response)
        })
    }
}

impl HttpConnection {
    async fn serve(&self, request: Request<Incoming>) -> HttpResponse {
        let service = &self.service;
        let path = request.uri().path();
        let runner = &service.front.services.runner;
        if !service.access.needs_token() && !ws::is_upgrade(&request) {
            self.connection.progress.mark_known();
        }
        match path {
            "/health" => {
                let (failure, stall) = (runner.store_failure(), runner.stalled_worker());
                return health(&runner.published(), runner.upstream(), runner.unknown_fork(), failure, stall);
            }
            "/ready" => {
                let (failure, stall) = (runner.store_failure(), runner.stalled_worker());
                return ready(&runner.published(), failure, stall, service.config.ready_lag);
            }
            _ => {}
        }
        if let Some(file) = service.files.answer(&request) {
            return file;
        }
        let client = match request.headers().get(header::AUTHORIZATION) {
            Some(authorization) => service.access.client(Some(authorization.as_bytes())),
            None => service.access.client_of_socket(ws::offered_token(&request)),
        };
        if matches!(client, Ok(Some(_))) {
            self.connection.progress.mark_known();
        }
        let (client, refused) = match client {
            Ok(client) => (client.unwrap_or_else(|| self.client.clone()), None),
            Err(error) => (self.client.clone(), Some(error)),
        };
        let dialect = match path {
            "/" | "" => service.config.root,
            "/standard" | "/standard/" => service.config.standard,
            "/metrics" => {
                let here = service.config.metrics.filter(|_| refused.is_none());
                let text = here.map(|address| format!("metrics are served at http://{address}/metrics"));
                let none =
                    || "no metrics are served here: --metrics ADDR:PORT serves them on a port of their own".into();
                return refuse_to(&client, StatusCode::NOT_FOUND, RpcError::request(text.unwrap_or_else(none)));
            }
            _ => {
                let error = RpcError::request("no such path: expected /, /standard, /health or /ready");
                return refuse_to(&client, StatusCode::NOT_FOUND, error);
            }
        };
        if let Some(error) = refused {
            return refuse(StatusCode::UNAUTHORIZED, error);
        }
        let page = request.headers().get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).map(Box::from);
        let memory = self.connection.memory.clone();
        let caller = Arc::new(Caller { client, dialect, page, memory, until: None });
        if ws::is_upgrade(&request) {
            return ws::accept(service.session(), request, caller, self.connection.clone());
        }
        let client = &caller.client;
        if request.method() != HttpMethod::POST {
            let error = RpcError::request("expected a POST with a JSON-RPC body, or a WebSocket upgrade");
            let has_page = !service.files.0.is_empty() && matches!(path, "/" | "");
            let methods = if has_page { "GET, HEAD, POST" } else { "POST" };
            return allow(refuse_to(client, StatusCode::METHOD_NOT_ALLOWED, error), methods);
        }
        if !is_json(request.headers()) {
            let error = RpcError::request("content-type: expected application/json");
            return refuse_to(client, StatusCode::UNSUPPORTED_MEDIA_TYPE, error);
        }
        let least = request.headers().get(MIN_SNAPSHOT).map(|value| value.to_str().unwrap_or_default());
        let least = match min_snapshot(least) {
            Ok(least) => least,
            Err(error) => return refuse_to(client, StatusCode::BAD_REQUEST, error),
        };
        match self.read(request.into_body()).await {
            Ok((body, held)) => {
                let published = match published_from(&runner.host.snapshots, least, service.config.max_catch_up).await {
                    Ok(published) => published,
                    Err(error) => {
                        let (published, by) = (runner.published(), ExecutedBy::Node);
                        let answered = AnsweredOn { published: &published, spec: Some(&runner.backend.spec), by };
                        return respond(error_answer(&caller, &body, error), Some(answered));
                    }
                };
                let message = Message::new(&service.front, &caller, &published, None);
                let Answer { text, single, by } = message.answer(body, held).await;
                let answered = AnsweredOn { published: &published, spec: Some(&runner.backend.spec), by };
                respond(text, single.then_some(answered))
            }
            Err((status, error)) => refuse_to(client, status, error),
        }
    }

    /// Reads a body. It stays unread while the connection may hold no more bytes.
    ///
    /// # Errors
    ///
    /// Returns the HTTP status and the error that answer the request.
    async fn read(&self, body: Incoming) -> Result<(ByteString, HeldBytes), (StatusCode, RpcError)> {
        let (bytes, held) = self.collect(body).await?;
        let text = ByteString::try_from(bytes)
            .map_err(|error| (StatusCode::BAD_REQUEST, RpcError::parse(format!("parse error: not UTF-8: {error}"))))?;
        Ok((text, held))
    }

    async fn collect(&self, mut body: Incoming) -> Result<(Bytes, HeldBytes), (StatusCode, RpcError)> {
        let most = self.service.config.max_body;
        let memory = &self.connection.memory;
        let too_long = || {
            let text = format!("body too large: at most {most} bytes (--max-body)");
            (StatusCode::PAYLOAD_TOO_LARGE, RpcError::limit(text))
        };
        let no_room = |bytes| (StatusCode::SERVICE_UNAVAILABLE, memory.memory().full("the body", bytes));
        let broken =
            |error: hyper::Error| (StatusCode::BAD_REQUEST, RpcError::parse(format!("the body ended early: {error}")));
        let stated = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if stated > most {
            return Err(too_long());
        }
        let mut held = memory.clone().empty();
        let mut time = BodyTime::new(self.connection.progress.timeout, self.service.config.read_timeout);
        let mut parts = BodyParts::of(stated);
        if !memory.can_ever_hold(stated) {
            return Err(no_room(stated));
        }
        loop {
            let frame = match time.wait(body.frame()).await {
                Ok(None) => return Ok((parts.whole(), held)),
                Ok(Some(frame)) => frame.map_err(broken)?,
                Err(_) => {
                    // An HTTP/1 connection ends with its body, and an HTTP/2 connection takes no further requests.
                    self.connection.progress.close();
                    return Err(late());
                }
            };
            let Ok(part) = frame.into_data() else { continue };
            let length = held.bytes() + part.len();
            if length > most {
                return Err(too_long());
            }
            if !memory.can_ever_hold(length) {
                return Err(no_room(length));
            }
            let room = time.wait(pin!(held.wait_to_grow(part.len()))).await;
            room.map_err(|_| no_room(stated.max(length)))?;
            parts.push(part);
        }
    }
}

/// The time that a body may take. A body that has arrived with its head takes none, and reads no clock.
struct BodyTime {
    /// The bound on each wait, and the further time that all waits may take together.
    bounds: [Duration; 2],
    /// The end of all waits, from the first one on.
    end: Option<Instant>,
}

impl BodyTime {
    const fn new(stall: Duration, whole: Duration) -> Self {
        Self { bounds: [stall, whole], end: None }
    }

    /// Waits until `future` is ready.
    ///
    /// # Errors
    ///
    /// Returns [`Elapsed`] if it is not ready in time.
    async fn wait<F: Future + Unpin>(&mut self, mut future: F) -> Result<F::Output, Elapsed> {
        if let Some(output) = (&mut future).now_or_never() {
            return Ok(output);
        }
        let ([stall, whole], now) = (self.bounds, Instant::now());
        let end = *self.end.get_or_insert(now + stall + whole);
        timeout_at(end.min(now + stall), future).await
    }
}

/// The parts of a body: in one block if few bytes are announced, else in several, which are joined when all have
/// arrived. Reserving the announced size would take memory before its bytes are there, and small parts would each keep
/// the buffer that they were read into.
struct BodyParts {
    stated: usize,
    /// The only part, which most bodies have.
    first: Option<Bytes>,
    blocks: Vec<Vec<u8>>,
}

impl BodyParts {
    const BLOCK: usize = 64 << 10;

    /// Creates a list of parts for a body of `stated` bytes.
    const fn of(stated: usize) -> Self {
        Self { stated, first: None, blocks: Vec::new() }
    }

    fn push(&mut self, part: Bytes) {
        if self.first.is_none() && self.blocks.is_empty() {
            self.first = Some(part);
            return;
        }
        for part in self.first.take().into_iter().chain([part]) {
            let mut rest = &part[..];
            while !rest.is_empty() {
                match self.blocks.last_mut() {
                    Some(block) if block.len() < block.capacity() => {
                        let (now, later) = rest.split_at(rest.len().min(block.capacity() - block.len()));
                        block.extend_from_slice(now);
                        rest = later;
                    }
                    _ => self.blocks.push(Vec::with_capacity(self.stated.clamp(1 << 10, Self::BLOCK))),
                }
            }
        }
    }

    fn whole(mut self) -> Bytes {
        match (self.first, self.blocks.len()) {
            (Some(only), _) => only,
            (None, 1) => self.blocks.remove(0).into(),
            (None, _) => self.blocks.concat().into(),
        }
    }
}

fn late() -> (StatusCode, RpcError) {
    (StatusCode::REQUEST_TIMEOUT, RpcError::new(-32016, "the body did not arrive in time"))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let kind = value.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json") || kind.eq_ignore_ascii_case("application/json-rpc")
    })
}

/// Refuses a request of a client. The answer counts against the client's rate as a request does.
fn refuse_to(client: &Client, status: StatusCode, error: RpcError) -> HttpResponse {
    match client.admit(NonZeroU32::MIN) {
        Ok(()) => refuse(status, error),
        Err(rate) => refuse(StatusCode::TOO_MANY_REQUESTS, rate),
    }
}
