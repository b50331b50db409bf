//! Joining a fleet: a node finds its position in the stream, from which it leads, stands by or follows.

mod live;
mod replica;

pub use self::live::PublisherJoining;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use tokio::time::{Instant, sleep};

use super::{
    replica::{Follower, Following, LeaderClock, PulseWatch, ReplicaBase},
    servers::{FleetChain, FleetError, FleetLink, FleetMetrics, FleetNames, FleetPort, fleets},
    settings::{JoiningSettings, Servers},
};
use crate::{state::CodeCache, telemetry::Metrics};

/// The time for which a node that joins waits for the fleet's chain and its first image.
pub const START: Duration = Duration::from_secs(60);
/// The pause between two checks for data that the fleet does not have yet.
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
    /// Receives the reason why the node waits.
    pub report: &'a dyn Fn(&'static str),
}

/// Connects to the servers, and creates the streams and buckets that the fleet of this chain needs.
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
    let link = FleetLink::new(client, jetstream, names, Some(settings.servers.clone()));
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

    /// Waits for data that the fleet will have soon. Returns the error that names the missing data after the deadline.
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
