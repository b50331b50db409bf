//! One request, and its runs on the executor.
//!
//! [`request`] is a request with its caller, a [`step`] is the part of it that the [`runner`] runs on the executor,
//! and [`backend`] holds the data that a run uses. If a run has missed state of an upstream, the executor has
//! [`remote`] fetch it. [`past`] holds its older states. [`leader`] is the node of a fleet that answers the requests
//! that this one cannot. [`client`] holds the rights and the rate of a client, [`filters`] its polled filters, and
//! [`subscriptions`] its connections' subscriptions; a [`subscriber`] receives the notifications.

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
