//! Fleets: many machines that answer from one feed, over NATS. Outside of this room only flags name NATS.
//!
//! One node leads: it [publishes](publishing) a chain, as a sink and as a source that stands by. The others [follow](replica) it. What
//! they all have is on the [servers].

//! Without the cargo feature `fleet` only its settings are here, so that its flags can be refused.

pub mod settings;

#[cfg(feature = "fleet")]
pub mod joining;
#[cfg(feature = "fleet")]
pub mod pool;
#[cfg(feature = "fleet")]
pub mod publishing;
#[cfg(feature = "fleet")]
pub mod replica;
#[cfg(feature = "fleet")]
mod requests;
#[cfg(feature = "fleet")]
pub mod servers;
#[cfg(feature = "fleet")]
pub mod state;
#[cfg(feature = "fleet")]
mod verdicts;

#[cfg(feature = "fleet")]
pub use self::requests::{
    Answers, ArrivedRequest, ForwardError, ForwardedRequest, ForwardingNode, LeaderClient, Mac, Membership, Proof,
    PublishingNode, ServedRequests, WALLET_TOKEN_REFUSED, too_large,
};
