//! Fetches the state that runs have missed into the cache.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::Header;
use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{
    B256, U256,
    map::{DefaultHashBuilder, HashSet},
};
use arc_swap::ArcSwapOption;
use dashmap::{DashMap, Entry};
use tokio::{runtime::Handle, sync::watch, time::Instant};

use super::{
    Hints,
    ask::{Ask, UpstreamError},
    client::{Upstream, is_patient, patiently},
    name::BlockName,
    prestate::RefusedTraces,
    wave::{BlockParam, Wave},
};
use crate::{
    state::{CodeCache, FetchError, Held, Miss, Missed, RemoteView, StateSource},
    telemetry::{Counter, Metrics},
};

/// The settings of a [`Fetcher`].
#[derive(Clone, Copy, Debug)]
pub struct FetcherConfig {
    /// The time for which a wave is retried, regardless of its first request's deadline: others may wait longer.
    pub wave_timeout: Duration,
    /// Whether to fetch proofs, and to check values by them against the block's header.
    pub verify_proofs: bool,
    /// The most values in flight at once, past which fetches are rejected.
    pub max_in_flight: usize,
}

/// Fetches missed state into the cache: each value once, however many requests wait for it.
///
/// The misses of a round are sent as one wave of concurrent batches, at the block's hash. A wave is a task of its own,
/// so that it continues for other requests if the request that began it ends.
#[derive(Debug)]
pub struct Fetcher {
    /// The upstream; `None` on a node that has state from its fleet alone.
    upstream: ArcSwapOption<Upstream>,
    /// The fleet's source. It is asked first for the state of blocks that the fleet publishes.
    fleet: OnceLock<Arc<dyn StateSource>>,
    pub(super) codes: Arc<CodeCache>,
    pub(super) config: FetcherConfig,
    /// The values in flight, by block.
    in_flight: Arc<InFlight>,
    /// The headers of blocks that were checked, by hash.
    headers: DashMap<B256, Header, DefaultHashBuilder>,
    /// Whether the upstream has answered that it has no `eth_createAccessList`.
    pub(super) no_access_lists: AtomicBool,
    /// Whether the upstream takes only a number for a block, no hash.
    by_number: AtomicBool,
    /// The traces that the upstream has refused.
    pub(super) refused_traces: RefusedTraces,
    waves: Counter,
    /// The runtime of the waves, so that executing blocks and calls does not delay them.
    runtime: Handle,
}

type InFlight = DashMap<(B256, Miss), watch::Receiver<FetchOutcome>, DefaultHashBuilder>;
/// The outcome of a fetch; `None` while it is in flight.
type FetchOutcome = Option<Result<Arc<Held>, FetchError>>;

impl Fetcher {
    /// The slots from 0 on, fetched with an account if there are no access lists: most contracts keep values there. They save a swap
    /// two of its seven or eight waves.
    const FIRST_SLOTS: u64 = 16;
    /// The maximum number of accounts of a wave whose first slots are fetched.
    const MAX_ACCOUNTS_WITH_SLOTS: usize = 8;
    /// The most checked headers that are retained.
    const MAX_HEADERS: usize = 1024;
    /// The time that `eth_createAccessList` has to answer.
    const LISTS_TIMEOUT: Duration = Duration::from_millis(500);
    /// Creates a fetcher. It has an upstream unless its node has state only from its fleet. Must be called on a tokio
    /// runtime, which then runs the waves.
    pub fn new(
        upstream: impl Into<Option<Arc<Upstream>>>,
        codes: Arc<CodeCache>,
        config: FetcherConfig,
        metrics: &Metrics,
    ) -> Self {
        let waves = metrics.counter("presim_upstream_waves_total", "Waves of fetched state.");
        Self {
            upstream: upstream.into().into(),
            fleet: OnceLock::new(),
            codes,
            config,
            in_flight: Arc::default(),
            headers: DashMap::default(),
            no_access_lists: AtomicBool::new(false),
            by_number: AtomicBool::new(false),
            refused_traces: RefusedTraces::default(),
            waves,
            runtime: Handle::current(),
        }
    }

