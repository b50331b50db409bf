//! The scheduler: where each request runs, when, and which are rejected.
//!
//! [`Executor::submit`] takes a [`Task`], work that can be run any number of times, and returns what its last run made.
//!
//! **Where.** A look-up runs inline, on the thread that read it. A call or a small bundle runs inline first, with a bound of some hundreds of
//! microseconds, because handing it over would cost as much; if it is too long, it runs again on a worker. All else runs on a worker of the rayon
//! pool. A run that misses state of an upstream is given up, the state is fetched while no thread waits, and the task runs again.
//!
//! **When.** A worker takes reads and sends first, then short calls, then bundles, and then what has proved long (a multilevel feedback queue); in some
//! of its turns it begins further down, so that nothing waits for ever. Within each queue the clients take turns by the time that their jobs take
//! ([`flow`]). Whenever the meter of a run looks at the clock, the run is paused for one job that is short: for a read, or for a call or a bundle with a
//! small bound. The paused run then has as long as that job took. So reads, sends and short calls wait for no long run, and a long run has at
//! least half of its worker.
//!
//! **Which.** Each lane has a bound on how many wait ([`lane`]). While a lane is at ease it admits bursts: whatever the workers can finish within
//! `--queue-wait-ms`. Once it must reject, or once a queue stands in the sockets of a thread that reads ([`inline`]), it is overloaded until its
//! measured load has fallen ([`load`]). While it is overloaded it admits what can begin soon, so that admitted requests are answered about as fast as
//! ever, and each request of a client that asks for less than its share.
//!
//! The entries of a batch share one permit ([`batch`]), and a few of them run at a time.

mod actor;
mod batch;
mod flow;
mod inline;
mod job;
mod lane;
mod load;
mod scheduler;
mod task;
#[cfg(test)]
mod tests;

pub use actor::{Drain, LaneActor};
pub use batch::Batch;
pub use flow::{Flow, LaneName};
pub use lane::{ExecutorConfig, Refused};
pub use scheduler::Executor;
pub use task::{Place, Task, Ticket};
