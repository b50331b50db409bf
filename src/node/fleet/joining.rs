//! The joining of a fleet by a node with a chain of presim's own: it begins the fleet, goes on from the stream, or takes the
//! fleet's state.

use std::sync::Arc;

use eyre::WrapErr;
use tokio::time::Instant;

use super::{
    super::start::{ChainOrigin, rules},
    RETRY_PAUSE, START, agree, identity, join, other_chain, patiently, replica_base,
};
use crate::{
    chain::set_forks,
    clock::Clock,
    config::Config,
    ledger::{Record, SnapshotId, Stamp, codec::VERSION},
    rpc::StartupReason,
    source::{
        fleet::{FleetChain, FleetError, FleetLink, ImageKey, NodeIdentity, Servers, end_of, find},
        publishing::{Lease, LeaseWatch, take_epoch},
        replica::Following,
    },
    state::CodeCache,
    store::Store,
};

/// The newest records of a data directory that may be missing in the stream.
const MAX_MISSING_RECORDS: usize = 8;

/// A node that has joined its fleet.
pub struct Joined {
    pub link: FleetLink,
    /// The state with which the node goes on.
    pub origin: ChainOrigin,
    /// The sequence of that state's last message in the stream.
    pub sequence: u64,
    pub identity: NodeIdentity,
    /// The lease, if the fleet begins with this node's chain.
    pub lease: Option<Lease>,
}

/// A node that publishes, as it joins its fleet.
pub struct Joining<'a> {
    pub config: &'a Config,
    pub servers: &'a Servers,
    pub codes: &'a Arc<CodeCache>,
    pub store: &'a Store,
    pub reason: &'a StartupReason,
    pub clock: &'a dyn Clock,
}

impl Joining<'_> {
    /// Joins the fleet. A fleet that has published nothing begins with the chain of the node that has the lease.
    pub async fn publish(&self, mut origin: ChainOrigin) -> eyre::Result<Joined> {
        let link = join(self.config, self.servers, origin.about.config.chain_id, origin.about.genesis).await?;
        let ours = self.chain(&origin)?;
        let theirs = agree(&link, &ours).await?;
        let is_same = theirs.genesis == ours.genesis;
        if !(is_same || origin.is_new && theirs.builtin && ours.builtin) {
            return Err(other_chain(&link, &theirs, &ours).into());
        }
        let identity = identity(self.config, &link, self.store).await?;
        let mut leases = LeaseWatch::open(&link, &identity.node).await?;
        let deadline = Instant::now() + START;
        loop {
            let (end, has_image) = (end_of(&link).await?, link.fact::<ImageKey>(ImageKey::KEY).await?.is_some());
            if origin.is_new && (end.is_some() || has_image) {
                return self.adopt(link, origin, theirs, identity).await;
            }
            let sequence = link.stream().await?.cached_info().state.last_sequence;
            if let Some((_, end)) = end {
                return self.reconcile(link, origin, end, identity).await;
            }
            if has_image {
                // Everything was deleted after the state of this data directory.
                return Ok(Joined { link, origin, sequence, identity, lease: None });
            }
            self.reason.set("it waits to lead its fleet");
            if is_same && let Some(lease) = leases.try_take().await? {
                if origin.is_new {
                    origin = self.renamed(&link, origin).await?;
                }
                return Ok(Joined { link, origin, sequence, identity, lease: Some(lease) });
            }
            if Instant::now() >= deadline {
                let text = "no node begins it: stop the node that has its lease, or give another --fleet";
                return Err(FleetError::Which(format!("fleet {}: {text}", link.names.fleet)).into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Names the first snapshot of a new chain by an epoch of the fleet, so that no other node has given its id.
    async fn renamed(&self, link: &FleetLink, origin: ChainOrigin) -> eyre::Result<ChainOrigin> {
        let epoch = take_epoch(link, self.store, origin.snapshots.load().last.epoch()).await?;
        origin.snapshots.update(|chain| chain.rename(SnapshotId::begin(epoch)));
        let Some(journal) = &origin.journal else { return Ok(origin) };
        journal.replace(&origin.about, &origin.snapshots.load())?;
        ChainOrigin::begin(self.config, self.codes, self.store, self.reason, self.clock)
    }

    /// Returns the chain of this node as the fleet is to know it.
    fn chain(&self, origin: &ChainOrigin) -> eyre::Result<FleetChain> {
        let timestamp = origin.snapshots.newest().header().timestamp;
        let spec = rules(self.config, &origin.about, timestamp)?;
        let mut config = origin.about.config.clone();
        set_forks(&mut config, &self.config.fork)?;
        Ok(FleetChain {
            version: VERSION,
            genesis: origin.about.genesis,
            config,
            builtin: origin.about.builtin,
            trading: origin.about.trading,
            block_time_ms: u64::try_from(spec.block_time().as_millis()).unwrap_or(u64::MAX),
            upstream: None,
        })
    }

    /// Continues with the fleet's state instead of this node's, which has just been created.
    async fn adopt(
        &self,
        link: FleetLink,
        mut origin: ChainOrigin,
        theirs: FleetChain,
        identity: NodeIdentity,
    ) -> eyre::Result<Joined> {
        self.reason.set("it reads the image of its fleet");
        let deadline = Instant::now() + START;
        let base = replica_base(self.config, self.codes);
        let following = patiently(deadline, &link, "it has messages and no image", async || {
            Following::bootstrap(&link, &base).await
        });
        let following =
            following.await.wrap_err("begin the fleet anew with --publish-anew if no node has its state")?;
        let about = origin.about.replaced_by(theirs.genesis, theirs.config, theirs.trading);
        let sequence = following.sequence();
        match &origin.journal {
            Some(journal) => {
                let adopted = following.state().load();
                journal.replace(&about, &adopted)?;
                origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, self.clock)?;
                // The journal has no changes without a snapshot.
                if origin.snapshots.load().last < adopted.last {
                    origin.snapshots.apply_as(Stamp::now(adopted.last), Record::Feed(adopted.feed()))?;
                }
            }
            None => origin.replace(about, following.state().mirror()),
        }
        Ok(Joined { link, origin, sequence, identity, lease: None })
    }

    /// Finds the place of the data directory's state in the stream, which ends with the message `end`. Removes what the
    /// stream does not have: a restart between the journal and the stream has written one change too many.
    async fn reconcile(
        &self,
        link: FleetLink,
        mut origin: ChainOrigin,
        end: SnapshotId,
        identity: NodeIdentity,
    ) -> eyre::Result<Joined> {
        let newest = origin.snapshots.newest().id;
        let stream = link.stream().await?;
        if let Some(sequence) = find(&stream, newest).await? {
            return Ok(Joined { link, origin, sequence, identity, lease: None });
        }
        let records = origin.journal.as_ref().map(|journal| journal.newest_ids(MAX_MISSING_RECORDS)).transpose()?;
        for id in records.into_iter().flatten() {
            let Some(sequence) = find(&stream, id).await? else { continue };
            tracing::warn!(
                from = format!("{:#x}", newest.0),
                to = format!("{:#x}", id.0),
                "what the stream of the fleet has not taken is removed from the data directory"
            );
            if let Some(journal) = &origin.journal {
                journal.take_back(id)?;
            }
            origin = ChainOrigin::begin(self.config, self.codes, self.store, self.reason, self.clock)?;
            return Ok(Joined { link, origin, sequence, identity, lease: None });
        }
        Err(FleetError::OtherHistory { fleet: link.names.fleet.clone(), ours: newest.0, theirs: end.0 }.into())
    }
}
