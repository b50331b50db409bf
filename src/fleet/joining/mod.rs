//! The joining of a fleet: a node finds its sequence in the stream, from which it leads, stands by or follows.

mod live;
mod replica;

pub use self::live::JoinedLive;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    publishing::{Lease, LeaseWatch, Publisher, PublishingLimits, StreamSink},
    replica::{FollowError, Follower, Following, LeaderClock, PulseWatch, ReplicaBase},
    servers::{
        FleetChain, FleetError, FleetLink, FleetMetrics, FleetNames, FleetPort, FleetRoom, NodeIdentity, WALLET_KEY,
        fleets,
    },
    settings::{JoiningSettings, Servers},
};
use crate::{clock::Clock, ledger::codec::MAX_IMAGE_BYTES, state::CodeCache, store::Store, telemetry::Metrics};

/// The time for which a node that joins waits for the fleet's chain and its first image.
pub const START: Duration = Duration::from_secs(60);
/// The time without a message, on the way to the end of the stream, after which they are asked for again.
const LOST: Duration = Duration::from_secs(1);
/// The pause between two looks for what a fleet does not have yet.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// A node that joins a fleet.
pub struct Joining<'a> {
    /// The settings.
    pub settings: &'a JoiningSettings,
    /// The connection to the fleet.
    pub port: Arc<dyn FleetPort>,
    /// The bytecode cache.
    pub codes: &'a Arc<CodeCache>,
    /// The node's metrics.
    pub metrics: &'a Metrics,
    /// Takes note of what the node waits for.
    pub report: &'a dyn Fn(&'static str),
}

/// A node that publishes, as it joins its fleet.
pub struct PublisherJoining<'a> {
    /// The node.
    pub node: Joining<'a>,
    /// The node's store.
    pub store: &'a Store,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// Connects to the servers, and creates what the fleet of this chain needs there.
///
/// # Errors
///
/// Returns a [`FleetError`] if the servers cannot be reached, or have something else under the fleet's names.
pub async fn create(
    settings: &JoiningSettings,
    servers: &Servers,
    chain_id: u64,
    genesis: B256,
) -> Result<FleetLink, FleetError> {
    let (client, jetstream) = FleetLink::connect(&settings.servers, servers).await?;
    let names = match &settings.fleet {
        Some(name) => FleetNames { fleet: name.clone() },
        None => FleetNames::of_chain(chain_id, genesis),
    };
    let link = FleetLink::new(client, jetstream, names, Some(FleetRoom::of(&settings.servers)));
    link.create().await?;
    Ok(link)
}

/// Connects to the servers, and finds the fleet that is named, or the only one, until `deadline`.
///
/// # Errors
///
/// Returns a [`FleetError`] if the servers cannot be reached, or have no fleet or several.
pub async fn find(settings: &JoiningSettings, servers: &Servers, deadline: Instant) -> Result<FleetLink, FleetError> {
    let (client, jetstream) = FleetLink::connect(&settings.servers, servers).await?;
    let names = match &settings.fleet {
        Some(name) => FleetNames { fleet: name.clone() },
        None => only_fleet(&jetstream, deadline).await?,
    };
    Ok(FleetLink::new(client, jetstream, names, None))
}

/// Returns the name of the only fleet that the servers have, as soon as there is one.
async fn only_fleet(jetstream: &async_nats::jetstream::Context, deadline: Instant) -> Result<FleetNames, FleetError> {
    loop {
        let mut names = fleets(jetstream).await?;
        match (names.pop(), names.as_slice()) {
            (Some(fleet), []) => return Ok(FleetNames { fleet }),
            (None, _) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
            (None, _) => {
                return Err(FleetError::Which(
                    "the servers have no fleet: start a node with --publish first".to_owned(),
                ));
            }
            (Some(fleet), others) => {
                return Err(FleetError::Which(format!(
                    "the servers have the fleets {fleet}, {}: name one with --fleet",
                    others.join(", ")
                )));
            }
        }
    }
}

