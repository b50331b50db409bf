//! The start in a fleet: as a node that publishes, or as a replica.

mod joining;
mod leader;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use eyre::WrapErr;
use tokio::{runtime::Runtime, sync::watch, time::Instant};

pub use self::joining::{Joining, PublishedChain};
use super::{
    live::{self, LiveStart},
    start::{ChainOrigin, OwnChain, Start},
};
pub use crate::fleet::{Place, ServedRequests};
use crate::{
    chain::ChainSpec,
    clock::{Clock, SystemClock},
    config::Config,
    fleet::{
        LeaderClient, PublishingNode,
        pool::FleetOutbox,
        publishing::{Lease, LeaseWatch, PublishedLive, Publisher, PublishingLimits, StreamSink, take_epoch},
        replica::{Applier, FollowError, Follower, Following, LeaderClock, PulseWatch, ReplicaBase, ReplicaSource},
        servers::{
            FleetChain, FleetError, FleetLink, FleetMetrics, FleetNames, FleetPort, FleetRoom, FollowedChain, ImageKey,
            NodeIdentity, WALLET_KEY, fleets,
        },
        settings::Servers,
        state::FleetState,
    },
    ledger::{
        SnapshotId, Snapshots,
        codec::{MAX_BYTES, VERSION},
    },
    pool::{PoolDrops, TxOutbox},
    publish::Sink,
    rpc::{Access, FleetAnswers, Front, IoMemory, Leader, ServerConfig, StartupReason},
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
    upstream::Fetcher,
};

/// The time for which a node that joins waits for the fleet's chain and its first image.
const START: Duration = Duration::from_secs(60);
/// The time in which a node that has an upstream comes to the end of its fleet's stream, which it can do later.
const IMAGE: Duration = Duration::from_secs(5);
/// The time in which a node that joins hears of the leader, which it can do later.
const LEADER: Duration = Duration::from_secs(2);
/// The time without a message, on the way to the end of the stream, after which they are asked for again.
const LOST: Duration = Duration::from_secs(1);
/// The pause between two looks for them.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Returns the threads on which NATS is talked to.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().thread_name("presim-fleet").build()
}

/// Opens the outbox of transactions that are sent to this node, for the other nodes of its fleet.
///
/// # Errors
///
/// Returns an error if NATS does not take a subscription.
pub fn outbox(place: &Place, runtime: &Runtime, drops: PoolDrops) -> eyre::Result<Box<dyn TxOutbox>> {
    let leads = place.publishes.as_ref().map(|publishes| publishes.leads.clone());
    Ok(Box::new(runtime.block_on(FleetOutbox::open(place.link.clone(), runtime.handle().clone(), leads, drops))?))
}

/// Returns the way to the leader of the fleet.
pub fn leader(place: &Place) -> Arc<dyn Leader> {
    Arc::new(LeaderClient::new(place.clone()))
}

/// Answers requests that arrive in the fleet.
///
/// # Errors
///
/// Returns an error if NATS does not take a subscription.
pub async fn serve(
    place: &Place,
    config: &Config,
    front: Arc<Front>,
    access: Arc<Access>,
    memory: Arc<IoMemory>,
    server: ServerConfig,
    has_keys: bool,
) -> eyre::Result<ServedRequests> {
    let answers = FleetAnswers::new(front, access, memory, server, has_keys, config.fleet.wallet_forwarded);
    place.serve(Arc::new(answers)).await
}

