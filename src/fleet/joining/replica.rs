//! The joining of a replica: it loads the fleet's image, and reads the stream to its end.

use std::time::Duration;

use tokio::time::Instant;

use super::Joining;
use crate::{
    fleet::{
        replica::{Follower, Following},
        servers::{FleetChain, FleetError},
    },
    ledger::Snapshots,
};

/// The time limit for hearing the leader while joining. The node can also hear it later.
const LEADER: Duration = Duration::from_secs(2);

impl Joining<'_> {
    /// Loads the fleet's image, and reads the stream to its end. Waits for the fleet until `deadline`.
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
        (self.report)("it reads the image of its fleet");
        let begun = self.wait_for(deadline, "it has no image yet", async || {
            let begun = Following::bootstrap(&self.port, &base).await;
            if !matches!(begun, Ok(Some(_))) {
                self.port.want_image().await;
            }
            begun
        });
        let begun = begun.await?;
        let mut follower = self.follower(base, begun, pulse, chain.clone());
        (self.report)("it comes to the end of the stream of its fleet");
        let reached = follower.reach_end().await;
        let snapshots = follower.first_shown(&reached).into();
        Ok((chain, snapshots, follower))
    }
}
