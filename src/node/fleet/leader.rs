//! The forwarding of requests to another node of the fleet.

use std::time::Instant;

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};

use crate::{
    fleet::{ForwardError, ForwardedRequest, LeaderClient},
    rpc::{Leader, Request, RpcError, dialect::STANDARD},
};

/// The other nodes of a node's fleet.
#[derive(Debug)]
pub struct FleetLeader {
    pub client: LeaderClient,
    /// Whether this node has the wallet.
    pub has_wallet: bool,
}

impl Leader for FleetLeader {
    fn publishes(&self) -> bool {
        self.client.publishes()
    }

    fn ensure_wallet(&self) -> BoxFuture<'_, Result<(), RpcError>> {
        async move {
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
        .boxed()
    }

    fn forward<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Bytes, RpcError>> {
        async move {
            let (caller, writes) = (&request.caller, request.method.commits);
            // The answer to a read is not older than what this node shows. A write is not rejected for that.
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
            self.client.forward(forwarded).await.map_err(rejection)
        }
        .boxed()
    }
}

fn rejection(error: ForwardError) -> RpcError {
    match error {
        ForwardError::Busy | ForwardError::TooLarge => RpcError::limit(error.to_string()),
        ForwardError::OutcomeUnknown => RpcError::new(-32016, error.to_string()),
        ForwardError::NoLeader | ForwardError::Unanswered => RpcError::new(-32000, error.to_string()),
    }
}