/// Begins the chain of `config`, or goes on with that of the fleet, which this node then leads or stands by for.
///
/// # Errors
///
/// Returns an error that names the flag if the chain cannot be begun, the servers cannot be reached, or the fleet has another
/// chain or another history.
pub fn publish(
    config: &Config,
    servers: &Servers,
    codes: &Arc<CodeCache>,
    store: &Store,
    metrics: &Metrics,
    reason: &StartupReason,
    runtime: &Runtime,
) -> eyre::Result<Start> {
    let failed = || format!("--publish {servers}");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let origin = ChainOrigin::begin(config, codes, store, reason, &*clock)?;
    reason.set("it joins its fleet");
    let joined = join(config, servers, origin.identity.config.chain_id, origin.identity.genesis);
    let link = runtime.block_on(joined).wrap_err_with(failed)?;
    let joining = Joining { config, port: Arc::new(link.clone()), codes, store, metrics, reason, clock };
    let PublishedChain { chain, identity, mut source, sinks } =
        runtime.block_on(joining.begin(origin)).wrap_err_with(failed)?;
    let OwnChain { spec, snapshots, accounts, builtin, trading, .. } = chain;
    let fleet = Some(place(link.clone(), identity, &source.publisher));
    source.link = Some(link);
    Ok(Start { sinks, accounts, builtin, trading, fleet, ..Start::of_foreign(spec, snapshots, Box::new(source)) })
}

/// Begins to publish the upstream's chain of `start`, or to stand by for the node that does.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, or the fleet has another chain.
#[expect(clippy::too_many_arguments, reason = "each is a part of the node")]
pub async fn publish_live(
    config: &Config,
    servers: &Servers,
    codes: &Arc<CodeCache>,
    store: &Store,
    metrics: &Metrics,
    reason: &StartupReason,
    start: LiveStart,
    genesis: B256,
) -> eyre::Result<Start> {
    reason.set("it joins its fleet");
    let LiveStart { spec, snapshots: own, source } = start;
    let link = join(config, servers, spec.chain_id(), genesis).await?;
    let ours = FleetChain {
        version: VERSION,
        genesis,
        config: spec.config().clone(),
        builtin: false,
        trading: None,
        block_time_ms: u64::try_from(spec.block_time().as_millis()).unwrap_or(u64::MAX),
        upstream: Some(FollowedChain { wrapper: spec.wrapper(), natives: config.live.native.clone() }),
    };
    let port: Arc<dyn FleetPort> = Arc::new(link.clone());
    let identity = NodeIdentity::of(store, config.listen)?;
    let mut leases = LeaseWatch::new(port.clone(), &identity.node);
    let mut seized = clear(config, &*port, &mut leases).await?;
    let theirs = port.write_fact(FleetChain::KEY, &ours, |_| seized.is_some()).await?;
    if theirs.genesis != genesis || theirs.upstream.is_none() {
        return Err(other_chain(&*port, &theirs, &ours).into());
    }
    take_wallet(config, &*port, &identity).await?;
    let base = replica_base(config, codes);
    let pulse = pulse(config, &port, &base).await?;
    let shown = own.mirror();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (following, lease) = loop {
        if let Some(following) = joined(&port, &base, reason).await? {
            shown.replace_all(following.state().load());
            break (following, None);
        }
        // Nothing was published yet, everything was deleted, or the node that has published has left no image.
        reason.set("it waits to lead its fleet, or for an image of its state");
        let lease = match seized.take() {
            Some(lease) => Some(lease),
            None => leases.try_take().await?,
        };
        if let Some(lease) = lease {
            let epoch = take_epoch(&*port, store, &*clock, own.load().last.epoch()).await?;
            own.update(|chain| chain.rename(SnapshotId::begin(epoch)));
            shown.replace_all(own.load());
            let sequence = port.ends().await?.last;
            let applier = Applier::new(own.mirror(), codes.clone()).with_clock(base.clock.clone());
            break (Following::from(port.clone(), applier, sequence), Some(lease));
        }
        port.want_image().await;
        tokio::time::sleep(RETRY_PAUSE).await;
    };
    let follower = Follower::new(port.clone(), base, following, pulse, theirs.clone(), FleetMetrics::new(metrics));
    if lease.is_none() {
        follower.show_in(&shown);
    }
    let publisher = publisher(config, port, store, follower, &identity, lease, theirs, clock);
    source.fetcher.join(Arc::new(FleetState::new(link.clone(), codes.clone(), true)));
    let remote = Some(source.fetcher.clone());
    let fleet = Some(place(link.clone(), identity, &publisher));
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(publisher.stream.clone())];
    let source = Box::new(PublishedLive { publisher, source, own: Arc::new(own), link });
    Ok(Start { sinks, fleet, remote, ..Start::of_foreign(spec, shown, source) })
}

