//! Fleets: many machines that answer from one feed, over NATS. Nothing outside of this room names NATS or a subject.

mod requests;

pub use self::requests::{
    Answers, ArrivedRequest, ForwardError, ForwardedRequest, ForwardingNode, LeaderClient, Mac, Place, Proof,
    PublishingNode, ServedRequests, WALLET_TOKEN_REFUSED, too_large,
};
