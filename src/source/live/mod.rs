//! A live chain: an upstream's canonical blocks, and the sub-blocks of the blocks after them.
//!
//! `canonical` follows the upstream's blocks, which `import` asks for and executes. `ahead` applies the sub-blocks of
//! Flashblocks, `verify` compares them with their builder's word, and `queue` holds those that wait for their turn or for
//! state. All write the same snapshots, so one task does it, in `Live::run`: it waits for nothing
//! but the next event, so that a slow upstream delays neither sub-blocks nor canonical blocks that do not need it.

mod ahead;
mod canonical;
mod difference;
mod error;
pub mod flashblocks;
mod import;
mod late;
mod queue;
mod unread;
mod verify;

pub use self::error::LiveError;
pub use self::import::canonical_snapshot;

use std::{convert::Infallible, ops::RangeBounds, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use self::{
    ahead::Preconfirmed,
    canonical::CatchUp,
    flashblocks::{Event, Events, FlashblockSequence, Replaced},
    late::LateContents,
    queue::SubBlockQueue,
    unread::UnreadMessages,
};
use super::{Feed, FeedSource};
use crate::{
    chain::ChainSpec,
    ledger::{FeedLag, FeedProblem, FeedState, Record, StateId},
    state::{FetchError, Missed, RemoteState},
    telemetry::{Counter, Metrics},
    upstream::{Fetcher, Heads, HeadsEnded, Hints, Upstream},
};

/// The parts and the settings with which a live chain is followed.
#[derive(Debug)]
pub struct LiveSource {
    /// The chain.
    pub spec: ChainSpec,
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Fetches state from the upstream.
    pub fetcher: Arc<Fetcher>,
    /// The cache of the upstream's state.
    pub remote: Arc<RemoteState>,
    /// The upstream's newest block, as it changes.
    pub heads: Heads,
    /// The stream of sub-blocks, if there is one.
    pub flashblocks: Option<FlashblockSource>,
    /// Bounds.
    pub limits: LiveLimits,
}

/// A stream of sub-blocks, and its rules.
#[derive(Debug)]
pub struct FlashblockSource {
    /// The stream.
    pub events: Events,
    /// The state machine of the sub-blocks.
    pub rules: FlashblockSequence,
}

/// Bounds of a live chain.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimits {
    /// The time-out for the upstream to return a block, or the state for a sub-block.
    pub wait: Duration,
    /// The time for executing a canonical block, fetching included.
    pub execute: Duration,
    /// The time between the sub-blocks of a stream, past which a sub-block counts as late.
    pub sub_block: Duration,
    /// The time without sub-blocks after which a stream counts as broken.
    pub silent: Duration,
    /// The lag past which `pending` is the canonical head; `None` if it may lag as long as it does.
    pub max_lag: Option<Duration>,
    /// The most bytes of sub-blocks that wait to be applied.
    pub held: usize,
    /// Whether blocks whose headers do not have their hashes are refused.
    pub verify: bool,
    /// The number of blocks to catch up with one by one. A greater gap is skipped.
    pub gap: usize,
    /// The time for which the upstream may not have a block that it has announced.
    pub late: Duration,
}

/// The parts of a live chain that work beside the feed's task needs.
#[derive(Clone, Debug)]
struct LiveChain {
    spec: Arc<ChainSpec>,
    upstream: Arc<Upstream>,
    fetcher: Arc<Fetcher>,
    remote: Arc<RemoteState>,
    limits: LiveLimits,
}

/// The follower of a live chain, and the only writer of its snapshots.
struct Live {
    chain: LiveChain,
    heads: Heads,
    flashblocks: Option<FlashblockSource>,
    feed: Feed,
    /// The newest state while a canonical block that is being imported replaces what is pre-confirmed there.
    superseded: Option<StateId>,
    /// The canonical blocks that are being imported.
    catch_up: CatchUp,
    /// The sub-blocks that are not applied yet.
    queue: SubBlockQueue,
    /// The messages of the stream that could not be read.
    unread: UnreadMessages,
    /// The time at which the stream was lost, while it may still come back in order.
    cut_since: Option<Instant>,
    /// The canonical blocks whose content the upstream has not told yet.
    late: LateContents,
    /// The time since which the upstream's newest block is an older one than the newest.
    older_since: Option<Instant>,
    /// The reason why the upstream's newest block cannot be followed. Logged once.
    problem: Option<String>,
    /// Whether the upstream is a node of another chain now.
    is_other_chain: bool,
    /// The time between blocks on the chain's clock.
    block_time: Duration,
    executed: Counter,
    skipped: Counter,
    mismatched: Counter,
    reorgs: Counter,
    restarts: Counter,
    counts: PreConfirmedCounts,
}

