//! The place of a fleet's wallet. A batch id must never run twice, so the wallet stays with the data directory that has its
//! ledger, whichever node leads: the leader that is first asked for it takes it, by compare-and-set on a fact of the fleet.

use async_nats::jetstream::kv::CreateErrorKind;

use super::Place;
use crate::source::fleet::{FleetError, NodeIdentity, WALLET_KEY};

/// The place of a fleet's wallet, as a node sees it.
#[derive(Debug)]
pub enum WalletPlace {
    /// This node has it.
    Here,
    /// Another node has it.
    At(NodeIdentity),
    /// No node has it yet: the leader takes it with the next request.
    Leader,
}

impl Place {
    /// Returns the place of the wallet. Takes the wallet if no node has it and this one leads.
    pub(super) async fn wallet(&self) -> Result<WalletPlace, FleetError> {
        let link = &self.link;
        let own = self.publishes.as_ref().map(|own| &own.identity);
        loop {
            match (link.fact::<NodeIdentity>(WALLET_KEY).await?, own) {
                (Some(owner), Some(own)) if owner.id == own.id => return Ok(WalletPlace::Here),
                (Some(owner), _) => return Ok(WalletPlace::At(owner)),
                (None, Some(own)) if self.leads() => {
                    let untaken = |problem: String| FleetError::nats("the wallet cannot be taken", problem);
                    let text = serde_json::to_vec(own).map_err(|error| untaken(error.to_string()))?;
                    match link.facts().await?.create(WALLET_KEY, text.into()).await {
                        Ok(_) => return Ok(WalletPlace::Here),
                        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
                        Err(error) => return Err(untaken(error.to_string())),
                    }
                }
                (None, _) => return Ok(WalletPlace::Leader),
            }
        }
    }
}