/// Returns the state of a fleet that has an image, at the end of its stream; `None` if there is no image that can be read.
async fn joined(
    port: &Arc<dyn FleetPort>,
    base: &ReplicaBase,
    reason: &StartupReason,
) -> Result<Option<Following>, FleetError> {
    reason.set("it reads the image of its fleet");
    let mut following = match Following::bootstrap(port, base).await {
        Ok(Some(following)) => following,
        Ok(None) => return Ok(None),
        Err(error @ FleetError::Version { .. }) => return Err(error),
        Err(error) => {
            tracing::warn!(%error, "the state of the fleet cannot be read yet");
            return Ok(None);
        }
    };
    match tokio::time::timeout(IMAGE, come_to_the_end(&**port, &mut following)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the stream cannot be followed to its end yet"),
        Err(_) => tracing::info!("the end of the stream is not reached yet"),
    }
    Ok(Some(following))
}

/// Has the fleet know the name of this node where it has the wallet, or takes that.
async fn take_wallet(config: &Config, port: &dyn FleetPort, own: &NodeIdentity) -> Result<(), FleetError> {
    let owner: Option<NodeIdentity> = port.fact(WALLET_KEY).await?;
    if config.fleet.take_wallet || owner.is_some_and(|owner| owner.id == own.id && owner != *own) {
        port.write_fact(WALLET_KEY, own, |_| true).await?;
    }
    Ok(())
}

/// Deletes what the fleet has if it is to begin anew. Returns the lease then, which was taken from the node that led.
async fn clear(config: &Config, port: &dyn FleetPort, leases: &mut LeaseWatch) -> Result<Option<Lease>, FleetError> {
    if !config.fleet.publish_anew {
        return Ok(None);
    }
    let lease = leases.seize().await?;
    port.clear().await?;
    tracing::info!(fleet = port.fleet(), "the fleet begins anew");
    Ok(Some(lease))
}

fn place(link: FleetLink, identity: NodeIdentity, publisher: &Publisher) -> Place {
    Place { link, publishes: Some(PublishingNode { identity, leads: publisher.leads.subscribe() }) }
}

#[expect(clippy::too_many_arguments, reason = "each is a part of the publisher")]
fn publisher(
    config: &Config,
    port: Arc<dyn FleetPort>,
    store: &Store,
    follower: Follower,
    own: &NodeIdentity,
    lease: Option<Lease>,
    chain: FleetChain,
    clock: Arc<dyn Clock>,
) -> Publisher {
    let limits = PublishingLimits {
        node: own.node.clone(),
        image_every: config.fleet.image_every.into(),
        image_keep: Duration::from_secs(config.fleet.image_keep_s),
        stream_bytes: u64::from(config.fleet.publish_mb) << 20,
        max_image_bytes: MAX_BYTES as u64,
    };
    let (store, leads) = (store.clone(), watch::Sender::new(false));
    Publisher { port, chain, clock, store, follower, limits, leads, lease, ceased: None, stream: StreamSink::default() }
}

/// Returns the settings of following.
fn replica_base(config: &Config, codes: &Arc<CodeCache>) -> ReplicaBase {
    let (codes, kept, cache) = (codes.clone(), config.retention(), (config.live.cache_mb as usize) << 20);
    ReplicaBase { codes, kept, cache, clock: LeaderClock::default() }
}

/// Begins to listen to the leader.
async fn pulse(config: &Config, port: &Arc<dyn FleetPort>, base: &ReplicaBase) -> Result<PulseWatch, FleetError> {
    PulseWatch::open(port, &base.clock, Duration::from_millis(config.fleet.lagging_after_ms)).await
}

