//! The WebSocket door: jsonrpsee's sessions, with their calls, batches and would-be notifications answered by the front.

use std::{
    borrow::Cow,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use bytestring::ByteString;
use futures::future::join_all;
use http::Request;
use hyper::body::Incoming;
use jsonrpsee::{
    core::middleware::{Batch, BatchEntry, Notification, RpcServiceBuilder, RpcServiceT},
    server::{
        BatchRequestConfig, BatchResponseBuilder, ConnectionState, HttpRequest, HttpResponse, MethodResponse, Methods,
        ResponsePayload, ServerConfig, ServerHandle, stop_channel, ws,
    },
    types::{ErrorObjectOwned, Id, Request as RpcRequest},
};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    access::Client,
    dialect::Dialect,
    error::RpcError,
    front::{Front, Job},
    http::{HttpLimits, refuse},
};
use crate::state::Published;

/// What all WebSocket connections share.
#[derive(Debug)]
pub struct Sockets {
    /// One permit a connection; there are as many of them as connections may be open.
    pub connections: Arc<Semaphore>,
    /// Requests under way or unsent, one connection.
    pub max_in_flight: usize,
    /// Bytes of answers unsent, one connection.
    pub max_unsent: usize,
    /// Turns true when the node stops.
    pub stopping: watch::Receiver<bool>,
    /// The next connection's number.
    pub next: AtomicU32,
}

/// What the calls of one connection are answered with.
#[derive(Clone, Debug)]
pub struct Session {
    pub front: Arc<Front>,
    pub dialect: &'static Dialect,
    pub client: Option<Arc<Client>>,
    pub limits: HttpLimits,
}

/// How long a connection that must close may take to send what it owes.
const GRACE: Duration = Duration::from_secs(5);
/// Answers that wait in jsonrpsee's own buffer, besides those counted here.
const BUFFER: u32 = 16;

impl Sockets {
    /// Upgrades a request, and serves the connection until it ends.
    pub async fn accept(&self, request: Request<Incoming>, session: Session) -> HttpResponse {
        let Ok(permit) = self.connections.clone().try_acquire_owned() else {
            let error = RpcError::limit("too many WebSocket connections are open");
            return refuse(http::StatusCode::SERVICE_UNAVAILABLE, error);
        };
        let max_body = u32::try_from(session.limits.max_body).unwrap_or(u32::MAX);
        let config = ServerConfig::builder()
            // jsonrpsee bounds messages by the larger of the two; the front refuses with its own code before that.
            .max_request_body_size(max_body.saturating_mul(2))
            .max_response_body_size(max_body.saturating_mul(2))
            .set_batch_request_config(BatchRequestConfig::Unlimited)
            .set_message_buffer_capacity(BUFFER)
            .build();
        let (stop, handle) = stop_channel();
        let state = ConnectionState::new(stop, self.next.fetch_add(1, Relaxed), permit);
        let calls = Calls {
            session,
            in_flight: Arc::new(Semaphore::new(self.max_in_flight)),
            unsent: Arc::new(Semaphore::new(self.max_unsent)),
            handle: handle.clone(),
            max_in_flight: self.max_in_flight,
            max_unsent: self.max_unsent,
        };
        let middleware = RpcServiceBuilder::new().layer_fn(move |_| calls.clone());
        let request: HttpRequest<Incoming> = request;
        match ws::connect(request, config, Methods::new(), state, middleware).await {
            Ok((response, connection)) => {
                tokio::spawn(serve(connection, handle, self.stopping.clone()));
                response
            }
            Err(response) => response,
        }
    }
}

/// Drives a connection; when the node stops, or the connection is told to close, it has the grace to send what it owes.
async fn serve(connection: impl Future<Output = ()>, handle: ServerHandle, mut stopping: watch::Receiver<bool>) {
    tokio::pin!(connection);
    tokio::select! {
        () = &mut connection => return,
        () = handle.clone().stopped() => {}
        _ = stopping.wait_for(|stopping| *stopping) => {
            let _ = handle.stop();
        }
    }
    let _ = tokio::time::timeout(GRACE, connection).await;
}

/// The calls of one connection.
#[derive(Clone, Debug)]
struct Calls {
    session: Session,
    in_flight: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    handle: ServerHandle,
    max_in_flight: usize,
    max_unsent: usize,
}

