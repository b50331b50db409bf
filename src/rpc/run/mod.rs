//! One request, and its runs on the executor.
//!
//! [`request`] is a request with its caller, a [`step`] of it is what runs on the executor, by the [`runner`], and [`backend`]
//! has what a run uses. Where a run has missed state of an upstream, the executor has [`remote`] fetch it. [`past`] has its older
//! states. [`leader`] is the node of a fleet that answers what this one cannot. [`client`] has the rights and the rate of a client, [`filters`] what it
//! polls, and [`subscriptions`] what its connection, a [`subscriber`], is sent.

pub mod backend;
pub mod catch_up;
pub mod client;
pub mod filters;
pub mod leader;
pub mod method;
pub mod past;
mod position;
pub mod remote;
pub mod request;
pub mod runner;
pub mod step;
pub mod subscriber;
pub mod subscriptions;
pub mod waiting;

pub use backend::{Attempt, Backend, RunHandler};
pub use method::{AnsweredBy, ExecutedBy, MethodInfo, MethodScope, SealedOnly};
