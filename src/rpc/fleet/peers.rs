//! The replicas of a fleet as its nodes hear them: each says that it is there, and does work for the others.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinHandle, time::MissedTickBehavior};

use crate::{
    feed::fleet::FleetNames,
    rpc::{dialect::STANDARD, front::Front, server::ServerConfig},
    telemetry::Metrics,
};

/// The time between two beats of a replica.
const EVERY: Duration = Duration::from_millis(200);
/// The time without a beat after which a replica counts as gone.
const GONE: Duration = Duration::from_millis(700);
/// The time between two looks for replicas that are gone.
const LOOK: Duration = Duration::from_millis(50);
/// The header of an answer that says why the work was not done.
const NOT_DONE: &str = "x-presim-not-done";

/// A beat, by which a replica says that it is there.
#[derive(Serialize, Deserialize)]
struct PeerBeat {
    /// The name of the replica, which it takes at its start.
    peer: String,
    /// The number of its workers.
    workers: usize,
    /// A hash of the settings on which answers depend.
    settings: u64,
}

/// The time for which a replica that has not answered gets no work.
const LEFT_OUT: Duration = Duration::from_secs(1);

/// The replicas that are there, by name, each with its number of workers.
type PeersThere = BTreeMap<Arc<str>, usize>;

/// The other replicas of a fleet that have the settings of this node.
#[derive(Debug)]
pub struct FleetPeers {
    client: Client,
    names: FleetNames,
    there: watch::Receiver<Arc<PeersThere>>,
    /// When replicas last did not answer.
    failed: Mutex<BTreeMap<Arc<str>, Instant>>,
    hearing: JoinHandle<()>,
}

/// The beats of this node, which end when dropped.
#[derive(Debug)]
pub struct PeerBeats(JoinHandle<()>);

/// A node as the other nodes of its fleet know it.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// The node's name.
    pub name: Arc<str>,
    /// The number of its workers.
    pub workers: usize,
    /// A hash of the settings on which answers depend, and of the version of the program.
    pub settings: u64,
}

impl PeerIdentity {
    /// Creates an identity with a new name, for a node with this front and this server.
    pub fn new(workers: usize, front: &Front, server: &ServerConfig) -> Self {
        let backend = &front.runner.backend;
        let (replies, root, _) = server.messages();
        // A node that checks proofs takes no answer from one that does not.
        let proves = front.runner.remote.as_ref().is_some_and(|remote| remote.fetcher.verifies_proofs());
        let is_standard = std::ptr::eq(root, &raw const STANDARD);
        let settings = (backend.limits, backend.strict_pending, replies, is_standard, proves);
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), format!("{settings:?}")).hash(&mut hasher);
        let name = format!("{:016x}", rand::random::<u64>()).into();
        Self { name, workers, settings: hasher.finish() }
    }
}

impl FleetPeers {
    /// Listens to the replicas of a fleet other than `own`.
    ///
    /// # Errors
    ///
    /// Returns the error of NATS if it does not take the subscription.
    pub async fn open(client: Client, names: FleetNames, own: &PeerIdentity, metrics: &Metrics) -> eyre::Result<Self> {
        let beats = client.subscribe(names.peers()).await;
        let mut beats = beats.map_err(|error| eyre::eyre!("the replicas cannot be heard: {error}"))?;
        let (tell, there) = watch::channel(Arc::default());
        let gauge = metrics.gauge("presim_fleet_peers", "Replicas of the fleet that can do a part of the work.", &[]);
        let own = own.clone();
        let hearing = tokio::spawn(async move {
            let mut heard: BTreeMap<Arc<str>, (usize, Instant)> = BTreeMap::new();
            let mut looks = tokio::time::interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    // Beats that have come already are taken first, so that a node that was slow takes nobody for gone.
                    biased;
                    message = beats.next() => {
                        let Some(message) = message else { return };
                        let Ok(PeerBeat { peer, workers, settings }) = serde_json::from_slice(&message.payload) else {
                            continue;
                        };
                        if *peer == *own.name || settings != own.settings {
                            continue;
                        }
                        heard.insert(peer.into(), (workers.max(1), Instant::now()));
                    }
                    _ = looks.tick() => heard.retain(|_, (_, at)| at.elapsed() < GONE),
                }
                let now = || heard.iter().map(|(name, (workers, _))| (name.clone(), *workers));
                tell.send_if_modified(|there: &mut Arc<PeersThere>| {
                    let is_same = there.iter().map(|(name, workers)| (name.clone(), *workers)).eq(now());
                    if !is_same {
                        *there = Arc::new(now().collect());
                        gauge.set(there.len() as f64);
                    }
                    !is_same
                });
            }
        });
        Ok(Self { client, names, there, failed: Mutex::default(), hearing })
    }

    /// Returns the replicas that are there now, each with its number of workers.
    pub fn there(&self) -> Vec<(Arc<str>, usize)> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|_, at| at.elapsed() < LEFT_OUT);
        let there = self.there.borrow();
        there
            .iter()
            .filter(|(peer, _)| !failed.contains_key(*peer))
            .map(|(peer, workers)| (peer.clone(), *workers))
            .collect()
    }

    /// Has a replica do work. Returns `None` if it is gone, has not done it by half of the time until `deadline`, or says
    /// that it cannot.
    pub async fn ask(&self, peer: &str, headers: HeaderMap, body: Bytes, deadline: Instant) -> Option<Bytes> {
        // The other half is left for who does it instead.
        let most = deadline.saturating_duration_since(Instant::now()) / 2;
        let asked = async_nats::Request::new().payload(body).headers(headers).timeout(Some(most));
        let mut there = self.there.clone();
        let answer = tokio::select! {
            answer = self.client.send_request(self.names.peer(peer), asked) => answer,
            _ = there.wait_for(|there| !there.contains_key(peer)) => return None,
        };
        if answer.is_err() {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.into(), Instant::now());
        }
        match answer {
            Ok(answer) => match answer.headers.as_ref().and_then(|headers| headers.get(NOT_DONE)) {
                None => Some(answer.payload),
                Some(reason) => {
                    tracing::debug!(peer, reason = reason.as_str(), "a replica does not do a part of the work");
                    None
                }
            },
            Err(error) => {
                tracing::debug!(peer, %error, "a replica does not do a part of the work");
                None
            }
        }
    }
}

impl Drop for FleetPeers {
    fn drop(&mut self) {
        self.hearing.abort();
    }
}

impl PeerBeats {
    /// Says that this replica is there, until it is dropped.
    pub fn begin(client: Client, subject: String, own: &PeerIdentity) -> eyre::Result<Self> {
        let PeerIdentity { name, workers, settings } = own.clone();
        let beat = Bytes::from(serde_json::to_vec(&PeerBeat { peer: name.to_string(), workers, settings })?);
        Ok(Self(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // A beat that is lost is followed by the next.
                let _ = client.publish(subject.clone(), beat.clone()).await;
            }
        })))
    }
}

impl Drop for PeerBeats {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers work that was not done.
pub async fn tell_not_done(client: &Client, reply: async_nats::Subject, reason: &str) {
    let mut headers = HeaderMap::new();
    headers.insert(NOT_DONE, reason);
    // If this fails, the node that has asked is gone, or asks another when its time is over.
    let _ = client.publish_with_headers(reply, headers, Bytes::new()).await;
}
