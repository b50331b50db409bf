//! JSON-RPC over NATS: replicas as a micro service, and requests that only another node of a fleet can answer.
//!
//! A message is a body as over HTTP, and its answer is the one that HTTP would give. The headers of a message are those of
//! HTTP too: `Authorization`, `x-presim-min-snapshot`, and `x-presim-path` for the dialect.

mod arriving;
mod leader;
mod proof;
mod serving;
mod wallet;

pub use self::{
    arriving::{Answers, ArrivedRequest, ForwardingNode, WALLET_TOKEN_REFUSED, too_large},
    leader::{ForwardError, ForwardedRequest, LeaderClient, Mac},
    proof::Proof,
    serving::ServedRequests,
};

use tokio::sync::watch;

use super::servers::{FleetLink, NodeIdentity};

/// The header with the path that a request would have over HTTP.
const PATH: &str = "x-presim-path";
/// The header with the id of the oldest snapshot that may answer.
const MIN_SNAPSHOT: &str = "x-presim-min-snapshot";
/// The header with the name of the token of another node's client, for the leader's log.
const CLIENT: &str = "x-presim-client";
/// The header with the origin of the page that calls.
const PAGE: &str = "x-presim-page";
/// The header with the milliseconds that are left for a request of another node.
const LEFT: &str = "x-presim-left-ms";
/// Requests over NATS that may be under way at once. More wait in the connection, as in a socket.
const AT_ONCE: usize = 1_024;

/// A node's membership in its fleet.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The connection to the fleet.
    pub link: FleetLink,
    /// The node's part in publishing; `None` on a replica.
    pub publishes: Option<PublishingNode>,
}

/// A node that publishes, as the other nodes of its fleet know it.
#[derive(Clone, Debug)]
pub struct PublishingNode {
    /// The node's identity.
    pub identity: NodeIdentity,
    /// Whether the node leads.
    pub leads: watch::Receiver<bool>,
}

impl Membership {
    /// Returns whether this node leads the fleet.
    pub fn leads(&self) -> bool {
        self.publishes.as_ref().is_some_and(|own| *own.leads.borrow())
    }
}
