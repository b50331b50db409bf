//! The server of the one port: accepts connections, bounds them, and closes them in order.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use actix::{Actor, Context, Handler, Message, ResponseFuture};
use futures::future::join_all;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{AbortHandle, JoinHandle},
};
use tower::{
    Layer,
    layer::util::Identity,
    util::{Either, option_layer},
};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{
    auth::{origins::Origins, tokens::Access},
    connection::{Connection, Connections},
    http::{HttpConnection, HttpService, RequestGuard},
    io::IoThreads,
    ipc::IpcAcceptor,
    response::refuse,
};
use crate::rpc::{
    dispatch::front::Dispatcher,
    limits::{
        memory::IoMemory,
        stalls::{FIRST_HEAD, NEXT_HEAD, NotedStream},
    },
    protocol::error::RpcError,
    run::{catch_up::MIN_SNAPSHOT, client::Client},
};
use crate::{
    telemetry::{Metrics, Pulse},
    unix_socket::SocketFile,
};

/// The actor that owns the server and its connections.
pub struct FrontActor {
    io: Arc<IoThreads>,
    front: Arc<Dispatcher>,
    connections: Arc<Connections>,
    accepting: AbortHandle,
    ipc: Option<IpcServer>,
    closing: AbortHandle,
}

/// The server of the Unix socket.
struct IpcServer {
    accepting: AbortHandle,
    _file: SocketFile,
}

impl FrontActor {
    /// Serves the connections of `listener` and of the Unix socket `ipc` on the threads of `io`. The bytes that
    /// connections hold count in `memory`.
    pub fn serve(
        listener: TcpListener,
        ipc: Option<(UnixListener, SocketFile)>,
        service: HttpService,
        io: IoThreads,
        memory: Arc<IoMemory>,
        metrics: &Metrics,
    ) -> Self {
        let (config, front, io) = (&service.config, service.front.clone(), Arc::new(io));
        let (origins, timeout) = (config.origins(config.listen), config.io_timeout);
        let connections = Arc::new(Connections::new(config.connections, memory, metrics));
        let cors = option_layer(origins.is_open().then(|| cors(origins.clone())));
        let service = Arc::new(service);
        let ipc = ipc.map(|(listener, file)| {
            let (service, io, connections) = (service.clone(), io.clone(), connections.clone());
            let acceptor = IpcAcceptor { service, io, connections };
            IpcServer { accepting: tokio::spawn(acceptor.run(listener)).abort_handle(), _file: file }
        });
        let acceptor = Acceptor {
            io: io.clone(),
            connections: connections.clone(),
            timeout,
            overflow: Arc::new(Semaphore::new(OVERFLOW)),
            server: ConnectionServer { service, cors, origins },
        };
        let accepting = tokio::spawn(acceptor.run(listener)).abort_handle();
        let closing = tokio::spawn(connections.clone().close_stalled(timeout.min(FIRST_HEAD))).abort_handle();
        Self { io, front, connections, accepting, ipc, closing }
    }
}

impl Actor for FrontActor {
    type Context = Context<Self>;
}

/// Stops accepting connections, and lets requests in progress finish, at most for this long.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop(pub Duration);

impl Handler<Stop> for FrontActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Stop(grace): Stop, _: &mut Self::Context) -> Self::Result {
        self.connections.stop();
        self.front.services.watches.stop_waiting();
        self.accepting.abort();
        if let Some(ipc) = self.ipc.take() {
            ipc.accepting.abort();
        }
        let (connections, closing) = (self.connections.clone(), self.closing.clone());
        Box::pin(async move {
            let _ = tokio::time::timeout(grace, connections.all_ended()).await;
            closing.abort();
        })
    }
}

impl Handler<Pulse> for FrontActor {
    type Result = ResponseFuture<bool>;

    /// Answers when each thread of connections has answered.
    fn handle(&mut self, _: Pulse, _: &mut Self::Context) -> Self::Result {
        let answers = self.io.pulse();
        Box::pin(async move { join_all(answers).await.into_iter().all(|answer| answer.is_ok()) })
    }
}

/// Bytes that are read ahead of a connection: the longest head, and HTTP/2's windows.
const READ_AHEAD: usize = 48 << 10;

/// Connections beyond the limit that get an error. Connections beyond these are dropped.
const OVERFLOW: usize = 64;

struct Acceptor {
    io: Arc<IoThreads>,
    connections: Arc<Connections>,
    timeout: Duration,
    overflow: Arc<Semaphore>,
    server: ConnectionServer,
}

/// The parts that serve a connection.
#[derive(Clone)]
struct ConnectionServer {
    service: Arc<HttpService>,
    origins: Arc<Origins>,
    /// Absent if no page may call, because then the headers are not needed.
    cors: Either<CorsLayer, Identity>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        loop {
            let Some((stream, peer)) = accept(&listener).await else { continue };
            // Answers are small and urgent.
            let _ = stream.set_nodelay(true);
            if let Some(connection) = self.connections.open(peer.ip(), self.timeout) {
                let Ok(stream) = stream.into_std() else { continue };
                let server = self.server.clone();
                // The stream was registered with the event loop that accepted it.
                self.io.assign(|| TcpStream::from_std(stream), |stream| server.serve(stream, connection));
            } else if let Ok(permit) = self.overflow.clone().try_acquire_owned() {
                tokio::spawn(reject(stream, permit));
            }
        }
    }
}

