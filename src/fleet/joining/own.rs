//! The joining of a node with a chain of presim's own: it begins the fleet, goes on from the stream, or takes the fleet's state.

use eyre::WrapErr;
use tokio::time::{Instant, sleep};

use super::{PublisherJoining, RETRY_PAUSE, START};
use crate::{
    fleet::{
        publishing::{Lease, LeaseWatch, Publisher, take_epoch},
        replica::Following,
        servers::{FleetChain, FleetError, ImageKey, NodeIdentity, end_of, find},
    },
    ledger::{Record, SnapshotId, Snapshots, Stamp},
    publish::journal::{ChainOrigin, Journal},
};

/// The newest records of a data directory that may be missing in the stream.
const MAX_MISSING_RECORDS: usize = 8;

/// Reads the chain of the data directory again, after its journal was changed.
type Reopen<'a> = &'a dyn Fn() -> eyre::Result<ChainOrigin>;

/// A node's chain in its fleet.
#[derive(Debug)]
pub struct Membership {
    /// The identity of this node.
    pub identity: NodeIdentity,
    chain: FleetChain,
    /// The sequence in the stream of the last message that the chain has.
    sequence: u64,
    /// The lease, if the fleet begins with this node's chain.
    lease: Option<Lease>,
}

/// A state, with the sequence of its last message in the stream, and the lease if the fleet begins with it.
type Joined = (ChainOrigin, u64, Option<Lease>);

