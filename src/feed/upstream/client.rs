//! The client of an upstream node: batches, bounds, retries, and how the node is.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_json_rpc::{ErrorPayload, Id, Request, RequestPacket, ResponsePacket, ResponsePayload, SerializedRequest};
use alloy_primitives::{B256, U64};
use alloy_rpc_client::{BuiltInConnectionString, ClientBuilder, ConnectionConfig, RpcClient, WebSocketConfig};
use alloy_transport::{Authorization, BoxTransport, RpcError, TransportError, TransportErrorKind};
use arc_swap::ArcSwapOption;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::join_all;
use metrics::{Counter, Gauge, Histogram};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Notify, Semaphore};
use tower::Service;

use super::http::Http;
use crate::telemetry::Metrics;

/// How an upstream is asked.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// `http://`, `https://`, `ws://`, `wss://`, or the path of an IPC socket.
    pub url: String,
    /// How long one request, a batch included, may take.
    pub timeout: Duration,
    /// Requests that may be on their way at once; more wait.
    pub concurrency: usize,
    /// Calls in one batch.
    pub batch: usize,
    /// Bytes of an answer.
    pub max_response: usize,
}

/// A node that is asked over JSON-RPC.
///
/// What fails because the node is busy (429, -32005), away or slow is asked again after a pause that doubles, with jitter, until the caller's
/// deadline. What it answers wrongly is asked again a few times only.
pub struct Upstream {
    client: RpcClient,
    permits: Semaphore,
    config: UpstreamConfig,
    /// Why the last request failed; none where it did not.
    problem: ArcSwapOption<String>,
    /// Wakes who pauses before asking again: it answers others.
    well: Notify,
    meters: Meters,
}

struct Meters {
    ok: Counter,
    refused: Counter,
    failed: Counter,
    retries: Counter,
    seconds: Histogram,
    state: Gauge,
}

/// How an upstream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    /// It answered the last request.
    Ok,
    /// It did not, and this is why.
    Degraded(Arc<String>),
}

/// Why an upstream gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// It says no.
    #[error("upstream: {method}: error {code}: {message}")]
    Refused {
        /// What it was asked.
        method: &'static str,
        /// Its code.
        code: i64,
        /// Its text.
        message: String,
    },
    /// What it says cannot be right.
    #[error("upstream: {method}: {problem}")]
    Malformed {
        /// What it was asked.
        method: &'static str,
        /// What is wrong with the answer.
        problem: String,
    },
    /// It is busy, slow or away.
    #[error("upstream: {method}: {problem}")]
    Unreachable {
        /// What it was asked.
        method: &'static str,
        /// What happened.
        problem: String,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// The URL is none that can be used, or nobody is there.
    #[error("--upstream: {0}")]
    Connect(String),
}

/// A call, and how its result is read.
pub struct Ask<T> {
    method: &'static str,
    params: Box<RawValue>,
    read: Box<Read<T>>,
}

type Read<T> = dyn Fn(&RawValue) -> Result<T, String> + Send + Sync;

impl<T> Ask<T> {
    /// A call of `method` whose result `read` takes; what that does not understand is malformed, and asked again.
    pub fn new(
        method: &'static str,
        params: &impl serde::Serialize,
        read: impl Fn(&RawValue) -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        // Plain values: they can be written.
        let params = to_raw_value(params).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { method, params, read: Box::new(read) }
    }
}

