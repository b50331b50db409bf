//! Fleets: many machines that answer from one feed, over NATS. Outside of this module only flags name NATS.
//!
//! One node leads: it [publishes](publishing) the chain of its upstream. Others [follow](replica) it. Their shared data
//! is on the [servers].

pub mod settings;

pub mod joining;
pub mod publishing;
pub mod replica;
mod requests;
pub mod servers;
pub mod state;

pub use self::requests::{
    Answers, ArrivedRequest, ForwardError, ForwardedRequest, LeaderClient, Membership, WALLET_TOKEN_REJECTED, too_large,
};
