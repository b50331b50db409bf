//! The start in a fleet: as a node that publishes, or as a replica.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_nats::jetstream::kv::CreateErrorKind;
use eyre::WrapErr;
use tokio::{runtime::Runtime, time::Instant};

use super::start::{ChainOrigin, FleetPlace, OwnChain, Start};
use crate::{
    chain::ChainSpec,
    config::{Config, NatsServers},
    feed::{
        clock::{Clock, SystemClock},
        codec::VERSION,
        fleet::{FleetChain, FleetError, FleetLink, FleetNames, end_of, find, fleets},
        publishing::{PublishedSource, PublishingLimits},
        replica::{Applier, FollowError, Follower, Following, ReplicaSource},
    },
    rpc::{StartupReason, Testing},
    state::{CodeCache, Publication, SnapshotId},
    store::Store,
};

/// The time for which a node that joins waits for the fleet's chain and its first image.
const START: Duration = Duration::from_secs(60);
/// The pause between two looks for them.
const AGAIN: Duration = Duration::from_millis(250);
/// The newest records of a data directory that may be missing in the stream.
const LOOKS: usize = 8;

/// Returns the threads on which NATS is talked to.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().thread_name("presim-fleet").build()
}

/// Begins the chain of `config`, or goes on with that of the fleet, which this node then leads or stands by for.
///
/// # Errors
///
/// Returns an error that names the flag if the chain cannot be begun, the servers cannot be reached, or the fleet has another
/// chain or another history.
pub fn publish(
    config: &Config,
    servers: &NatsServers,
    codes: &Arc<CodeCache>,
    store: &Store,
    reason: &StartupReason,
    runtime: &Runtime,
) -> eyre::Result<Start> {
    let failed = || format!("--publish {servers}");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let origin = ChainOrigin::begin(config, codes, store, reason, &*clock)?;
    reason.set("it joins its fleet");
    let joining = Joining { config, servers, codes, store, reason, clock: &*clock };
    let (link, origin, sequence) = runtime.block_on(joining.publish(origin)).wrap_err_with(failed)?;
    let OwnChain { spec, snapshots, devnet, accounts, builtin, trading } = OwnChain::stand_on(config, origin, clock)?;
    let following = Following::from(link.clone(), Applier::new(snapshots.mirror(), codes.clone()), sequence);
    let kept = config.retention();
    let follower =
        runtime.block_on(Follower::new(link.clone(), codes.clone(), kept, following)).wrap_err_with(failed)?;
    let limits = PublishingLimits {
        node: format!("{}-{}", std::process::id(), config.listen),
        image_every: config.fleet.image_every.into(),
        stream_bytes: u64::from(config.fleet.publish_mb) << 20,
        kept,
    };
    let (store, codes, leads) = (store.clone(), codes.clone(), Arc::new(AtomicBool::new(false)));
    let fleet = Some(FleetPlace { link: link.clone(), leads: Some(leads.clone()) });
    let source = PublishedSource { link, store, codes, devnet, follower, limits, leads };
    let testing = Testing::Off;
    Ok(Start { spec, snapshots, source: Box::new(source), testing, accounts, builtin, trading, fleet })
}

