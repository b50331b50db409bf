//! The lease determines which node tries to lead the fleet. The stream decides which one does.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, timeout},
};

use crate::fleet::servers::{Bucket, FleetError, FleetPort};

/// The key of the lease in its bucket.
const KEY: &str = "leader";
/// The time between two renewals, and between two looks.
pub const RENEWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The time without a renewal after which the lease is free, on the clock of the node that looks.
const FREE_AFTER: Duration = Duration::from_secs(1);
/// The time limit for reading or renewing the lease: long before a slower server answers, another node has it.
const LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A look at the lease from a node that does not hold it.
#[derive(Debug)]
pub struct LeaseWatch {
    port: Arc<dyn FleetPort>,
    /// The name of this node, for people.
    node: Bytes,
    /// The revision that was seen last, and when it was seen first.
    seen: Option<(u64, Instant)>,
}

/// The lease, held by this node for as long as it is renewed.
#[derive(Debug)]
pub struct Lease {
    /// The moment of the last renewal; `None` if another node has the lease.
    renewed: watch::Receiver<Option<Instant>>,
    _renewing: JoinSet<()>,
}

impl LeaseWatch {
    /// Creates the look of a node of this name.
    pub fn new(port: Arc<dyn FleetPort>, node: &str) -> Self {
        Self { port, node: Bytes::copy_from_slice(node.as_bytes()), seen: None }
    }

    /// Takes the lease if it is free: no node has it, or it was not renewed for a second of this node's clock.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer. It is not an error if another node takes the lease first.
    pub async fn try_take(&mut self) -> Result<Option<Lease>, FleetError> {
        let entry = in_time(self.port.entry(Bucket::Lease, KEY)).await?;
        let revision = entry.map_or(0, |entry| entry.revision);
        let since = match self.seen {
            Some((seen, since)) if seen == revision => since,
            _ => self.seen.insert((revision, Instant::now())).1,
        };
        if revision != 0 && since.elapsed() < FREE_AFTER {
            return Ok(None);
        }
        let taken = in_time(self.port.update(Bucket::Lease, KEY, self.node.clone(), revision)).await?;
        Ok(taken.map(|revision| self.hold(revision)))
    }

    /// Takes the lease from its current holder, which then stops leading.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer.
    pub async fn seize(&mut self) -> Result<Lease, FleetError> {
        loop {
            let revision = self.port.entry(Bucket::Lease, KEY).await?.map_or(0, |entry| entry.revision);
            if let Some(revision) = self.port.update(Bucket::Lease, KEY, self.node.clone(), revision).await? {
                return Ok(self.hold(revision));
            }
        }
    }

    /// Renews the lease from here on, until another node has it or the lease is dropped.
    fn hold(&mut self, mut revision: u64) -> Lease {
        self.seen = None;
        let (renewal, renewed) = watch::channel(Some(Instant::now()));
        let (port, node) = (self.port.clone(), self.node.clone());
        let mut renewing = JoinSet::new();
        renewing.spawn(async move {
            let mut ticks = tokio::time::interval(RENEWAL_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match in_time(renew(&*port, &node, revision)).await {
                    Ok(Some(next)) => {
                        revision = next;
                        renewal.send_replace(Some(Instant::now()));
                    }
                    Ok(None) => break,
                    Err(error) => tracing::debug!(%error, "the lease cannot be renewed"),
                }
            }
            tracing::warn!("another node has taken the lease of the fleet");
            renewal.send_replace(None);
        });
        Lease { renewed, _renewing: renewing }
    }
}

/// Waits for an answer about the lease, as long as that is of use.
async fn in_time<T>(answer: impl Future<Output = Result<T, FleetError>>) -> Result<T, FleetError> {
    let late = |_| Err(FleetError::nats("the lease cannot be read", "the servers do not answer in time"));
    timeout(LEASE_TIMEOUT, answer).await.unwrap_or_else(late)
}

/// Renews the node's lease at its last revision, `revision`. Returns the next revision, or `None` if another node has
/// the lease.
async fn renew(port: &dyn FleetPort, node: &Bytes, revision: u64) -> Result<Option<u64>, FleetError> {
    if let Some(renewed) = port.update(Bucket::Lease, KEY, node.clone(), revision).await? {
        return Ok(Some(renewed));
    }
    match port.entry(Bucket::Lease, KEY).await? {
        // The renewal succeeded, although its answer was lost.
        Some(entry) if entry.value == *node => Ok(Some(entry.revision)),
        Some(_) => Ok(None),
        // The bucket was lost.
        None => port.update(Bucket::Lease, KEY, node.clone(), 0).await,
    }
}

impl Lease {
    /// Returns the moment of the last renewal; `None` if another node has the lease.
    pub fn renewed(&self) -> Option<Instant> {
        *self.renewed.borrow()
    }
}
