//! `eth_sendRawTransactionSync` (EIP-7966): a transaction is sent, and its client waits for the receipt.

use std::sync::Arc;

use tokio::time::timeout;

use super::Awaited;
use crate::rpc::{
    api::block::write_receipt,
    params,
    protocol::error::{Result, RpcError},
    run::{Backend, Run, catch_up::await_published, remote::StateCompletion, request::Request, runner::RequestRunner},
};
use crate::scheduler::{LaneName, RunPlace};

/// The place of the method's runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Read);

impl RequestRunner {
    /// Sends the transaction of `request` and answers with its receipt, from the first snapshot with the transaction.
    ///
    /// # Errors
    ///
    /// Returns the errors of `eth_sendRawTransaction`; -32005 if too many requests wait; 4 at the deadline, and 5 if
    /// the transaction cannot be mined at present, both with its hash as data.
    pub async fn send_and_wait(self: &Arc<Self>, request: Request) -> Result<Vec<u8>> {
        let Ok(_permit) = self.waiters.permits.try_acquire() else {
            let text = format!("too busy: {} requests wait for receipts already", self.waiters.count);
            return Err(RpcError::limit(text));
        };
        let awaited = match &self.remote {
            Some(remote) => self.send_on_to_await(remote, &request).await?,
            None => self.run_step(PLACE, request.clone(), Backend::send_to_await).await?.0,
        };
        drop(request.starting.as_ref().and_then(|starting| starting.release()));
        self.wait(awaited, request).await
    }

    /// Forwards a transaction to the upstream.
    async fn send_on_to_await(&self, remote: &StateCompletion, request: &Request) -> Result<Awaited> {
        let (raw, timeout) = params::parse_raw_sync(&request.params, request.caller.dialect)?;
        let hash = remote.send_on(&raw, request).await?;
        Ok(Awaited { hash, timeout: self.limits().sync.choose(timeout) })
    }

    async fn wait(self: &Arc<Self>, Awaited { hash, timeout: most }: Awaited, request: Request) -> Result<Vec<u8>> {
        let included = await_published(&self.snapshots, || {
            // In this order, because a transaction leaves the pool only after the snapshot with it was published.
            let waits = self.remote.is_some() || self.pool().sends_away() || self.pool().get(&hash).is_some();
            let published = self.published();
            let is_included = published.transaction(&hash).is_some();
            (is_included || !waits).then(|| is_included.then_some(published))
        });
        match timeout(most, included).await {
            Ok(Some(published)) => {
                let request = Request { published, ticket: self.ticket(&request.caller), ..request };
                let receipt = move |backend: &Backend, run: &mut Run<'_>| {
                    write_receipt(backend, run, hash);
                    Ok(())
                };
                self.run_step(PLACE, request, receipt).await.map(|((), answer)| answer)
            }
            Ok(None) => {
                let text = "The transaction was added to the transaction pool but left it again: another took its place, or it cannot be mined";
                Err(RpcError::unready(hash, text))
            }
            Err(_) => {
                let text =
                    format!("The transaction was added to the transaction pool but wasn't processed in {most:?}");
                Err(RpcError::receipt_timeout(hash, text))
            }
        }
    }
}
