//! The start in a fleet: as a node that publishes, or as a replica.

mod leader;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use eyre::WrapErr;
use tokio::{runtime::Runtime, time::Instant};

use super::{
    live::{self, LiveStart},
    start::{self, Beginning, OwnChain, Start},
};
pub use crate::fleet::{Membership, ServedRequests};
use crate::{
    chain::ChainSpec,
    clock::{Clock, SystemClock},
    config::Config,
    fleet::{
        LeaderClient, PublishingNode,
        joining::{self, JoinedLive, Joining, PublisherJoining},
        pool::FleetOutbox,
        publishing::{PublishedLive, PublishedSource, Publisher},
        replica::ReplicaSource,
        servers::{FleetChain, FleetLink, FollowedChain, NodeIdentity},
        settings::Servers,
        state::FleetState,
    },
    pool::{PoolDrops, TxOutbox},
    publish::{Sink, journal::ChainOrigin},
    rpc::{Access, FleetAnswers, Front, IoMemory, Leader, ServerConfig, StartupReason},
    upstream::Fetcher,
};

/// Opens the outbox of transactions that are sent to this node, for the other nodes of its fleet.
///
/// # Errors
///
/// Returns an error if the servers do not take a subscription.
pub fn outbox(membership: &Membership, runtime: &Runtime, drops: PoolDrops) -> eyre::Result<Box<dyn TxOutbox>> {
    let leads = membership.publishes.as_ref().map(|publishes| publishes.leads.clone());
    Ok(Box::new(runtime.block_on(FleetOutbox::open(
        membership.link.clone(),
        runtime.handle().clone(),
        leads,
        drops,
    ))?))
}

/// Returns the way to the leader of the fleet.
pub fn leader(membership: &Membership) -> Arc<dyn Leader> {
    Arc::new(LeaderClient::new(membership.clone()))
}

/// Answers requests that arrive in the fleet.
///
/// # Errors
///
/// Returns an error if the servers do not take a subscription.
pub async fn serve(
    membership: &Membership,
    config: &Config,
    front: Arc<Front>,
    access: Arc<Access>,
    memory: Arc<IoMemory>,
    server: ServerConfig,
    has_keys: bool,
) -> eyre::Result<ServedRequests> {
    let answers = FleetAnswers::new(front, access, memory, server, has_keys, config.fleet.wallet_forwarded);
    membership.serve(Arc::new(answers)).await
}

/// Begins the chain of `config`, or goes on with that of the fleet, which this node then leads or stands by for.
///
/// # Errors
///
/// Returns an error that names the flag if the chain cannot be begun, the servers cannot be reached, or the fleet has another
/// chain or another history.
pub fn publish(beginning: Beginning<'_>, servers: &Servers, runtime: &Runtime) -> eyre::Result<Start> {
    let Beginning { config, codes, store, metrics, reason, .. } = beginning;
    let failed = || format!("--publish {servers}");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let origin = start::origin(config, codes, store, reason, &*clock)?;
    reason.set("it joins its fleet");
    let settings = config.joining();
    let (chain_id, genesis) = (origin.identity.config.chain_id, origin.identity.genesis);
    let link = runtime.block_on(joining::create(&settings, servers, chain_id, genesis)).wrap_err_with(failed)?;
    let report = |step| reason.set(step);
    let node = Joining { settings: &settings, port: Arc::new(link.clone()), codes, metrics, report: &report };
    let joining = PublisherJoining { node, store, clock };
    let published = runtime.block_on(begin_published(config, reason, &joining, origin)).wrap_err_with(failed)?;
    let PublishedChain { chain, identity, mut source, sinks } = published;
    let OwnChain { spec, snapshots, accounts, builtin, trading, .. } = chain;
    let fleet = Some(membership(link.clone(), identity, &source.publisher));
    source.link = Some(link);
    Ok(Start { sinks, accounts, builtin, trading, fleet, ..Start::of_foreign(spec, snapshots, Box::new(source)) })
}

/// A chain of presim's own that this node publishes or stands by for.
pub struct PublishedChain {
    /// The chain, without its devnet.
    pub chain: OwnChain,
    /// The identity of this node.
    pub identity: NodeIdentity,
    /// The source of the chain's states.
    pub source: PublishedSource,
    /// The sinks to which what it publishes goes before it is visible.
    pub sinks: Vec<Box<dyn Sink>>,
}

/// Joins the fleet with the chain of `config`.
///
/// # Errors
///
/// Returns an error if the chain cannot be begun, the fleet has another chain or another history, or the servers do not answer.
pub async fn join(
    config: &Config,
    reason: &StartupReason,
    joining: &PublisherJoining<'_>,
) -> eyre::Result<PublishedChain> {
    let origin = start::origin(config, joining.node.codes, joining.store, reason, &*joining.clock)?;
    begin_published(config, reason, joining, origin).await
}