/// Connects to the servers, and creates what the fleet of this chain needs there.
async fn join(config: &Config, servers: &Servers, chain_id: u64, genesis: B256) -> Result<FleetLink, FleetError> {
    let settings = config.fleet.settings();
    let (client, jetstream) = FleetLink::connect(&settings, servers).await?;
    let names = match &config.fleet.fleet {
        Some(name) => FleetNames { fleet: name.0.clone() },
        None => FleetNames::of_chain(chain_id, genesis),
    };
    let link = FleetLink::new(client, jetstream, names, Some(FleetRoom::of(&settings)));
    link.create().await?;
    Ok(link)
}

/// Begins with the image of a fleet, whose stream this node then follows.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, there is no fleet, or its image cannot be used.
pub fn follow(
    config: &Config,
    servers: &Servers,
    codes: &Arc<CodeCache>,
    metrics: &Metrics,
    reason: &StartupReason,
    runtime: &Runtime,
) -> eyre::Result<Start> {
    reason.set("it joins its fleet");
    let begun = async {
        let (client, jetstream) = FleetLink::connect(&config.fleet.settings(), servers).await?;
        let deadline = Instant::now() + START;
        let names = match &config.fleet.fleet {
            Some(name) => FleetNames { fleet: name.0.clone() },
            None => only_fleet(&jetstream, deadline).await?,
        };
        let link = FleetLink::new(client, jetstream, names, None);
        let joining = ReplicaJoining { config, port: Arc::new(link.clone()), codes, metrics, reason };
        let (chain, snapshots, follower) = joining.begin(deadline).await?;
        let remote = match &chain.upstream {
            Some(_) => Some(fetched(config, codes, metrics, &link).await?),
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
    let fleet = Some(Place { link, publishes: None });
    Ok(Start { trading: chain.trading, fleet, remote, ..Start::of_foreign(spec, snapshots, source) })
}

/// A replica, as it joins its fleet.
pub struct ReplicaJoining<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The connection to the fleet.
    pub port: Arc<dyn FleetPort>,
    /// The bytecode cache.
    pub codes: &'a Arc<CodeCache>,
    /// The node's metrics.
    pub metrics: &'a Metrics,
    /// The reason why the node is not ready.
    pub reason: &'a StartupReason,
}

impl ReplicaJoining<'_> {
    /// Begins with the fleet's image, and comes to the end of the stream. Waits for the fleet until `deadline`.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has no chain or no image, or the image cannot be used.
    pub async fn begin(&self, deadline: Instant) -> eyre::Result<(FleetChain, Snapshots, Follower)> {
        let Self { config, port, codes, metrics, reason } = self;
        reason.set("it waits for the chain of its fleet");
        let chain =
            patiently(deadline, &**port, "no node has published a chain to it", async || port.chain().await).await?;
        if chain.upstream.is_none() && config.live.verify_proofs {
            let text =
                "--verify-proofs: the fleet has a chain of its own, whose state roots are checked with each block";
            return Err(eyre::eyre!("{text}: leave it out"));
        }
        let base = replica_base(config, codes);
        let mut pulse = pulse(config, port, &base).await?;
        pulse.find_leader(LEADER).await;
        reason.set("it reads the image of its fleet");
        let following = patiently(deadline, &**port, "it has no image yet", async || {
            let begun = Following::bootstrap(port, &base).await;
            if !matches!(begun, Ok(Some(_))) {
                port.want_image().await;
            }
            begun
        });
        let following = at_the_end(port, &base, following.await?, reason).await;
        let snapshots = following.state().mirror();
        let metrics = FleetMetrics::new(metrics);
        let follower = Follower::new(port.clone(), base, following, pulse, chain.clone(), metrics);
        follower.show_in(&snapshots);
        Ok((chain, snapshots, follower))
    }
}

