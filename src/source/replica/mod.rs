//! A replica: follows the stream of a fleet, and answers from the same snapshots under the same ids as the leader.
//!
//! It applies and does not execute. It begins with the fleet's newest image, and goes over no gap: where a message is missing,
//! it begins anew with an image, and shows what it has until it has come past that.

mod apply;
mod clock;
mod following;
mod pulse;
mod reading;

pub use self::{
    apply::{Applier, ApplyError},
    clock::LeaderClock,
    following::{FollowError, Following, ReplicaBase},
    pulse::{LeaderPulse, PulseWatch},
    reading::StreamReading,
};

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::LocalBoxFuture};

use super::{
    Feed, FeedSource,
    fleet::{FleetChain, FleetLink, ImageKey, PoolFilling},
    journal::Journal,
};
use crate::ledger::{Chain, FeedProblem, FeedState, Snapshots};

/// The pause before something that failed is tried again, and the time between two looks at the feed's health.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The time without a message, while the leader has published some, after which they are asked for again.
const LOST: Duration = Duration::from_secs(1);
/// The messages by which a node may be behind before an image can be cheaper.
const MAX_BEHIND: u64 = 500;

/// A node that follows: its state, and what it shows of it.
#[derive(Debug)]
pub struct Follower {
    link: FleetLink,
    base: ReplicaBase,
    /// The state as far as the stream was read; `None` while it begins anew.
    following: Option<Following>,
    pulse: PulseWatch,
    /// The id of the image after which the stream has a gap.
    useless: Option<u64>,
    /// The reason why the state begins anew, if it makes what is shown wrong.
    problem: Option<FeedProblem>,
    /// The time of the last message.
    heard: Instant,
    /// The health of the leader's feed, as the stream has announced it last.
    announced: FeedState,
    /// The chain whose rules this node has; `None` on a node that publishes, which joins no other.
    chain: Option<FleetChain>,
}

impl Follower {
    /// Creates a follower that goes on from `following`, and hears the leader by `pulse`.
    pub fn new(link: FleetLink, base: ReplicaBase, following: Following, pulse: PulseWatch) -> Self {
        let announced = following.state().load().feed();
        let (heard, following) = (Instant::now(), Some(following));
        Self { link, base, following, pulse, useless: None, problem: None, heard, announced, chain: None }
    }

    /// Returns the same, which begins anew with no other chain than this.
    #[must_use]
    pub fn of_chain(self, chain: FleetChain) -> Self {
        Self { chain: Some(chain), ..self }
    }

    /// Shows the state that was reached so far in `snapshots`, with the health of the feed.
    pub fn show_in(&self, snapshots: &Snapshots) {
        let reached = self.reached(snapshots);
        let health = self.health(&reached);
        snapshots.follow(&reached, health, self.pulse.caught_up());
    }

    /// Waits for the next message or for some time, applies the message, and shows the state that has been reached.
    pub async fn step(&mut self, feed: &mut Feed, journal: Option<&Journal>) {
        let Some(following) = &mut self.following else {
            self.restart(journal).await;
            return self.show(feed);
        };
        let opened = following.open().await;
        let stepped = match opened {
            Ok(()) => tokio::select! {
                biased;
                stepped = following.next(journal) => stepped.map(Some),
                () = self.pulse.beat() => Ok(None),
                () = tokio::time::sleep(RETRY_PAUSE) => Ok(None),
            },
            Err(error) => Err(error),
        };
        match stepped {
            Ok(Some((last, arrived))) => {
                self.heard = arrived;
                self.problem = None;
                if last > feed.snapshots.load().last {
                    self.show(feed);
                    feed.count(arrived);
                }
                return;
            }
            Ok(None) => {
                let last = following.state().load().last;
                let newest = self.pulse.newest().filter(|newest| *newest > last);
                if newest.is_some() && self.heard.elapsed() >= LOST {
                    self.heard = Instant::now();
                    following.ask_again();
                }
                if newest.is_some_and(|newest| newest.0 - last.0 > MAX_BEHIND && newest.epoch() == last.epoch()) {
                    self.weigh().await;
                }
            }
            Err(FollowError::Fleet(error)) => {
                tracing::debug!(%error, "the stream of the fleet cannot be read: it is tried again");
                following.ask_again();
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the stream cannot be followed from here: the state begins anew with an image");
                if matches!(error, FollowError::Mismatch(_)) {
                    self.problem = Some(FeedProblem::Mismatch);
                    feed.count_divergence();
                }
                self.give_up();
            }
        }
        self.show(feed);
    }

