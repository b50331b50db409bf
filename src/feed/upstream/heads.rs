//! The newest block of an upstream, as it changes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U64};
use alloy_provider::{Provider, RootProvider};
use serde::Deserialize;
use tokio::{
    sync::{broadcast, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    ask::{Ask, UpstreamError},
    client::Upstream,
};
use crate::state::Tags;

/// What an upstream last said of its newest block. Told of by its subscription where it has one, else asked for again and again.
#[derive(Debug)]
pub struct Heads {
    newest: watch::Receiver<Result<B256, UpstreamError>>,
    tags: watch::Receiver<Tags>,
    /// When to look at the same once more.
    again: Option<Instant>,
    task: AbortHandle,
}

/// A header, as far as it is needed: what else is in it comes with the block.
#[derive(Clone, Debug, Deserialize)]
struct UpstreamHead {
    hash: B256,
    number: U64,
}

impl Heads {
    /// After a block that could not be followed.
    const AGAIN: Duration = Duration::from_millis(250);

    /// Follows `upstream`, whose newest block is `newest`. Where there is no subscription, it is asked `every` so often. To be called on a
    /// tokio runtime.
    pub fn follow(upstream: Arc<Upstream>, newest: B256, every: Duration) -> Self {
        let (sender, receiver) = watch::channel(Ok(newest));
        let (tell_tags, tags) = watch::channel(Tags::default());
        let following = async move {
            tokio::join!(follow(upstream.clone(), every, sender), follow_tags(upstream, every, tell_tags))
        };
        let task = tokio::spawn(following).abort_handle();
        Self { newest: receiver, tags, again: None, task }
    }

    /// Waits until there is something new, or it is time to look again. What it says are the newest tags, where that is what is new.
    pub async fn changed(&mut self) -> Option<Tags> {
        let again = self.again;
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Its sender lives as long as the task, which ends with this.
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
    /// Why the upstream does not say.
    pub fn newest(&mut self) -> Result<B256, UpstreamError> {
        self.newest.borrow_and_update().clone()
    }

    /// Has the same looked at once more, soon.
    pub fn again(&mut self) {
        self.again = Some(Instant::now() + Self::AGAIN);
    }
}

impl Drop for Heads {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Questions that may fail one after the other before it is told that the upstream does not answer.
const FAILURES: u32 = 3;
/// How much seldomer it is asked while a subscription tells.
const SELDOMER: u32 = 8;
/// The longest between two questions about safe and final blocks.
const TAGS: Duration = Duration::from_secs(12);

async fn follow(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Result<B256, UpstreamError>>) {
    let mut heads = None;
    let mut failures = 0;
    loop {
        if heads.is_none() {
            heads = subscribe(&upstream, every).await;
        }
        let (pause, told) = match &mut heads {
            // A subscription may be silent because the chain is, or because it is dead: it is asked too, now and then.
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
                // At least a moment, however short the pause is: a slow answer is an answer.
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

/// Asks which blocks are safe and final. There is no subscription to that, and it changes seldom.
async fn follow_tags(upstream: Arc<Upstream>, every: Duration, sender: watch::Sender<Tags>) {
    let every = (every * SELDOMER).min(TAGS);
    loop {
        let ask = |tag: &str| Ask::<Option<UpstreamHead>>::typed("eth_getBlockByNumber", &(tag, false));
        let deadline = Instant::now() + every.max(Duration::from_secs(1));
        let answers = upstream.all(vec![ask("safe"), ask("finalized")], deadline).await;
        let mut known = *sender.borrow();
        for (answer, tag) in answers.into_iter().zip([&mut known.safe, &mut known.finalized]) {
            // A chain that has neither says no. What does not answer says nothing.
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

/// A subscription to new heads; none where there can be none, or not now.
async fn subscribe(upstream: &Upstream, every: Duration) -> Option<broadcast::Receiver<UpstreamHead>> {
    upstream.client().pubsub_frontend()?;
    let provider: RootProvider = RootProvider::new(upstream.client().clone());
    let subscribed =
        timeout(every.max(Duration::from_secs(1)), provider.subscribe::<_, UpstreamHead>(("newHeads",))).await;
    let mut heads = match subscribed {
        Ok(Ok(heads)) => heads,
        Ok(Err(error)) => {
            tracing::debug!(%error, "the upstream has no subscriptions: it is asked");
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
