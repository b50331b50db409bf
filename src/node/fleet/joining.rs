//! The joining of a fleet by a node with a chain of presim's own: it begins the fleet, goes on from the stream, or takes the
//! fleet's state.

use std::sync::Arc;

use eyre::WrapErr;
use tokio::time::Instant;

use super::{
    super::start::{ChainOrigin, OwnChain, rules},
    RETRY_PAUSE, START, clear, other_chain, patiently, publisher, pulse, replica_base, take_wallet,
};
use crate::{
    chain::set_forks,
    clock::Clock,
    config::Config,
    fleet::{
        publishing::{Lease, LeaseWatch, PublishedSource, take_epoch},
        replica::{Applier, Follower, Following},
        servers::{FleetChain, FleetError, FleetMetrics, FleetPort, ImageKey, NodeIdentity, end_of, find},
    },
    ledger::{Record, SnapshotId, Stamp, codec::VERSION},
    publish::Sink,
    rpc::StartupReason,
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
};

/// The newest records of a data directory that may be missing in the stream.
const MAX_MISSING_RECORDS: usize = 8;

/// A chain of presim's own that this node publishes or stands by for.
pub struct PublishedChain {
    /// The chain, without its devnet.
    pub chain: OwnChain,
    /// The identity of this node.
    pub identity: NodeIdentity,
    /// The source of the chain's states.
    pub source: PublishedSource,
    /// The places to which what it publishes goes before it is visible.
    pub sinks: Vec<Box<dyn Sink>>,
}

/// A place in a fleet from which a node goes on.
struct Joined {
    /// The state with which the node goes on.
    origin: ChainOrigin,
    /// The sequence of that state's last message in the stream.
    sequence: u64,
    /// The lease, if the fleet begins with this node's chain.
    lease: Option<Lease>,
}