/// The reason why a live source has ended. None of them happens without a fault in this program.
#[derive(Debug, thiserror::Error)]
enum SourceEnded {
    /// The task that follows the upstream's newest block has ended.
    #[error(transparent)]
    Heads(#[from] HeadsEnded),
    /// The task that reads the stream of sub-blocks has ended.
    #[error("the task that reads the stream of sub-blocks has ended")]
    Stream,
    /// Following the chain has panicked.
    #[error("following the chain has panicked")]
    Panicked,
}

impl FeedSource for LiveSource {
    fn run(self: Box<Self>, feed: Feed) -> LocalBoxFuture<'static, ()> {
        Live::new(*self, feed).run().boxed_local()
    }
}

/// The number of canonical blocks by which the published state may be late before it is said to lag.
const MAX_BEHIND: u32 = 2;
/// The pause before state that could not be fetched is asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The pause before a source that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

impl LiveChain {
    /// Fetches the state that runs have missed, and what `hints` predict. An error comes after a pause.
    async fn fetch(self, missed: Missed, hints: Hints) -> Result<(), FetchError> {
        let hints = (!hints.is_empty()).then_some(hints);
        let fetched = self.fetcher.fetch(&missed, hints.as_ref(), Instant::now() + self.limits.wait).await;
        if fetched.is_err() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        fetched
    }
}

impl Live {
    /// Creates a follower of `source`, which publishes to `feed`. The snapshots of `feed` begin with a canonical block.
    fn new(source: LiveSource, feed: Feed) -> Self {
        let blocks = |outcome| {
            let help = "Canonical blocks of the upstream, by what became of what was known of its state.";
            feed.metrics.counter("presim_upstream_blocks_total", help, &[("outcome", outcome)])
        };
        let LiveSource { spec, upstream, fetcher, remote, heads, flashblocks, limits } = source;
        Self {
            superseded: None,
            catch_up: CatchUp::default(),
            queue: SubBlockQueue::default(),
            unread: UnreadMessages::default(),
            cut_since: None,
            problem: None,
            is_other_chain: false,
            late: LateContents::default(),
            older_since: None,
            block_time: spec.block_time(),
            executed: blocks("executed"),
            skipped: blocks("not_executed"),
            mismatched: blocks("mismatch"),
            reorgs: feed.metrics.counter("presim_reorgs_total", "Times that the upstream took another branch.", &[]),
            restarts: feed.metrics.counter(
                "presim_source_restarts_total",
                "Times that the source of an upstream's chain was started again after a fault in it.",
                &[],
            ),
            counts: PreConfirmedCounts::new(&feed.metrics),
            chain: LiveChain { spec: Arc::new(spec), upstream, fetcher, remote, limits },
            heads,
            flashblocks,
            feed,
        }
    }

    /// Follows the chain for as long as it is polled. If a task of the source ends, or the source panics, all of it is
    /// started again. Returns only if that is not possible.
    async fn run(mut self) {
        loop {
            let ended = AssertUnwindSafe(self.follow()).catch_unwind().await;
            let Err(ended) = ended.unwrap_or(Err(SourceEnded::Panicked));
            tracing::error!(error = %ended, "the source of the upstream's chain has ended: it is started again");
            self.restarts.increment(1);
            self.counts.record_outcome(.., BlockFate::Dropped);
            self.queue = SubBlockQueue::default();
            self.catch_up = CatchUp::default();
            (self.cut_since, self.problem, self.is_other_chain, self.older_since) = (None, None, false, None);
            let degraded = FeedState::Degraded(FeedProblem::Connecting);
            self.set(degraded);
            self.feed.note(Record::FallBack(degraded));
            tokio::time::sleep(RESTART_PAUSE).await;
            self.heads.restart(self.feed.snapshots.load().head().hash());
            if let Some(source) = &mut self.flashblocks {
                source.rules.restart();
                if !source.events.reopen() {
                    return tracing::error!("the stream of sub-blocks cannot be opened again: the source has ended");
                }
            }
        }
    }

    /// Follows the chain from the newest canonical block on, until a task of the source ends.
    async fn follow(&mut self) -> Result<Infallible, SourceEnded> {
        if let Some(source) = &mut self.flashblocks {
            let head = self.feed.snapshots.load().head().clone();
            // Nothing is pre-confirmed yet, so there is no action to execute.
            source.rules.canonical(&import::summary(&head.header, head.transaction_hashes().unwrap_or_default()));
        }
        self.expect_contents_again();
        self.catch_up.look();
        loop {
            self.go_on();
            self.ask_for_contents();
            self.update_health();
            let due = self.due();
            let can_work = self.queue.can_run() || self.queue.can_prefetch();
            tokio::select! {
                // Canonical news first, because it decides about the pre-confirmed blocks.
                biased;
                tags = self.heads.changed() => match tags? {
                    Some(tags) => self.feed.note(Record::Tags(tags)),
                    None => self.catch_up.look(),
                },
                news = self.catch_up.news() => self.take(news),
                contents = self.late.announced() => self.take_contents(contents),
                event = next(&mut self.flashblocks) => self.on_event(event.ok_or(SourceEnded::Stream)?),
                fetched = self.queue.fetched() => if let Err(error) = fetched {
                    tracing::debug!(%error, "the state for a Flashblock could not be fetched: it is asked for again");
                },
                () = until(due) => {}
                () = std::future::ready(()), if can_work => self.work(),
            }
        }
    }