    /// Asks the source of a fleet first, from here on, for the state of the blocks that the fleet publishes.
    pub fn join(&self, fleet: Arc<dyn StateSource>) {
        self.fleet.get_or_init(|| fleet);
    }

    /// Returns the upstream from which state is fetched, if this node has one.
    pub fn upstream(&self) -> Option<Arc<Upstream>> {
        self.upstream.load_full()
    }

    /// Fetches from another node of the same chain from here on. Returns the one before.
    pub fn turn_to(&self, upstream: Arc<Upstream>) -> Option<Arc<Upstream>> {
        self.no_access_lists.store(false, Relaxed);
        self.by_number.store(false, Relaxed);
        self.refused_traces.forget();
        self.upstream.swap(Some(upstream))
    }

    /// Returns the threads on which state is fetched.
    pub const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Fetches the state that runs have missed and that `hints` predict, and holds the values that the runs have
    /// missed. Only the first round of a request has hints.
    ///
    /// # Errors
    ///
    /// Returns [`FetchError::Busy`] if too many values are in flight. Returns [`FetchError::Unavailable`] or
    /// [`FetchError::Deadline`] if a missed value is still unknown, and [`FetchError::Abandoned`] if its block is no
    /// longer part of the chain. Returns [`FetchError::Missing`] if none of a block's missed values is known, and no
    /// source gives a reason.
    pub async fn fetch(
        self: &Arc<Self>,
        missed: &Missed,
        hints: Option<&Hints>,
        deadline: Instant,
    ) -> Result<Held, FetchError> {
        let mut held = Held::default();
        for (view, misses) in missed.by_view() {
            held.extend(self.fetch_at(view, misses, hints, deadline).await?);
        }
        Ok(held)
    }

