//! Sending of signed transactions and bundles, and of transactions that the node signs.

mod bundle;
mod outcome;
mod raw;
mod transaction;

pub use self::{
    bundle::{CancelBundle, SendBundle},
    outcome::GetOutcome,
    raw::{SendRaw, SendRawSync},
    transaction::{Accounts, SendTransaction},
};
