//! Requests that only another node of a fleet can answer: the leader knows blocks, transactions and logs that a replica
//! does not have, and has an upstream.

use std::time::Duration;

use async_nats::{HeaderMap, client::RequestErrorKind};
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::{AT_ONCE, CLIENT, LEFT, MIN_SNAPSHOT, Membership, PAGE, PATH};
use crate::{
    fleet::servers::{FleetError, FleetPort, NodeIdentity, Topic, WALLET_KEY},
    ledger::SnapshotId,
};

/// A client of the leader of a node's fleet.
#[derive(Debug)]
pub struct LeaderClient {
    membership: Membership,
    permits: Semaphore,
}

/// A request for the leader.
pub struct ForwardedRequest<'a> {
    /// The JSON of the request.
    pub text: String,
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
}

/// The reason why the leader has not answered.
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
    /// A read was not answered in time.
    #[error("the leader of the fleet has not answered in time: try again")]
    Unanswered,
    /// A write was not answered in time, so its outcome is unknown.
    #[error("outcome unknown: the leader of the fleet has not answered in time")]
    OutcomeUnknown,
}

impl LeaderClient {
    /// Creates the client of a node of a fleet.
    pub fn new(membership: Membership) -> Self {
        Self { membership, permits: Semaphore::new(AT_ONCE) }
    }

    /// Returns whether this node publishes: it leads or stands by.
    pub const fn publishes(&self) -> bool {
        self.membership.leads.is_some()
    }

    /// Returns the node that has registered its wallet; `None` if no node has.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not answer.
    pub async fn wallet_owner(&self) -> Result<Option<NodeIdentity>, FleetError> {
        let port: &dyn FleetPort = &self.membership.link;
        port.fact(WALLET_KEY).await
    }

    /// Sends a request to the leader, and returns the answer.
    ///
    /// # Errors
    ///
    /// Returns [`ForwardError`] if the leader does not answer.
    pub async fn forward(&self, request: ForwardedRequest<'_>) -> Result<Bytes, ForwardError> {
        let Ok(_permit) = self.permits.try_acquire() else { return Err(ForwardError::Busy) };
        let ForwardedRequest { text, writes, path, client, page, min_snapshot, left } = request;
        let mut headers = HeaderMap::new();
        let min_snapshot = min_snapshot.map(|id| format!("{:#x}", id.0));
        let texts = [(PATH, path), (CLIENT, client), (PAGE, page), (MIN_SNAPSHOT, min_snapshot.as_deref())];
        for (name, text) in texts {
            if let Some(text) = text {
                headers.insert(name, text);
            }
        }
        headers.insert(LEFT, left.as_millis().to_string());
        let asked = async_nats::Request::new().payload(text.into()).headers(headers).timeout(Some(left));
        let link = &self.membership.link;
        let answer = link.client.send_request(link.names.subject(Topic::Leader), asked).await;
        answer.map(|answer| answer.payload).map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => ForwardError::NoLeader,
            RequestErrorKind::MaxPayloadExceeded => ForwardError::TooLarge,
            _ if writes => ForwardError::OutcomeUnknown,
            _ => ForwardError::Unanswered,
        })
    }
}
