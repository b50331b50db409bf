//! The client of an upstream node, with its bounds, retries and health.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::Header;
use alloy_eips::{BlockId, BlockNumberOrTag, RpcBlockHash};
use alloy_json_rpc::{Id, Request, RequestPacket, ResponsePacket, ResponsePayload};
use alloy_primitives::{Address as AccountAddress, B256, Bytes, Sealed, U64};
use alloy_rpc_client::{BuiltInConnectionString, RpcClient};
use alloy_rpc_types_eth::{Filter, Log};
use alloy_transport::{BoxTransport, RpcError, TransportError, TransportErrorKind};
use arc_swap::ArcSwapOption;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::future::join_all;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use tower::Service;

use super::{
    answer_budget::AnswerPermit,
    ask::{Ask, UpstreamError, failure, nullable, packet, read, text_of},
    http::{Http, REJECTED_BATCH},
    link::Address,
    name::named_header,
    pace::RequestPace,
    refusal::Refusal,
    socket::Socket,
};
use crate::{
    chain::AnnouncedForks,
    telemetry::{Counter, Gauge, Histogram, Metrics},
};

/// The settings of the client of an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// An `http://`, `https://`, `ws://` or `wss://` URL, or the path of an IPC socket.
    pub url: String,
    /// The time that one request or batch may take.
    pub timeout: Duration,
    /// The most requests and batches in flight at once. Others wait.
    pub concurrency: usize,
    /// The most calls in one batch.
    pub batch: usize,
    /// The most bytes of answers that are being read, or were read and are not used yet, all together.
    pub max_response: usize,
    /// The seed of the jitter of pauses. `None` for a random one.
    pub jitter_seed: Option<u64>,
}

tokio::task_local! {
    /// Set in tasks whose calls leave some permits to other tasks.
    static PATIENT: ();
}

/// Runs work for a client. Its calls leave some of the permits to the calls for blocks, so that clients do not delay those.
pub async fn patiently<T>(work: impl Future<Output = T>) -> T {
    PATIENT.scope((), work).await
}

/// Returns whether the running task is one of [`patiently`].
pub(super) fn is_patient() -> bool {
    PATIENT.try_with(|()| ()).is_ok()
}

/// A client of a node's JSON-RPC.
///
/// A call that fails because the node is busy (429, -32005), unreachable or slow is sent again after a pause that
/// doubles, with jitter, until the caller's deadline. If the node asks for fewer requests, all callers share the pause.
/// A call to a node that is behind is repeated for a short time, because another node may answer it. A call with a
/// malformed answer is repeated a few times only.
pub struct Upstream {
    transport: Transport,
    /// The id of the next request.
    ids: AtomicU64,
    permits: Semaphore,
    /// Permits that patient calls need in addition, fewer than all.
    patient: Semaphore,
    /// The pauses that the upstream has asked for.
    pace: RequestPace,
    /// The most calls in a batch that the upstream is not known to reject.
    batch: AtomicUsize,
    config: UpstreamConfig,
    /// The number of the connection on which the upstream has rejected a subscription.
    no_subscriptions: AtomicU64,
    /// The reason why the last request failed; `None` if it was answered.
    problem: ArcSwapOption<String>,
    /// The newest answer of a node that was behind, and its time.
    behind: ArcSwapOption<(Instant, String)>,
    /// The time of a fork that the node has and presim does not know.
    newer_fork: OnceLock<u64>,
    /// The microseconds that the upstream takes at least to answer, as it was seen lately.
    round_trip: AtomicU64,
    /// Wakes the calls that pause before a retry, when another call is answered.
    recovered: Notify,
    meters: Meters,
}

/// A client of an upstream.
enum Transport {
    Http(Http),
    /// A connection to a WebSocket or an IPC socket, with subscriptions.
    Socket(Socket),
    /// A transport that the creator of the upstream has given.
    Given(BoxTransport),
}

