//! The state of the task that follows a live chain.

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use tokio::time::Instant;

use super::{
    catch_up::CatchUp,
    counts::PreConfirmedCounts,
    late::LateContents,
    parts::{FlashblockSource, LiveChain, LiveSource},
    preconfirmed::Preconfirmed,
    queue::SubBlockQueue,
    unread::UnreadMessages,
};
use crate::{
    chain::SealedBlock,
    ledger::{FeedProblem, FeedState, Record, StateId},
    source::Feed,
    telemetry::Counter,
    upstream::Heads,
};

/// The follower of a live chain, and the only writer of its snapshots.
pub(super) struct Live {
    pub(super) chain: LiveChain,
    pub(super) heads: Heads,
    pub(super) flashblocks: Option<FlashblockSource>,
    pub(super) feed: Feed,
    /// The newest state, if a canonical block that is being imported replaces its pre-confirmed blocks.
    pub(super) superseded: Option<StateId>,
    /// The canonical blocks that are being imported.
    pub(super) catch_up: CatchUp,
    /// The sub-blocks that are not applied yet.
    pub(super) queue: SubBlockQueue,
    /// The messages of the stream that could not be read.
    pub(super) unread: UnreadMessages,
    /// The time at which the stream was lost, while it may still resume without a gap.
    pub(super) cut_since: Option<Instant>,
    /// The canonical blocks whose content the upstream has not sent yet.
    pub(super) late: LateContents,
    /// The time since which the upstream's newest block is an older one than the newest.
    pub(super) older_since: Option<Instant>,
    /// The reason why the upstream's newest block cannot be followed. Logged once.
    pub(super) problem: Option<String>,
    /// Whether the upstream is a node of another chain now.
    pub(super) is_other_chain: bool,
    /// The time between blocks on the chain's clock.
    pub(super) block_time: Duration,
    pub(super) executed: Counter,
    /// Blocks that were applied from their access lists.
    pub(super) listed: Counter,
    pub(super) skipped: Counter,
    pub(super) mismatched: Counter,
    pub(super) reorgs: Counter,
    pub(super) restarts: Counter,
    pub(super) counts: PreConfirmedCounts,
}

impl Live {
    /// Creates a follower of `source` that publishes to `feed`. The snapshots of `feed` begin with a canonical block.
    pub(super) fn new(source: LiveSource, feed: Feed) -> Self {
        let blocks = |outcome| {
            let help = "Canonical blocks, by effect on the state cache.";
            feed.metrics.counter_with("presim_upstream_blocks_total", help, &[("outcome", outcome)])
        };
        let LiveSource { spec, upstream, fetcher, heads, flashblocks, limits } = source;
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
            listed: blocks("listed"),
            skipped: blocks("not_executed"),
            mismatched: blocks("mismatch"),
            reorgs: feed.metrics.counter("presim_reorgs_total", "Times that the upstream took another branch."),
            restarts: feed.metrics.counter(
                "presim_source_restarts_total",
                "Restarts of the source of an upstream's chain after a fault.",
            ),
            counts: PreConfirmedCounts::new(&feed.metrics),
            chain: LiveChain { spec: Arc::new(spec), upstream, fetcher, limits },
            heads,
            flashblocks,
            feed,
        }
    }

    /// Returns the pre-confirmed block of this number, unless a canonical block replaces it.
    pub(super) fn preconfirmed(&self, number: u64) -> Option<Preconfirmed> {
        let published = self.feed.snapshots.load();
        published.preconfirmed(number).filter(|_| !self.is_superseded()).cloned().map(Preconfirmed)
    }

    /// Returns whether a canonical block that is being imported replaces the pre-confirmed blocks, so that nothing is
    /// built on them any more.
    pub(super) fn is_superseded(&self) -> bool {
        self.superseded == Some(self.feed.snapshots.newest().state)
    }

    /// Returns the state of a healthy feed.
    pub(super) fn live(&self) -> FeedState {
        FeedState::Live { every_ms: self.every_ms() }
    }

    /// Returns the milliseconds between two snapshots.
    pub(super) fn every_ms(&self) -> u64 {
        let every = match &self.flashblocks {
            Some(_) => self.chain.limits.sub_block,
            None => self.block_time,
        };
        u64::try_from(every.as_millis()).unwrap_or(u64::MAX)
    }

    /// Sets the feed's health, and logs it.
    pub(super) fn set(&mut self, state: FeedState) {
        let was_degraded = self.feed.status.is_degraded();
        if self.feed.set_state(state) {
            log_health(state, was_degraded);
        }
    }

    /// Removes everything after canonical block `number`, and sets the feed's problem, in one change. Returns whether the chain could go
    /// back; the problem is set in any case.
    pub(super) fn go_back(&mut self, number: u64, problem: FeedProblem) -> bool {
        let (feed, was_degraded) = (FeedState::Degraded(problem), self.feed.status.is_degraded());
        // Published last, as in `Feed::set_state`.
        if self.feed.status.show_state(feed) {
            log_health(feed, was_degraded);
        }
        let is_back = self.feed.publish(Record::GoBack { number, feed }).is_ok();
        if !is_back {
            self.feed.publish_or_log(Record::Feed(feed));
        }
        is_back
    }

    /// Awaits the content of a canonical block that was just published, unless it is known. `is_refused` is whether the
    /// upstream provided neither its receipts nor its logs.
    pub(super) fn expect_content(&mut self, number: u64, hash: B256, is_refused: bool) {
        if !self.feed.snapshots.load().is_late(number, hash) {
            return;
        }
        if is_refused {
            tracing::warn!(
                number,
                "the upstream gives neither the receipts nor the logs of its block: its logs are not delivered until it does"
            );
        } else {
            tracing::info!(number, "the upstream does not have the receipts of its block yet: it is asked again");
        }
        self.late.push(number, hash);
    }

    /// After a restart of the source, awaits the contents of the late blocks again.
    pub(super) fn expect_contents_again(&mut self) {
        self.late = LateContents::default();
        for (number, late) in self.feed.snapshots.load().late_blocks() {
            self.late.push(number, late.hash);
        }
    }

    /// Publishes the contents that the upstream has sent.
    pub(super) fn take_contents(&mut self, contents: Vec<SealedBlock>) {
        for content in contents {
            if self.late.remove(content.hash()) {
                self.feed.publish_or_log(Record::Content(content));
            }
        }
    }
}

fn log_health(state: FeedState, was_degraded: bool) {
    match state.problem() {
        Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
        None if was_degraded => tracing::info!("the feed is live"),
        None => tracing::debug!(?state, "the feed"),
    }
}
