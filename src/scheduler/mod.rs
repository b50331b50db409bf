//! Schedules requests: decides where and when each one runs, and rejects those that would wait too long.
//!
//! [`Executor::submit`] takes a [`Task`], work that can run any number of times, and returns its last run's result.
//! State that a run misses comes from a [`FetchMissed`].
//!
//! **Where.** A look-up runs inline, on the thread that read the request. A call or a small bundle runs inline first,
//! with a bound of some hundreds of microseconds, because handing it to a worker would cost as much; if it exceeds the
//! bound, it runs again on a worker. All other requests run on a worker of the rayon pool. A run that misses state of
//! an upstream is abandoned, the state is fetched while no thread waits, and the task runs again.
//!
//! **When.** A worker takes reads and sends first, then short calls, then bundles, then requests that have proved long
//! (a multilevel feedback queue). Some of its turns begin with a lower queue, so that no job waits forever. Within a
//! queue the run time is divided fairly among the clients ([`flow`]). Whenever the meter of a run reads the clock, the run pauses
//! for one short job: a read, a call or a bundle with a small bound. A job that exceeds the bound waits among the long ones.
//! The paused run continues for as long as the other job took. So reads, sends and short calls wait for no long run, and a
//! long run has at least half of its worker and waits for no other for long.
//!
//! **Which.** Each lane bounds the number of waiting requests ([`lane`]). A lane at ease admits bursts: as many
//! requests as the workers can finish within `--queue-wait-ms`. When it must reject a request, or when a backlog
//! builds up in the sockets of a thread that reads requests ([`inline`]), it is overloaded until its measured load has
//! fallen ([`load`]). An overloaded lane admits requests that can begin soon, so that admitted requests are answered
//! about as fast as ever, and every request of a client that asks for less than its quota.
//!
//! A request is load of its lane while it waits for a worker or runs, not while its state is fetched. The entries of a
//! batch have one permit together ([`batch`]), and a few of them run at a time.
//!
//! **Who.** Each worker has an actor ([`actor`]), which owns its life: it starts the worker's thread, watches its pulse
//! ([`pulse`]: what the worker runs and since when), and confirms at shutdown that it is idle. A worker that makes no
//! progress while jobs wait is stalled, and the node unhealthy. Progress is a job that begins or ends, or a check of a
//! meter, so a long run is no stall. The executor measures and closes the lanes.

mod actor;
mod batch;
mod complete;
mod constants;
mod cost;
mod flow;
mod host;
mod inline;
mod job;
mod lane;
mod load;
mod pool;
mod pulse;
mod submit;
mod task;
#[cfg(test)]
mod tests;
mod worker;

pub use actor::{Drain, WorkerActor};
pub use batch::Batch;
pub use flow::{ClientShare, LaneName};
pub use host::Host;
pub use lane::{ExecutorConfig, Rejected};
pub use pulse::{Stall, TaskName};
pub use submit::Executor;
pub use task::{FetchMissed, LocalState, RunTarget, Task, TaskError, Ticket};