impl<T: serde::de::DeserializeOwned + 'static> Ask<T> {
    /// A call whose result is of a type; `null` is malformed unless the type takes it.
    pub fn typed(method: &'static str, params: &impl serde::Serialize) -> Self {
        Self::new(method, params, |result| {
            serde_json::from_str(result.get()).map_err(|error| format!("{error}: {}", cut(result.get())))
        })
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl UpstreamError {
    /// Whether asking again may help at all, however often.
    const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether the upstream does not have the method.
    pub const fn is_unknown_method(&self) -> bool {
        matches!(self, Self::Refused { code: -32601 | -32004, .. })
    }
}

impl Upstream {
    /// How often what was answered wrongly is asked.
    const WRONG_ANSWERS: usize = 3;
    /// The first pause, and the longest.
    const FIRST_PAUSE: Duration = Duration::from_millis(20);
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
    /// A longer pause ends when others are answered: it is there again.
    const SURE_PAUSE: Duration = Duration::from_millis(250);
    /// A lost WebSocket or IPC connection is opened again by itself, for as long as it takes, with this pause between two tries.
    const RECONNECTS: u32 = u32::MAX;
    const RECONNECT: Duration = Duration::from_millis(500);

    /// Connects.
    ///
    /// # Errors
    /// The URL is none of the kinds that can be used; for WebSocket and IPC, nobody is there. HTTP connects when something is asked.
    pub async fn connect(config: UpstreamConfig, metrics: &Metrics) -> Result<Self, UpstreamError> {
        let refuse =
            |error: &TransportError| UpstreamError::Connect(format!("{}: {}", shown_url(&config.url), text_of(error)));
        let kind = config.url.parse::<BuiltInConnectionString>().map_err(|error| refuse(&error))?;
        let client = match kind {
            BuiltInConnectionString::Http(url) => {
                let is_local = alloy_transport::utils::guess_local_url(&url);
                let http = Http::new(url, config.max_response).map_err(|error| refuse(&error))?;
                ClientBuilder::default().transport(http, is_local)
            }
            _ => {
                let limits = WebSocketConfig::default()
                    .max_message_size(Some(config.max_response))
                    .max_frame_size(Some(config.max_response));
                let mut connection = ConnectionConfig::new()
                    .with_ws_config(limits)
                    .with_max_retries(Self::RECONNECTS)
                    .with_retry_interval(Self::RECONNECT);
                if let Ok(url) = url::Url::parse(&config.url)
                    && let Some(auth) = Authorization::extract_from_url(&url)
                {
                    connection = connection.with_auth(auth);
                }
                let connecting = ClientBuilder::default().connect_with_config(&config.url, connection);
                match tokio::time::timeout(config.timeout, connecting).await {
                    Ok(connected) => connected.map_err(|error| refuse(&error))?,
                    Err(_) => {
                        let text = format!("{}: no connection within {:?}", shown_url(&config.url), config.timeout);
                        return Err(UpstreamError::Connect(text));
                    }
                }
            }
        };
        let meters = Meters::new(metrics);
        meters.state.set(1.0);
        let permits = Semaphore::new(config.concurrency.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self { client, permits, config, problem: ArcSwapOption::empty(), well: Notify::new(), meters })
    }

    /// The client underneath, for subscriptions: [`RpcClient::pubsub_frontend`] tells whether there can be any.
    pub const fn client(&self) -> &RpcClient {
        &self.client
    }

    /// How it is.
    pub fn state(&self) -> UpstreamState {
        self.problem.load_full().map_or(UpstreamState::Ok, UpstreamState::Degraded)
    }

    /// The chain's id (EIP-155).
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn chain_id(&self, deadline: Instant) -> Result<u64, UpstreamError> {
        let id: U64 = self.one(Ask::typed("eth_chainId", &()), deadline).await?;
        Ok(id.to())
    }

    /// A block by a number or a tag, as JSON, with its transactions in full; none where there is none.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn block(
        &self,
        selector: alloy_eips::BlockNumberOrTag,
        deadline: Instant,
    ) -> Result<Option<Box<RawValue>>, UpstreamError> {
        self.one(Ask::new("eth_getBlockByNumber", &(selector, true), nullable), deadline).await
    }

    /// The same by its hash.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn block_by_hash(&self, hash: B256, deadline: Instant) -> Result<Option<Box<RawValue>>, UpstreamError> {
        self.one(Ask::new("eth_getBlockByHash", &(hash, true), nullable), deadline).await
    }

    /// The receipts of a block, as JSON; none where there is no such block.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn receipts(&self, hash: B256, deadline: Instant) -> Result<Option<Box<RawValue>>, UpstreamError> {
        self.one(Ask::new("eth_getBlockReceipts", &(hash,), nullable), deadline).await
    }

    /// One call.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub async fn one<T: Send>(&self, ask: Ask<T>, deadline: Instant) -> Result<T, UpstreamError> {
        let method = ask.method;
        let missing = || Err(UpstreamError::Malformed { method, problem: "no answer".to_owned() });
        self.all(vec![ask], deadline).await.pop().unwrap_or_else(missing)
    }

    /// Many calls at once, in batches that are sent side by side. Each has its own result, in order.
    ///
    /// # Errors
    /// That it says no, or that nothing right came from it until `deadline`.
    pub async fn all<T: Send>(&self, asks: Vec<Ask<T>>, deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let chunks = asks.chunks(self.config.batch.max(1)).map(|chunk| self.chunk(chunk, deadline));
        let results: Vec<_> = join_all(chunks).await.into_iter().flatten().collect();
        // What it refuses is refused by a node that is well.
        let problem = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .find(|error| !matches!(error, UpstreamError::Refused { .. }));
        self.note(problem);
        results
    }

    fn note(&self, problem: Option<&UpstreamError>) {
        match problem {
            Some(problem) => self.problem.store(Some(Arc::new(problem.to_string()))),
            None if self.problem.load().is_some() => {
                self.problem.store(None);
                self.well.notify_waiters();
            }
            None => {}
        }
        self.meters.state.set(if problem.is_some() { 0.0 } else { 1.0 });
    }

    /// One batch, and again what of it failed.
    async fn chunk<T: Send>(&self, asks: &[Ask<T>], deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let mut results: Vec<Option<Result<T, UpstreamError>>> = asks.iter().map(|_| None).collect();
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Self::FIRST_PAUSE)
            .with_max_delay(Self::LONGEST_PAUSE)
            .without_max_times()
            .with_jitter()
            .build();
        let mut wrong = 0;
        loop {
            let open: Vec<usize> = (0..asks.len()).filter(|at| !matches!(results[*at], Some(Ok(_)))).collect();
            let left: Vec<&Ask<T>> = open.iter().map(|at| &asks[*at]).collect();
            let answered = self.send(&left, deadline).await;
            let (mut again, mut may_pass, mut wait) = (false, false, None);
            for (at, result) in open.into_iter().zip(answered) {
                if let Err(error) = &result {
                    again |= !matches!(error, UpstreamError::Refused { .. });
                    may_pass |= error.may_pass();
                    if let UpstreamError::Unreachable { retry_after, .. } = error {
                        wait = wait.max(*retry_after);
                    }
                }
                results[at] = Some(result);
            }
            if !may_pass {
                wrong += 1;
            }
            if !again || wrong >= Self::WRONG_ANSWERS {
                break;
            }
            let pause = pauses.next().unwrap_or(Self::LONGEST_PAUSE).max(wait.unwrap_or_default());
            if Instant::now() + pause >= deadline {
                break;
            }
            if let Some(Some(Err(error))) = results.iter().find(|result| matches!(result, Some(Err(_)))) {
                self.note(Some(error));
            }
            self.meters.retries.increment(1);
            self.pause(pause, wait.is_some()).await;
        }
        // Each was asked at least once.
        results.into_iter().flatten().collect()
    }

    /// Pauses before it is asked again: in full where it has asked for that, else until it answers others, if that is sooner.
    async fn pause(&self, pause: Duration, in_full: bool) {
        if in_full {
            return tokio::time::sleep(pause).await;
        }
        let sure = pause.min(Self::SURE_PAUSE);
        // It knows from here on.
        let well = self.well.notified();
        tokio::time::sleep(sure).await;
        let _ = tokio::time::timeout(pause - sure, well).await;
    }

    /// Sends a batch once. As many results as asks, in their order.
    async fn send<T>(&self, asks: &[&Ask<T>], deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let all_failed =
            |error: &dyn Fn(&'static str) -> UpstreamError| asks.iter().map(|ask| Err(error(ask.method))).collect();
        let until = deadline.min(Instant::now() + self.config.timeout);
        let began = Instant::now();
        // Over a connection for all, answers are told apart by nothing else.
        let ids: Vec<Id> = asks.iter().map(|_| self.client.next_id()).collect();
        let answered = tokio::time::timeout_at(until.into(), async {
            // Closed never.
            let _permit = self.permits.acquire().await;
            let mut transport: BoxTransport = self.client.transport().clone();
            transport.call(packet(asks, &ids)).await
        })
        .await;
        self.meters.seconds.record(began.elapsed());
        let results: Vec<_> = match answered {
            Ok(Ok(packet)) => read(asks, &ids, packet),
            Ok(Err(error)) => all_failed(&|method| failure(method, &error)),
            Err(_) => all_failed(&|method| UpstreamError::Unreachable {
                method,
                problem: format!("no answer within {:?}", began.elapsed()),
                retry_after: None,
            }),
        };
        for result in &results {
            match result {
                Ok(_) => self.meters.ok.increment(1),
                Err(UpstreamError::Refused { .. }) => self.meters.refused.increment(1),
                Err(_) => self.meters.failed.increment(1),
            }
        }
        results
    }
}

