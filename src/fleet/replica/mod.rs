//! A replica: follows the stream of a fleet, and answers from the same snapshots under the same ids as the leader.
//!
//! It applies changes without executing them. It starts from the fleet's newest image, and never skips a gap: if a
//! message is missing, it loads an image again, and shows its old state until the new one is newer.

mod apply;
mod clock;
mod following;
mod pulse;
mod reading;

#[cfg(test)]
pub use self::apply::Applier;
pub use self::{
    apply::FollowError,
    clock::LeaderClock,
    following::{Following, ReplicaBase},
    pulse::{PulseWatch, beat},
};

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::LocalBoxFuture};

use super::servers::{FleetChain, FleetError, FleetMetrics, FleetPort, FleetRole, ImageKey};
use crate::source::{Feed, FeedSource};
use crate::{
    clock::now,
    ledger::{Chain, FeedProblem, FeedState, SnapshotId},
};

/// The pause before something that failed is tried again, and the time between two looks at the feed's health.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The time without a message, while the leader has published some, after which the messages are requested again.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
/// The messages by which a node may be behind before an image can be cheaper.
const MAX_MESSAGES_BEHIND: u64 = 500;

/// A following node: its state, and the part of it that clients see.
#[derive(Debug)]
pub struct Follower {
    port: Arc<dyn FleetPort>,
    base: ReplicaBase,
    /// The state as far as the stream was read; `None` while it starts again with an image.
    pub(in crate::fleet) following: Option<Following>,
    pulse: PulseWatch,
    /// The id of the image after which the stream has a gap.
    useless: Option<u64>,
    /// The reason why the state is loaded again, if it makes the shown state wrong.
    pub(in crate::fleet) problem: Option<FeedProblem>,
    /// The time of the last message.
    heard: Instant,
    /// The health of the leader's feed, as the stream has announced it last.
    announced: FeedState,
    /// The chain whose rules this node has.
    chain: FleetChain,
    pub(in crate::fleet) metrics: FleetMetrics,
}

impl Follower {
    /// Creates a follower that continues from `following`, and receives the leader's `pulse`.
    pub fn new(
        port: Arc<dyn FleetPort>,
        base: ReplicaBase,
        following: Following,
        pulse: PulseWatch,
        chain: FleetChain,
        metrics: FleetMetrics,
    ) -> Self {
        Self {
            port,
            base,
            announced: following.chain().feed(),
            following: Some(following),
            pulse,
            useless: None,
            problem: None,
            heard: now(),
            chain,
            metrics,
        }
    }

    /// Waits for the next message or for some time, applies the message, and shows the state that has been reached.
    pub async fn step(&mut self, feed: &mut Feed, role: FleetRole) {
        self.advance(feed).await;
        let last = feed.snapshots.load().last;
        let newest = self.pulse.newest().filter(|newest| newest.epoch() == last.epoch());
        self.metrics.show_role(role);
        self.metrics.behind.set(newest.map_or(0, |newest| newest.changes_after(last)));
        self.metrics.connected.set(f64::from(self.port.is_connected()));
        self.metrics.show_leader(&self.pulse.leader().unwrap_or_default(), last);
    }

    /// Records that this node, named `node`, leads after the change `last`.
    pub fn begin_to_lead(&mut self, node: &str, last: SnapshotId) {
        self.metrics.show_role(FleetRole::Leader);
        self.metrics.show_leader(node, last);
        self.metrics.behind.set(0.0);
        self.metrics.takeovers.increment(1);
    }

    async fn advance(&mut self, feed: &mut Feed) {
        let Some(following) = &mut self.following else {
            self.restart().await;
            return self.show(feed);
        };
        let was_open = following.is_open();
        let opened = following.open().await;
        if !was_open {
            // A lost message may still arrive within its timeout from now.
            self.heard = now();
        }
        let stepped = match opened {
            Ok(()) => tokio::select! {
                biased;
                stepped = following.next() => stepped.map(Some),
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
                let last = following.chain().last;
                let newest = self.pulse.newest().filter(|newest| *newest > last);
                if newest.is_some() && now().duration_since(self.heard) >= MESSAGE_TIMEOUT {
                    self.heard = now();
                    following.ask_again();
                }
                if newest
                    .is_some_and(|newest| newest.0 - last.0 > MAX_MESSAGES_BEHIND && newest.epoch() == last.epoch())
                {
                    self.weigh().await;
                }
            }
            Err(error) => {
                if matches!(error, FollowError::Mismatch(_)) {
                    feed.count_divergence();
                }
                self.recover(error).await;
            }
        }
        self.show(feed);
    }