impl Joining<'_> {
    /// Returns the settings of following.
    fn base(&self) -> ReplicaBase {
        let JoiningSettings { kept, cache, .. } = *self.settings;
        ReplicaBase { codes: self.codes.clone(), kept, cache, clock: LeaderClock::default() }
    }

    /// Begins to listen to the leader.
    async fn pulse(&self, base: &ReplicaBase) -> Result<PulseWatch, FleetError> {
        PulseWatch::open(&self.port, &base.clock, self.settings.lagging_after).await
    }

    fn follower(&self, base: ReplicaBase, following: Following, pulse: PulseWatch, chain: FleetChain) -> Follower {
        Follower::new(self.port.clone(), base, following, pulse, chain, FleetMetrics::new(self.metrics))
    }

    /// Begins with the fleet's image as soon as it has one that can be read, until `deadline`, after which the error says
    /// what is `missing`.
    async fn image(&self, base: &ReplicaBase, deadline: Instant, missing: &str) -> Result<Following, FleetError> {
        (self.report)("it reads the image of its fleet");
        let begun = self.wait_for(deadline, missing, async || {
            let begun = Following::bootstrap(&self.port, base).await;
            if !matches!(begun, Ok(Some(_))) {
                self.port.want_image().await;
            }
            begun
        });
        begun.await
    }

    /// Returns what a fleet will have soon, or the error that says what is missing.
    async fn wait_for<T>(
        &self,
        deadline: Instant,
        missing: &str,
        look: impl AsyncFn() -> Result<Option<T>, FleetError>,
    ) -> Result<T, FleetError> {
        loop {
            match look().await {
                Ok(Some(found)) => return Ok(found),
                Err(error @ (FleetError::Version { .. } | FleetError::Image(_))) => return Err(error),
                // A fleet that is not there yet has no bucket.
                Ok(None) | Err(_) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
                Ok(None) => {
                    let fleet = self.port.fleet();
                    return Err(FleetError::Which(format!("fleet {fleet}: {missing}: start a node with --publish")));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl PublisherJoining<'_> {
    /// Registers this node as the one that has the wallet, if it has one.
    async fn register_wallet(&self, own: &NodeIdentity) -> Result<(), FleetError> {
        if self.node.settings.has_wallet {
            self.node.port.write_fact(WALLET_KEY, own, |known| known != own).await?;
        }
        Ok(())
    }

    /// Deletes what the fleet has if it is to begin anew. Returns the lease then, which was taken from the node that led.
    async fn clear(&self, leases: &mut LeaseWatch) -> Result<Option<Lease>, FleetError> {
        if !self.node.settings.anew {
            return Ok(None);
        }
        let lease = leases.seize().await?;
        self.node.port.clear().await?;
        tracing::info!(fleet = self.node.port.fleet(), "the fleet begins anew");
        Ok(Some(lease))
    }

    fn publisher(&self, follower: Follower, own: &NodeIdentity, lease: Option<Lease>, chain: FleetChain) -> Publisher {
        let JoiningSettings { image_every, image_keep, .. } = *self.node.settings;
        let limits = PublishingLimits {
            node: own.node.clone(),
            image_every,
            image_keep,
            stream_bytes: self.node.settings.servers.stream_bytes,
            max_image_bytes: MAX_IMAGE_BYTES as u64,
        };
        let (port, clock) = (self.node.port.clone(), self.clock.clone());
        let (store, leads, stream) = (self.store.clone(), watch::Sender::new(false), StreamSink::default());
        Publisher { port, chain, clock, store, follower, limits, leads, lease, ceased: None, stream }
    }

    fn other_chain(&self, theirs: &FleetChain, ours: &FleetChain) -> FleetError {
        FleetError::OtherChain { fleet: self.node.port.fleet().to_owned(), theirs: theirs.name(), ours: ours.name() }
    }
}

/// Follows the stream until nothing has come meanwhile that was not read.
async fn come_to_the_end(port: &dyn FleetPort, following: &mut Following) -> Result<(), FollowError> {
    loop {
        let ends = port.ends().await?;
        following.open().await?;
        if following.read() >= ends.last {
            return Ok(());
        }
        if ends.first > following.read() + 1 {
            return Err(FollowError::Gap(format!("the stream has no message {} any more", following.read() + 1)));
        }
        while following.read() < ends.last {
            match tokio::time::timeout(LOST, following.next()).await {
                Ok(followed) => drop(followed?),
                Err(_) => {
                    following.ask_again();
                    break;
                }
            }
        }
    }
}
