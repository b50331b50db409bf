//! Follows the newest block of an upstream.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{B256, U64};
use alloy_provider::{Provider, RootProvider};
use serde::Deserialize;
use tokio::{
    sync::{broadcast, watch},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    ask::{Ask, UpstreamError},
    client::Upstream,
};
use crate::state::Tags;

/// The newest block of an upstream, from a subscription if the upstream has one, otherwise by polling.
#[derive(Debug)]
pub struct Heads {
    newest: watch::Receiver<Result<B256, UpstreamError>>,
    tags: watch::Receiver<Tags>,
    /// The time at which to look at the same block again.
    again: Option<Instant>,
    task: AbortHandle,
}

/// The needed fields of a header. The others come with the block.
#[derive(Clone, Debug, Deserialize)]
struct UpstreamHead {
    hash: B256,
    number: U64,
}

impl Heads {
    /// The pause before a block that could not be followed is looked at again.
    const AGAIN: Duration = Duration::from_millis(250);

    /// Follows `upstream`, whose newest block is `newest`. Without a subscription, polls at the interval `every`.
    /// Must be called on a tokio runtime.
    pub fn follow(upstream: Arc<Upstream>, newest: B256, every: Duration) -> Self {
        let (sender, receiver) = watch::channel(Ok(newest));
        let (tell_tags, tags) = watch::channel(Tags::default());
        let following = async move {
            tokio::join!(follow(upstream.clone(), every, sender), follow_tags(upstream, every, tell_tags))
        };
        let task = tokio::spawn(following).abort_handle();
        Self { newest: receiver, tags, again: None, task }
    }

    /// Waits for a new block, new tags, or the time to look again. Returns the tags if they have changed.
    pub async fn changed(&mut self) -> Option<Tags> {
        let again = self.again;
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives as long as the task, which ends when `self` is dropped.
            _ = self.newest.changed() => None,
            () = due => {
                self.again = None;
                None
            }
            Ok(()) = self.tags.changed() => Some(*self.tags.borrow_and_update()),
        }
    }

    /// The hash of the newest block.
    ///
    /// # Errors
    ///
    /// Returns [`UpstreamError`] if the upstream has failed to answer several times in a row.
    pub fn newest(&mut self) -> Result<B256, UpstreamError> {
        self.newest.borrow_and_update().clone()
    }

    /// Schedules another look at the same block.
    pub fn again(&mut self) {
        self.again = Some(Instant::now() + Self::AGAIN);
    }
}

impl Drop for Heads {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The number of failed polls in a row after which the upstream counts as not answering.
const FAILURES: u32 = 3;
/// The factor by which the interval of polling is longer while there is a subscription.
const SELDOMER: u32 = 8;
/// The longest pause between two polls of the safe and finalized blocks.
const TAGS: Duration = Duration::from_secs(12);

async fn follow(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Result<B256, UpstreamError>>) {
    let mut heads = None;
    let mut failures = 0;
    loop {
        if heads.is_none() {
            heads = subscribe(&upstream, every).await;
        }
        let (pause, told) = match &mut heads {
            // The upstream is polled now and then, because a silent subscription may be dead.
            Some(heads) => (every * SELDOMER, timeout(every * SELDOMER, heads.recv()).await.ok()),
            None => {
                sleep(every).await;
                (every, None)
            }
        };
        let newest = match told {
            Some(Ok(head)) => Ok(head.hash),
            Some(Err(broadcast::error::RecvError::Closed)) => {
                heads = None;
                continue;
            }
            Some(Err(broadcast::error::RecvError::Lagged(_))) | None => {
                // At least a second, however short the pause is, because a slow answer is an answer too.
                let deadline = Instant::now() + pause.max(Duration::from_secs(1));
                let ask = Ask::<UpstreamHead>::typed("eth_getBlockByNumber", &("latest", false));
                upstream.one(ask, deadline).await.map(|head| head.hash)
            }
        };
        failures = if newest.is_ok() { 0 } else { failures + 1 };
        if newest.is_ok() || failures == FAILURES {
            sender.send_if_modified(|known| {
                let is_new = *known != newest;
                if is_new {
                    *known = newest;
                }
                is_new
            });
        }
    }
}

/// Polls the safe and finalized blocks, which have no subscription and change seldom.
async fn follow_tags(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Tags>) {
    let every = (every * SELDOMER).min(TAGS);
    loop {
        let ask = |tag: &str| Ask::<Option<UpstreamHead>>::typed("eth_getBlockByNumber", &(tag, false));
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
        sender.send_if_modified(|told| std::mem::replace(told, known) != known);
        sleep(every).await;
    }
}

/// Subscribes to new heads. Returns `None` if the connection has no subscriptions, or subscribing fails.
async fn subscribe(upstream: &Upstream, every: Duration) -> Option<broadcast::Receiver<UpstreamHead>> {
    upstream.client().pubsub_frontend()?;
    let provider: RootProvider = RootProvider::new(upstream.client().clone());
    let subscribed =
        timeout(every.max(Duration::from_secs(1)), provider.subscribe::<_, UpstreamHead>(("newHeads",))).await;
    let mut heads = match subscribed {
        Ok(Ok(heads)) => heads,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the upstream has no subscriptions: its newest block is polled");
            return None;
        }
        Err(_) => return None,
    };
    let (sender, receiver) = broadcast::channel(16);
    tokio::spawn(async move {
        while let Ok(head) = heads.recv().await {
            if sender.send(head).is_err() {
                break;
            }
        }
    });
    Some(receiver)
}
