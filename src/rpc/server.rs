//! The one port: accepts connections, bounds them, and ends them in order.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use actix::{Actor, Context, Handler, Message, ResponseFuture};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinHandle,
};
use tower::{
    Layer,
    layer::util::Identity,
    util::{Either, option_layer},
};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{
    access::Access,
    dialect::{Dialect, PROJECT, STANDARD},
    error::RpcError,
    front::Front,
    http::{Door, Hosts, HttpService, refuse},
    io::IoThreads,
    reply::ReplyLimits,
    subscriptions::Subscriptions,
    ws::{Bounds, Sockets, stopped},
};
use crate::{
    config::{Config, DialectName},
    telemetry::Metrics,
};

/// What a server serves with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    listen: SocketAddr,
    root: &'static Dialect,
    limits: ReplyLimits,
    read_timeout: Duration,
    hosts: Vec<String>,
    origins: Vec<String>,
    max_connections: usize,
    max_in_flight: usize,
    max_unsent: usize,
    max_notifications: usize,
}

impl ServerConfig {
    /// The server's part of the configuration.
    pub fn new(config: &Config) -> Self {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "[::1]".to_owned()];
        if !config.listen.ip().is_unspecified() {
            hosts.push(match config.listen {
                SocketAddr::V4(addr) => addr.ip().to_string(),
                SocketAddr::V6(addr) => format!("[{}]", addr.ip()),
            });
        }
        hosts.extend(config.allow_host.iter().cloned());
        Self {
            listen: config.listen,
            root: match config.dialect {
                DialectName::Project => &PROJECT,
                DialectName::Standard => &STANDARD,
            },
            limits: ReplyLimits {
                max_body: config.max_body as usize,
                max_response: config.max_response as usize,
                max_batch: config.max_batch as usize,
            },
            read_timeout: Duration::from_millis(config.deadline_ms),
            hosts,
            origins: config.allow_origin.clone(),
            max_connections: config.max_connections as usize,
            max_in_flight: config.max_ws_in_flight as usize,
            max_unsent: config.max_ws_unsent as usize,
            max_notifications: config.max_ws_notifications as usize,
        }
    }
}

/// Owns the server: its port, its connections, its end.
pub struct FrontActor {
    config: ServerConfig,
    io: Arc<IoThreads>,
    front: Arc<Front>,
    subscriptions: Arc<Subscriptions>,
    access: Option<Access>,
    running: Option<Running>,
}

struct Running {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    /// Those of HTTP, and those that have become WebSockets.
    connections: [Arc<Semaphore>; 2],
    max_connections: usize,
}

impl FrontActor {
    /// A server that is not listening yet.
    pub fn new(
        config: ServerConfig,
        io: IoThreads,
        front: Arc<Front>,
        subscriptions: Arc<Subscriptions>,
        access: Access,
    ) -> Self {
        Self { config, io: Arc::new(io), front, subscriptions, access: Some(access), running: None }
    }
}

impl Actor for FrontActor {
    type Context = Context<Self>;
}

/// Serve the connections of this listener.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Serve(pub TcpListener);

/// Accept no more, let what is under way end, at most for this long.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop(pub Duration);

impl ServerConfig {
    /// Names that a `Host` header may bear.
    pub(super) fn hosts(&self) -> Hosts {
        Hosts(self.hosts.clone())
    }

    /// Takes the port.
    pub async fn bind(&self) -> io::Result<TcpListener> {
        TcpListener::bind(self.listen).await
    }
}

impl Handler<Serve> for FrontActor {
    type Result = ();

