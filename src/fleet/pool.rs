//! Sent transactions: each is in a stream before it is answered, and every node that builds blocks fills its pool from it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes};
use async_nats::{
    HeaderMap,
    jetstream::{message::PublishMessage, stream::Stream},
};
use futures::StreamExt;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
};

use super::{
    servers::{FleetError, FleetLink, messages, subject},
    verdicts::{PoolVerdicts, REPLY, VerdictInbox},
};
use crate::{
    pool::{ForwardedTransaction, Pool, PoolDrops, PoolError, SubmittedTransaction, TxOutbox},
    store::Commit,
};

/// The pause before something that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The time between two looks for sent transactions that have been in their stream for long enough.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which sent transactions stay in their stream after the leader has read them, for nodes that fill their pools.
const SENT_KEPT_FOR: Duration = Duration::from_secs(600);
/// The same time if the stream is half full.
const SENT_KEPT_FOR_WHEN_FULL: Duration = Duration::from_secs(10);
/// The transactions, or batches of them, that may be on their way at once. More are rejected.
const MAX_UNDER_WAY: usize = 1_024;
/// The tries to send a transaction to the stream, after which its client has long been told that nobody knows.
const MAX_TRIES: usize = 100;

/// The outbox of transactions for the stream of a fleet.
#[derive(Debug)]
pub struct FleetOutbox {
    link: FleetLink,
    runtime: Handle,
    permits: Arc<Semaphore>,
    verdicts: VerdictInbox,
    /// Whether this node leads; `None` if it never does.
    leads: Option<watch::Receiver<bool>>,
}

impl FleetOutbox {
    /// Opens the outbox of a node that leads while `leads` is true, if it ever does. Transactions are sent by tasks of `runtime`.
    /// Those that are dropped after their clients were answered are counted by `drops`.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not take the subscription to verdicts.
    pub async fn open(
        link: FleetLink,
        runtime: Handle,
        leads: Option<watch::Receiver<bool>>,
        drops: PoolDrops,
    ) -> Result<Self, FleetError> {
        let verdicts = VerdictInbox::open(&link.client, drops).await?;
        Ok(Self { link, runtime, permits: Arc::new(Semaphore::new(MAX_UNDER_WAY)), verdicts, leads })
    }
}

impl TxOutbox for FleetOutbox {
    fn has_room(&self) -> bool {
        self.permits.available_permits() > 0
    }

    fn is_elsewhere(&self) -> bool {
        self.leads.as_ref().is_none_or(|leads| !*leads.borrow())
    }

    fn submit(&self, hash: B256, raw: Bytes) -> SubmittedTransaction {
        let (reply, verdict) = self.verdicts.wait();
        let stored = Arc::new(AtomicBool::new(false));
        let (link, permit, is_stored) = (self.link.clone(), self.permits.clone().try_acquire_owned(), stored.clone());
        self.runtime.spawn(async move {
            let _permit = permit;
            if send_to_stream(&link, &reply, raw.0, Some(&reply)).await {
                is_stored.store(true, Relaxed);
            }
        });
        SubmittedTransaction { hash, stored, verdict }
    }

    fn send(&self, transactions: Vec<(B256, Bytes)>, kept: Commit) -> Commit {
        let (sender, done) = oneshot::channel();
        let (link, permits) = (self.link.clone(), self.permits.clone());
        let permit = permits.clone().try_acquire_owned().ok();
        self.runtime.spawn(async move {
            let _permit = match permit {
                Some(permit) => Some(permit),
                // The semaphore is never closed.
                None => permits.acquire_owned().await.ok(),
            };
            if let Err(error) = kept.wait().await {
                let _ = sender.send(Err(error));
                return;
            }
            for (hash, raw) in transactions {
                if !send_to_stream(&link, &hash.to_string(), raw.0, None).await {
                    return;
                }
            }
            let _ = sender.send(Ok(()));
        });
        Commit::when(done)
    }
}

