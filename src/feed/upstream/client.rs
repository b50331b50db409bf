//! The client of an upstream node: bounds, retries, and how the node is.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_json_rpc::Id;
use alloy_primitives::{B256, U64};
use alloy_rpc_client::{BuiltInConnectionString, ClientBuilder, ConnectionConfig, RpcClient, WebSocketConfig};
use alloy_transport::{Authorization, BoxTransport, TransportError};
use arc_swap::ArcSwapOption;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::join_all;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore};
use tower::Service;

use super::{
    ask::{Ask, UpstreamError, failure, nullable, packet, read, text_of},
    http::Http,
};
use crate::telemetry::{Counter, Gauge, Histogram, Metrics};

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

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("state", &self.state()).finish_non_exhaustive()
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

/// A URL without what may be secret in it: the host alone.
fn shown_url(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(parsed) if parsed.has_host() => format!("{}://{}", parsed.scheme(), parsed.host_str().unwrap_or_default()),
        _ => url.to_owned(),
    }
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