    /// Handles an event of the stream.
    fn on_event(&mut self, event: Event) {
        let Some(source) = &mut self.flashblocks else { return };
        let rules = &mut source.rules;
        let actions = match event {
            Event::Flashblock { flashblock, received } => {
                if !flashblock.metadata.unread.is_empty() {
                    tracing::debug!(fields = ?flashblock.metadata.unread, "fields of a Flashblock cannot be read");
                }
                let actions = rules.flashblock(flashblock);
                return self.act(actions, received);
            }
            Event::Garbage(error) => {
                self.unread.add(error);
                self.counts.unreadable.increment(1);
                return rules.missed();
            }
            Event::Lagged { missed } => {
                tracing::warn!(missed, "Flashblocks arrived faster than they were read");
                return rules.missed();
            }
            Event::Connected => {
                tracing::info!("connected to the Flashblocks server");
                return;
            }
            Event::Disconnected(error) => {
                tracing::warn!(%error, "the Flashblocks connection failed");
                if rules.problem().is_none() {
                    self.cut_since.get_or_insert_with(Instant::now);
                    return rules.missed();
                }
                rules.fail(FeedProblem::Disconnected)
            }
            Event::Silent => rules.fail(FeedProblem::Silent),
        };
        self.act(actions, Instant::now());
    }

    /// Drops what may last no longer, and shows how late the feed is.
    fn update_health(&mut self) {
        let limits = self.chain.limits;
        self.unread.warn();
        let Some(source) = &mut self.flashblocks else { return self.update_health_of_blocks() };
        if source.rules.problem().is_some() {
            return;
        }
        if self.is_other_chain {
            return self.fail(FeedProblem::OtherChain);
        }
        if self.cut_since.is_some_and(|since| since.elapsed() >= limits.silent) {
            return self.fail(FeedProblem::Disconnected);
        }
        let Some(since) = self.late_since() else {
            if self.feed.status.state().lag().is_some() {
                self.set(self.live());
            }
            return;
        };
        if limits.max_lag.is_some_and(|most| since.elapsed() >= most) {
            return self.fail(FeedProblem::TooLate);
        }
        if since.elapsed() >= limits.sub_block && !self.feed.status.is_degraded() {
            let waiting = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
            let cause = match () {
                () if self.queue.is_fetching() => FeedProblem::Upstream,
                () if self.cut_since.is_some() => FeedProblem::Disconnected,
                () => FeedProblem::Lagging,
            };
            let since = since.into_std();
            self.set(FeedState::Lagging(FeedLag { since, waiting, cause, every_ms: self.every_ms() }));
        }
    }

    /// Shows how late the feed of a chain without sub-blocks is.
    fn update_health_of_blocks(&mut self) {
        let Some(since) = self.catch_up.since().filter(|_| self.blocks_are_late()) else { return };
        if !self.feed.status.is_degraded() {
            let (since, waiting) = (since.into_std(), self.catch_up.waiting().max(1));
            let (cause, every_ms) = (FeedProblem::Lagging, self.every_ms());
            self.set(FeedState::Lagging(FeedLag { since, waiting, cause, every_ms }));
        }
    }

    /// Returns whether the state of a chain without sub-blocks is late.
    fn blocks_are_late(&self) -> bool {
        let since = self.catch_up.since();
        self.catch_up.waiting() > MAX_BEHIND
            || since.is_some_and(|since| since.elapsed() >= MAX_BEHIND * self.block_time)
    }

    /// Returns the time since which the newest snapshot is not the newest that there is.
    fn late_since(&self) -> Option<Instant> {
        self.queue.since().into_iter().chain(self.cut_since).min()
    }