/// What the answers to some calls say, each found by its id.
fn read<T>(asks: &[&Ask<T>], ids: &[Id], packet: ResponsePacket) -> Vec<Result<T, UpstreamError>> {
    let places: HashMap<&Id, usize> = ids.iter().enumerate().map(|(place, id)| (id, place)).collect();
    let mut answers: Vec<Option<ResponsePayload>> = asks.iter().map(|_| None).collect();
    let mut for_all = None;
    let responses = match packet {
        ResponsePacket::Single(response) => vec![response],
        ResponsePacket::Batch(responses) => responses,
    };
    for response in responses {
        let place = places.get(&response.id).and_then(|place| answers.get_mut(*place));
        match (place, response.payload) {
            (Some(place), payload) => *place = Some(payload),
            // Some answer a whole batch by one error.
            (None, ResponsePayload::Failure(error)) => for_all = Some(error),
            (None, ResponsePayload::Success(_)) => {}
        }
    }
    let read = |(ask, answer): (&&Ask<T>, Option<ResponsePayload>)| {
        let method = ask.method;
        match answer {
            Some(ResponsePayload::Success(result)) => {
                (ask.read)(&result).map_err(|problem| UpstreamError::Malformed { method, problem })
            }
            Some(ResponsePayload::Failure(error)) => Err(refusal(method, &error)),
            None => Err(match &for_all {
                Some(error) => refusal(method, error),
                None => {
                    UpstreamError::Malformed { method, problem: "the batch's answer has none to this call".to_owned() }
                }
            }),
        }
    };
    asks.iter().zip(answers).map(read).collect()
}

