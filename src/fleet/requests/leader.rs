//! Requests that only another node of a fleet can answer. The leader answers about its pool, sending with its accounts,
//! bundles, and blocks whose bodies this node does not have; the node that has the fleet's wallet answers the wallet's methods.

use std::time::Duration;

use async_nats::{HeaderMap, client::RequestErrorKind};
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::{AT_ONCE, CLIENT, LEFT, MIN_SNAPSHOT, Membership, PAGE, PATH, proof::prove, wallet::WalletHolder};
use crate::{fleet::servers::FleetError, ledger::SnapshotId};

/// A client of the leader of a node's fleet, and of the node that has the fleet's wallet.
#[derive(Debug)]
pub struct LeaderClient {
    membership: Membership,
    permits: Semaphore,
}

/// The HMAC of some texts by a token.
pub type Mac<'a> = dyn Fn(&[&[u8]]) -> [u8; 32] + Sync + 'a;

/// A request for another node.
pub struct ForwardedRequest<'a> {
    /// The JSON of the request.
    pub text: String,
    /// Whether it is for the node that has the wallet.
    pub is_for_wallet: bool,
    /// Whether the request changes something, so that its outcome is unknown without an answer.
    pub writes: bool,
    /// The path that the request would have over HTTP, unless that is `/`.
    pub path: Option<&'static str>,
    /// The name of the client's token.
    pub client: Option<&'a str>,
    /// The origin of the page that calls.
    pub page: Option<&'a str>,
    /// The oldest snapshot that may answer.
    pub min_snapshot: Option<SnapshotId>,
    /// The time that the request has left.
    pub left: Duration,
    /// The HMAC of some texts by a token of the wallet, if the client has one.
    pub mac: Option<&'a Mac<'a>>,
}

/// The reason why another node has not answered.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// Too many requests are under way.
    #[error("too busy: {AT_ONCE} requests wait for the leader of the fleet already")]
    Busy,
    /// The request is too large for a message.
    #[error("the request is larger than NATS takes (max_payload): send it to the leader over HTTP")]
    TooLarge,
    /// No node leads. The request has changed nothing.
    #[error("the fleet has no leader at the moment: try again")]
    NoLeader,
    /// The node that has the wallet is not there. The request has changed nothing.
    #[error(
        "the wallet of the fleet is with the data directory of node {0}: ask that node, or start one on its data directory"
    )]
    WalletElsewhere(String),
    /// Which node has the wallet is not known.
    #[error("it is not known which node has the wallet of the fleet: {0}: try again")]
    WalletUnknown(#[from] FleetError),
    /// A read was not answered in time.
    #[error("the leader of the fleet has not answered in time: try again")]
    Unanswered,
    /// A write was not answered in time, so that it is not known what it has done.
    #[error("outcome unknown: the leader of the fleet has not answered in time")]
    OutcomeUnknown,
}

impl LeaderClient {
    /// Creates the client of a node of a fleet.
    pub fn new(membership: Membership) -> Self {
        Self { membership, permits: Semaphore::new(AT_ONCE) }
    }

    /// Returns whether this node leads the fleet.
    pub fn leads(&self) -> bool {
        self.membership.leads()
    }

    /// Returns whether this node publishes, whether it leads or stands by.
    pub const fn publishes(&self) -> bool {
        self.membership.publishes.is_some()
    }

    /// Checks that this node, which publishes, may answer for the wallet. Returns whether the leader has to be asked
    /// instead, because no node has the wallet yet.
    ///
    /// # Errors
    ///
    /// Returns [`ForwardError::WalletElsewhere`] if another node has it, and [`ForwardError::WalletUnknown`] if NATS does not
    /// answer.
    pub async fn leaves_wallet_to_leader(&self) -> Result<bool, ForwardError> {
        match self.membership.wallet().await? {
            WalletHolder::Own => Ok(false),
            WalletHolder::Leader => Ok(true),
            WalletHolder::Other(owner) => Err(ForwardError::WalletElsewhere(owner.node)),
        }
    }

    /// Sends a request to the node that can answer it, and returns the answer.
    ///
    /// # Errors
    ///
    /// Returns [`ForwardError`] if the node does not answer.
    pub async fn forward(&self, request: ForwardedRequest<'_>) -> Result<Bytes, ForwardError> {
        let Ok(_permit) = self.permits.try_acquire() else { return Err(ForwardError::Busy) };
        let ForwardedRequest { text, is_for_wallet, writes, path, client, page, min_snapshot, left, mac } = request;
        let holder = if is_for_wallet { self.membership.wallet().await? } else { WalletHolder::Leader };
        let names = &self.membership.link.names;
        let (subject, absent) = match holder {
            WalletHolder::Other(owner) => (names.wallet(&owner.id), ForwardError::WalletElsewhere(owner.node)),
            WalletHolder::Leader | WalletHolder::Own => (names.leader(), ForwardError::NoLeader),
        };
        let mut headers = HeaderMap::new();
        let min_snapshot = min_snapshot.map(|id| format!("{:#x}", id.0));
        let texts = [(PATH, path), (CLIENT, client), (PAGE, page), (MIN_SNAPSHOT, min_snapshot.as_deref())];
        for (name, text) in texts {
            if let Some(text) = text {
                headers.insert(name, text);
            }
        }
        headers.insert(LEFT, left.as_millis().to_string());
        if let Some(mac) = mac {
            prove(mac, &subject, &mut headers, text.as_bytes());
        }
        let asked = async_nats::Request::new().payload(text.into()).headers(headers).timeout(Some(left));
        let answer = self.membership.link.client.send_request(subject, asked).await;
        answer.map(|answer| answer.payload).map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => absent,
            RequestErrorKind::MaxPayloadExceeded => ForwardError::TooLarge,
            _ if writes => ForwardError::OutcomeUnknown,
            _ => ForwardError::Unanswered,
        })
    }
}
