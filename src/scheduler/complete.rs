//! The completion of a task: run, fetch the state that the run has missed, run again.

use std::sync::Arc;

use tokio::time::timeout_at;

use super::{
    flow::LaneName,
    submit::{Executor, Route},
    task::{FetchMissed, Task, TaskError, Ticket},
};
use crate::{
    meter::Meter,
    state::{FetchError, Held, Missed},
};

impl Executor {
    /// Runs a task on workers, or inline if it has no route to them, until a run misses no state. `missed` is the state
    /// that a run before has missed.
    pub(super) async fn complete<T: Task>(
        &self,
        task: T,
        ticket: &Ticket,
        mut route: Option<Route<'_>>,
        mut missed: Missed,
        source: &dyn FetchMissed,
    ) -> Result<T::Answer, TaskError> {
        // Held to the end, so that each round can only miss what no round before it has fetched.
        let (mut task, mut round, mut held) = (Arc::new(task), 0, Held::default());
        loop {
            if !missed.is_empty() {
                round += 1;
                match fetch(task.as_ref(), ticket, &missed, round, source).await? {
                    FetchedFor::This(values) => held.extend(values),
                    FetchedFor::Newer(other) => task = Arc::new(other),
                }
                if let Some(route) = &mut route {
                    route.weigh_again(ticket);
                }
            }
            let ran = match &route {
                Some(route) => self.run_on_worker(&task, ticket, route).await?,
                None => self.run_once_inline(self.lane(LaneName::Read), task.as_ref(), Meter::default())?,
            };
            if ran.missed.is_empty() {
                return Ok(ran.answer);
            }
            missed = ran.missed;
        }
    }
}

/// The task that can be run after a fetch.
enum FetchedFor<T> {
    /// The task, which finds these values.
    This(Held),
    /// A new task, because the first one ran on a block that is no longer part of the upstream's chain.
    Newer(T),
}

/// Fetches the state that a run of `task` has missed, for the `round`th time. No worker waits meanwhile.
async fn fetch<T: Task>(
    task: &T,
    ticket: &Ticket,
    missed: &Missed,
    round: usize,
    source: &dyn FetchMissed,
) -> Result<FetchedFor<T>, TaskError> {
    if let Some(why) = missed.unexecutable() {
        return Err(TaskError::Unexecutable(why));
    }
    if round > source.rounds() {
        return Err(FetchError::Rounds(source.rounds()).into());
    }
    let params = (round == 1).then(|| task.params());
    match source.fetch(missed, params, ticket.deadline()).await {
        // Nothing was answered yet, so the task can run on the new branch. Entries of a batch cannot, because all of them
        // run on one snapshot.
        Err(error @ FetchError::Abandoned { .. }) if !ticket.is_entry() => {
            let newer = timeout_at(ticket.deadline().into(), task.on_newer()).await;
            newer.ok().flatten().map(FetchedFor::Newer).ok_or_else(|| error.into())
        }
        done => Ok(FetchedFor::This(done?)),
    }
}