/// Returns the fetcher of the state of the fleet's upstream: over the leader, and to an upstream of this node's own if it has one.
async fn fetched(
    config: &Config,
    codes: &Arc<CodeCache>,
    metrics: &Metrics,
    link: &FleetLink,
) -> eyre::Result<Arc<Fetcher>> {
    let upstream = match &config.live.upstream {
        Some(endpoint) => Some(live::connect(endpoint, config, metrics).await?),
        None => None,
    };
    let fleet = Arc::new(FleetState::new(link.clone(), codes.clone(), upstream.is_some()));
    let fetcher = Fetcher::new(upstream, codes.clone(), live::fetching(config), metrics);
    fetcher.join(fleet);
    Ok(Arc::new(fetcher))
}

/// Returns the state at the end of the stream, so that a node which joins does not answer from the past. A failure on the way
/// is logged, and the way is tried again: with a newer image if the stream does not lead on from this one.
async fn at_the_end(
    port: &Arc<dyn FleetPort>,
    base: &ReplicaBase,
    begun: Following,
    reason: &StartupReason,
) -> Following {
    let (mut following, mut useless, mut said) = (Some(begun), 0, String::new());
    loop {
        reason.set("it comes to the end of the stream of its fleet");
        let failed = match following.take() {
            Some(mut reached) => match come_to_the_end(&**port, &mut reached).await {
                Ok(()) => return reached,
                Err(FollowError::Fleet(error)) => {
                    following = Some(reached);
                    error.to_string()
                }
                Err(error) => {
                    useless = reached.origin().0;
                    error.to_string()
                }
            },
            None => match newer_image(port, base, useless).await {
                Ok(Some(newer)) => {
                    following = Some(newer);
                    continue;
                }
                Ok(None) => {
                    port.want_image().await;
                    "there is no newer image yet".to_owned()
                }
                Err(error) => error.to_string(),
            },
        };
        if failed != said {
            tracing::warn!(problem = failed, "the end of the stream is not reached: it is tried again");
            said = failed;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Begins with the fleet's newest image if that is newer than the image with the id `than`.
async fn newer_image(
    port: &Arc<dyn FleetPort>,
    base: &ReplicaBase,
    than: u64,
) -> Result<Option<Following>, FleetError> {
    match port.fact::<ImageKey>(ImageKey::KEY).await? {
        Some(key) if key.id > than => Following::bootstrap(port, base).await,
        _ => Ok(None),
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
            match tokio::time::timeout(LOST, following.next(None)).await {
                Ok(followed) => drop(followed?),
                Err(_) => {
                    following.ask_again();
                    break;
                }
            }
        }
    }
}

/// Returns the name of the only fleet that the servers have, as soon as there is one.
async fn only_fleet(jetstream: &async_nats::jetstream::Context, deadline: Instant) -> Result<FleetNames, FleetError> {
    loop {
        let mut names = fleets(jetstream).await?;
        match (names.pop(), names.as_slice()) {
            (Some(fleet), []) => return Ok(FleetNames { fleet }),
            (None, _) if Instant::now() < deadline => tokio::time::sleep(RETRY_PAUSE).await,
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

/// Returns what a fleet will have soon, or the error that says what is missing.
async fn patiently<T>(
    deadline: Instant,
    port: &dyn FleetPort,
    missing: &str,
    look: impl AsyncFn() -> Result<Option<T>, FleetError>,
) -> Result<T, FleetError> {
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Err(error @ (FleetError::Version { .. } | FleetError::Image(_))) => return Err(error),
            // A fleet that is not there yet has no bucket.
            Ok(None) | Err(_) if Instant::now() < deadline => tokio::time::sleep(RETRY_PAUSE).await,
            Ok(None) => {
                return Err(FleetError::Which(format!(
                    "fleet {}: {missing}: start a node with --publish",
                    port.fleet()
                )));
            }
            Err(error) => return Err(error),
        }
    }
}

fn other_chain(port: &dyn FleetPort, theirs: &FleetChain, ours: &FleetChain) -> FleetError {
    FleetError::OtherChain { fleet: port.fleet().to_owned(), theirs: theirs.name(), ours: ours.name() }
}