/// Sends a transaction to the stream under a name, so that the stream has it once, however often it is sent. The verdict on it
/// goes to the inbox `reply`. Returns whether the stream has it.
async fn send_to_stream(link: &FleetLink, name: &str, raw: bytes::Bytes, reply: Option<&str>) -> bool {
    let to = subject(link.names.pool());
    for _ in 0..MAX_TRIES {
        let mut headers = HeaderMap::new();
        if let Some(reply) = reply {
            headers.insert(REPLY, reply);
        }
        let message = PublishMessage::build().payload(raw.clone()).headers(headers).message_id(name);
        let sent = match link.jetstream.send_publish(to.clone(), message).await {
            Ok(ack) => ack.await.map(drop),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => return true,
            Err(error) => tracing::debug!(name, %error, "a transaction is not in its stream yet"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    false
}

/// Fills the pool of a node from the stream of sent transactions, until the returned tasks are dropped. Begins with the transactions
/// that the stream still has. A node that builds blocks tells its `verdicts`, and while it leads it deletes what has been there for
/// long enough.
#[must_use]
pub fn fill(link: FleetLink, pool: Arc<Pool>, verdicts: Option<PoolVerdicts>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(verdicts) = verdicts.clone() {
        tasks.spawn(verdicts.run(pool.dropped()));
    }
    tasks.spawn(async move {
        let mut reading = SentReading { link, pool, verdicts, next: 1, read: VecDeque::new() };
        loop {
            if let Err(error) = reading.fill().await {
                tracing::debug!(%error, "sent transactions cannot be read: it is tried again");
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    });
    tasks
}

/// The stream of sent transactions, as far as it was read.
struct SentReading {
    link: FleetLink,
    pool: Arc<Pool>,
    verdicts: Option<PoolVerdicts>,
    /// The sequence of the next transaction.
    next: u64,
    /// The sequences up to which the stream was read at some moments, oldest first.
    read: VecDeque<(Instant, u64)>,
}

impl SentReading {
    /// Adds the transactions from `next` on.
    async fn fill(&mut self) -> Result<(), FleetError> {
        let (link, unread) = (self.link.clone(), "the sent transactions cannot be read");
        let stream = link.jetstream.get_stream(link.names.pool_stream()).await.map_err(FleetError::of_nats(unread))?;
        if stream.cached_info().state.last_sequence + 1 < self.next {
            // The stream was created anew.
            self.next = 1;
        }
        let mut messages = messages(&link.client, &stream, link.names.pool(), self.next, unread).await?;
        let mut looks = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            let message = tokio::select! {
                // In this order, because messages may always be waiting.
                biased;
                _ = looks.tick() => {
                    self.sweep(&stream).await;
                    continue;
                }
                message = messages.next() => message,
            };
            let Some(message) = message else { return Ok(()) };
            let message = message.map_err(FleetError::of_nats(unread))?;
            let sequence = message.info().map(|info| info.stream_sequence);
            self.add(&message).await;
            self.next = sequence.map_err(FleetError::of_nats(unread))? + 1;
        }
    }

    async fn add(&self, message: &async_nats::Message) {
        // No node of presim sends bytes that are no transaction.
        let Ok(ForwardedTransaction { hash, verdict }) = self.pool.add_sent(&message.payload) else { return };
        if let Err(reason) = &verdict {
            // Most are known already, or in a block: the stream has those of the last minutes.
            tracing::debug!(%hash, %reason, "a sent transaction does not enter the pool");
        }
        let Some(verdicts) = self.verdicts.clone() else { return };
        let reply =
            message.headers.as_ref().and_then(|headers| headers.get(REPLY)).map(|reply| reply.as_str().to_owned());
        let pool = self.pool.clone();
        match verdict {
            Ok(commit) if !commit.is_done() => {
                // The store bounds the writes that wait for it, and many are committed at once.
                tokio::spawn(async move {
                    let verdict = commit.wait().await.map_err(PoolError::from);
                    verdicts.announce(&pool, reply.as_deref(), hash, verdict).await;
                });
            }
            verdict => verdicts.announce(&pool, reply.as_deref(), hash, verdict.map(drop)).await,
        }
    }

    /// Deletes what was read long ago, if this node leads: what was read some seconds ago if the stream, which takes no more
    /// when it is full, is half full. What no leader has read stays, however old it is.
    async fn sweep(&mut self, stream: &Stream) {
        self.read.push_back((Instant::now(), self.next.saturating_sub(1)));
        let leads = self.verdicts.as_ref().is_some_and(PoolVerdicts::leads);
        let is_half_full = async || {
            let info = stream.get_info().await;
            info.is_ok_and(|info| i64::try_from(info.state.bytes).is_ok_and(|bytes| bytes > info.config.max_bytes / 2))
        };
        let most = if leads && is_half_full().await { SENT_KEPT_FOR_WHEN_FULL } else { SENT_KEPT_FOR };
        let mut old = None;
        while self.read.front().is_some_and(|(since, _)| since.elapsed() >= most) {
            old = self.read.pop_front();
        }
        let Some((_, sequence)) = old.filter(|(_, sequence)| *sequence > 0) else { return };
        if leads && let Err(error) = stream.purge().sequence(sequence + 1).await {
            tracing::debug!(%error, "old sent transactions are not deleted yet");
        }
    }
}