/// Begins with the image of a fleet, whose stream this node then follows.
///
/// # Errors
///
/// Returns an error that names the flag if the servers cannot be reached, there is no fleet, or its image cannot be used.
pub fn follow(
    config: &Config,
    servers: &NatsServers,
    codes: &Arc<CodeCache>,
    reason: &StartupReason,
    runtime: &Runtime,
) -> eyre::Result<Start> {
    reason.set("it joins its fleet");
    let begun = async {
        let (client, jetstream) = FleetLink::connect(&config.fleet, servers).await?;
        let deadline = Instant::now() + START;
        let names = match &config.fleet.fleet {
            Some(name) => FleetNames { fleet: name.0.clone() },
            None => only_fleet(&jetstream, deadline).await?,
        };
        let link = FleetLink { client, jetstream, names };
        reason.set("it waits for the chain of its fleet");
        let chain =
            patiently(deadline, &link, "no node has published a chain to it", async || link.chain().await).await?;
        reason.set("it reads the image of its fleet");
        let following = patiently(deadline, &link, "it has no image yet", async || {
            Following::bootstrap(&link, codes, config.retention()).await
        });
        let mut following = following.await?;
        reason.set("it comes to the end of the stream of its fleet");
        // Where the stream has a gap, the follower begins anew with another image.
        if let Err(error) = come_to_the_end(&link, &mut following, deadline).await {
            tracing::warn!(%error, "the stream cannot be followed to its end yet");
        }
        let snapshots = following.state().mirror();
        let follower = Follower::new(link.clone(), codes.clone(), config.retention(), following).await?;
        Ok::<_, eyre::Report>((chain, snapshots, follower, link))
    };
    let (chain, snapshots, follower, link) = runtime.block_on(begun).wrap_err_with(|| format!("--follow {servers}"))?;
    let mut spec = ChainSpec::new(chain.config, Duration::from_millis(chain.block_time_ms))?;
    if let Some(world) = &chain.trading {
        spec = spec.with_wrapper(world.weth);
    }
    let source = Box::new(ReplicaSource { follower });
    Ok(Start {
        spec,
        snapshots,
        source,
        testing: Testing::Off,
        accounts: Vec::new(),
        builtin: false,
        trading: chain.trading,
        fleet: Some(FleetPlace { link, leads: None }),
    })
}

/// Follows the stream to the end that it has now, so that a node which joins does not answer from the past.
async fn come_to_the_end(link: &FleetLink, following: &mut Following, deadline: Instant) -> Result<(), FollowError> {
    let Some((_, end)) = end_of(link).await? else { return Ok(()) };
    while following.state().load().last < end {
        match tokio::time::timeout_at(deadline, following.next(None)).await {
            Ok(followed) => drop(followed?),
            Err(_) => break,
        }
    }
    Ok(())
}

/// Returns the name of the only fleet that the servers have, as soon as there is one.
async fn only_fleet(jetstream: &async_nats::jetstream::Context, deadline: Instant) -> Result<FleetNames, FleetError> {
    loop {
        let mut names = fleets(jetstream).await?;
        match (names.pop(), names.as_slice()) {
            (Some(fleet), []) => return Ok(FleetNames { fleet }),
            (None, _) if Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
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
    link: &FleetLink,
    missing: &str,
    look: impl AsyncFn() -> Result<Option<T>, FleetError>,
) -> Result<T, FleetError> {
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Err(error @ (FleetError::Version { .. } | FleetError::Image(_))) => return Err(error),
            // A fleet that is not there yet has no bucket.
            Ok(None) | Err(_) if Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
            Ok(None) => {
                return Err(FleetError::Which(format!(
                    "fleet {}: {missing}: start a node with --publish",
                    link.names.fleet
                )));
            }
            Err(error) => return Err(error),
        }
    }
}

/// A node that publishes, as it joins its fleet.
struct Joining<'a> {
    config: &'a Config,
    servers: &'a NatsServers,
    codes: &'a Arc<CodeCache>,
    store: &'a Store,
    reason: &'a StartupReason,
    clock: &'a dyn Clock,
}

