//! One step of a request, as the executor runs it: inline or on a worker, and again after missed state was fetched.

use std::sync::Arc;

use super::{
    Backend, Run,
    remote::StateCompletion,
    request::{Request, begin},
};
use crate::{
    meter::Meter,
    pool::Acknowledgement,
    rpc::protocol::error::{Result, RpcError},
    scheduler::{RunPlace, Task},
    state::{Missed, Overlay},
    store::Commit,
};

/// A request with the work that is done in one run: a handler, or a part of one.
pub struct RequestStep<F> {
    pub backend: Arc<Backend>,
    /// The completion of state from an upstream, if there is one.
    pub remote: Option<Arc<StateCompletion>>,
    pub place: RunPlace,
    pub request: Request,
    /// The work, which is called once a run.
    pub work: F,
}

/// The outcome of a step.
pub struct StepOutcome<T> {
    /// The value of the work.
    pub result: Result<T>,
    /// The answer as far as the work has written it.
    pub out: Vec<u8>,
    /// The commit that must be on disk before the answer is sent.
    pub commit: Acknowledgement,
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
        let Request { id, params, published, caller, .. } = &self.request;
        let mut run = Run {
            params,
            published,
            dialect: caller.dialect,
            client: caller.client.name(),
            may_use_wallet: caller.client.may_use_wallet(),
            page: caller.page.as_deref(),
            overlay,
            meter,
            out: begin(id, "result"),
            commit: Commit::done().into(),
        };
        let mut result = (self.work)(&self.backend, &mut run);
        let Run { overlay, mut out, commit, .. } = run;
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
        let Some(remote) = &self.remote else {
            return Err(RpcError::internal("a run has missed state on a chain whose state is local"));
        };
        let published = remote.complete(round, &missed, &self.request).await?;
        Ok(published.map(|published| {
            let request = Request { published, ..self.request.clone() };
            Self {
                backend: self.backend.clone(),
                remote: Some(remote.clone()),
                place: self.place,
                request,
                work: self.work.clone(),
            }
        }))
    }
}
