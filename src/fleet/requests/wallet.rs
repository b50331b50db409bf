//! The node that has a fleet's wallet. A batch id must never run twice, so the wallet stays with the data directory that has its
//! ledger, whichever node leads: the leader that is first asked for it takes it, by compare-and-set on a fact of the fleet.

use super::Membership;
use crate::fleet::servers::{FleetError, FleetPort, NodeIdentity, WALLET_KEY};

/// The node that has a fleet's wallet, as a node sees it.
#[derive(Debug)]
pub enum WalletHolder {
    /// This node has it.
    Own,
    /// Another node has it.
    Other(NodeIdentity),
    /// No node has it yet: the leader takes it with the next request.
    Leader,
}

impl Membership {
    /// Returns which node has the wallet. Takes the wallet if no node has it and this one leads.
    pub(super) async fn wallet(&self) -> Result<WalletHolder, FleetError> {
        let port: &dyn FleetPort = &self.link;
        let own = self.publishes.as_ref().map(|own| &own.identity);
        let owner = match own {
            Some(own) if self.leads() => Some(port.write_fact(WALLET_KEY, own, |_| false).await?),
            _ => port.fact(WALLET_KEY).await?,
        };
        Ok(match (owner, own) {
            (Some(owner), Some(own)) if owner.id == own.id => WalletHolder::Own,
            (Some(owner), _) => WalletHolder::Other(owner),
            (None, _) => WalletHolder::Leader,
        })
    }
}