    /// Returns the time at which [`update_health`](Self::update_health) or [`go_on`](Self::go_on) has something to do without
    /// any event.
    fn due(&self) -> Option<Instant> {
        let limits = &self.chain.limits;
        let import = self.catch_up.deadline(limits.execute);
        let import = import.into_iter().chain(self.late.due()).chain(self.unread.due()).min();
        let is_live = matches!(self.feed.status.state(), FeedState::Live { .. });
        let Some(source) = &self.flashblocks else {
            let late = self.catch_up.since().filter(|_| is_live).map(|since| since + MAX_BEHIND * self.block_time);
            return late.into_iter().chain(import).min();
        };
        if source.rules.problem().is_some() {
            return import;
        }
        let late = self.late_since();
        let becomes_late = late.filter(|_| is_live).map(|since| since + limits.sub_block);
        let too_late = late.and_then(|since| limits.max_lag.map(|most| since + most));
        let cut = self.cut_since.map(|since| since + limits.silent);
        [becomes_late, too_late, cut, import].into_iter().flatten().min()
    }

    /// Returns the pre-confirmed block of this number, unless a canonical block replaces it.
    fn preconfirmed(&self, number: u64) -> Option<Preconfirmed> {
        let published = self.feed.snapshots.load();
        published.preconfirmed(number).filter(|_| !self.is_superseded()).cloned().map(Preconfirmed)
    }

    /// Returns whether a canonical block that is being imported replaces what is pre-confirmed, so that nothing is built on that
    /// any more.
    fn is_superseded(&self) -> bool {
        self.superseded == Some(self.feed.snapshots.newest().state)
    }

    /// Lets nothing be built on what is pre-confirmed, until something else is published.
    fn supersede(&mut self) {
        self.superseded = Some(self.feed.snapshots.newest().state);
    }

    /// Returns the state of a healthy feed.
    fn live(&self) -> FeedState {
        FeedState::Live { every_ms: self.every_ms() }
    }

    /// Returns the milliseconds between two snapshots.
    fn every_ms(&self) -> u64 {
        let every = match &self.flashblocks {
            Some(_) => self.chain.limits.sub_block,
            None => self.block_time,
        };
        u64::try_from(every.as_millis()).unwrap_or(u64::MAX)
    }

    fn set(&mut self, state: FeedState) {
        let was_degraded = self.feed.status.is_degraded();
        if self.feed.set_state(state) {
            match state.problem() {
                Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
                None if was_degraded => tracing::info!("the feed is live"),
                None => tracing::debug!(?state, "the feed"),
            }
        }
    }
}

/// The fate of a pre-confirmed block that was published.
#[derive(Clone, Copy, Debug)]
enum BlockFate {
    /// The block became canonical unchanged.
    Canonical,
    /// Another block took its place.
    Replaced(Replaced),
    /// The feed has fallen back.
    Dropped,
}

/// Counts of pre-confirmed blocks by their fate, each once, and of the stream's messages.
#[derive(Debug)]
struct PreConfirmedCounts {
    /// The numbers of the blocks that were published and whose fate is not known yet, in order.
    begun: Vec<u64>,
    applied: Counter,
    unreadable: Counter,
    canonical: Counter,
    dropped: Counter,
    restarted: Counter,
    overtaken: Counter,
    other: Counter,
}

impl PreConfirmedCounts {
    fn new(metrics: &Metrics) -> Self {
        let blocks = |outcome| {
            let help = "Pre-confirmed blocks, by what became of them.";
            metrics.counter("presim_preconfirmed_total", help, &[("outcome", outcome)])
        };
        let messages = |outcome| {
            let help = "Messages of the stream of sub-blocks.";
            metrics.counter("presim_flashblocks_total", help, &[("outcome", outcome)])
        };
        Self {
            begun: Vec::new(),
            applied: messages("applied"),
            unreadable: messages("unreadable"),
            canonical: blocks("canonical"),
            dropped: blocks("dropped"),
            restarted: blocks("restarted"),
            overtaken: blocks("overtaken"),
            other: blocks("replaced"),
        }
    }

    /// Notes that the first sub-block of a block is published.
    fn begin(&mut self, number: u64) {
        self.begun.push(number);
    }

    /// Counts the published blocks with these numbers whose fate was not known.
    fn record_outcome(&mut self, numbers: impl RangeBounds<u64>, fate: BlockFate) {
        let count = match fate {
            BlockFate::Canonical => &self.canonical,
            BlockFate::Dropped => &self.dropped,
            BlockFate::Replaced(Replaced::Restart) => &self.restarted,
            BlockFate::Replaced(Replaced::Overtaken) => &self.overtaken,
            BlockFate::Replaced(Replaced::Canonical) => &self.other,
        };
        let before = self.begun.len();
        self.begun.retain(|number| !numbers.contains(number));
        count.increment((before - self.begun.len()) as u64);
    }
}

/// Returns the next event of a stream; never resolves if there is none.
async fn next(source: &mut Option<FlashblockSource>) -> Option<Event> {
    match source {
        Some(source) => source.events.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until `due`; never resolves if there is no time.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
