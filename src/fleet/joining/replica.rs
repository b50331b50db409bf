//! The joining of a replica: it begins with the fleet's image, and comes to the end of the stream.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Joining, RETRY_PAUSE, come_to_the_end};
use crate::{
    fleet::{
        replica::{FollowError, Follower, Following, ReplicaBase},
        servers::{FleetChain, FleetError, ImageKey},
    },
    ledger::Snapshots,
};

/// The time in which a node that joins hears of the leader, which it can do later.
const LEADER: Duration = Duration::from_secs(2);

impl Joining<'_> {
    /// Begins with the fleet's image, and comes to the end of the stream. Waits for the fleet until `deadline`.
    ///
    /// # Errors
    ///
    /// Returns an error if the fleet has no chain or no image, or the image cannot be used.
    pub async fn follow(&self, deadline: Instant) -> Result<(FleetChain, Snapshots, Follower), FleetError> {
        (self.report)("it waits for the chain of its fleet");
        let chain = self.wait_for(deadline, "no node has published a chain to it", async || self.port.chain().await);
        let chain = chain.await?;
        let base = self.base();
        let mut pulse = self.pulse(&base).await?;
        pulse.find_leader(LEADER).await;
        let following = self.image(&base, deadline, "it has no image yet").await?;
        let following = self.at_the_end(&base, following).await;
        let snapshots = following.state().mirror();
        let follower = self.follower(base, following, pulse, chain.clone());
        follower.show_in(&snapshots);
        Ok((chain, snapshots, follower))
    }

    /// Returns the state at the end of the stream, so that a node which joins does not answer from the past. A failure on the
    /// way is logged, and the way is tried again: with a newer image if the stream does not lead on from this one.
    async fn at_the_end(&self, base: &ReplicaBase, begun: Following) -> Following {
        let (mut following, mut useless, mut said) = (Some(begun), 0, String::new());
        loop {
            (self.report)("it comes to the end of the stream of its fleet");
            let failed = match following.take() {
                Some(mut reached) => match come_to_the_end(&*self.port, &mut reached).await {
                    Ok(()) => return reached,
                    Err(FollowError::Fleet(error)) => {
                        following = Some(reached);
                        error.to_string()
                    }
                    Err(error) => {
                        useless = reached.origin.0;
                        error.to_string()
                    }
                },
                None => match self.newer_image(base, useless).await {
                    Ok(Some(newer)) => {
                        following = Some(newer);
                        continue;
                    }
                    Ok(None) => {
                        self.port.want_image().await;
                        "there is no newer image yet".to_owned()
                    }
                    Err(error) => error.to_string(),
                },
            };
            if failed != said {
                tracing::warn!(problem = failed, "the end of the stream is not reached: it is tried again");
                said = failed;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Begins with the fleet's newest image if that is newer than the image with the id `than`.
    async fn newer_image(&self, base: &ReplicaBase, than: u64) -> Result<Option<Following>, FleetError> {
        match self.port.fact::<ImageKey>(ImageKey::KEY).await? {
            Some(key) if key.id > than => Following::bootstrap(&self.port, base).await,
            _ => Ok(None),
        }
    }
}
