//! The forwarding of requests to another node of the fleet.

use std::time::Instant;

use bytes::Bytes;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};

use crate::{
    fleet::{ForwardError, ForwardedRequest, LeaderClient},
    rpc::{Leader, LeaderUse, Request, RpcError, dialect::STANDARD},
};

impl Leader for LeaderClient {
    fn leads(&self) -> bool {
        self.leads()
    }

    fn publishes(&self) -> bool {
        self.publishes()
    }

    fn leaves_wallet_to_leader(&self) -> BoxFuture<'_, Result<bool, RpcError>> {
        self.leaves_wallet_to_leader().map_err(refusal).boxed()
    }

    fn forward<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Bytes, RpcError>> {
        async move {
            let (caller, method) = (&request.caller, request.method);
            let (writes, is_for_wallet) = (method.commits, matches!(method.leader, LeaderUse::Wallet));
            // The answer to a read is not older than what this node shows. A write is not rejected for that.
            let bounds_age = !writes && !request.published.feed().is_degraded();
            let signer = caller.client.wallet_token().filter(|_| is_for_wallet);
            let mac = signer.map(|signer| |texts: &[&[u8]]| signer.proof(texts));
            let forwarded = ForwardedRequest {
                text: request.text(),
                is_for_wallet,
                writes,
                path: std::ptr::eq(caller.dialect, &raw const STANDARD).then_some("/standard"),
                client: caller.client.name(),
                page: caller.page.as_deref(),
                min_snapshot: bounds_age.then_some(request.published.last),
                left: request.ticket.deadline().saturating_duration_since(Instant::now()),
                mac: mac.as_ref().map(|mac| mac as _),
            };
            self.forward(forwarded).await.map_err(refusal)
        }
        .boxed()
    }
}

fn refusal(error: ForwardError) -> RpcError {
    match error {
        ForwardError::Busy | ForwardError::TooLarge => RpcError::limit(error.to_string()),
        ForwardError::OutcomeUnknown => RpcError::new(-32016, error.to_string()),
        _ => RpcError::new(-32000, error.to_string()),
    }
}