/// A node that publishes, as it joins its fleet.
pub struct Joining<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The connection to the fleet.
    pub port: Arc<dyn FleetPort>,
    /// The bytecode cache.
    pub codes: &'a Arc<CodeCache>,
    /// The node's store.
    pub store: &'a Store,
    /// The node's metrics.
    pub metrics: &'a Metrics,
    /// The reason why the node is not ready.
    pub reason: &'a StartupReason,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl Joining<'_> {
    /// Begins the chain of the settings in the fleet.
    ///
    /// # Errors
    ///
    /// Returns an error as [`begin`](Self::begin) does, and if the chain cannot be begun.
    pub async fn begin_chain(&self) -> eyre::Result<PublishedChain> {
        self.begin(ChainOrigin::begin(self.config, self.codes, self.store, self.reason, &*self.clock)?).await
    }

    /// Joins the fleet with the chain of this node, or takes the fleet's state.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has another chain or another history, or the servers do not answer.
    pub(in crate::node) async fn begin(&self, origin: ChainOrigin) -> eyre::Result<PublishedChain> {
        let Self { config, port, codes, store, metrics, clock, .. } = self;
        let ours = self.chain(&origin)?;
        let identity = NodeIdentity::of(store, config.listen)?;
        let mut leases = LeaseWatch::new(port.clone(), &identity.node);
        let seized = clear(config, &**port, &mut leases).await?;
        let is_seized = seized.is_some();
        if let Some(theirs) = port.chain().await?.filter(|_| !is_seized) {
            let is_same = theirs.genesis == ours.genesis;
            if !(is_same || origin.is_new && theirs.builtin && ours.builtin) {
                return Err(other_chain(&**port, &theirs, &ours).into());
            }
        }
        let theirs = port.write_fact(FleetChain::KEY, &ours, |_| is_seized).await?;
        take_wallet(config, &**port, &identity).await?;
        let Joined { origin, sequence, lease } =
            self.join(origin, theirs.clone(), theirs.genesis == ours.genesis, leases, seized).await?;
        let mut chain = OwnChain::open(config, origin, clock.clone())?;
        let base = replica_base(config, codes);
        let applier = Applier::new(chain.snapshots.mirror(), (*codes).clone()).with_clock(base.clock.clone());
        let following = Following::from(port.clone(), applier, sequence);
        let pulse = pulse(config, port, &base).await?;
        let follower = Follower::new(port.clone(), base, following, pulse, theirs.clone(), FleetMetrics::new(metrics));
        let follower = follower.with_journal(chain.journal.clone());
        if lease.is_none() {
            follower.show_in(&chain.snapshots);
        }
        let publisher = publisher(config, port.clone(), store, follower, &identity, lease, theirs, clock.clone());
        let mut sinks = chain.sinks();
        sinks.push(Box::new(publisher.stream.clone()));
        let source = PublishedSource { publisher, devnet: chain.devnet.take(), link: None };
        Ok(PublishedChain { chain, identity, source, sinks })
    }

    /// Finds the place of this node's chain in the fleet. A fleet that has published nothing begins with the chain of the node
    /// that has the lease.
    async fn join(
        &self,
        mut origin: ChainOrigin,
        theirs: FleetChain,
        is_same: bool,
        mut leases: LeaseWatch,
        mut seized: Option<Lease>,
    ) -> eyre::Result<Joined> {
        let port = &self.port;
        let deadline = Instant::now() + START;
        loop {
            let (end, has_image) = (end_of(&**port).await?, port.fact::<ImageKey>(ImageKey::KEY).await?.is_some());
            if origin.is_new && (end.is_some() || has_image) {
                return self.adopt(origin, theirs).await;
            }
            let sequence = port.ends().await?.last;
            if let Some(end) = end {
                return self.reconcile(origin, theirs, end).await;
            }
            if has_image {
                // Everything was deleted after the state of this data directory.
                return Ok(Joined { origin, sequence, lease: None });
            }
            self.reason.set("it waits to lead its fleet");
            let lease = match seized.take() {
                Some(lease) => Some(lease),
                None if is_same => leases.try_take().await?,
                None => None,
            };
            if let Some(lease) = lease {
                if origin.is_new {
                    origin = self.renamed(origin).await?;
                }
                return Ok(Joined { origin, sequence, lease: Some(lease) });
            }
            if Instant::now() >= deadline {
                let text = "no node begins it: stop the node that has its lease, or give another --fleet";
                return Err(FleetError::Which(format!("fleet {}: {text}", port.fleet())).into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Names the first snapshot of a new chain by an epoch of the fleet, so that no other node has given its id.
    async fn renamed(&self, origin: ChainOrigin) -> eyre::Result<ChainOrigin> {
        let epoch = take_epoch(&*self.port, self.store, &*self.clock, origin.snapshots.load().last.epoch()).await?;
        origin.snapshots.update(|chain| chain.rename(SnapshotId::begin(epoch)));
        let Some(journal) = &origin.journal else { return Ok(origin) };
        journal.replace(&origin.identity, &origin.snapshots.load())?;
        ChainOrigin::begin(self.config, self.codes, self.store, self.reason, &*self.clock)
    }

    /// Returns the chain of this node as the fleet is to know it.
    fn chain(&self, origin: &ChainOrigin) -> eyre::Result<FleetChain> {
        let timestamp = origin.snapshots.newest().header().timestamp;
        let spec = rules(self.config, &origin.identity, timestamp)?;
        let mut config = origin.identity.config.clone();
        set_forks(&mut config, &self.config.fork)?;
        Ok(FleetChain {
            version: VERSION,
            genesis: origin.identity.genesis,
            config,
            builtin: origin.identity.builtin,
            trading: origin.identity.trading,
            block_time_ms: u64::try_from(spec.block_time().as_millis()).unwrap_or(u64::MAX),
            upstream: None,
        })
    }

    /// Continues with the fleet's state instead of this node's, which has just been created or is older. The wallet of the data
    /// directory stays.
    async fn adopt(&self, mut origin: ChainOrigin, theirs: FleetChain) -> eyre::Result<Joined> {
        self.reason.set("it reads the image of its fleet");
        let deadline = Instant::now() + START;
        let base = replica_base(self.config, self.codes);
        let following = patiently(deadline, &*self.port, "it has messages and no image", async || {
            let begun = Following::bootstrap(&self.port, &base).await;
            if !matches!(begun, Ok(Some(_))) {
                self.port.want_image().await;
            }
            begun
        });
        let following =
            following.await.wrap_err("begin the fleet anew with --publish-anew if no node has its state")?;
        let identity = origin.identity.replaced_by(theirs.genesis, theirs.config, theirs.trading);
        let sequence = following.sequence();
        match &origin.journal {
            Some(journal) => {
                let adopted = following.state().load();
                journal.replace(&identity, &adopted)?;
                origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, &*self.clock)?;
                // The journal has no changes without a snapshot.
                if origin.snapshots.load().last < adopted.last {
                    origin.snapshots.apply_as(Stamp::now(adopted.last), Record::Feed(adopted.feed()))?;
                }
            }
            None => origin.replace(identity, following.state().mirror()),
        }
        Ok(Joined { origin, sequence, lease: None })
    }

    /// Finds the place of the data directory's state in the stream, which ends with the message `end`. Removes what the
    /// stream does not have: a restart between the journal and the stream has written one change too many. A directory that is
    /// older than all of the stream takes the fleet's state.
    async fn reconcile(&self, mut origin: ChainOrigin, theirs: FleetChain, end: SnapshotId) -> eyre::Result<Joined> {
        let (port, newest) = (&*self.port, origin.snapshots.newest().id);
        if let Some(sequence) = find(port, newest).await? {
            return Ok(Joined { origin, sequence, lease: None });
        }
        let records = origin.journal.as_ref().map(|journal| journal.newest_ids(MAX_MISSING_RECORDS)).transpose()?;
        for id in records.into_iter().flatten() {
            let Some(sequence) = find(port, id).await? else { continue };
            tracing::warn!(
                from = format!("{:#x}", newest.0),
                to = format!("{:#x}", id.0),
                "what the stream of the fleet has not taken is removed from the data directory"
            );
            if let Some(journal) = &origin.journal {
                journal.take_back(id)?;
            }
            origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, &*self.clock)?;
            return Ok(Joined { origin, sequence, lease: None });
        }
        if newest < end {
            tracing::warn!(
                from = format!("{:#x}", newest.0),
                "the data directory is older than the stream of the fleet: its chain goes on with the fleet's image"
            );
            return self.adopt(origin, theirs).await;
        }
        Err(FleetError::OtherHistory { fleet: port.fleet().to_owned(), ours: newest.0, theirs: end.0 }.into())
    }
}