/// The calls as a batch, each with its id.
fn packet<T>(asks: &[&Ask<T>], ids: &[Id]) -> RequestPacket {
    let serialized = |(ask, id): (&&Ask<T>, &Id)| -> Option<SerializedRequest> {
        Request::new(ask.method, id.clone(), ask.params.clone()).serialize().ok()
    };
    let mut requests: Vec<_> = asks.iter().zip(ids).filter_map(serialized).collect();
    match requests.pop() {
        Some(only) if requests.is_empty() => RequestPacket::Single(only),
        last => {
            requests.extend(last);
            RequestPacket::Batch(requests)
        }
    }
}

fn refusal(method: &'static str, error: &ErrorPayload) -> UpstreamError {
    // Of a block that it does not have yet: one of several nodes behind an address may be late.
    let is_late = error.code != -32601 && method.starts_with("eth_get") && error.message.contains("not found");
    if error.is_retry_err() || error.code == -32001 || is_late {
        let problem = format!("error {}: {}", error.code, cut(&error.message));
        return UpstreamError::Unreachable { method, problem, retry_after: None };
    }
    UpstreamError::Refused { method, code: error.code, message: cut(&error.message) }
}

fn failure(method: &'static str, error: &TransportError) -> UpstreamError {
    let problem = text_of(error);
    let unreachable = |retry_after| UpstreamError::Unreachable { method, problem: problem.clone(), retry_after };
    match error {
        RpcError::Transport(TransportErrorKind::HttpErrorWithRetryAfter { retry_after, .. }) => {
            unreachable(Some(*retry_after))
        }
        RpcError::Transport(TransportErrorKind::HttpError(http)) if http.status < 500 && http.status != 429 => {
            UpstreamError::Malformed { method, problem }
        }
        RpcError::Transport(TransportErrorKind::NonRetryable(_)) | RpcError::DeserError { .. } => {
            UpstreamError::Malformed { method, problem }
        }
        _ => unreachable(None),
    }
}

/// What went wrong, with the cause that the system gives.
fn text_of(error: &TransportError) -> String {
    let mut text = match error {
        RpcError::DeserError { err, text } => format!("the answer is no JSON-RPC response: {err}: {text}"),
        error => error.to_string(),
    };
    let mut cause = std::error::Error::source(error).and_then(std::error::Error::source);
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    cut(&text)
}

/// A URL without what may be secret in it: the host alone.
fn shown_url(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(parsed) if parsed.has_host() => format!("{}://{}", parsed.scheme(), parsed.host_str().unwrap_or_default()),
        _ => url.to_owned(),
    }
}

/// A stranger's text in few words.
fn cut(text: &str) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn nullable(result: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    Ok((result.get() != "null").then(|| result.to_owned()))
}

impl Meters {
    fn new(metrics: &Metrics) -> Self {
        let requests = |outcome| {
            metrics.counter("presim_upstream_requests_total", "Calls made to the upstream.", &[("outcome", outcome)])
        };
        Self {
            ok: requests("ok"),
            refused: requests("refused"),
            failed: requests("failed"),
            retries: metrics.counter(
                "presim_upstream_retries_total",
                "Batches that were sent to the upstream again.",
                &[],
            ),
            seconds: metrics.histogram("presim_upstream_seconds", "From a batch being sent to its answer.", &[]),
            state: metrics.gauge("presim_upstream_state", "1 while the upstream answers, 0 while it does not.", &[]),
        }
    }
}