impl RpcServiceT for Calls {
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: RpcRequest<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let calls = self.clone();
        async move {
            let held = match calls.hold() {
                Ok(held) => held,
                Err(error) => return failed(request.id, error),
            };
            let published = calls.session.front.published();
            calls.answer(request, published, true, held).await
        }
    }

    fn batch<'a>(&self, requests: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let calls = self.clone();
        async move {
            let limits = calls.session.limits;
            let held = match calls.hold() {
                Ok(held) => held,
                Err(error) => return failed(Id::Null, error),
            };
            if requests.is_empty() {
                return failed(
                    Id::Null,
                    RpcError::request("invalid request: an empty batch: expected at least one request"),
                );
            }
            if requests.len() > limits.max_batch {
                let text = format!("batch of {} requests: at most {}", requests.len(), limits.max_batch);
                return failed(Id::Null, RpcError::limit(text));
            }
            let published = calls.session.front.published();
            let answers = join_all(requests.into_iter().map(|entry| calls.entry(entry, published.clone()))).await;
            let mut batch = BatchResponseBuilder::new_with_limit(limits.max_response);
            for answer in answers {
                if let Err(too_long) = batch.append(answer) {
                    return too_long;
                }
            }
            drop(held);
            MethodResponse::from_batch(batch.finish())
        }
    }

    fn notification<'a>(&self, _: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        // A request without a usable id: there are no notifications here.
        std::future::ready(failed(Id::Null, no_id()))
    }
}

impl Calls {
    async fn entry(
        &self,
        entry: Result<BatchEntry<'_>, jsonrpsee::core::middleware::BatchEntryErr<'_>>,
        published: Arc<Published>,
    ) -> MethodResponse {
        match entry {
            Ok(BatchEntry::Call(request)) => match self.hold() {
                Ok(held) => self.answer(request, published, false, held).await,
                Err(error) => failed(request.id, error),
            },
            Ok(BatchEntry::Notification(_)) => failed(Id::Null, no_id()),
            Err(error) => {
                let (_, id) = error.into_parts();
                failed(id, RpcError::request("invalid request: expected jsonrpc, method and id"))
            }
        }
    }

    async fn answer(
        &self,
        request: RpcRequest<'_>,
        published: Arc<Published>,
        alone: bool,
        held: OwnedSemaphorePermit,
    ) -> MethodResponse {
        let Session { front, dialect, client, limits } = &self.session;
        let params = request.params.as_ref().map_or("[]", |params| params.get());
        if params.len() > limits.max_body {
            return failed(
                request.id,
                RpcError::limit(format!("message too large: at most {} bytes", limits.max_body)),
            );
        }
        if let Some(Err(error)) = client.as_ref().map(|client| client.admit(NonZeroU32::MIN)) {
            return failed(request.id, error);
        }
        let job = Job {
            params: ByteString::from(params),
            published,
            dialect,
            client: client.clone(),
            ticket: front.ticket(),
            alone,
        };
        let (out, result) = front.run(&request.method, job, Vec::new()).await;
        if let Err(error) = result {
            return failed(request.id, error);
        }
        let Ok(unsent) = self.unsent.clone().try_acquire_many_owned(u32::try_from(out.len()).unwrap_or(u32::MAX))
        else {
            return failed(
                request.id,
                self.close(format!("more than {} bytes of answers are unsent", self.max_unsent)),
            );
        };
        let Some(raw) = String::from_utf8(out).ok().and_then(|text| RawValue::from_string(text).ok()) else {
            return failed(request.id, RpcError::new(-32603, "internal error: the answer is no JSON"));
        };
        let (payload, sent) = ResponsePayload::success(Cow::<RawValue>::Owned(raw)).notify_on_completion();
        tokio::spawn(async move {
            let _ = sent.await;
            drop((held, unsent));
        });
        MethodResponse::response(request.id, payload, limits.max_response)
    }

    /// Takes a place among the requests that may be under way, or closes the connection.
    fn hold(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        self.in_flight
            .clone()
            .try_acquire_owned()
            .map_err(|_| self.close(format!("more than {} requests are under way", self.max_in_flight)))
    }

    /// Closes the connection. Its last message says why.
    fn close(&self, reason: String) -> RpcError {
        let _ = self.handle.stop();
        RpcError::limit(format!("closing the connection: {reason}"))
    }
}

fn no_id() -> RpcError {
    RpcError::request("invalid request: id: missing or unusable: expected an unsigned integer, a string or null")
}

fn failed(id: Id<'_>, error: RpcError) -> MethodResponse {
    let error: ErrorObjectOwned = error.into_owned();
    MethodResponse::error(id, error)
}
