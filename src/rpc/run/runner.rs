//! The runs of requests: on the executor, with what a request needs from the node.

use std::sync::Arc;

use alloy_primitives::B256;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{
    Backend, RequestLimits, Run, RunHandler,
    leader::Leader,
    remote::StateCompletion,
    request::{Caller, Request},
    step::{RequestStep, StepOutcome},
};
use crate::rpc::{
    json::Lookup,
    protocol::error::{Result, RpcError},
};
use crate::{
    ledger::{Chain, Snapshots},
    pool::{Acknowledgement, Pool, SubmittedTransaction},
    scheduler::{Batch, Executor, RunPlace, Ticket},
    store::StoreError,
    upstream::UpstreamState,
    wallet::Wallet,
};

/// The executor with all that a run needs besides its request.
#[derive(Clone, Debug)]
pub struct RequestRunner {
    /// The data that all methods share.
    pub backend: Arc<Backend>,
    /// The executor.
    pub executor: Executor,
    /// The published snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The permits to wait.
    pub waiters: Arc<Waiters>,
    /// The completion of state from an upstream, if there is one.
    pub remote: Option<Arc<StateCompletion>>,
    /// The client of the leader, on a node of a fleet.
    pub leader: Option<Arc<dyn Leader>>,
}

/// Permits to wait for receipts. Waiting holds no worker: each publication wakes the task, which looks for its receipt.
#[derive(Debug)]
pub struct Waiters {
    /// The permits that are free.
    pub permits: Semaphore,
    /// The number of permits in all.
    pub count: usize,
}

impl Waiters {
    /// Creates `count` permits.
    pub fn new(count: usize) -> Self {
        Self { permits: Semaphore::new(count.min(Semaphore::MAX_PERMITS)), count }
    }
}

impl RequestRunner {
    /// Returns the health of the upstream, if there is one.
    pub fn upstream(&self) -> Option<UpstreamState> {
        Some(self.remote.as_ref()?.fetcher.upstream()?.state())
    }

    /// Returns a fork of the chain that presim does not execute, as a sentence.
    pub fn unknown_fork(&self) -> Option<String> {
        if let Some(scheduled) = self.backend.spec.unexecuted_fork() {
            return Some(format!("presim does not execute {scheduled}, which the chain has"));
        }
        let time = self.remote.as_ref()?.fetcher.upstream()?.newer_fork()?;
        Some(format!("the upstream has a fork at {time} that presim does not know"))
    }

    /// Returns the reason why nothing can be stored any more, if there is one.
    pub fn store_failure(&self) -> Option<&StoreError> {
        self.backend.wallet.ledger.store().failure()
    }

    /// Returns what is published now.
    pub fn published(&self) -> Arc<Chain> {
        self.snapshots.load()
    }

    /// Returns the limits on requests.
    pub fn limits(&self) -> &RequestLimits {
        &self.backend.limits
    }

    /// Returns the transaction pool.
    pub fn pool(&self) -> &Pool {
        &self.backend.pool
    }

    /// Returns the wallet.
    pub fn wallet(&self) -> &Wallet {
        &self.backend.wallet
    }

    /// Returns a ticket for a request that has just arrived.
    pub fn ticket(&self, caller: &Caller) -> Ticket {
        let ticket = self.executor.ticket(caller.client.flow());
        match caller.until {
            Some(deadline) => ticket.until(deadline),
            None => ticket,
        }
    }

    /// Creates a batch of requests that have just arrived together.
    pub fn batch(&self) -> Arc<Batch> {
        self.executor.batch()
    }

    /// Returns the upstream that answers a method which presim does not have, if one does.
    pub fn forwards(&self, method: &str) -> Option<&StateCompletion> {
        self.remote.as_deref().filter(|remote| remote.forwarded.has(method))
    }

    /// Returns whether the state is an upstream's that only the leader of the fleet follows.
    pub fn has_no_upstream(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.fetcher.upstream().is_none())
    }

    /// Runs a request by its handler. Returns the answer, and whether it is what was asked for.
    ///
    /// # Errors
    ///
    /// Returns those of [`run_step`](Self::run_step).
    pub async fn run(self: &Arc<Self>, run: RunHandler, request: Request) -> Result<(Lookup, Vec<u8>)> {
        self.run_step(request.method.place, request, run).await
    }

    /// Runs a step of a request at a place, and waits until its commit is on disk. Returns the step's value, and the
    /// answer as far as the step has written it.
    ///
    /// # Errors
    ///
    /// Returns the error of the work, of the executor that rejects or stops it, of a fetch, or of the commit.
    pub async fn run_step<T: Send + 'static>(
        self: &Arc<Self>,
        place: RunPlace,
        request: Request,
        work: impl Fn(&Backend, &mut Run<'_>) -> Result<T> + Clone + Send + Sync + 'static,
    ) -> Result<(T, Vec<u8>)> {
        let ticket = request.ticket.clone();
        let step = RequestStep { backend: self.backend.clone(), remote: self.remote.clone(), place, request, work };
        let StepOutcome { result, out, commit } = self.executor.submit(step, ticket.clone()).await?;
        let done = result?;
        wait_durable(commit, &ticket).await?;
        Ok((done, out))
    }
}

/// Waits until what an answer acknowledges is on disk or checked, until the request's deadline.
///
/// # Errors
///
/// Returns an error if the commit failed, if the transaction is rejected, or if neither is known at the request's deadline.
async fn wait_durable(acknowledgement: Acknowledgement, ticket: &Ticket) -> Result<()> {
    let commit = match acknowledgement {
        Acknowledgement::Kept(commit) => commit,
        Acknowledgement::Checked(submitted) => return checked(submitted, ticket).await,
    };
    if commit.is_done() {
        return Ok(());
    }
    match tokio::time::timeout_at(ticket.deadline().into(), commit.wait()).await {
        Ok(Ok(())) => Ok(()),
        // Whether the write reached the disk after all is seen when the store is opened again.
        Ok(Err(error)) => Err(RpcError::from(error)
            .with_message(|text| format!("{text}: it may still be sent after a restart of the node"))),
        Err(_) => Err(RpcError::new(-32016, UNSTORED)),
    }
}

const UNSTORED: &str = "it was not stored in time, and its outcome is unknown: it may still be sent";

/// The `data` of an error about a transaction that may still be mined.
#[derive(Serialize)]
struct SentHash {
    hash: B256,
}

/// Waits for the verdict of the node that builds the blocks.
async fn checked(mut submitted: SubmittedTransaction, ticket: &Ticket) -> Result<()> {
    if let Ok(Ok(verdict)) = tokio::time::timeout_at(ticket.deadline().into(), &mut submitted.verdict).await {
        return verdict.map_err(RpcError::from);
    }
    let hash = submitted.hash;
    let text = match submitted.is_stored() {
        true => format!(
            "no node that builds blocks has answered in time: transaction {hash} is stored, and not checked yet: it will be mined or dropped"
        ),
        false => UNSTORED.to_owned(),
    };
    Err(RpcError::with_data(-32016, text, SentHash { hash }))
}