impl Transport {
    /// Sends a request or a batch. Returns the answer, and the permit for its bytes.
    async fn call(&self, request: RequestPacket) -> Result<(ResponsePacket, AnswerPermit), TransportError> {
        match self {
            Self::Http(http) => http.send(&request).await,
            Self::Socket(socket) => socket.send(request).await,
            Self::Given(transport) => Ok((transport.clone().call(request).await?, None)),
        }
    }
}

struct Meters {
    ok: Counter,
    refused: Counter,
    failed: Counter,
    retries: Counter,
    seconds: Histogram,
    state: Gauge,
}

/// The health of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    /// The upstream answered the last request.
    Ok,
    /// The last request failed, for the reason given.
    Degraded(Arc<String>),
}

/// The JSON of a result, or `None` if that is null.
pub(super) type NullableAnswer = Result<Option<Box<RawValue>>, UpstreamError>;

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Upstream {
    /// The most times that a call with malformed answers is sent.
    const MAX_WRONG_ANSWERS: usize = 3;
    /// The first and the longest pause before a retry.
    const FIRST_PAUSE: Duration = Duration::from_millis(20);
    const MAX_PAUSE: Duration = Duration::from_secs(5);
    /// The time for which calls are sent again because the nodes that answer them are behind.
    const BEHIND_TIMEOUT: Duration = Duration::from_secs(2);
    /// The part of a pause that always passes. The rest ends as soon as another call is answered.
    const MIN_PAUSE: Duration = Duration::from_millis(250);

    /// The round trip from which on an upstream is far away.
    const FAR: Duration = Duration::from_millis(20);

    /// Creates a client of the upstream at a URL or the path of a socket. The first call waits for the connection.
    ///
    /// # Errors
    ///
    /// Returns [`UpstreamError::Connect`] if the URL cannot be used.
    pub fn connect(config: UpstreamConfig, metrics: &Metrics) -> Result<Self, UpstreamError> {
        let refuse = |problem: &str| UpstreamError::Connect(format!("{}: {problem}", shown_url(&config.url)));
        let kind = match config.url.parse::<BuiltInConnectionString>() {
            Ok(kind) => kind,
            // The socket may be made later.
            Err(_) if !config.url.contains("://") => BuiltInConnectionString::Ipc(config.url.clone().into()),
            Err(error) => return Err(refuse(&text_of(&error))),
        };
        let address = match kind {
            BuiltInConnectionString::Http(url) => {
                let http = Http::new(url, config.max_response).map_err(|error| refuse(&text_of(&error)))?;
                return Ok(Self::new(Transport::Http(http), config, metrics));
            }
            BuiltInConnectionString::Ipc(path) => Address::Ipc(path),
            _ => Address::WebSocket(config.url.clone()),
        };
        let socket = Socket::open(address, config.timeout, config.max_response);
        Ok(Self::new(Transport::Socket(socket), config, metrics))
    }

    /// Creates a client of an upstream that is reached through `client`.
    pub fn over(client: RpcClient, config: UpstreamConfig, metrics: &Metrics) -> Self {
        Self::new(Transport::Given(client.transport().clone()), config, metrics)
    }

    fn new(transport: Transport, config: UpstreamConfig, metrics: &Metrics) -> Self {
        let meters = Meters::new(metrics);
        meters.state.set(1.0);
        let concurrency = config.concurrency.clamp(1, Semaphore::MAX_PERMITS);
        let (permits, patient) = (Semaphore::new(concurrency), Semaphore::new((concurrency - concurrency / 4).max(1)));
        Self {
            transport,
            ids: AtomicU64::new(0),
            permits,
            patient,
            pace: RequestPace::default(),
            batch: AtomicUsize::new(config.batch.max(1)),
            config,
            no_subscriptions: AtomicU64::new(0),
            problem: ArcSwapOption::empty(),
            behind: ArcSwapOption::empty(),
            newer_fork: OnceLock::new(),
            round_trip: AtomicU64::new(0),
            recovered: Notify::new(),
            meters,
        }
    }

    /// Returns whether the upstream is so far away that round trips cost more than anything else.
    pub fn is_far(&self) -> bool {
        self.round_trip.load(Relaxed) > Self::FAR.as_micros() as u64
    }

    /// Notes the time of an answer. The smallest count, because large answers and busy nodes take longer.
    fn note_round_trip(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let known = self.round_trip.load(Relaxed);
        let next = if known == 0 || took < known { took } else { known + (took - known) / 64 };
        self.round_trip.store(next, Relaxed);
    }

    /// Returns the URL without the parts that may be secret.
    pub fn shown_url(&self) -> String {
        shown_url(&self.config.url)
    }

    /// Subscribes to the newest blocks. The notifications end with the connection. Returns `None` if there are no subscriptions:
    /// over HTTP, without a connection, and where the upstream has rejected one on the same connection before.
    pub async fn subscribe_heads(&self, deadline: Instant) -> Option<mpsc::Receiver<Box<RawValue>>> {
        let Transport::Socket(socket) = &self.transport else { return None };
        let connection = socket.connection();
        if self.no_subscriptions.load(Relaxed) == connection {
            return None;
        }
        let id = Id::Number(self.ids.fetch_add(1, Relaxed));
        // The parameters are plain values.
        let request = Request::new("eth_subscribe", id, ("newHeads",)).serialize().ok()?;
        let (response, notifications) = timeout_at(deadline, socket.subscribe(request)).await.ok()?.ok()?;
        match response.payload {
            ResponsePayload::Success(_) => Some(notifications),
            ResponsePayload::Failure(error) => {
                tracing::debug!(%error, "the upstream has no subscriptions: its newest block is polled");
                self.no_subscriptions.store(connection, Relaxed);
                None
            }
        }
    }

    /// Returns the health of the upstream.
    pub fn state(&self) -> UpstreamState {
        self.problem.load_full().map_or(UpstreamState::Ok, UpstreamState::Degraded)
    }

    /// Returns the reason why calls are not answered in time, if one is known.
    pub fn cause_of_delay(&self) -> Option<String> {
        let behind = self.behind.load_full().filter(|behind| behind.0.elapsed() < Self::BEHIND_TIMEOUT);
        let problem = self.problem.load_full().map(|problem| problem.to_string());
        problem.or_else(|| behind.map(|behind| behind.1.clone()))
    }

    /// Returns the chain id (EIP-155).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn chain_id(&self, deadline: Instant) -> Result<u64, UpstreamError> {
        let id: U64 = self.one(Ask::typed("eth_chainId", &()), deadline).await?;
        Ok(id.to())
    }

    /// Returns the forks of the node's chain, as it schedules them (EIP-7910).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all), and [`UpstreamError::Refused`] if the node has no `eth_config`.
    pub async fn forks(&self, deadline: Instant) -> Result<AnnouncedForks, UpstreamError> {
        self.one(Ask::typed("eth_config", &()), deadline).await
    }

    /// Returns whether an account has code after the newest block.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn has_code(&self, address: AccountAddress, deadline: Instant) -> Result<bool, UpstreamError> {
        let code: Bytes = self.one(Ask::typed("eth_getCode", &(address, "latest")), deadline).await?;
        Ok(!code.is_empty())
    }

    /// Returns whether the node has `eth_getProof`, by asking for a proof at the block with this hash.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all), unless the node answers that it does not have the method.
    pub async fn has_proofs(&self, hash: B256, deadline: Instant) -> Result<bool, UpstreamError> {
        let at = BlockId::Hash(RpcBlockHash { block_hash: hash, require_canonical: Some(false) });
        let ask = Ask::<IgnoredAny>::typed("eth_getProof", &(AccountAddress::ZERO, [B256::ZERO; 0], at));
        match self.one(ask, deadline).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_unknown_method() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records that the node has a fork, at this time, that presim does not know.
    pub fn note_newer_fork(&self, time: u64) {
        let _first = self.newer_fork.set(time);
    }

    /// Returns the time of a fork that the node has and presim does not know.
    pub fn newer_fork(&self) -> Option<u64> {
        self.newer_fork.get().copied()
    }

    /// Returns a block, as JSON with whole transactions, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn block(&self, id: impl Into<BlockId>, deadline: Instant) -> NullableAnswer {
        self.one(whole_block(id.into()), deadline).await
    }

    /// Returns a block, as [`block`](Self::block) does, and the chain id (EIP-155) of the node that has it: both are asked for
    /// in one batch.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn block_and_chain(
        &self,
        id: impl Into<BlockId>,
        deadline: Instant,
    ) -> Result<(Option<Box<RawValue>>, u64), UpstreamError> {
        let asks = vec![Ask::new("eth_chainId", &(), nullable), whole_block(id.into())];
        let mut answers = self.all(asks, deadline).await;
        let (block, id) = (answers.pop(), answers.pop());
        let malformed = |problem: String| UpstreamError::Malformed { method: "eth_chainId".into(), problem };
        let id = id.transpose()?.flatten().ok_or_else(|| malformed("no answer".to_owned()))?;
        let id: U64 = serde_json::from_str(id.get()).map_err(|error| malformed(error.to_string()))?;
        Ok((block.transpose()?.flatten(), id.to()))
    }

    /// Returns the block with this hash, as [`block`](Self::block) does, and its receipts, as
    /// [`receipts`](Self::receipts) does: both are asked for in one batch. Each has its own error.
    pub async fn block_and_receipts(&self, hash: B256, deadline: Instant) -> (NullableAnswer, NullableAnswer) {
        let asks = vec![whole_block(hash.into()), Ask::new("eth_getBlockReceipts", &(hash,), nullable)];
        let mut answers = self.all(asks, deadline).await;
        let mut next = || answers.pop().unwrap_or(Ok(None));
        let receipts = next();
        (next(), receipts)
    }

    /// Returns the blocks with these numbers, as JSON with whole transactions, as far as the upstream has them.
    pub async fn blocks(&self, numbers: Range<u64>, deadline: Instant) -> Vec<Box<RawValue>> {
        let answers = self.all(numbers.map(|number| whole_block(number.into())).collect(), deadline).await;
        answers.into_iter().filter_map(|answer| answer.ok().flatten()).collect()
    }

    /// Returns the available headers of the blocks with these numbers, with their hashes as the upstream reports them.
    pub async fn headers(&self, numbers: Range<u64>, deadline: Instant) -> Vec<Sealed<Header>> {
        let read = |answer: &RawValue| named_header(answer).map_err(|error| error.to_string());
        let ask = |number: u64| Ask::new("eth_getBlockByNumber", &(BlockNumberOrTag::Number(number), false), read);
        let answers = self.all(numbers.map(ask).collect(), deadline).await;
        answers.into_iter().filter_map(Result::ok).collect()
    }

    /// Returns the receipts of a block, as JSON, or `None` if there is no such block.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn receipts(&self, hash: B256, deadline: Instant) -> NullableAnswer {
        self.one(Ask::new("eth_getBlockReceipts", &(hash,), nullable), deadline).await
    }

    /// Returns the logs of a block.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn logs(&self, hash: B256, deadline: Instant) -> Result<Vec<Log>, UpstreamError> {
        self.one(Ask::typed("eth_getLogs", &(Filter::new().at_block_hash(hash),)), deadline).await
    }

    /// Returns the receipts of transactions, as JSON, in their order; `None` if the upstream does not have all of them yet. The
    /// first is asked for alone, because the upstream may not give any.
    ///
    /// # Errors
    ///
    /// Returns the first of the errors of [`all`](Self::all).
    pub async fn receipts_of(
        &self,
        transactions: &[B256],
        deadline: Instant,
    ) -> Result<Option<Vec<Box<RawValue>>>, UpstreamError> {
        let ask = |hash: &B256| Ask::new("eth_getTransactionReceipt", &(hash,), nullable);
        let Some((first, rest)) = transactions.split_first() else { return Ok(Some(Vec::new())) };
        let Some(first) = self.one(ask(first), deadline).await? else { return Ok(None) };
        let rest = self.all(rest.iter().map(ask).collect(), deadline).await;
        std::iter::once(Ok(Some(first))).chain(rest).collect()
    }

    /// Sends one call, and returns its result.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`all`](Self::all).
    pub async fn one<T: Send>(&self, ask: Ask<T>, deadline: Instant) -> Result<T, UpstreamError> {
        let method = ask.method.clone();
        let missing = || Err(UpstreamError::Malformed { method, problem: "no answer".to_owned() });
        self.all(vec![ask], deadline).await.pop().unwrap_or_else(missing)
    }

    /// Sends calls in concurrent batches. Returns a result for each call, in order.
    ///
    /// # Errors
    ///
    /// Returns [`UpstreamError::Refused`] for an error response, otherwise the error of the last try by `deadline`.
    pub async fn all<T: Send>(&self, asks: Vec<Ask<T>>, deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let chunks = asks.chunks(self.config.batch.max(1)).map(|chunk| self.chunk(chunk, deadline));
        let results: Vec<_> = join_all(chunks).await.into_iter().flatten().collect();
        self.note(problem_of(&results));
        results
    }

    fn note(&self, problem: Option<&UpstreamError>) {
        match problem {
            Some(problem) => self.problem.store(Some(Arc::new(problem.to_string()))),
            None if self.problem.load().is_some() => {
                self.problem.store(None);
                self.recovered.notify_waiters();
            }
            None => {}
        }
        self.meters.state.set(if problem.is_some() { 0.0 } else { 1.0 });
    }

    /// Sends calls together, and repeats those that failed.
    async fn chunk<T: Send>(&self, asks: &[Ask<T>], deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let mut results: Vec<Option<Result<T, UpstreamError>>> = asks.iter().map(|_| None).collect();
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Self::FIRST_PAUSE)
            .with_max_delay(Self::MAX_PAUSE)
            .without_max_times()
            .with_jitter();
        if let Some(seed) = self.config.jitter_seed {
            pauses = pauses.with_jitter_seed(seed);
        }
        let mut pauses = pauses.build();
        let is_open = |result: &Option<Result<T, UpstreamError>>| {
            !matches!(result, Some(Ok(_) | Err(UpstreamError::Refused { .. })))
        };
        let (mut wrong, mut behind_since) = (0, None);
        loop {
            let open: Vec<usize> = (0..asks.len()).filter(|at| is_open(&results[*at])).collect();
            let left: Vec<&Ask<T>> = open.iter().map(|at| &asks[*at]).collect();
            let answered = self.send(&left, deadline).await;
            let (mut again, mut may_pass, mut is_behind, mut wait) = (false, false, false, None);
            for (at, result) in open.into_iter().zip(answered) {
                if let Err(error) = &result {
                    again |= !error.is_answer();
                    may_pass |= error.may_pass();
                    if let UpstreamError::Behind { .. } = error {
                        is_behind = true;
                        self.behind.store(Some(Arc::new((Instant::now(), error.to_string()))));
                    }
                    if let UpstreamError::SlowDown { retry_after, .. } = error {
                        wait = wait.max(*retry_after);
                    }
                }
                // A retry that finds no time, or no node, does not replace the cause of the first failure.
                let is_known = matches!(&results[at], Some(Err(known)) if !known.is_answer());
                if !(is_known && matches!(result, Err(UpstreamError::Unreachable { .. }))) {
                    results[at] = Some(result);
                }
            }
            if !may_pass {
                wrong += 1;
            }
            let waits_for_another =
                is_behind && !again && behind_since.get_or_insert_with(Instant::now).elapsed() < Self::BEHIND_TIMEOUT;
            if !again && !waits_for_another || wrong >= Self::MAX_WRONG_ANSWERS {
                break;
            }
            let mut pause = pauses.next().unwrap_or(Self::MAX_PAUSE).max(wait.unwrap_or_default());
            if waits_for_another {
                pause = pause.min(Self::MIN_PAUSE);
            }
            if Instant::now() + pause >= deadline {
                break;
            }
            if again {
                self.note(problem_of(results.iter().flatten()));
            }
            self.meters.retries.increment(1);
            self.pause(pause, wait.is_some()).await;
        }
        // Each call was sent at least once.
        results.into_iter().flatten().collect()
    }

    /// Waits before a retry: `in_full` if the upstream asked for the pause, else until another call is answered.
    async fn pause(&self, pause: Duration, in_full: bool) {
        if in_full {
            return tokio::time::sleep(pause).await;
        }
        let sure = pause.min(Self::MIN_PAUSE);
        // Notifications count from here on, so that none is lost during the sleep.
        let recovered = self.recovered.notified();
        tokio::time::sleep(sure).await;
        let _ = tokio::time::timeout(pause - sure, recovered).await;
    }

    /// Sends calls once, in concurrent batches of at most the size that the upstream is known to accept. A batch that it rejects
    /// is sent again in smaller ones. Returns a result for each call, in order.
    async fn send<T>(&self, asks: &[&Ask<T>], deadline: Instant) -> Vec<Result<T, UpstreamError>> {
        let mut results: Vec<Option<Result<T, UpstreamError>>> = asks.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..asks.len()).collect();
        while !open.is_empty() {
            let batches: Vec<&[usize]> = open.chunks(self.batch.load(Relaxed)).collect();
            let sent = batches.iter().map(async |indices| {
                let batch: Vec<&Ask<T>> = indices.iter().map(|index| asks[*index]).collect();
                self.send_batch(&batch, deadline).await
            });
            let mut rejected = Vec::new();
            for (indices, answered) in batches.iter().zip(join_all(sent).await) {
                match answered {
                    Some(answers) => {
                        for (at, answer) in indices.iter().zip(answers) {
                            // Together with the others, the answer was too large. It is requested again without those
                            // that fit.
                            match is_too_large(&answer) && indices.len() > 1 {
                                true => rejected.push(*at),
                                false => results[*at] = Some(answer),
                            }
                        }
                    }
                    None => {
                        self.learn_batch_size(indices.len());
                        rejected.extend_from_slice(indices);
                    }
                }
            }
            open = rejected;
        }
        // Only a batch of several calls is rejected, and each time it becomes smaller.
        results.into_iter().flatten().collect()
    }

    /// Notes that the upstream has rejected a batch of `size` calls.
    fn learn_batch_size(&self, size: usize) {
        let most = (size / 2).max(1);
        if self.batch.fetch_min(most, Relaxed) > most {
            tracing::info!(size, most, "the upstream rejects batches of this size: sending smaller ones");
        }
    }

    /// Sends a batch once. Returns a result for each call, in order, or `None` if the upstream rejects batches of this size.
    async fn send_batch<T>(&self, asks: &[&Ask<T>], deadline: Instant) -> Option<Vec<Result<T, UpstreamError>>> {
        let all_failed = |error: &dyn Fn(&Ask<T>) -> UpstreamError| asks.iter().map(|ask| Err(error(ask))).collect();
        if let Err((left, problem)) = self.pace.wait(deadline).await {
            return Some(all_failed(&|ask| paused(ask, left, &problem)));
        }
        let until = deadline.min(Instant::now() + self.config.timeout);
        let began = Instant::now();
        // Ids are unique, because only they distinguish the answers on a shared connection.
        let ids: Vec<Id> = asks.iter().map(|_| Id::Number(self.ids.fetch_add(1, Relaxed))).collect();
        let answered = timeout_at(until, async {
            // The semaphores are never closed.
            let _share = if is_patient() { self.patient.acquire().await.ok() } else { None };
            let _permit = self.permits.acquire().await;
            // A pause may have begun while the call waited for the permit.
            self.pace.wait(until).await.map_err(Err)?;
            self.transport.call(packet(asks, &ids)).await.map_err(Ok)
        })
        .await;
        self.meters.seconds.record(began.elapsed());
        if answered.is_ok() {
            self.note_round_trip(began.elapsed());
        }
        let is_batch = asks.len() > 1;
        let results: Vec<_> = match answered {
            Ok(Ok((packet, _permit))) => read(asks, &ids, packet),
            Ok(Err(Err((left, problem)))) => return Some(all_failed(&|ask| paused(ask, left, &problem))),
            Ok(Err(Ok(RpcError::Transport(TransportErrorKind::HttpError(http)))))
                if is_batch && REJECTED_BATCH.contains(&http.status) =>
            {
                return None;
            }
            Ok(Err(Ok(error))) => all_failed(&|ask| failure(ask.method.clone(), &error)),
            Err(_) => all_failed(&|ask| UpstreamError::Unreachable {
                method: ask.method.clone(),
                problem: format!("no answer within {:?}", began.elapsed()),
            }),
        };
        if is_batch && rejects_batch(&results) {
            return None;
        }
        let slow = results.iter().find_map(|result| match result {
            Err(UpstreamError::SlowDown { problem, retry_after, .. }) => Some((problem, *retry_after)),
            _ => None,
        });
        match slow {
            Some((problem, retry_after)) => self.pace.slow_down(problem, retry_after),
            None => self.pace.answered(),
        }
        for result in &results {
            match result {
                Ok(_) => self.meters.ok.increment(1),
                Err(error) if error.is_answer() => self.meters.refused.increment(1),
                Err(_) => self.meters.failed.increment(1),
            }
        }
        Some(results)
    }
}