    /// Begins anew with an image, if there is one that helps, and asks the leader for one otherwise.
    async fn restart(&mut self, journal: Option<&Journal>) {
        if let (Some(ours), Ok(Some(theirs))) = (&self.chain, self.link.chain().await)
            && !ours.is_continued_by(&theirs)
        {
            if self.problem != Some(FeedProblem::OtherChain) {
                tracing::error!(
                    ours = ours.name(),
                    theirs = theirs.name(),
                    "the fleet has another chain now: restart this node"
                );
            }
            self.problem = Some(FeedProblem::OtherChain);
            return tokio::time::sleep(RETRY_PAUSE).await;
        }
        let begun = match self.link.fact::<ImageKey>(ImageKey::KEY).await {
            Ok(Some(key)) if self.useless.is_none_or(|useless| key.id > useless) => {
                Following::bootstrap(&self.link, &self.base).await
            }
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        match begun {
            Ok(Some(following)) => {
                if let Some(journal) = journal
                    && let Err(error) = journal.replace_state(&following.state().load())
                {
                    tracing::error!(%error, "the image of the fleet cannot be written to the data directory");
                    return tokio::time::sleep(RETRY_PAUSE).await;
                }
                self.following = Some(following);
            }
            Ok(None) => {
                self.link.want_image().await;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the image of the fleet cannot be used: it is tried again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Begins anew with an image, if it is nearer to the end of the stream and has fewer bytes than the messages up to it.
    async fn weigh(&mut self) {
        let Some(following) = &self.following else { return };
        let (Ok(Some(key)), Ok(stream)) = (self.link.fact::<ImageKey>(ImageKey::KEY).await, self.link.stream().await)
        else {
            return;
        };
        let state = &stream.cached_info().state;
        let each = state.bytes / state.messages.max(1);
        let skipped = key.sequence.saturating_sub(following.sequence());
        if skipped > MAX_BEHIND && skipped * each > key.bytes {
            tracing::info!(skipped, "far behind the leader: the state begins anew with an image");
            self.following = None;
        }
    }

    /// Returns the newest of what was reached and what `snapshots` show already.
    fn reached(&self, snapshots: &Snapshots) -> Arc<Chain> {
        let shown = snapshots.load();
        let reached = self.following.as_ref().map(|following| following.state().load());
        reached.filter(|reached| reached.last > shown.last).unwrap_or(shown)
    }

    /// Returns the health of the feed of a node that shows this.
    fn health(&self, shown: &Chain) -> FeedState {
        let health = self.pulse.health(shown.last, self.announced);
        match self.problem {
            Some(problem) if !health.is_degraded() => FeedState::Degraded(problem),
            _ => health,
        }
    }

    /// Shows the state that was reached and the health of the feed, if one of them is another than before.
    fn show(&mut self, feed: &mut Feed) {
        if let Some(following) = &self.following {
            self.announced = following.state().load().feed();
        }
        let shown = feed.snapshots.load();
        let reached = self.reached(&feed.snapshots);
        let health = self.health(&reached);
        let is_newer = reached.last > shown.last;
        if is_newer || health != feed.status.state() {
            feed.snapshots.follow(&reached, health, self.pulse.caught_up());
        }
        if is_newer {
            feed.pool.advance();
        }
        if health != feed.status.state() && feed.status.show_state(health) {
            match health.problem() {
                Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
                None => tracing::info!("the feed is {}", health.as_str()),
            }
        }
    }

    /// Returns the state as far as the stream was read; `None` while it begins anew.
    pub const fn following(&self) -> Option<&Following> {
        self.following.as_ref()
    }

    /// Begins anew with a newer image than the one with which this state began, because the stream does not lead on from it.
    pub fn give_up(&mut self) {
        self.useless = self.following.take().map(|following| following.origin().0).or(self.useless);
    }

    /// Begins anew with an image.
    pub fn begin_again(&mut self) {
        self.following = None;
    }

    /// Continues from `snapshots`, whose last change is the message at `sequence`.
    pub fn go_on_from(&mut self, snapshots: &Snapshots, sequence: u64) {
        let applier = Applier::new(snapshots.mirror(), self.base.codes.clone()).with_clock(self.base.clock.clone());
        self.following = Some(Following::from(self.link.clone(), applier, sequence));
    }
}

/// A replica's source of snapshots.
#[derive(Debug)]
pub struct ReplicaSource {
    /// The follower of the stream.
    pub follower: Follower,
}

impl FeedSource for ReplicaSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        async move {
            // For those who ask what waits, and are told of it. Nothing of it is mined here.
            let _filling = PoolFilling::begin(self.follower.link.clone(), feed.pool.clone(), None);
            loop {
                self.follower.step(&mut feed, None).await;
            }
        }
        .boxed_local()
    }
}