impl ConnectionServer {
    async fn serve(self, stream: TcpStream, connection: Arc<Connection>) {
        let progress = connection.progress.clone();
        let client = Arc::new(Client::without_token(self.service.access.opens_wallet()));
        let http = HttpConnection { service: self.service, connection: connection.clone(), client };
        let guard = RequestGuard::new(self.origins, progress.clone(), self.cors.layer(http));
        let service = TowerToHyperService::new(guard);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // `Progress` bounds the time of a head. hyper would make a timer for each request.
        builder.http1().header_read_timeout(None).max_buf_size(READ_AHEAD);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(NEXT_HEAD)
            .max_header_list_size(READ_AHEAD as u32)
            .initial_stream_window_size(READ_AHEAD as u32)
            .initial_connection_window_size(READ_AHEAD as u32);
        let stream = TokioIo::new(NotedStream::new(stream, progress.clone()));
        let serving = builder.serve_connection_with_upgrades(stream, service);
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = progress.closed() => Ok(()),
            () = connection.stopped() => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = serving => ended,
                    () = progress.closed() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended");
        }
    }
}

/// Answers the first request of a connection beyond the limit with an error, and closes the connection.
async fn reject(stream: TcpStream, permit: OwnedSemaphorePermit) {
    let service = tower::service_fn(|_: http::Request<hyper::body::Incoming>| async {
        let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::limit("too many connections are open"));
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok::<_, std::convert::Infallible>(response)
    });
    let connection = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .into_owned();
    let _ = tokio::time::timeout(Duration::from_secs(1), connection).await;
    drop(permit);
}

fn cors(origins: Arc<Origins>) -> CorsLayer {
    CorsLayer::new()
        .allow_methods([Method::POST])
        .allow_headers([header::CONTENT_TYPE, header::AUTHORIZATION, HeaderName::from_static(MIN_SNAPSHOT)])
        .expose_headers([HeaderName::from_static("x-presim-snapshot")])
        // A listed page of the internet may call a node on the user's machine (Private Network Access).
        .allow_private_network(true)
        .allow_origin(AllowOrigin::predicate(move |origin, _| {
            origin.to_str().is_ok_and(|origin| origins.allows(origin))
        }))
}

/// Scrapers that may be connected at once. For one more, the one that has been idle longest is disconnected.
const SCRAPERS: usize = 16;

/// Checks a request for the metrics: its host, and one of `tokens` if there are any.
fn check_scrape(
    request: &http::Request<hyper::body::Incoming>,
    origins: &Origins,
    tokens: Option<&Access>,
) -> Result<(), (StatusCode, RpcError)> {
    let (headers, uri) = (request.headers(), request.uri());
    Origins::check_one_host(headers).map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    // A page whose own host name resolves to this machine could read the metrics.
    origins.check_host(headers, uri).map_err(|error| (StatusCode::FORBIDDEN, error))?;
    let Some(tokens) = tokens else { return Ok(()) };
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    tokens.client(authorization).map(drop).map_err(|error| (StatusCode::UNAUTHORIZED, error))
}

/// Serves `GET /metrics` on a port of its own under the hosts of `origins`, for one of `tokens` if the port can be reached from other
/// machines.
pub async fn serve_metrics(
    listener: TcpListener,
    metrics: Metrics,
    origins: Arc<Origins>,
    tokens: Option<Arc<Access>>,
) {
    let began = Instant::now();
    let now = move || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut scrapers: Vec<ScraperConnection> = Vec::new();
    loop {
        let Some((stream, _)) = accept(&listener).await else { continue };
        scrapers.retain(|scraper| !scraper.task.is_finished());
        if scrapers.len() >= SCRAPERS
            && let Some(idlest) = (0..scrapers.len()).min_by_key(|index| scrapers[*index].active.load(Relaxed))
        {
            scrapers.swap_remove(idlest).task.abort();
        }
        let (metrics, origins, tokens) = (metrics.clone(), origins.clone(), tokens.clone());
        let active = Arc::new(AtomicU64::new(now()));
        let asked = active.clone();
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            asked.store(now(), Relaxed);
            let (status, text) = match check_scrape(&request, &origins, tokens.as_deref()) {
                Err((status, error)) => (status, format!("{}\n", error.into_object().message())),
                Ok(()) if request.uri().path() == "/metrics" => (StatusCode::OK, metrics.render()),
                Ok(()) => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
            };
            let mut response = http::Response::new(http_body_util::Full::new(bytes::Bytes::from(text)));
            *response.status_mut() = status;
            let kind = HeaderValue::from_static("text/plain; version=0.0.4");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        let task = tokio::spawn(async move {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(FIRST_HEAD);
            // A scraper that reads nothing would keep its place.
            let _ = tokio::time::timeout(SCRAPE, builder.serve_connection(TokioIo::new(stream), service)).await;
        });
        scrapers.push(ScraperConnection { active, task });
    }
}

/// A connection to the metrics.
struct ScraperConnection {
    /// Time of its last request, or of its accept, in microseconds since the metrics are served.
    active: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// The time that a scraper may stay connected.
const SCRAPE: Duration = Duration::from_secs(120);

/// Accepts the next connection with its address; `None` if that failed.
pub async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            // Mostly a lack of file descriptors. Connections that end will free some.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}