/// Returns the call for a block with whole transactions.
fn whole_block(id: BlockId) -> Ask<Option<Box<RawValue>>> {
    match id {
        BlockId::Hash(hash) => Ask::new("eth_getBlockByHash", &(hash.block_hash, true), nullable),
        BlockId::Number(number) => Ask::new("eth_getBlockByNumber", &(number, true), nullable),
    }
}

/// Returns whether the answers to a batch say that it is too large.
fn rejects_batch<T>(results: &[Result<T, UpstreamError>]) -> bool {
    let is_invalid =
        |result: &Result<T, UpstreamError>| matches!(result, Err(UpstreamError::Refused { code: -32600, .. }));
    results.iter().all(is_invalid) || results.iter().all(is_too_large)
}

fn is_too_large<T>(result: &Result<T, UpstreamError>) -> bool {
    matches!(result, Err(error) if error.meaning() == Some(Refusal::TooLarge))
}

/// Returns the error of a call that was not sent, because this is left of a pause that the upstream has asked for.
fn paused<T>(ask: &Ask<T>, left: Duration, problem: &str) -> UpstreamError {
    UpstreamError::SlowDown { method: ask.method.clone(), problem: problem.to_owned(), retry_after: Some(left) }
}

/// Returns the first error that is a fault of the upstream. A node that refuses a call, or is behind, is healthy.
fn problem_of<'a, T: 'a>(results: impl IntoIterator<Item = &'a Result<T, UpstreamError>>) -> Option<&'a UpstreamError> {
    results.into_iter().filter_map(|result| result.as_ref().err()).find(|error| !error.is_answer())
}

/// Returns the parts of a URL that are no secret, or the path of an IPC socket.
fn shown_url(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(parsed) if parsed.has_host() => crate::shown::url(&parsed),
        _ => url.to_owned(),
    }
}

impl Meters {
    fn new(metrics: &Metrics) -> Self {
        let requests = |outcome| {
            metrics.counter_with(
                "presim_upstream_requests_total",
                "Calls made to the upstream.",
                &[("outcome", outcome)],
            )
        };
        Self {
            ok: requests("ok"),
            refused: requests("refused"),
            failed: requests("failed"),
            retries: metrics.counter(
                "presim_upstream_retries_total",
                "Batches that were sent to the upstream again after a failure.",
            ),
            seconds: metrics.histogram("presim_upstream_seconds", "Seconds from sending a batch to its answer."),
            state: metrics.gauge("presim_upstream_state", "1 while the upstream answers, 0 while it does not."),
        }
    }
}
