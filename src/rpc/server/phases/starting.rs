//! The port during the node's start: `/health` and `/ready` report the reason for the wait, and every other request is
//! refused with the same message.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::health::{self, is_for_operators};
use crate::rpc::{
    protocol::error::RpcError,
    server::{
        auth::origins::Origins,
        listen::accept,
        response::{HttpResponse, refuse},
        settings::ServerConfig,
    },
};

/// Connections that are answered at once. More wait to be accepted.
const CONNECTIONS: u32 = 64;
/// The time-out of a connection for its one request and the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The current step of a node's start, as a clause: "it imports the blocks of --chain". Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StartupReason(Arc<ArcSwap<String>>);

impl StartupReason {
    /// Sets the current step.
    pub fn set(&self, reason: impl Into<String>) {
        self.0.store(Arc::new(reason.into()));
    }

    fn text(&self) -> String {
        format!("the node is starting: {}", self.0.load())
    }
}

/// The server of a node's port from the beginning of its start, on its own thread, until the front takes over the
/// port.
///
/// Each connection gets one answer and is closed, so that the next request uses a connection of the front.
#[derive(Debug)]
pub struct StartupServer {
    address: SocketAddr,
    reason: StartupReason,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<io::Result<StdListener>>>,
}

impl StartupServer {
    /// Binds the port of `server`, and answers on it.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it gives no port or no thread.
    pub fn bind(server: ServerConfig) -> io::Result<Self> {
        let reason = StartupReason::default();
        reason.set("it has taken its port");
        let (stop, stopped) = oneshot::channel::<Infallible>();
        let (tell, told) = mpsc::channel();
        let answers = Arc::new(Answers { origins: server.origins(server.listen), reason: reason.clone() });
        let thread = thread::Builder::new().name("presim-startup".to_owned()).spawn(move || {
            Builder::new_current_thread().enable_all().build()?.block_on(async move {
                let listener = server.bind()?;
                let _ = tell.send(listener.local_addr()?);
                let connections = Arc::new(Semaphore::new(CONNECTIONS as usize));
                tokio::select! {
                    () = answers.give(&listener, &connections) => {}
                    _ = stopped => {}
                }
                // When all permits are back, every connection has its answer.
                let _ = timeout(CONNECTION_TIMEOUT, connections.acquire_many(CONNECTIONS)).await;
                listener.into_std()
            })
        })?;
        let (stop, thread) = (Some(stop), Some(thread));
        match told.recv() {
            Ok(address) => Ok(Self { address, reason, stop, thread }),
            Err(_) => Err(end(thread).err().unwrap_or_else(ended_early)),
        }
    }

    /// Returns the address of the port.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the current step of the start, which the answers show.
    pub const fn reason(&self) -> &StartupReason {
        &self.reason
    }

    /// Stops accepting, answers the accepted connections (for at most a second), and returns the port.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread has panicked, or the system's if the port cannot be taken over.
    pub fn hand_over(mut self) -> io::Result<StdListener> {
        drop(self.stop.take());
        end(self.thread.take())
    }
}

impl Drop for StartupServer {
    /// Closes the port.
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = end(self.thread.take());
    }
}

fn end(thread: Option<JoinHandle<io::Result<StdListener>>>) -> io::Result<StdListener> {
    thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| Err(ended_early()))
}

fn ended_early() -> io::Error {
    io::Error::other("the thread that answers while the node starts has failed")
}

/// The answers during the start.
struct Answers {
    origins: Arc<Origins>,
    reason: StartupReason,
}

impl Answers {
    async fn give(self: Arc<Self>, listener: &TcpListener, connections: &Arc<Semaphore>) {
        while let Ok(permit) = connections.clone().acquire_owned().await {
            if let Some((stream, _)) = accept(listener).await {
                tokio::spawn(self.clone().converse(stream, permit));
            }
        }
    }

    /// Reads one request, and answers it.
    async fn converse(self: Arc<Self>, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = self.to(&request);
            async move {
                // Closing a connection with unread data would lose its answer.
                let mut body = request.into_body();
                while let Some(Ok(_)) = body.frame().await {}
                Ok::<_, Infallible>(answer)
            }
        });
        let connection =
            auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).into_owned();
        let _ = timeout(CONNECTION_TIMEOUT, connection).await;
        drop(permit);
    }

    fn to(&self, request: &Request<Incoming>) -> HttpResponse {
        let mut answer = if let Err(error) = Origins::check_one_host(request.headers()) {
            refuse(StatusCode::BAD_REQUEST, error)
        } else if matches!(request.uri().path(), "/health" | "/ready") {
            health::starting(self.reason.text())
        } else if let Err(error) = self.origins.check_host(request.headers(), request.uri())
            && !is_for_operators(request.uri())
        {
            refuse(StatusCode::FORBIDDEN, error)
        } else {
            refuse(StatusCode::SERVICE_UNAVAILABLE, RpcError::new(-32000, self.reason.text()))
        };
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        answer
    }
}
