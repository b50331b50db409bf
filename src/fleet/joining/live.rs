//! The joining of a node that publishes. An upstream's chain has one history, so the node continues with whatever stream of it the fleet has.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::{PublisherJoining, RETRY_PAUSE, come_to_the_end};
use crate::{
    fleet::{
        publishing::{LeaseWatch, Publisher, take_epoch},
        replica::{Following, ReplicaBase},
        servers::{FleetChain, FleetError, NodeIdentity},
    },
    ledger::{SnapshotId, Snapshots},
};

/// The time in which a node that has an upstream comes to the end of its fleet's stream, which it can do later.
const IMAGE: Duration = Duration::from_secs(5);

/// A node with an upstream that has joined the fleet.
#[derive(Debug)]
pub struct JoinedLive {
    /// The node's part in publishing.
    pub publisher: Publisher,
    /// The chain that the node shows: the fleet's, or its own.
    pub shown: Snapshots,
    /// The cell into which the node reads its upstream.
    pub own: Arc<Snapshots>,
    /// The time between two blocks of the fleet's chain, for simulations of several.
    pub block_time: Duration,
}

impl PublisherJoining<'_> {
    /// Joins the fleet of an upstream's chain, which this node has as `ours` and shows in `own`.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has another chain, the servers do not answer, or the store cannot be written.
    pub async fn join_live(&self, ours: FleetChain, own: Arc<Snapshots>) -> Result<JoinedLive, FleetError> {
        let port = &self.node.port;
        let identity = NodeIdentity::of(self.store, self.node.settings.listen)?;
        let mut leases = LeaseWatch::new(port.clone(), &identity.node);
        let mut seized = self.clear(&mut leases).await?;
        // A fleet of another version is refused before more of it is read.
        port.chain().await?;
        let theirs = port.write_fact(FleetChain::KEY, &ours, |_| seized.is_some()).await?;
        if theirs.genesis != ours.genesis {
            return Err(self.other_chain(&theirs, &ours));
        }
        self.register_wallet(&identity).await?;
        let base = self.node.base();
        let pulse = self.node.pulse(&base).await?;
        let shown = own.mirror();
        let (following, lease) = loop {
            if let Some(following) = self.reach_end(&base).await? {
                shown.replace_all(following.state().load());
                break (following, None);
            }
            // Nothing was published yet, everything was deleted, or the node that has published has left no image.
            (self.node.report)("it waits to lead its fleet, or for an image of its state");
            let lease = match seized.take() {
                Some(lease) => Some(lease),
                None => leases.try_take().await?,
            };
            if let Some(lease) = lease {
                let epoch = take_epoch(&**port, self.store, &*self.clock, own.load().last.epoch()).await?;
                own.update(|chain| chain.set_id(SnapshotId::begin(epoch)));
                shown.replace_all(own.load());
                let sequence = port.ends().await?.last;
                let applier = base.applier(own.mirror());
                break (Following::from(port.clone(), applier, sequence), Some(lease));
            }
            port.want_image().await;
            sleep(RETRY_PAUSE).await;
        };
        let follower = self.node.follower(base, following, pulse, theirs.clone());
        if lease.is_none() {
            follower.show_in(&shown);
        }
        let block_time = Duration::from_millis(theirs.block_time_ms);
        let publisher = self.publisher(follower, &identity, lease, theirs);
        Ok(JoinedLive { publisher, shown, own, block_time })
    }

    /// Returns the state of a fleet that has an image, at the end of its stream; `None` if there is no image that can be read.
    async fn reach_end(&self, base: &ReplicaBase) -> Result<Option<Following>, FleetError> {
        (self.node.report)("it reads the image of its fleet");
        let mut following = match Following::bootstrap(&self.node.port, base).await {
            Ok(Some(following)) => following,
            Ok(None) => return Ok(None),
            Err(error @ FleetError::Version { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the state of the fleet cannot be read yet");
                return Ok(None);
            }
        };
        match timeout(IMAGE, come_to_the_end(&*self.node.port, &mut following)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the stream cannot be followed to its end yet"),
            Err(_) => tracing::info!("the end of the stream is not reached yet"),
        }
        Ok(Some(following))
    }
}