impl PublisherJoining<'_> {
    /// Joins the fleet with the chain of this node, which is `ours` there, or takes the fleet's state. Returns the chain with
    /// which the node goes on.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has another chain or another history, or the servers do not answer.
    pub async fn join_chain(
        &self,
        origin: ChainOrigin,
        ours: FleetChain,
        reopen: Reopen<'_>,
    ) -> eyre::Result<(ChainOrigin, Membership)> {
        let port = &self.node.port;
        let identity = NodeIdentity::of(self.store, self.node.settings.listen)?;
        let mut leases = LeaseWatch::new(port.clone(), &identity.node);
        let seized = self.clear(&mut leases).await?;
        let is_seized = seized.is_some();
        if let Some(theirs) = port.chain().await?.filter(|_| !is_seized) {
            let is_same = theirs.genesis == ours.genesis;
            if !(is_same || origin.is_new && theirs.builtin && ours.builtin) {
                return Err(self.other_chain(&theirs, &ours).into());
            }
        }
        let chain = port.write_fact(FleetChain::KEY, &ours, |_| is_seized).await?;
        self.take_wallet(&identity).await?;
        let is_same = chain.genesis == ours.genesis;
        let joined = self.find_sequence(origin, chain.clone(), is_same, leases, seized, reopen).await?;
        let (origin, sequence, lease) = joined;
        Ok((origin, Membership { identity, chain, sequence, lease }))
    }

    /// Returns the node's part in publishing the chain in `snapshots`, whose changes go to `journal` too.
    ///
    /// # Errors
    ///
    /// Returns an error if the servers do not answer.
    pub async fn publish_chain(
        &self,
        membership: Membership,
        snapshots: &Snapshots,
        journal: Option<Journal>,
    ) -> Result<Publisher, FleetError> {
        let Membership { identity, chain, sequence, lease } = membership;
        let base = self.node.base();
        let applier = base.applier(snapshots.mirror());
        let following = Following::from(self.node.port.clone(), applier, sequence);
        let pulse = self.node.pulse(&base).await?;
        let mut follower = self.node.follower(base, following, pulse, chain.clone());
        follower.journal = journal;
        if lease.is_none() {
            follower.show_in(snapshots);
        }
        Ok(self.publisher(follower, &identity, lease, chain))
    }

    /// Finds the sequence of the stream from which this node's chain goes on. A fleet that has published nothing begins with the chain of the node
    /// that has the lease.
    async fn find_sequence(
        &self,
        mut origin: ChainOrigin,
        theirs: FleetChain,
        is_same: bool,
        mut leases: LeaseWatch,
        mut seized: Option<Lease>,
        reopen: Reopen<'_>,
    ) -> eyre::Result<Joined> {
        let port = &self.node.port;
        let deadline = Instant::now() + START;
        loop {
            let (end, has_image) = (end_of(&**port).await?, port.fact::<ImageKey>(ImageKey::KEY).await?.is_some());
            if origin.is_new && (end.is_some() || has_image) {
                return self.adopt(origin, theirs, reopen).await;
            }
            let sequence = port.ends().await?.last;
            if let Some(end) = end {
                return self.reconcile(origin, theirs, end, reopen).await;
            }
            if has_image {
                // Everything was deleted after the state of this data directory.
                return Ok((origin, sequence, None));
            }
            (self.node.report)("it waits to lead its fleet");
            let lease = match seized.take() {
                Some(lease) => Some(lease),
                None if is_same => leases.try_take().await?,
                None => None,
            };
            if let Some(lease) = lease {
                if origin.is_new {
                    origin = self.renamed(origin, reopen).await?;
                }
                return Ok((origin, sequence, Some(lease)));
            }
            if Instant::now() >= deadline {
                let text = "no node begins it: stop the node that has its lease, or give another --fleet";
                return Err(FleetError::Which(format!("fleet {}: {text}", port.fleet())).into());
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Names the first snapshot of a new chain by an epoch of the fleet, so that no other node has given its id.
    async fn renamed(&self, origin: ChainOrigin, reopen: Reopen<'_>) -> eyre::Result<ChainOrigin> {
        let epoch =
            take_epoch(&*self.node.port, self.store, &*self.clock, origin.snapshots.load().last.epoch()).await?;
        origin.snapshots.update(|chain| chain.rename(SnapshotId::begin(epoch)));
        let Some(journal) = &origin.journal else { return Ok(origin) };
        journal.replace(&origin.identity, &origin.snapshots.load())?;
        reopen()
    }

    /// Continues with the fleet's state instead of this node's, which has just been created or is older. The wallet of the data
    /// directory stays.
    async fn adopt(&self, mut origin: ChainOrigin, theirs: FleetChain, reopen: Reopen<'_>) -> eyre::Result<Joined> {
        let deadline = Instant::now() + START;
        let following = self.node.image(&self.node.base(), deadline, "it has messages and no image").await;
        let following = following.wrap_err("begin the fleet anew with --publish-anew if no node has its state")?;
        let identity = origin.identity.replaced_by(theirs.genesis, theirs.config, theirs.trading);
        let sequence = following.sequence();
        match &origin.journal {
            Some(journal) => {
                let adopted = following.state().load();
                journal.replace(&identity, &adopted)?;
                origin = reopen()?;
                // The journal has no changes without a snapshot.
                if origin.snapshots.load().last < adopted.last {
                    origin.snapshots.apply_as(Stamp::now(adopted.last), Record::Feed(adopted.feed()))?;
                }
            }
            None => (origin.identity, origin.snapshots) = (identity, following.state().mirror()),
        }
        Ok((origin, sequence, None))
    }

    /// Finds the sequence of the data directory's state in the stream, which ends with the message `end`. Removes what the
    /// stream does not have: a restart between the journal and the stream has written one change too many. A directory that is
    /// older than all of the stream takes the fleet's state.
    async fn reconcile(
        &self,
        mut origin: ChainOrigin,
        theirs: FleetChain,
        end: SnapshotId,
        reopen: Reopen<'_>,
    ) -> eyre::Result<Joined> {
        let (port, newest) = (&*self.node.port, origin.snapshots.newest().id);
        if let Some(sequence) = find(port, newest).await? {
            return Ok((origin, sequence, None));
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
            origin = reopen()?;
            return Ok((origin, sequence, None));
        }
        if newest < end {
            tracing::warn!(
                from = format!("{:#x}", newest.0),
                "the data directory is older than the stream of the fleet: its chain goes on with the fleet's image"
            );
            return self.adopt(origin, theirs, reopen).await;
        }
        Err(FleetError::OtherHistory { fleet: port.fleet().to_owned(), ours: newest.0, theirs: end.0 }.into())
    }
}