impl Joining<'_> {
    /// Joins the fleet. Returns the state with which the node goes on, and the sequence of its last message in the stream.
    async fn publish(&self, origin: ChainOrigin) -> eyre::Result<(FleetLink, ChainOrigin, u64)> {
        let settings = &self.config.fleet;
        let (client, jetstream) = FleetLink::connect(settings, self.servers).await?;
        let names = match &settings.fleet {
            Some(name) => FleetNames { fleet: name.0.clone() },
            None => FleetNames::of_chain(origin.about.config.chain_id, origin.about.genesis),
        };
        let link = FleetLink { client, jetstream, names };
        link.create(settings).await?;
        if settings.publish_anew {
            link.purge().await?;
            tracing::info!(fleet = link.names.fleet, "the fleet begins anew");
        }
        let ours = self.chain(&origin)?;
        let theirs = self.agree(&link, &ours).await?;
        let end = end_of(&link).await?;
        let Some((_, end)) = end else {
            if theirs.genesis != ours.genesis {
                return Err(other_chain(&link, &theirs, &ours).into());
            }
            // Nothing was published yet, or everything was deleted.
            let sequence = link.stream().await?.cached_info().state.last_sequence;
            return Ok((link, origin, sequence));
        };
        let is_same = theirs.genesis == ours.genesis;
        if origin.is_new && (is_same || theirs.builtin && ours.builtin) {
            return self.adopt(link, origin, theirs).await;
        }
        if !is_same {
            return Err(other_chain(&link, &theirs, &ours).into());
        }
        self.reconcile(link, origin, end).await
    }

    /// Returns the chain of this node as the fleet is to know it.
    fn chain(&self, origin: &ChainOrigin) -> eyre::Result<FleetChain> {
        let timestamp = origin.snapshots.newest().header().timestamp;
        let spec = super::start::rules(self.config, &origin.about, timestamp)?;
        let mut config = origin.about.config.clone();
        crate::chain::set_forks(&mut config, &self.config.fork)?;
        Ok(FleetChain {
            version: VERSION,
            genesis: origin.about.genesis,
            config,
            builtin: origin.about.builtin,
            trading: origin.about.trading,
            block_time_ms: u64::try_from(spec.block_time().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Writes the chain of this node as the fleet's, unless it has one. Returns the fleet's.
    async fn agree(&self, link: &FleetLink, ours: &FleetChain) -> Result<FleetChain, FleetError> {
        loop {
            if let Some(theirs) = link.chain().await? {
                return Ok(theirs);
            }
            let unwritten = |problem: String| FleetError::nats("the fleet's chain cannot be written", problem);
            let text = serde_json::to_vec(ours).map_err(|error| unwritten(error.to_string()))?;
            match link.facts().await?.create(FleetChain::KEY, text.into()).await {
                Ok(_) => return Ok(ours.clone()),
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
                Err(error) => return Err(unwritten(error.to_string())),
            }
        }
    }

    /// Continues with the fleet's state instead of this node's, which has just been created.
    async fn adopt(
        &self,
        link: FleetLink,
        mut origin: ChainOrigin,
        theirs: FleetChain,
    ) -> eyre::Result<(FleetLink, ChainOrigin, u64)> {
        self.reason.set("it reads the image of its fleet");
        let deadline = Instant::now() + START;
        let following = patiently(deadline, &link, "it has messages and no image", async || {
            Following::bootstrap(&link, self.codes, self.config.retention()).await
        });
        let following =
            following.await.wrap_err("begin the fleet anew with --publish-anew if no node has its state")?;
        let about = origin.about.of_fleet(theirs.genesis, theirs.config, theirs.trading);
        let sequence = following.sequence();
        match &origin.journal {
            Some(journal) => {
                let adopted = following.state().load();
                journal.adopt(&about, &adopted)?;
                origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, self.clock)?;
                // The journal has no changes without a snapshot.
                if origin.snapshots.load().last < adopted.last {
                    origin.snapshots.apply_as(adopted.last, Publication::Feed(adopted.feed));
                }
            }
            None => origin.replace(about, following.state().mirror()),
        }
        Ok((link, origin, sequence))
    }

    /// Finds the place of the data directory's state in the stream, which ends with the message `end`. Removes what the
    /// stream does not have: a restart between the journal and the stream has written one change too many.
    async fn reconcile(
        &self,
        link: FleetLink,
        mut origin: ChainOrigin,
        end: SnapshotId,
    ) -> eyre::Result<(FleetLink, ChainOrigin, u64)> {
        let newest = origin.snapshots.newest().id;
        let stream = link.stream().await?;
        if let Some(place) = find(&stream, newest).await? {
            return Ok((link, origin, place));
        }
        let records = origin.journal.as_ref().map(|journal| journal.newest_ids(LOOKS)).transpose()?;
        for id in records.into_iter().flatten() {
            let Some(place) = find(&stream, id).await? else { continue };
            tracing::warn!(
                from = format!("{:#x}", newest.0),
                to = format!("{:#x}", id.0),
                "what the stream of the fleet has not taken is removed from the data directory"
            );
            if let Some(journal) = &origin.journal {
                journal.take_back(id)?;
            }
            origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, self.clock)?;
            return Ok((link, origin, place));
        }
        Err(FleetError::OtherHistory { fleet: link.names.fleet.clone(), ours: newest.0, theirs: end.0 }.into())
    }
}

fn other_chain(link: &FleetLink, theirs: &FleetChain, ours: &FleetChain) -> FleetError {
    FleetError::OtherChain { fleet: link.names.fleet.clone(), theirs: theirs.name(), ours: ours.name() }
}
