//! The joining of a publishing node. An upstream's chain has one history, so the node continues any stream of it that the
//! fleet has.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{Joining, RETRY_PAUSE};
use crate::{
    clock::Clock,
    fleet::{
        publishing::{Lease, LeaseWatch, Publisher, take_epoch},
        replica::{Following, ReplicaBase},
        servers::{FleetChain, FleetError, NodeIdentity, WALLET_KEY},
    },
    ledger::{SnapshotId, Snapshots, codec::MAX_IMAGE_BYTES},
    store::Store,
};

/// The time limit for a node with an upstream to reach the end of its fleet's stream. It can also do so later.
const IMAGE: Duration = Duration::from_secs(5);

/// A node that publishes, as it joins its fleet.
pub struct PublisherJoining<'a> {
    /// The node.
    pub node: Joining<'a>,
    /// The node's store.
    pub store: &'a Store,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

impl PublisherJoining<'_> {
    /// Joins the fleet of an upstream's chain. This node has the chain as `ours`, and reads it into the cell `own`.
    /// Returns the publisher, and the cell that clients see: the fleet's, or the node's own.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has another chain, the servers do not answer, or the store cannot be written.
    pub async fn join_live(&self, ours: FleetChain, own: &Snapshots) -> Result<(Publisher, Snapshots), FleetError> {
        let (port, settings) = (&self.node.port, self.node.settings);
        let identity = NodeIdentity::of(self.store, settings.listen)?;
        let mut leases = LeaseWatch::new(port.clone(), &identity.node);
        let mut seized = self.clear(&mut leases).await?;
        // A fleet of another version is refused before more of it is read.
        port.chain().await?;
        let chain = port.write_fact(FleetChain::KEY, &ours, |_| seized.is_some()).await?;
        if chain.genesis != ours.genesis {
            let fleet = port.fleet().to_owned();
            return Err(FleetError::OtherChain { fleet, theirs: chain.name(), ours: ours.name() });
        }
        if settings.has_wallet {
            port.write_fact(WALLET_KEY, &identity, |known| *known != identity).await?;
        }
        let base = self.node.base();
        let pulse = self.node.pulse(&base).await?;
        let (following, lease) = loop {
            if let Some(following) = self.reach_end(&base).await? {
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
                let sequence = port.ends().await?.last;
                break (Following::from(port.clone(), &base, own.load(), sequence), Some(lease));
            }
            port.want_image().await;
            sleep(RETRY_PAUSE).await;
        };
        let reached = following.chain().clone();
        let mut follower = self.node.follower(base, following, pulse, chain.clone());
        let shown = own.mirror();
        if lease.is_none() {
            shown.replace_all(follower.first_shown(&reached).into());
        }
        let publisher = Publisher {
            port: port.clone(),
            chain,
            clock: self.clock.clone(),
            store: self.store.clone(),
            follower,
            node: identity.node,
            settings: settings.clone(),
            max_image_bytes: MAX_IMAGE_BYTES as u64,
            leads: watch::Sender::new(false),
            lease,
            ceased: None,
        };
        Ok((publisher, shown))
    }

    /// If the fleet is to restart, seizes the lease, deletes the fleet's data, and returns the lease.
    async fn clear(&self, leases: &mut LeaseWatch) -> Result<Option<Lease>, FleetError> {
        if !self.node.settings.anew {
            return Ok(None);
        }
        let lease = leases.seize().await?;
        self.node.port.clear().await?;
        tracing::info!(fleet = self.node.port.fleet(), "restarting the fleet's stream");
        Ok(Some(lease))
    }

    /// Returns the chain of a fleet that has an image, at the end of its stream. `None` if no image can be read.
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
        match timeout(IMAGE, following.reach_end()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the stream cannot be followed to its end yet"),
            Err(_) => tracing::info!("the end of the stream is not reached yet"),
        }
        Ok(Some(following))
    }
}
