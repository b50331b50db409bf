//! JSON-RPC over NATS: replicas as a micro service, and requests that only another node of a fleet can answer.
//!
//! A message is a body as over HTTP, and its answer is the one that HTTP would give. The headers are also the same:
//! `Authorization`, `x-presim-min-snapshot`, and `x-presim-path` for the dialect.

mod arriving;
mod leader;
mod serving;

pub use self::{
    arriving::{Answers, ArrivedRequest, WALLET_TOKEN_REJECTED, too_large},
    leader::{ForwardError, ForwardedRequest, LeaderClient},
};

use tokio::sync::watch;

use super::servers::FleetLink;

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
/// Maximum concurrent requests over NATS. Further requests wait in the connection, as in a socket.
const AT_ONCE: usize = 1_024;

/// A node's membership in its fleet.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The connection to the fleet.
    pub link: FleetLink,
    /// Whether the node leads, if it publishes; `None` on a replica.
    pub leads: Option<watch::Receiver<bool>>,
}
