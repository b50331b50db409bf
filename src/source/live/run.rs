//! The one task that follows a live chain: it waits for the next event, and shows how late the feed is.

use std::{convert::Infallible, panic::AssertUnwindSafe, time::Duration};

use futures::{
    FutureExt,
    future::{LocalBoxFuture, OptionFuture},
};
use tokio::time::{Instant, sleep_until};

use super::{
    catch_up::CatchUp, counts::BlockFate, flashblocks::Event, import::summary_of_sealed, parts::LiveSource,
    queue::SubBlockQueue, state::Live,
};
use crate::{
    ledger::{FeedLag, FeedProblem, FeedState, Record},
    source::{Feed, FeedSource},
};

/// The reason why a live source has ended, for the log. None happens without a fault in this program.
type SourceEnded = &'static str;

impl FeedSource for LiveSource {
    fn run(self: Box<Self>, feed: Feed) -> LocalBoxFuture<'static, ()> {
        Live::new(*self, feed).run().boxed_local()
    }
}

/// The number of canonical blocks by which the published state may be behind before it is reported as lagging.
const MAX_BEHIND: u32 = 2;
/// The pause before a source that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

impl Live {
    /// Follows the chain for as long as it is polled. If a task of the source ends, or the source panics, all of it is
    /// started again. Returns only if that is not possible.
    async fn run(mut self) {
        loop {
            let ended = AssertUnwindSafe(self.follow()).catch_unwind().await;
            let Err(ended) = ended.unwrap_or(Err("following the chain has panicked"));
            tracing::error!(error = ended, "the source of the upstream's chain has ended: restarting it");
            self.restarts.increment(1);
            self.counts.record_outcome(.., BlockFate::Dropped);
            self.queue = SubBlockQueue::default();
            self.catch_up = CatchUp::default();
            (self.cut_since, self.problem, self.is_other_chain, self.older_since) = (None, None, false, None);
            self.go_back(self.feed.snapshots.load().head().number(), FeedProblem::Connecting);
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
            source.rules.canonical(&summary_of_sealed(&head));
        }
        self.expect_contents_again();
        self.catch_up.search();
        loop {
            self.start_next();
            self.late.ask(&self.feed.snapshots.load(), &self.chain);
            self.update_health();
            let due = self.due();
            let can_execute = self.queue.can_run() || self.queue.can_prefetch();
            let can_prefetch = self.catch_up.can_prefetch(self.chain.limits.lookahead);
            tokio::select! {
                // Canonical news first, because it decides about the pre-confirmed blocks.
                biased;
                tags = self.heads.changed() => match tags.ok_or("the task that follows the upstream's newest block has ended")? {
                    Some(tags) => self.feed.publish_or_log(Record::Tags(tags)),
                    None => self.catch_up.search(),
                },
                news = self.catch_up.news() => self.on_news(news),
                contents = self.late.announced() => self.take_contents(contents),
                Some(event) = OptionFuture::from(self.flashblocks.as_mut().map(|source| source.events.next())) => self.on_event(event.ok_or("the task that reads the stream of sub-blocks has ended")?),
                fetched = self.queue.fetched() => if let Err(error) = fetched {
                    tracing::debug!(%error, "the state for a Flashblock could not be fetched: it is asked for again");
                },
                Some(()) = OptionFuture::from(due.map(sleep_until)) => {}
                () = std::future::ready(()), if can_execute => self.execute_next(),
                () = std::future::ready(()), if can_prefetch => {
                    let published = self.feed.snapshots.load();
                    self.catch_up.prefetch(self.chain.limits.lookahead, &self.chain, published.latest());
                }
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
                return self.apply_actions(actions, received);
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
        self.apply_actions(actions, Instant::now());
    }

    /// Degrades the feed if a time limit has passed, and updates the lag that it reports.
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
            let waiting = u32::try_from(self.queue.0.len()).unwrap_or(u32::MAX);
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
    pub(super) fn blocks_are_late(&self) -> bool {
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
}