    /// Prepares another attempt after an error: requests the messages again, or loads an image again.
    async fn recover(&mut self, error: FollowError) {
        match (error, &mut self.following) {
            (FollowError::Fleet(error), Some(following)) => {
                tracing::debug!(%error, "the stream of the fleet cannot be read: it is tried again");
                following.ask_again();
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            (error, _) => {
                tracing::warn!(%error, "the stream cannot be followed from here: restarting from an image");
                if matches!(error, FollowError::Mismatch(_)) {
                    self.problem = Some(FeedProblem::Mismatch);
                }
                self.discard_image();
            }
        }
    }

    /// Reads the stream to its end, so that a joining node does not answer from old state. Returns the chain at the
    /// end. Errors on the way are retried.
    pub async fn reach_end(&mut self) -> Arc<Chain> {
        loop {
            let Some(following) = &mut self.following else {
                self.restart().await;
                continue;
            };
            match following.reach_end().await {
                Ok(()) => return following.chain().clone(),
                Err(error) => self.recover(error).await,
            }
        }
    }

    /// Loads an image, if there is one that helps, and asks the leader for one otherwise.
    async fn restart(&mut self) {
        let ours = &self.chain;
        if let Ok(Some(theirs)) = self.port.chain().await
            && !ours.is_same(&theirs)
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
        let begun = match self.port.fact::<ImageKey>(ImageKey::KEY).await {
            Ok(Some(key)) if self.useless.is_none_or(|useless| key.id > useless) => {
                Following::bootstrap(&self.port, &self.base).await
            }
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        match begun {
            Ok(Some(following)) => {
                self.problem = None;
                self.following = Some(following);
            }
            Ok(None) => {
                self.port.want_image().await;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the fleet's image cannot be used: retrying");
                if matches!(error, FleetError::Image(_)) {
                    // Another image may be better.
                    self.port.want_image().await;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Loads an image, if it is closer to the end of the stream and has fewer bytes than the messages up to it.
    async fn weigh(&mut self) {
        let Some(following) = &self.following else { return };
        let (Ok(Some(key)), Ok(ends)) = (self.port.fact::<ImageKey>(ImageKey::KEY).await, self.port.ends().await)
        else {
            return;
        };
        let each = ends.bytes / ends.messages.max(1);
        let skipped = key.sequence.saturating_sub(following.sequence());
        if skipped > MAX_MESSAGES_BEHIND && skipped * each > key.bytes {
            tracing::info!(skipped, "far behind the leader: restarting from an image");
            self.following = None;
        }
    }

    /// Returns the health of the feed of a node that shows `chain`.
    fn health(&self, chain: &Chain) -> FeedState {
        let health = self.pulse.health(chain.last, self.announced);
        self.problem.filter(|_| !health.is_degraded()).map_or(health, FeedState::Degraded)
    }

    /// Returns the chain that was reached as this node shows it at first.
    pub fn first_shown(&mut self, chain: &Chain) -> Chain {
        self.announced = chain.feed();
        chain.as_followed(self.health(chain), self.pulse.caught_up())
    }

    /// Shows the chain that was reached if it is newer than the shown one, and the health of the feed.
    fn show(&mut self, feed: &mut Feed) {
        let mut newest = feed.snapshots.load();
        let last = newest.last;
        if let Some(following) = &self.following {
            self.announced = following.chain().feed();
            if following.chain().last > last {
                newest = following.chain().clone();
            }
        }
        let is_newer = newest.last > last;
        let health = self.health(&newest);
        if !is_newer && health == feed.status.state() {
            return;
        }
        let is_other = feed.show(newest.as_followed(health, self.pulse.caught_up()).into(), health);
        if is_newer {
            feed.pool.advance();
        }
        if is_other {
            match health.problem() {
                Some(problem) => tracing::warn!("the feed is degraded: {}", problem.meaning()),
                None => tracing::info!("the feed is {}", health.as_str()),
            }
        }
    }

    /// Loads a newer image than the one from which this state began, because the stream does not continue from that
    /// one.
    pub fn discard_image(&mut self) {
        self.useless = self.following.take().map(|following| following.origin.0).or(self.useless);
    }

    /// Continues from `chain`. Its last change is the message at `sequence`.
    pub fn go_on_from(&mut self, chain: Arc<Chain>, sequence: u64) {
        self.following = Some(Following::from(self.port.clone(), &self.base, chain, sequence));
    }
}

/// A replica follows for as long as it is polled.
impl FeedSource for Follower {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        async move {
            loop {
                self.step(&mut feed, FleetRole::Replica).await;
            }
        }
        .boxed_local()
    }
}
