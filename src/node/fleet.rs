//! The start in a fleet: as a node that publishes, or as a replica.

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use eyre::WrapErr;
use tokio::{runtime::Runtime, time::Instant};

use super::{
    live::{self, LiveStart},
    start::{Beginning, Start},
};
use crate::{
    chain::ChainSpec,
    clock::SystemClock,
    fleet::{
        Membership,
        joining::{self, Joining, PublisherJoining},
        publishing::PublishedLive,
        servers::{FleetChain, FleetLink},
        settings::Servers,
        state::FleetState,
    },
    upstream::Fetcher,
};

/// Starts to publish the upstream's chain of `start`, or to stand by for the node that does.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, or the fleet has another chain.
pub async fn publish(
    beginning: Beginning<'_>,
    servers: &Servers,
    start: LiveStart,
    genesis: B256,
) -> eyre::Result<Start> {
    let Beginning { config, codes, store, metrics, reason, .. } = beginning;
    reason.set("it joins its fleet");
    let LiveStart { spec, snapshots: own, source } = start;
    let settings = config.joining();
    let link = joining::create(&settings, servers, spec.chain_id(), genesis).await?;
    let ours = FleetChain::of(&spec, genesis, config.live.native.clone());
    let report = |step| reason.set(step);
    let node = Joining { settings: &settings, port: Arc::new(link.clone()), codes, metrics, report: &report };
    let joining = PublisherJoining { node, store, clock: Arc::new(SystemClock::default()) };
    let (publisher, shown) = joining.join_live(ours, &own).await?;
    // Nodes that have measured other times must answer the same.
    let spec = spec.with_block_time(Duration::from_millis(publisher.chain.block_time_ms));
    source.fetcher.join(Arc::new(FleetState::new(link.clone(), codes.clone(), true)));
    let remote = Some(source.fetcher.clone());
    let fleet = Some(Membership { link: link.clone(), leads: Some(publisher.leads.subscribe()) });
    let source = Box::new(PublishedLive { publisher, source, own, link: Some(link) });
    Ok(Start { fleet, remote, ..Start::of_foreign(spec, shown, source) })
}

/// Starts from the image of a fleet. This node then follows the fleet's stream.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, there is no fleet, or its image cannot be used.
pub fn follow(beginning: Beginning<'_>, servers: &Servers, runtime: &Runtime) -> eyre::Result<Start> {
    let Beginning { config, codes, metrics, reason, .. } = beginning;
    let wait = joining::START.as_secs();
    let step = format!("it joins its fleet, and waits at most {wait} s for a node with --publish");
    tracing::info!("joining the fleet at {servers}: waiting at most {wait} s for a node with --publish");
    reason.set(step);
    let begun = async {
        let (settings, deadline) = (config.joining(), Instant::now() + joining::START);
        let link = joining::find(&settings, servers, deadline).await?;
        let report = |step| reason.set(step);
        let joining = Joining { settings: &settings, port: Arc::new(link.clone()), codes, metrics, report: &report };
        let (chain, snapshots, follower) = joining.follow(deadline).await?;
        let remote = Some(fetched(beginning, &link).await?);
        Ok::<_, eyre::Report>((chain, snapshots, follower, link, remote))
    };
    let (chain, snapshots, follower, link, remote) =
        runtime.block_on(begun).wrap_err_with(|| format!("--follow {servers}"))?;
    let mut spec =
        ChainSpec::new(chain.config, Duration::from_millis(chain.block_time_ms))?.with_natives(&chain.natives);
    if let Some(wrapper) = chain.wrapper {
        spec = spec.with_wrapper(wrapper);
    }
    let fleet = Some(Membership { link, leads: None });
    Ok(Start { fleet, remote, ..Start::of_foreign(spec, snapshots, Box::new(follower)) })
}

/// Returns the fetcher of the upstream's state: from the leader, and from this node's own upstream if it has one.
async fn fetched(beginning: Beginning<'_>, link: &FleetLink) -> eyre::Result<Arc<Fetcher>> {
    let Beginning { config, codes, metrics, .. } = beginning;
    let upstream = match &config.live.upstream {
        Some(endpoint) => Some(live::connect(endpoint, config, metrics)?),
        None => None,
    };
    let fleet = Arc::new(FleetState::new(link.clone(), codes.clone(), upstream.is_some()));
    let fetcher = Fetcher::new(upstream, codes.clone(), live::fetching(config), metrics);
    fetcher.join(fleet);
    Ok(Arc::new(fetcher))
}
