//! Follows the newest block of an upstream.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{B256, U64};
use futures::FutureExt;
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::{
    ask::{Ask, UpstreamError},
    client::Upstream,
    name::BlockName,
};
use crate::ledger::Tags;

/// The newest block of an upstream, from a subscription if the upstream has one, otherwise by polling.
#[derive(Debug)]
pub struct Heads {
    upstream: Arc<Upstream>,
    /// The interval of polling without a subscription.
    every: Duration,
    /// The threads on which the upstream is followed.
    runtime: Handle,
    newest: watch::Receiver<Result<BlockName, UpstreamError>>,
    tags: watch::Receiver<Tags>,
    /// The time at which to look at the same block again.
    retry_at: Option<Instant>,
    /// The announced block that the upstream did not have, and the time since when.
    unknown: Option<(B256, Instant)>,
    task: JoinSet<()>,
}

impl Heads {
    /// The pause before a block that could not be followed is retried.
    const RETRY_PAUSE: Duration = Duration::from_millis(250);

    /// Follows `upstream`, whose newest block is `newest`. Without a subscription, polls at the interval `every`. Must
    /// be called on a tokio runtime, which runs the task.
    pub fn follow(upstream: Arc<Upstream>, newest: B256, every: Duration) -> Self {
        Self::follow_on(Handle::current(), upstream, newest, every)
    }

    fn follow_on(runtime: Handle, upstream: Arc<Upstream>, newest: B256, every: Duration) -> Self {
        let (sender, newest) = watch::channel(Ok(BlockName { hash: newest, number: U64::ZERO }));
        let (tell_tags, tags) = watch::channel(Tags::default());
        let (of_heads, of_tags) = (upstream.clone(), upstream.clone());
        let mut task = JoinSet::new();
        let following =
            async move { tokio::join!(follow(of_heads, every, sender), follow_tags(of_tags, every, tell_tags)) };
        task.spawn_on(following.map(drop), &runtime);
        Self { upstream, every, runtime, newest, tags, retry_at: None, unknown: None, task }
    }

    /// Follows the upstream with a new task, from the block `newest` on.
    pub fn restart(&mut self, newest: B256) {
        self.task.abort_all();
        *self = Self::follow_on(self.runtime.clone(), self.upstream.clone(), newest, self.every);
    }

    /// Waits for a new block, new tags, or the time to look again. Returns the tags if they have changed, and `None` if the task that
    /// follows the upstream has ended, which is a bug in presim.
    pub async fn changed(&mut self) -> Option<Option<Tags>> {
        let due = self.retry_at.unwrap_or_else(Instant::now);
        tokio::select! {
            changed = self.newest.changed() => changed.ok().map(|()| None),
            () = tokio::time::sleep_until(due), if self.retry_at.is_some() => {
                self.retry_at = None;
                Some(None)
            }
            changed = self.tags.changed() => changed.ok().map(|()| Some(*self.tags.borrow_and_update())),
        }
    }

    /// The newest block that the upstream has announced.
    ///
    /// # Errors
    ///
    /// Returns [`UpstreamError`] if the upstream has failed to answer several times in a row.
    pub fn newest(&mut self) -> Result<BlockName, UpstreamError> {
        self.newest.borrow_and_update().clone()
    }

    /// Schedules another look at the same block.
    pub fn retry(&mut self) {
        self.retry_at = Some(Instant::now() + Self::RETRY_PAUSE);
    }

    /// Schedules a retry for an announced block that the upstream does not have yet, unless that has lasted for `late`:
    /// some endpoints announce blocks that are only pre-confirmed, whose hashes no block ever has.
    pub fn retry_for(&mut self, hash: B256, late: Duration) {
        let since = match self.unknown {
            Some((known, since)) if known == hash => since,
            _ => Instant::now(),
        };
        self.unknown = Some((hash, since));
        if since.elapsed() < late {
            self.retry();
        }
    }
}

/// The number of failed polls in a row after which the upstream counts as not answering.
const MAX_FAILED_POLLS: u32 = 3;
/// The factor by which the interval of polling is longer while there is a subscription.
const POLL_BACKOFF: u32 = 8;
/// The number of polls without a message of the subscription after which it counts as silent.
const MAX_SILENT_POLLS: u32 = 4;
/// The longest pause between two polls of the safe and finalized blocks.
const TAGS_INTERVAL: Duration = Duration::from_secs(12);

async fn follow(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Result<BlockName, UpstreamError>>) {
    let mut heads = None;
    let mut failures = 0;
    let mut polled = Instant::now();
    // The number of the block that the subscription has announced last, and when.
    let mut announced: Option<(U64, Instant)> = None;
    loop {
        if heads.is_none() {
            heads = upstream.subscribe_heads(Instant::now() + every.max(Duration::from_secs(1))).await;
        }
        // The upstream is also polled during a subscription, which may be silent, or announce hashes that never become
        // blocks.
        let pause = if heads.is_some() { every * POLL_BACKOFF } else { every };
        let received = match &mut heads {
            Some(heads) => timeout_at(polled + pause, heads.recv()).await.ok(),
            None => {
                sleep(every).await;
                None
            }
        };
        let newest = match received {
            Some(Some(head)) => {
                let Ok(head) = serde_json::from_str::<BlockName>(head.get()) else { continue };
                announced = Some((head.number, Instant::now()));
                Ok(head)
            }
            Some(None) => {
                heads = None;
                continue;
            }
            None => {
                // At least a second, even if the pause is shorter, so that slow answers count too.
                let deadline = Instant::now() + pause.max(Duration::from_secs(1));
                let ask = Ask::<BlockName>::typed("eth_getBlockByNumber", &("latest", false));
                let answer = upstream.one(ask, deadline).await;
                polled = Instant::now();
                // While the subscription is alive, an older answer is from a node that is behind.
                announced = announced.filter(|(_, at)| at.elapsed() < pause * MAX_SILENT_POLLS);
                if let (Ok(head), Some((number, _))) = (&answer, announced)
                    && head.number <= number
                {
                    failures = 0;
                    continue;
                }
                answer
            }
        };
        failures = if newest.is_ok() { 0 } else { failures + 1 };
        if newest.is_ok() || failures == MAX_FAILED_POLLS {
            sender.send_if_modified(|known| {
                let is_new = match (&*known, &newest) {
                    (Ok(known), Ok(newest)) => known.hash != newest.hash,
                    (known, newest) => known != newest,
                };
                if is_new {
                    *known = newest;
                }
                is_new
            });
        }
    }
}

/// Polls the safe and finalized blocks. They have no subscription and change seldom.
async fn follow_tags(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Tags>) {
    let every = (every * POLL_BACKOFF).min(TAGS_INTERVAL);
    loop {
        let ask = |tag: &str| Ask::<Option<BlockName>>::typed("eth_getBlockByNumber", &(tag, false));
        let deadline = Instant::now() + every.max(Duration::from_secs(1));
        let answers = upstream.all(vec![ask("safe"), ask("finalized")], deadline).await;
        let mut known = *sender.borrow();
        for (answer, tag) in answers.into_iter().zip([&mut known.safe, &mut known.finalized]) {
            // A chain without the tag refuses the call. Other failures leave the tag as it was.
            match answer {
                Ok(head) => *tag = head.map(|head| head.number.to()),
                Err(UpstreamError::Refused { .. }) => *tag = None,
                Err(_) => {}
            }
        }
        sender.send_if_modified(|sent| std::mem::replace(sent, known) != known);
        sleep(every).await;
    }
}
