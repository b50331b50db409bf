//! The lease: says which node tries to lead the fleet. The stream decides which one does.

use std::time::{Duration, Instant};

use async_nats::jetstream::kv::{self, CreateErrorKind, UpdateErrorKind};
use bytes::Bytes;
use tokio::{sync::watch, task::JoinHandle};

use crate::source::fleet::{FleetError, FleetLink};

/// The key of the lease in its bucket.
const KEY: &str = "leader";
/// The time between two renewals, and between two looks.
pub const RENEWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The time without a renewal after which the lease is free, on the clock of the node that looks.
const FREE_AFTER: Duration = Duration::from_secs(1);

/// A look at the lease from a node that does not hold it.
#[derive(Debug)]
pub struct LeaseWatch {
    bucket: kv::Store,
    /// The name of this node, for people.
    node: Bytes,
    /// The revision that was seen last, and when it was seen first.
    seen: Option<(u64, Instant)>,
}

/// The lease, held by this node for as long as it is renewed.
#[derive(Debug)]
pub struct Lease {
    is_held: watch::Receiver<bool>,
    renewing: JoinHandle<()>,
}

impl LeaseWatch {
    /// Opens the lease of a fleet.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if its bucket cannot be opened.
    pub async fn open(link: &FleetLink, node: &str) -> Result<Self, FleetError> {
        let bucket = link.jetstream.get_key_value(link.names.lease()).await;
        let bucket = bucket.map_err(|error| FleetError::nats("the fleet's lease cannot be read", error))?;
        Ok(Self { bucket, node: Bytes::copy_from_slice(node.as_bytes()), seen: None })
    }

    /// Takes the lease if it is free: nobody has it, or nobody has renewed it for a second of this node's clock.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer. Another node that is faster is no error.
    pub async fn try_take(&mut self) -> Result<Option<Lease>, FleetError> {
        let unread = |error: &dyn std::fmt::Display| FleetError::nats("the fleet's lease cannot be read", error);
        let entry = self.bucket.entry(KEY).await.map_err(|error| unread(&error))?;
        let Some(entry) = entry else {
            return match self.bucket.create(KEY, self.node.clone()).await {
                Ok(revision) => Ok(Some(self.hold(revision))),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(None),
                Err(error) => Err(unread(&error)),
            };
        };
        match self.seen {
            Some((revision, since)) if revision == entry.revision => {
                if since.elapsed() < FREE_AFTER {
                    return Ok(None);
                }
            }
            _ => {
                self.seen = Some((entry.revision, Instant::now()));
                return Ok(None);
            }
        }
        match self.bucket.update(KEY, self.node.clone(), entry.revision).await {
            Ok(revision) => Ok(Some(self.hold(revision))),
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
            Err(error) => Err(unread(&error)),
        }
    }

    /// Renews the lease from here on, until another node has it or the lease is dropped.
    fn hold(&mut self, mut revision: u64) -> Lease {
        self.seen = None;
        let (tell, is_held) = watch::channel(true);
        let (bucket, node) = (self.bucket.clone(), self.node.clone());
        let renewing = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(RENEWAL_INTERVAL);
            loop {
                ticks.tick().await;
                match bucket.update(KEY, node.clone(), revision).await {
                    Ok(renewed) => revision = renewed,
                    Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => {
                        // A renewal whose answer was lost is this node's own.
                        match bucket.entry(KEY).await {
                            Ok(Some(entry)) if entry.value == node => revision = entry.revision,
                            Ok(_) => break,
                            Err(error) => tracing::debug!(%error, "the lease cannot be read"),
                        }
                    }
                    Err(error) => tracing::debug!(%error, "the lease cannot be renewed"),
                }
            }
            tracing::warn!("another node has taken the lease of the fleet");
            let _ = tell.send(false);
        });
        Lease { is_held, renewing }
    }
}

impl Lease {
    /// Returns whether no other node has been seen to hold it.
    pub fn is_held(&self) -> bool {
        *self.is_held.borrow()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}
