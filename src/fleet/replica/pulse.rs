//! The leader's pulse: its newest id, dated by its clock, on core NATS, so that following nodes know how late they are.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_rlp::{RlpDecodable, RlpEncodable};
use bytes::Bytes;
use futures::StreamExt;
use tokio::{sync::watch, task::JoinSet, time::MissedTickBehavior};

use super::clock::LeaderClock;
use crate::{
    clock::now,
    fleet::servers::{FleetError, FleetPort, Topic},
    ledger::{
        CaughtUp, FeedLag, FeedProblem, FeedState, SnapshotId, Snapshots,
        codec::{self, LeaderTime, MAX_SHORT_BYTES},
    },
    lock::Mutex,
};

/// The time between two beats.
const BEAT_INTERVAL: Duration = Duration::from_millis(100);
/// The time without a beat after which the leader's state counts as unknown.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// The time between two questions for the leader's clock.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of the leader's changes that are remembered, each with the time at which it was the leader's
/// newest.
const MAX_REMEMBERED: usize = 256;

/// A beat of the pulse.
#[derive(RlpEncodable, RlpDecodable)]
struct Beat {
    /// The id of the leader's last change.
    id: u64,
    /// The time of the beat on the leader's clock.
    at: u64,
    /// The problem of the leader's feed; empty if that is not degraded.
    problem: String,
}

/// A leader's reply with the time of its clock.
#[derive(RlpEncodable, RlpDecodable)]
struct ClockReply {
    /// The epoch of the leader.
    epoch: u64,
    at: u64,
    /// The name of the leader, for people.
    node: String,
}

fn write(message: &impl alloy_rlp::Encodable) -> Bytes {
    codec::write(message).into()
}

/// Reads a message; `None` if it cannot be read, or another version of presim wrote it.
fn read<T: alloy_rlp::Decodable>(payload: &[u8]) -> Option<T> {
    codec::read(payload, MAX_SHORT_BYTES).ok()
}

/// The pulse as a node that follows hears it.
#[derive(Debug)]
pub struct PulseWatch {
    heard: Arc<Mutex<HeardPulse>>,
    beats: watch::Receiver<u64>,
    clock: LeaderClock,
    caught_up: Arc<CaughtUp>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct HeardPulse {
    /// The leader's newest id, with the moment at which it was heard.
    newest: Option<(SnapshotId, Instant)>,
    /// The problem of the leader's feed.
    problem: Option<FeedProblem>,
    /// The ids that are not yet shown here, oldest first, each with the last time at which it was the leader's newest.
    ahead: VecDeque<(SnapshotId, LeaderTime)>,
    /// The newest id that is shown here, with the last time at which it was the leader's newest.
    shown: Option<(SnapshotId, LeaderTime)>,
    since: Instant,
    /// The name of the leader, and its epoch.
    leader: Option<(u64, String)>,
}

impl HeardPulse {
    fn hear(&mut self, Beat { id, at, problem }: Beat) {
        let (id, at) = (SnapshotId(id), LeaderTime(at));
        // A leader that has lost the lead, and does not know it yet.
        if self.newest.is_some_and(|(newest, _)| id.epoch() < newest.epoch()) {
            return;
        }
        self.newest = Some((id, now()));
        self.problem = problem.parse().ok();
        match self.ahead.back_mut() {
            Some(back) if back.0 == id => back.1 = at,
            _ => self.ahead.push_back((id, at)),
        }
        if self.ahead.len() > MAX_REMEMBERED {
            self.ahead.pop_front();
        }
    }

    /// Notes that the node shows the changes up to `last`.
    fn show(&mut self, last: SnapshotId) {
        while let Some(shown) = self.ahead.pop_front_if(|(id, _)| *id <= last) {
            self.shown = Some(shown);
        }
    }
}

impl PulseWatch {
    /// Listens to the pulse of a fleet, and asks its leader for the time to update `clock`. The node is late if the
    /// state that it shows stopped being the leader's newest more than `late` ago.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not take the subscription.
    pub async fn open(port: &Arc<dyn FleetPort>, clock: &LeaderClock, late: Duration) -> Result<Self, FleetError> {
        let mut messages = port.subscribe(Topic::Pulse).await?;
        let since = now();
        let heard =
            HeardPulse { newest: None, problem: None, ahead: VecDeque::new(), shown: None, since, leader: None };
        let heard = Arc::new(Mutex::new(heard));
        let (tell, beats) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(ask(port.clone(), clock.clone(), beats.clone(), heard.clone()));
        let hears = heard.clone();
        tasks.spawn(async move {
            while let Some(message) = messages.next().await {
                let Some(beat) = read::<Beat>(&message.payload) else { continue };
                let epoch = SnapshotId(beat.id).epoch();
                hears.lock().hear(beat);
                tell.send_replace(epoch);
            }
        });
        let caught_up = Arc::new(CaughtUp::new(since, late));
        Ok(Self { heard, beats, clock: clock.clone(), caught_up, _tasks: tasks })
    }