    async fn fetch_at(
        self: &Arc<Self>,
        view: &RemoteView,
        misses: &HashSet<Miss>,
        hints: Option<&Hints>,
        deadline: Instant,
    ) -> Result<Held, FetchError> {
        let (number, hash) = (view.number(), view.hash());
        let mut wanted: Vec<Miss> = misses.iter().copied().collect();
        self.expect(&mut wanted, hints);
        let (landing, known) = self.launch(view, wanted, hints)?;
        // The waves hold their values until this request holds them.
        let mut landed = Vec::with_capacity(landing.len());
        let all = async {
            let mut problem = None;
            for mut landing in landing {
                // The wave sends its outcome before it drops the sender.
                match landing.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone()) {
                    Some(Ok(values)) => landed.push(values),
                    Some(Err(error)) => drop(problem.get_or_insert(error)),
                    None => {}
                }
            }
            problem
        };
        let problem = match tokio::time::timeout_at(deadline, all).await {
            Ok(problem) => problem,
            Err(_) => {
                let cause = self.upstream().and_then(|upstream| upstream.cause_of_delay());
                Some(FetchError::Deadline(cause.map_or_else(String::new, |cause| format!(": {cause}"))))
            }
        };
        let unknown: Vec<Miss> = misses.iter().copied().filter(|miss| !view.knows(miss)).collect();
        let Some(first) = unknown.first() else { return Ok(known.with(misses.iter().copied())) };
        Err(match problem {
            Some(FetchError::Unavailable(problem)) if view.is_abandoned() => {
                FetchError::Abandoned { number, hash, problem }
            }
            Some(FetchError::Unavailable(problem)) => {
                FetchError::Unavailable(format!("the state of block {number} ({hash}) cannot be fetched: {problem}"))
            }
            Some(error) => error,
            None if unknown.len() < misses.len() => return Ok(known.with(misses.iter().copied())),
            None => FetchError::Missing { miss: *first, number, hash },
        })
    }

    /// Returns whether values of the upstream are proven.
    pub const fn verifies(&self) -> bool {
        self.config.verify_proofs
    }

    /// Adds the state that will probably be missed next.
    fn expect(&self, wanted: &mut Vec<Miss>, hints: Option<&Hints>) {
        if self.no_access_lists.load(Relaxed) {
            let address = |miss: &Miss| if let Miss::Account(address) = miss { Some(*address) } else { None };
            let accounts = wanted.iter().filter_map(address).take(Self::MAX_ACCOUNTS_WITH_SLOTS);
            let slots = |address| (0..Self::FIRST_SLOTS).map(move |slot| Miss::Slot(address, U256::from(slot)));
            let first: Vec<_> = accounts.flat_map(slots).collect();
            wanted.extend(first);
        }
        if let Some(hints) = hints {
            wanted.extend(hints.addresses.iter().map(|address| Miss::Account(*address)));
        }
    }

    /// Starts a wave for the values that no wave fetches yet. Returns the outcomes to wait for, and holds the known
    /// values.
    fn launch(
        self: &Arc<Self>,
        view: &RemoteView,
        wanted: Vec<Miss>,
        hints: Option<&Hints>,
    ) -> Result<(Vec<watch::Receiver<FetchOutcome>>, Held), FetchError> {
        if self.in_flight.len() > self.config.max_in_flight {
            return Err(FetchError::Busy(self.config.max_in_flight));
        }
        let (done, landing) = watch::channel(None);
        let (mut mine, mut waiting, mut known) = (Vec::new(), Vec::new(), Held::at(view));
        for miss in wanted {
            match self.in_flight.entry((view.hash(), miss)) {
                Entry::Occupied(other) => {
                    if !other.get().same_channel(&landing)
                        && !waiting.iter().any(|known: &watch::Receiver<_>| known.same_channel(other.get()))
                    {
                        waiting.push(other.get().clone());
                    }
                }
                // Checked while the entry is locked, because another wave may just have fetched the value.
                Entry::Vacant(_) if known.hold(miss) => {}
                Entry::Vacant(place) => {
                    place.insert(landing.clone());
                    mine.push(miss);
                }
            }
        }
        let lists = hints.filter(|hints| !hints.calls.is_empty() && self.predicts()).cloned();
        if !mine.is_empty() {
            let claim = FetchClaim { in_flight: self.in_flight.clone(), hash: view.hash(), misses: mine, done };
            let (fetcher, view) = (self.clone(), view.clone());
            let fetch = async move { fetcher.fetch_claimed(view, claim, lists).await };
            match is_patient() {
                true => self.runtime.spawn(patiently(fetch)),
                false => self.runtime.spawn(fetch),
            };
            waiting.push(landing);
        }
        Ok((waiting, known))
    }

    /// Runs one wave, and after it a second one for the state in the access lists.
    async fn fetch_claimed(self: Arc<Self>, view: RemoteView, claim: FetchClaim, lists: Option<Hints>) {
        let deadline = Instant::now() + self.config.wave_timeout;
        self.waves.increment(1);
        let wave = self.wave(&view, &claim.misses, deadline);
        let lists = tokio::time::timeout(Self::LISTS_TIMEOUT, self.predicted(&view, lists, deadline));
        let (result, listed) = tokio::join!(wave, lists);
        // Access lists are hints: after their timeout, the fetch ends without them.
        let listed = listed.unwrap_or_default();
        let mine: Vec<Miss> = listed.into_iter().filter(|miss| !view.knows(miss)).collect();
        if !mine.is_empty() && result.is_ok() {
            self.waves.increment(1);
            // The values are not held, and errors are ignored, because they may not be needed. If they are, they are missed again.
            let _ = self.wave(&view, &mine, deadline).await;
        }
        claim.finish(result.map(Arc::new));
    }

    async fn wave(&self, view: &RemoteView, misses: &[Miss], deadline: Instant) -> Result<Held, FetchError> {
        // The leader gives no proofs.
        let fleet = self.fleet.get().filter(|_| view.state().is_of_fleet() && !self.config.verify_proofs);
        let asked = match fleet {
            Some(fleet) => fleet.fetch(view, misses, deadline).await,
            None => Err(FetchError::Unavailable("the node has no upstream".to_owned())),
        };
        match (self.upstream(), asked) {
            (_, Ok(held)) => Ok(held),
            (None, Err(error)) => Err(error),
            (Some(upstream), Err(error)) => {
                if fleet.is_some() {
                    tracing::debug!(%error, "the upstream is asked for what the leader of the fleet does not give");
                }
                self.wave_of(&upstream, view, misses, deadline).await
            }
        }
    }

    /// Fetches state from the upstream.
    async fn wave_of(
        &self,
        upstream: &Upstream,
        view: &RemoteView,
        misses: &[Miss],
        deadline: Instant,
    ) -> Result<Held, FetchError> {
        let prove = self.config.verify_proofs;
        let root = if prove { Some(self.header(upstream, view, deadline).await?.state_root) } else { None };
        let send = |block_param| {
            let wave = Wave::new(view, misses, prove, block_param);
            wave.send(upstream, &self.codes, root, deadline)
        };
        let mut block_param = if self.by_number.load(Relaxed) { BlockParam::Number } else { BlockParam::Hash };
        let mut learned = send(block_param).await;
        let is_refused = matches!(learned.problem, Some(UpstreamError::Refused { code: -32602, .. }));
        if block_param == BlockParam::Hash && is_refused && learned.values.is_empty() {
            block_param = BlockParam::Number;
            learned = send(block_param).await;
            self.by_number.store(learned.problem.is_none(), Relaxed);
        }
        if block_param == BlockParam::Number && !Self::is_canonical(upstream, view, deadline).await? {
            let problem =
                "it is found by its number alone, and the upstream has another block of this number".to_owned();
            return Err(FetchError::Abandoned { number: view.number(), hash: view.hash(), problem });
        }
        let held = view.insert_held(learned.values);
        learned.problem.map_or(Ok(held), |problem| Err(problem.into()))
    }

    /// Returns whether the block of `view` is still the upstream's block of that number.
    async fn is_canonical(upstream: &Upstream, view: &RemoteView, deadline: Instant) -> Result<bool, FetchError> {
        let number = BlockNumberOrTag::Number(view.number());
        let named = upstream.one(Ask::<BlockName>::typed("eth_getBlockByNumber", &(number, false)), deadline).await?;
        Ok(named.hash == view.hash())
    }

    /// Returns the header of the view's block. Its hash is checked.
    async fn header(&self, upstream: &Upstream, view: &RemoteView, deadline: Instant) -> Result<Header, FetchError> {
        if let Some(header) = self.headers.get(&view.hash()) {
            return Ok(header.clone());
        }
        let hash = view.hash();
        let ask = Ask::parsed("eth_getBlockByHash", &(hash, false), move |header: Header| {
            let found = header.hash_slow();
            match found == hash {
                true => Ok(header),
                false => Err(format!("requested block {hash}, but the returned header hashes to {found}")),
            }
        });
        let header = upstream.one(ask, deadline).await?;
        if self.headers.len() >= Self::MAX_HEADERS {
            self.headers.clear();
        }
        self.headers.insert(hash, header.clone());
        Ok(header)
    }
}

/// The values that a wave fetches. Released on drop, so that other waves may fetch them however this one ends.
struct FetchClaim {
    in_flight: Arc<InFlight>,
    hash: B256,
    misses: Vec<Miss>,
    done: watch::Sender<FetchOutcome>,
}

impl FetchClaim {
    fn finish(mut self, result: Result<Arc<Held>, FetchError>) {
        // Released before the outcome is sent, so that a woken request that misses a value again can fetch it.
        self.release();
        self.done.send_replace(Some(result));
    }

    fn release(&mut self) {
        for miss in self.misses.drain(..) {
            self.in_flight.remove(&(self.hash, miss));
        }
    }
}

impl Drop for FetchClaim {
    fn drop(&mut self) {
        self.release();
    }
}
