//! The runs of requests: on the executor, with what a request needs from the node.

use std::sync::Arc;

use alloy_primitives::B256;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{
    encode::Lookup,
    error::{Result, RpcError},
    leader::Leader,
    methods::{Backend, RequestLimits, Run, RunHandler},
    remote::StateCompletion,
    request::{Caller, Request},
};
use crate::{
    ledger::{Chain, Snapshots},
    meter::Meter,
    pool::{Acknowledgement, Pool, SubmittedTransaction},
    scheduler::{Batch, Executor, RunPlace, Task, Ticket},
    state::{Missed, Overlay},
    store::StoreError,
    upstream::UpstreamState,
    wallet::Wallet,
};

/// The executor with all that a run needs besides its request.
#[derive(Clone, Debug)]
pub struct RequestRunner {
    pub(super) backend: Arc<Backend>,
    pub(super) executor: Executor,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) waiters: Arc<Waiters>,
    /// The completion of state from an upstream, if there is one.
    pub(super) remote: Option<Arc<StateCompletion>>,
    /// The client of the leader, on a node of a fleet.
    pub(super) leader: Option<Arc<dyn Leader>>,
}

/// Permits to wait for receipts. Waiting holds no worker: each publication wakes the task, which looks for its receipt.
#[derive(Debug)]
pub struct Waiters {
    pub(super) permits: Semaphore,
    pub(super) count: usize,
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
    pub(super) fn limits(&self) -> &RequestLimits {
        &self.backend.limits
    }

    /// Returns the transaction pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.backend.pool
    }

    /// Returns the wallet.
    pub(super) fn wallet(&self) -> &Wallet {
        &self.backend.wallet
    }

    /// Returns a ticket for a request that has just arrived.
    pub fn ticket(&self, caller: &Caller) -> Ticket {
        let ticket = self.executor.ticket(&caller.flow);
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
    pub(super) fn forwards(&self, method: &str) -> Option<&StateCompletion> {
        self.remote.as_deref().filter(|remote| remote.forwarded.has(method))
    }

    /// Returns whether the state is an upstream's that only the leader of the fleet follows.
    pub(super) fn has_no_upstream(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.fetcher.upstream().is_none())
    }

    /// Runs a request by its handler. Returns the answer, and whether it is what was asked for.
    pub(super) async fn run(self: &Arc<Self>, run: RunHandler, request: Request) -> Result<(Lookup, Vec<u8>)> {
        self.run_step(request.method.place, request, run).await
    }

    /// Runs a step of a request at a place, and waits until its commit is on disk. Returns the step's value, and the
    /// answer as far as the step has written it.
    pub(super) async fn run_step<T: Send + 'static>(
        self: &Arc<Self>,
        place: RunPlace,
        request: Request,
        work: impl Fn(&Backend, &mut Run<'_>) -> Result<T> + Clone + Send + Sync + 'static,
    ) -> Result<(T, Vec<u8>)> {
        let ticket = request.ticket.clone();
        let step = RequestStep { runner: self.clone(), place, request, work };
        let StepOutcome { result, out, commit } = self.executor.submit(step, ticket.clone()).await?;
        let done = result?;
        wait_durable(commit, &ticket).await?;
        Ok((done, out))
    }
}

/// A request with the work that is done in one run: a handler, or a part of one.
struct RequestStep<F> {
    runner: Arc<RequestRunner>,
    place: RunPlace,
    request: Request,
    work: F,
}

/// The outcome of a step.
struct StepOutcome<T> {
    result: Result<T>,
    out: Vec<u8>,
    commit: Acknowledgement,
}

impl<T, F> Task for RequestStep<F>
where
    T: Send + 'static,
    F: Fn(&Backend, &mut Run<'_>) -> Result<T> + Clone + Send + Sync + 'static,
{
    type Answer = StepOutcome<T>;
    type Error = RpcError;

    fn place(&self) -> RunPlace {
        self.place
    }

    fn size(&self) -> usize {
        self.request.params.len()
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) -> StepOutcome<T> {
        let (mut result, mut out, commit) = self.request.run(&mut *overlay, meter, &self.runner.backend, &self.work);
        // An answer counts for its connection from the moment when it is made, because it may wait for the connection's
        // thread.
        if result.is_ok() && !overlay.has_missed() && !self.request.method.commits && self.place != RunPlace::Inline {
            result = self.request.room.take(&mut out).and(result);
        }
        StepOutcome { result, out, commit }
    }

    async fn fetch(&self, missed: Missed, round: usize) -> Result<Option<Self>> {
        if let Some(why) = missed.unexecutable() {
            return Err(RpcError::Unexecutable(why));
        }
        let Some(remote) = &self.runner.remote else {
            return Err(RpcError::internal("a run has missed state on a chain whose state is local"));
        };
        let published = remote.complete(round, &missed, &self.request).await?;
        Ok(published.map(|published| {
            let request = Request { published, ..self.request.clone() };
            Self { runner: self.runner.clone(), place: self.place, request, work: self.work.clone() }
        }))
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
