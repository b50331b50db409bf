//! The place of a fleet's wallet. A batch id must never run twice, so the wallet stays with the data directory that has its
//! ledger, whichever node leads: the leader that is first asked for it takes it, by compare-and-set on a fact of the fleet.

use super::LeaderLink;
use crate::{
    rpc::error::RpcError,
    source::fleet::{FleetError, FleetPort, NodeIdentity, WALLET_KEY},
};

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

impl LeaderLink {
    /// Returns the place of the wallet. Takes the wallet if no node has it and this one leads.
    ///
    /// # Errors
    ///
    /// Returns -32000 if NATS does not answer.
    pub(super) async fn wallet(&self) -> Result<WalletPlace, RpcError> {
        let unknown = |error: FleetError| {
            RpcError::new(-32000, format!("it is not known which node has the wallet of the fleet: {error}: try again"))
        };
        let port: &dyn FleetPort = &self.link;
        let own = self.publishes.as_ref().map(|own| &own.identity);
        let owner = match own {
            Some(own) if self.leads() => Some(port.write_fact(WALLET_KEY, own, |_| false).await.map_err(unknown)?),
            _ => port.fact(WALLET_KEY).await.map_err(unknown)?,
        };
        Ok(match (owner, own) {
            (Some(owner), Some(own)) if owner.id == own.id => WalletPlace::Here,
            (Some(owner), _) => WalletPlace::At(owner),
            (None, _) => WalletPlace::Leader,
        })
    }

    /// Checks that this node, which publishes, may answer for the wallet. Returns whether the leader has to be asked
    /// instead, because no node has the wallet yet.
    ///
    /// # Errors
    ///
    /// Returns -32000 with the node that has the wallet if that is another, or if NATS does not answer.
    pub async fn leaves_wallet_to_leader(&self) -> Result<bool, RpcError> {
        match self.wallet().await? {
            WalletPlace::Here => Ok(false),
            WalletPlace::Leader => Ok(true),
            WalletPlace::At(owner) => Err(elsewhere(&owner)),
        }
    }
}

/// Returns the error of a request for the wallet that the node which has it does not answer.
pub(super) fn elsewhere(owner: &NodeIdentity) -> RpcError {
    RpcError::new(
        -32000,
        format!(
            "the wallet of the fleet is with the data directory of node {}: ask that node, or start one on its data directory",
            owner.node
        ),
    )
}
