//! Sent transactions: each is in a stream before it is answered, and every node that builds blocks fills its pool from it.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{B256, Bytes};
use async_nats::jetstream::{
    consumer::{DeliverPolicy, push},
    message::PublishMessage,
};
use futures::StreamExt;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot},
    task::JoinHandle,
};

use super::{FleetError, FleetLink, subject};
use crate::{
    pool::{Pool, TxOutbox},
    store::Commit,
};

/// The pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// The transactions, or batches of them, that may be on their way at once. More are rejected.
const UNDER_WAY: usize = 1_024;
/// The tries to bring a transaction into the stream, after which its client has long been told that nobody knows.
const TRIES: usize = 100;

/// The way of transactions into the stream of a fleet.
#[derive(Debug)]
pub struct FleetOutbox {
    link: FleetLink,
    runtime: Handle,
    permits: Arc<Semaphore>,
}

impl FleetOutbox {
    /// Creates the way of a fleet. Transactions are sent by tasks of `runtime`.
    pub fn new(link: FleetLink, runtime: Handle) -> Self {
        Self { link, runtime, permits: Arc::new(Semaphore::new(UNDER_WAY)) }
    }
}

impl TxOutbox for FleetOutbox {
    fn has_room(&self) -> bool {
        self.permits.available_permits() > 0
    }

    fn send(&self, transactions: Vec<(B256, Bytes)>, kept: Commit) -> Commit {
        let (tell, told) = oneshot::channel();
        let (link, permits) = (self.link.clone(), self.permits.clone());
        let permit = permits.clone().try_acquire_owned().ok();
        self.runtime.spawn(async move {
            let _permit = match permit {
                Some(permit) => Some(permit),
                // The semaphore is never closed.
                None => permits.acquire_owned().await.ok(),
            };
            if let Err(error) = kept.wait().await {
                let _ = tell.send(Err(error));
                return;
            }
            for (hash, raw) in transactions {
                if !bring(&link, hash, raw.0).await {
                    return;
                }
            }
            let _ = tell.send(Ok(()));
        });
        Commit::told(told)
    }
}

/// Brings a transaction into the stream. Returns whether the stream has it.
async fn bring(link: &FleetLink, hash: B256, raw: bytes::Bytes) -> bool {
    let to = subject(link.names.pool());
    for _ in 0..TRIES {
        // Under one name, so that the stream has it once, however often it is sent.
        let message = PublishMessage::build().payload(raw.clone()).message_id(hash.to_string());
        let sent = match link.jetstream.send_publish(to.clone(), message).await {
            Ok(ack) => ack.await.map(drop),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => return true,
            Err(error) => tracing::debug!(%hash, %error, "a transaction is not in its stream yet"),
        }
        tokio::time::sleep(AGAIN).await;
    }
    false
}

/// Fills the pool of a node from the stream of sent transactions, until it is dropped.
#[derive(Debug)]
pub struct PoolFilling(JoinHandle<()>);

impl PoolFilling {
    /// Begins with the transactions that the stream still has.
    pub fn begin(link: FleetLink, pool: Arc<Pool>) -> Self {
        Self(tokio::spawn(async move {
            let mut next = 1;
            loop {
                if let Err(error) = fill(&link, &pool, &mut next).await {
                    tracing::debug!(%error, "sent transactions cannot be read: it is tried again");
                }
                tokio::time::sleep(AGAIN).await;
            }
        }))
    }
}

impl Drop for PoolFilling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Adds the transactions from the sequence `next` on, and counts it up.
async fn fill(link: &FleetLink, pool: &Arc<Pool>, next: &mut u64) -> Result<(), FleetError> {
    let unread = |problem: String| FleetError::nats("the sent transactions cannot be read", problem);
    let stream =
        link.jetstream.get_stream(link.names.pool_stream()).await.map_err(|error| unread(error.to_string()))?;
    let consumer = push::OrderedConfig {
        deliver_subject: link.client.new_inbox(),
        filter_subject: link.names.pool(),
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: *next },
        ..push::OrderedConfig::default()
    };
    let consumer = stream.create_consumer(consumer).await.map_err(|error| unread(error.to_string()))?;
    let mut messages = consumer.messages().await.map_err(|error| unread(error.to_string()))?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| unread(error.to_string()))?;
        let sequence = message.info().map(|info| info.stream_sequence).map_err(|error| unread(error.to_string()))?;
        // Most are known already, or in a block: the stream has those of the last minutes.
        if let Err(reason) = pool.add_sent(&message.payload) {
            tracing::debug!(%reason, "a sent transaction does not enter the pool");
        }
        *next = sequence + 1;
    }
    Ok(())
}