    /// Returns the name of the leader, if it is known.
    pub fn leader(&self) -> Option<String> {
        self.heard.lock().leader.as_ref().map(|(_, node)| node.clone())
    }

    /// Returns the id of the leader's last change, as far as it is known.
    pub fn newest(&self) -> Option<SnapshotId> {
        self.heard.lock().newest.map(|(id, _)| id)
    }

    /// Returns the shared value that states whether this node has caught up. [`health`](Self::health) updates it.
    pub const fn caught_up(&self) -> &Arc<CaughtUp> {
        &self.caught_up
    }

    /// Waits for the next beat.
    pub async fn beat(&mut self) {
        if self.beats.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until the leader was heard and its clock is known, for at most `most`: there may be no leader.
    pub async fn find_leader(&mut self, most: Duration) {
        let clock = &self.clock;
        let found = self.beats.wait_for(|epoch| clock.knows(*epoch));
        if tokio::time::timeout(most, found).await.is_err() {
            tracing::info!("no leader of the fleet has been heard yet");
        }
    }

    /// Returns the health of the feed on a node whose last change is `last`: the health that the leader `announced`,
    /// unless the leader is not heard, or this node cannot prove that its state is recent.
    pub fn health(&self, last: SnapshotId, announced: FeedState) -> FeedState {
        let mut heard = self.heard.lock();
        heard.show(last);
        let proven = heard.shown.and_then(|(id, at)| self.clock.earliest(id.epoch(), at));
        self.caught_up.set(proven.unwrap_or(heard.since));
        if now().duration_since(heard.newest.map_or(heard.since, |(_, at)| at)) >= SILENT_AFTER {
            return FeedState::Degraded(FeedProblem::Partition);
        }
        let is_late = proven.is_none() || self.caught_up.late_since().is_some();
        // The stream may contain a newer state than the beat.
        let problem = heard.problem.filter(|_| heard.newest.is_some_and(|(newest, _)| newest >= last));
        match (problem, announced) {
            (Some(problem), _) => FeedState::Degraded(problem),
            (None, FeedState::Live { every_ms } | FeedState::Lagging(FeedLag { every_ms, .. })) if is_late => {
                FeedState::Lagging(FeedLag {
                    since: proven.unwrap_or(heard.since),
                    waiting: heard.newest.map_or(0, |(newest, _)| newest.changes_after(last)),
                    cause: FeedProblem::Behind,
                    every_ms,
                })
            }
            _ => announced,
        }
    }
}

/// Asks the leader for the time at intervals, and at once if a leader is heard whose clock is unknown.
async fn ask(
    port: Arc<dyn FleetPort>,
    clock: LeaderClock,
    mut beats: watch::Receiver<u64>,
    heard: Arc<Mutex<HeardPulse>>,
) {
    loop {
        let asked = now();
        let reply = port.request(Topic::Clock).await;
        if let Some(ClockReply { epoch, at, node }) = reply.and_then(|reply| read(&reply)) {
            clock.note(epoch, asked, LeaderTime(at));
            let mut heard = heard.lock();
            if heard.leader.as_ref().is_none_or(|(known, _)| *known <= epoch) {
                heard.leader = Some((epoch, node));
            }
        }
        let unknown = async {
            let found = beats.wait_for(|epoch| *epoch != 0 && !clock.knows(*epoch)).await.is_ok();
            tokio::time::sleep(if found { BEAT_INTERVAL } else { CLOCK_INTERVAL }).await;
        };
        let _ = tokio::time::timeout(CLOCK_INTERVAL, unknown).await;
    }
}

/// The pulse of a leading node: sends the newest id of `snapshots` at intervals, and answers questions for the time of
/// its clock under the name `node`, until the returned tasks are dropped.
#[must_use]
pub fn beat(port: &Arc<dyn FleetPort>, snapshots: Arc<Snapshots>, node: String) -> JoinSet<()> {
    let epoch = snapshots.load().last.epoch();
    let (beats_to, port) = (port.clone(), port.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut ticks = tokio::time::interval(BEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // The time is read first, so that the beat is not newer than its content.
            let at = LeaderTime::of(now()).0;
            let published = snapshots.load();
            let problem = published.feed().problem().map_or_else(String::new, |problem| problem.as_str().to_owned());
            // A beat that is lost is followed by the next.
            beats_to.publish(Topic::Pulse, write(&Beat { id: published.last.0, at, problem })).await;
        }
    });
    tasks.spawn(async move {
        loop {
            match port.subscribe(Topic::Clock).await {
                Ok(mut questions) => {
                    while let Some(question) = questions.next().await {
                        let Some(reply) = question.reply else { continue };
                        let at = LeaderTime::of(now()).0;
                        port.reply(reply, write(&ClockReply { epoch, at, node: node.clone() })).await;
                    }
                }
                Err(error) => tracing::debug!(%error, "questions for the time cannot be heard"),
            }
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
    });
    tasks
}
