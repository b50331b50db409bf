//! One step of a request, as the executor runs it: inline or on a worker, and again after missed state was fetched.

use std::sync::Arc;

use super::{
    Attempt, Backend, ExecutedBy,
    catch_up::await_published,
    request::{Request, open_answer},
    runner::RequestRunner,
};
use crate::{
    meter::Meter,
    rpc::protocol::error::{Result, RpcError},
    scheduler::{RunTarget, Task, TaskName, Ticket},
    state::Overlay,
    store::Commit,
};

/// A request with the work that is done in one run: a handler, or a part of one.
pub struct RequestStep<F> {
    pub runner: Arc<RequestRunner>,
    pub request: Request,
    /// The work, which is called once a run.
    pub work: F,
}

/// The outcome of a step.
pub struct StepOutcome<T> {
    /// The value of the work.
    pub result: Result<T>,
    /// The answer written by the work so far.
    pub out: Vec<u8>,
    /// The commit that must be on disk before the answer is sent.
    pub commit: Commit,
    /// The rules by which the work has run.
    pub by: ExecutedBy,
}

impl<T, F> Task for RequestStep<F>
where
    T: Send + 'static,
    F: Fn(&Backend, &mut Attempt<'_>) -> Result<T> + Clone + Send + Sync + 'static,
{
    type Answer = StepOutcome<T>;

    fn name(&self) -> TaskName {
        &self.request.method.name
    }

    fn target(&self) -> RunTarget {
        self.request.target()
    }

    fn params(&self) -> &str {
        &self.request.params
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) -> StepOutcome<T> {
        let Request { id, params, published, caller, .. } = &self.request;
        let mut run = Attempt {
            params,
            published,
            dialect: caller.dialect,
            client: caller.client.name(),
            may_use_wallet: caller.client.may_use_wallet(),
            page: caller.page.as_deref(),
            overlay,
            meter,
            out: open_answer(id),
            by: ExecutedBy::Node,
            commit: Commit::done(),
        };
        let mut result = (self.work)(&self.runner.backend, &mut run);
        let Attempt { overlay, meter, mut out, commit, by, .. } = run;
        // The executor reads in the overlay's meter why a run was stopped, but a handler that executes no call has its
        // own meter.
        if result.is_err() && meter.stopped().is_some() {
            overlay.meter = meter;
        }
        // An answer counts for its connection from its creation, because it may wait for the connection's thread.
        if result.is_ok() && !overlay.has_missed() && !self.request.method.commits && self.target() != RunTarget::Inline
        {
            result = self.request.room.take(&mut out).and(result);
        }
        StepOutcome { result, out, commit, by }
    }

    async fn on_newer(&self) -> Option<Self> {
        let (snapshots, before) = (&self.runner.host.snapshots, &self.request.published);
        // A feed that is degraded may show nothing newer for a long time.
        let newer = || {
            let newest = snapshots.load();
            let is_newer = newest.last != before.last;
            (is_newer || newest.feed().is_degraded()).then(|| Some(newest).filter(|_| is_newer))
        };
        let published = await_published(snapshots, newer).await?;
        let request = Request { published, ..self.request.clone() };
        Some(Self { runner: self.runner.clone(), request, work: self.work.clone() })
    }
}

impl RequestRunner {
    /// Runs a step of a request on its target, and waits until its commit is on disk, and, on a chain under test,
    /// until its transactions are mined or drafted. Returns the step's value, and the part of the answer that the step
    /// has written. Sets `by` to the rules by which it has run.
    ///
    /// # Errors
    ///
    /// Returns the error of the work, of the executor that rejects or stops it, of a fetch, or of the commit; -32000 if a chain under
    /// test cannot mine the transactions now.
    pub async fn run_by<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        work: impl Fn(&Backend, &mut Attempt<'_>) -> Result<T> + Clone + Send + Sync + 'static,
        by: &mut ExecutedBy,
    ) -> Result<(T, Vec<u8>)> {
        let (ticket, sends) = (request.ticket.clone(), request.method.commits);
        let step = RequestStep { runner: self.clone(), request, work };
        let submitted = self.host.executor.submit(step, ticket.clone(), self.host.source.as_ref());
        let StepOutcome { result, out, commit, by: ran_by } = submitted.await?;
        *by = ran_by;
        let done = result?;
        wait_durable(commit, &ticket).await?;
        if sends && let Some(block) = self.backend.pool.on_arrival.newest() {
            // The transaction is acknowledged, mined in time or not.
            let mined = tokio::time::timeout_at(ticket.deadline().into(), block.mined()).await;
            if let Ok(Some(reason)) = mined {
                let text = format!("the transaction waits in the pool, and cannot be mined now: {reason}");
                return Err(RpcError::new(-32000, text));
            }
        }
        Ok((done, out))
    }

    /// Runs a step of a request like [`run_by`](Self::run_by), under any rules.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`run_by`](Self::run_by).
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        work: impl Fn(&Backend, &mut Attempt<'_>) -> Result<T> + Clone + Send + Sync + 'static,
    ) -> Result<(T, Vec<u8>)> {
        self.run_by(request, work, &mut ExecutedBy::Node).await
    }

    /// Runs the step of a request that writes its answer, and returns the answer.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`run_by`](Self::run_by).
    pub async fn write(
        self: &Arc<Self>,
        request: Request,
        work: impl Fn(&Backend, &mut Attempt<'_>) -> Result<()> + Clone + Send + Sync + 'static,
    ) -> Result<Vec<u8>> {
        self.run(request, work).await.map(|((), answer)| answer)
    }
}

/// Waits until the commit that an answer acknowledges is on disk.
///
/// # Errors
///
/// Returns an error if the commit failed, or did not finish before the request's deadline.
async fn wait_durable(commit: Commit, ticket: &Ticket) -> Result<()> {
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