async fn begin_published(
    config: &Config,
    reason: &StartupReason,
    joining: &PublisherJoining<'_>,
    origin: ChainOrigin,
) -> eyre::Result<PublishedChain> {
    let PublisherJoining { node, store, clock } = joining;
    let ours = fleet_chain(config, &origin)?;
    let reopen = || start::origin(config, node.codes, store, reason, &**clock);
    let (origin, membership) = joining.join_chain(origin, ours, &reopen).await?;
    let identity = membership.identity.clone();
    let mut chain = OwnChain::open(config, origin, clock.clone())?;
    let publisher = joining.publish_chain(membership, &chain.snapshots, chain.journal.clone()).await?;
    let mut sinks = chain.sinks();
    sinks.push(Box::new(publisher.stream.clone()));
    let source = PublishedSource { publisher, devnet: chain.devnet.take(), link: None };
    Ok(PublishedChain { chain, identity, source, sinks })
}

/// Returns a chain of presim's own as the fleet is to know it.
fn fleet_chain(config: &Config, origin: &ChainOrigin) -> eyre::Result<FleetChain> {
    let identity = &origin.identity;
    let spec = start::rules(config, identity, origin.snapshots.newest().header().timestamp)?;
    let (builtin, trading) = (identity.builtin, identity.trading);
    Ok(FleetChain { builtin, trading, ..FleetChain::of(&spec, identity.genesis) })
}

/// Begins to publish the upstream's chain of `start`, or to stand by for the node that does.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, or the fleet has another chain.
pub async fn publish_live(
    beginning: Beginning<'_>,
    servers: &Servers,
    start: LiveStart,
    genesis: B256,
) -> eyre::Result<Start> {
    let Beginning { config, codes, store, metrics, reason, .. } = beginning;
    reason.set("it joins its fleet");
    let LiveStart { spec, snapshots, source } = start;
    let settings = config.joining();
    let link = joining::create(&settings, servers, spec.chain_id(), genesis).await?;
    let followed = FollowedChain { wrapper: spec.wrapper(), natives: config.live.native.clone() };
    let ours = FleetChain { upstream: Some(followed), ..FleetChain::of(&spec, genesis) };
    let report = |step| reason.set(step);
    let node = Joining { settings: &settings, port: Arc::new(link.clone()), codes, metrics, report: &report };
    let joining = PublisherJoining { node, store, clock: Arc::new(SystemClock::default()) };
    let JoinedLive { publisher, identity, shown, own } = joining.join_live(ours, snapshots).await?;
    source.fetcher.join(Arc::new(FleetState::new(link.clone(), codes.clone(), true)));
    let remote = Some(source.fetcher.clone());
    let fleet = Some(membership(link.clone(), identity, &publisher));
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(publisher.stream.clone())];
    let source = Box::new(PublishedLive { publisher, source, own, link });
    Ok(Start { sinks, fleet, remote, ..Start::of_foreign(spec, shown, source) })
}

fn membership(link: FleetLink, identity: NodeIdentity, publisher: &Publisher) -> Membership {
    Membership { link, publishes: Some(PublishingNode { identity, leads: publisher.leads.subscribe() }) }
}

/// Begins with the image of a fleet, whose stream this node then follows.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, there is no fleet, or its image cannot be used.
pub fn follow(beginning: Beginning<'_>, servers: &Servers, runtime: &Runtime) -> eyre::Result<Start> {
    let Beginning { config, codes, metrics, reason, .. } = beginning;
    reason.set("it joins its fleet");
    let begun = async {
        let (settings, deadline) = (config.joining(), Instant::now() + joining::START);
        let link = joining::find(&settings, servers, deadline).await?;
        let report = |step| reason.set(step);
        let joining = Joining { settings: &settings, port: Arc::new(link.clone()), codes, metrics, report: &report };
        let (chain, snapshots, follower) = joining.follow(deadline).await?;
        let remote = match &chain.upstream {
            Some(_) => Some(fetched(beginning, &link).await?),
            None => None,
        };
        Ok::<_, eyre::Report>((chain, snapshots, follower, link, remote))
    };
    let (chain, snapshots, follower, link, remote) =
        runtime.block_on(begun).wrap_err_with(|| format!("--follow {servers}"))?;
    let mut spec = ChainSpec::new(chain.config, Duration::from_millis(chain.block_time_ms))?;
    let mut wrapper = chain.trading.map(|world| world.weth);
    if let Some(followed) = chain.upstream {
        spec = spec.with_natives(&followed.natives);
        wrapper = wrapper.or(followed.wrapper);
    }
    if let Some(wrapper) = wrapper {
        spec = spec.with_wrapper(wrapper);
    }
    let source = Box::new(ReplicaSource { follower, link: link.clone() });
    let fleet = Some(Membership { link, publishes: None });
    Ok(Start { trading: chain.trading, fleet, remote, ..Start::of_foreign(spec, snapshots, source) })
}

/// Returns the fetcher of the state of the fleet's upstream: over the leader, and to an upstream of this node's own if it has one.
async fn fetched(beginning: Beginning<'_>, link: &FleetLink) -> eyre::Result<Arc<Fetcher>> {
    let Beginning { config, codes, metrics, .. } = beginning;
    let upstream = match &config.live.upstream {
        Some(endpoint) => Some(live::connect(endpoint, config, metrics).await?),
        None => None,
    };
    let fleet = Arc::new(FleetState::new(link.clone(), codes.clone(), upstream.is_some()));
    let fetcher = Fetcher::new(upstream, codes.clone(), live::fetching(config), metrics);
    fetcher.join(fleet);
    Ok(Arc::new(fetcher))
}
