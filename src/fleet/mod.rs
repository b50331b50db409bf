//! Fleets: many machines that answer from one feed, over NATS. Nothing outside of this room names NATS or a subject.
//!
//! One node leads: it [publishes](publishing) a chain, as a sink and as a source that stands by. The others [follow](replica) it. What
//! they all have is on the [servers].

pub mod pool;
pub mod publishing;
pub mod replica;
mod requests;
pub mod servers;
pub mod state;
mod verdicts;

pub use self::requests::{
    Answers, ArrivedRequest, ForwardError, ForwardedRequest, ForwardingNode, LeaderClient, Mac, Place, Proof,
    PublishingNode, ServedRequests, WALLET_TOKEN_REFUSED, too_large,
};