    fn handle(&mut self, Serve(listener): Serve, _: &mut Self::Context) {
        let Some(access) = self.access.take() else { return };
        let config = &self.config;
        let connections = Arc::new(Semaphore::new(config.max_connections));
        let (stop, stopping) = watch::channel(false);
        let sockets = Sockets {
            // A connection that is upgraded gives its first permit back, and holds one of these.
            connections: Arc::new(Semaphore::new(config.max_connections)),
            subscriptions: self.subscriptions.clone(),
            bounds: Bounds {
                max_in_flight: config.max_in_flight,
                max_unsent: config.max_unsent,
                max_notifications: config.max_notifications,
            },
            stopping: stopping.clone(),
        };
        let upgraded = sockets.connections.clone();
        let service = Arc::new(HttpService {
            front: self.front.clone(),
            access,
            root: config.root,
            limits: config.limits,
            read_timeout: config.read_timeout,
            hosts: config.hosts(),
            sockets,
        });
        let acceptor = Acceptor {
            io: self.io.clone(),
            connections: connections.clone(),
            overflow: Arc::new(Semaphore::new(OVERFLOW)),
            connection: Connection {
                door: Door(service),
                cors: option_layer((!config.origins.is_empty()).then(|| cors(&config.origins))),
                stopping,
            },
        };
        let accepting = tokio::spawn(acceptor.run(listener));
        self.running = Some(Running {
            stop,
            accepting,
            connections: [connections, upgraded],
            max_connections: config.max_connections,
        });
    }
}

impl Handler<Stop> for FrontActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, Stop(grace): Stop, _: &mut Self::Context) -> Self::Result {
        let running = self.running.take();
        Box::pin(async move {
            let Some(Running { stop, accepting, connections, max_connections }) = running else { return };
            let _ = stop.send(true);
            accepting.abort();
            // Every permit back means that every connection has ended.
            let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
            let ended = async {
                for kind in &connections {
                    let _ = kind.acquire_many(all).await;
                }
            };
            let _ = tokio::time::timeout(grace, ended).await;
        })
    }
}

/// How long a connection may be silent before, between and within the heads of requests.
const IDLE: Duration = Duration::from_secs(60);

/// Connections past the limit that are told so; those past these are dropped.
const OVERFLOW: usize = 64;

struct Acceptor {
    io: Arc<IoThreads>,
    connections: Arc<Semaphore>,
    overflow: Arc<Semaphore>,
    connection: Connection,
}

/// What a connection is served with.
#[derive(Clone)]
struct Connection {
    door: Door,
    /// None where no page may call: then there is nothing to say about it in each answer.
    cors: Either<CorsLayer, Identity>,
    stopping: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        loop {
            let Some(stream) = accept(&listener).await else { continue };
            // Answers are small and wanted at once.
            let _ = stream.set_nodelay(true);
            if let Ok(permit) = self.connections.clone().try_acquire_owned() {
                let connection = self.connection.clone();
                self.io.deal(stream, |stream| connection.serve(stream, permit));
            } else if let Ok(permit) = self.overflow.clone().try_acquire_owned() {
                tokio::spawn(turn_away(stream, permit));
            }
        }
    }
}

impl Connection {
    async fn serve(mut self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let service = TowerToHyperService::new(self.cors.layer(self.door.clone()));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // Against peers that open connections and say nothing, at the start or between two requests.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(IDLE);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut self.stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended");
        }
        drop(permit);
    }
}

/// Answers the first request of a connection past the limit with the limit, and closes.
async fn turn_away(stream: TcpStream, permit: OwnedSemaphorePermit) {
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

fn cors(origins: &[String]) -> CorsLayer {
    let layer =
        CorsLayer::new().allow_methods([Method::POST]).allow_headers([header::CONTENT_TYPE, header::AUTHORIZATION]);
    let layer = layer.expose_headers([HeaderName::from_static("x-presim-snapshot")]);
    if origins.iter().any(|origin| origin == "*") {
        return layer.allow_origin(AllowOrigin::any());
    }
    layer.allow_origin(AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok())))
}

/// Scrapers that may be connected at once; more wait for one to go.
const SCRAPERS: usize = 16;

/// Serves `GET /metrics` on a port of its own.
pub async fn serve_metrics(listener: TcpListener, metrics: Metrics) {
    let connections = Arc::new(Semaphore::new(SCRAPERS));
    while let Ok(permit) = connections.clone().acquire_owned().await {
        let Some(stream) = accept(&listener).await else { continue };
        let metrics = metrics.clone();
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let (status, text) = match request.uri().path() {
                "/metrics" => (StatusCode::OK, metrics.render()),
                _ => (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned()),
            };
            let mut response = http::Response::new(http_body_util::Full::new(bytes::Bytes::from(text)));
            *response.status_mut() = status;
            let kind = HeaderValue::from_static("text/plain; version=0.0.4");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        tokio::spawn(async move {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}

/// The next connection; none where it could not be had.
pub(super) async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // Out of file descriptors, mostly: connections that end will free some.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}
