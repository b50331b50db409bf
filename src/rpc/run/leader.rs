//! Requests that only another node of a fleet can answer.

use std::time::Instant;

use bytes::Bytes;
use jsonrpsee::types::{Response, ResponsePayload};
use serde_json::value::RawValue;

use super::request::Request;
use crate::{
    fleet::{ForwardError, ForwardedRequest, LeaderClient, Membership},
    objects,
    rpc::protocol::{
        dialect::STANDARD,
        error::{Result, RpcError},
    },
};

/// The other nodes of a node's fleet.
#[derive(Debug)]
pub struct Leader {
    client: LeaderClient,
    /// Whether this node has the wallet.
    has_wallet: bool,
}

impl Leader {
    /// Creates the way to the other nodes of a fleet, from a node that `has_wallet` or not.
    pub fn new(membership: &Membership, has_wallet: bool) -> Self {
        Self { client: LeaderClient::new(membership.clone()), has_wallet }
    }

    /// Returns whether this node publishes, as leader or standby. Then it asks no leader, because it reads the same
    /// source.
    pub fn publishes(&self) -> bool {
        self.client.publishes()
    }

    /// Checks that this node has the wallet of the fleet.
    ///
    /// # Errors
    ///
    /// Returns -32000 with the name of the node that has the wallet, if it is another one.
    pub async fn ensure_wallet(&self) -> Result<()> {
        if self.has_wallet {
            return Ok(());
        }
        Err(RpcError::new(
            -32000,
            match self.client.wallet_owner().await {
                Ok(Some(owner)) => format!("the wallet of the fleet is on node {}: ask that node", owner.node),
                Ok(None) => {
                    "no node of the fleet has a wallet: start one with --publish, --data-dir and --wallet-key-file"
                        .to_owned()
                }
                Err(error) => format!("it is not known which node has the wallet of the fleet: {error}: try again"),
            },
        ))
    }

    /// Sends a request to the leader, with the time that it has left, and returns the JSON of the answer.
    ///
    /// # Errors
    ///
    /// Returns -32000 if no node leads, in which case nothing has changed; -32016 if a write is not answered in time,
    /// so that its outcome is unknown; -32005 if too many requests are in progress.
    async fn forward(&self, request: &Request) -> Result<Bytes> {
        let (caller, writes) = (&request.caller, request.method.commits);
        // The answer to a read must not be older than this node's state. A write is not rejected for that.
        let bounds_age = !writes && !request.published.feed().is_degraded();
        let forwarded = ForwardedRequest {
            text: request.text(),
            writes,
            path: std::ptr::eq(caller.dialect, &raw const STANDARD).then_some("/standard"),
            client: caller.client.name(),
            page: caller.page.as_deref(),
            min_snapshot: bounds_age.then_some(request.published.last),
            left: request.ticket.deadline().saturating_duration_since(Instant::now()),
        };
        self.client.forward(forwarded).await.map_err(|error| match error {
            ForwardError::Busy | ForwardError::TooLarge => RpcError::limit(error.to_string()),
            ForwardError::OutcomeUnknown => RpcError::new(-32016, error.to_string()),
            ForwardError::NoLeader | ForwardError::Unanswered => RpcError::new(-32000, error.to_string()),
        })
    }

    /// Returns the JSON of the leader's result.
    ///
    /// # Errors
    ///
    /// Returns the leader's error, or an error of [`forward`](Self::forward).
    pub async fn ask(&self, request: &Request) -> Result<Box<RawValue>> {
        let answer = self.forward(request).await?;
        let unreadable = |error: serde_json::Error| RpcError::internal(&format!("the leader's answer: {error}"));
        let answer: Response<'_, Box<RawValue>> = objects::from_slice(&answer).map_err(unreadable)?;
        match answer.payload {
            ResponsePayload::Success(result) => Ok(result.into_owned()),
            ResponsePayload::Error(error) => Err(RpcError::Answer(error.into_owned())),
        }
    }
}
