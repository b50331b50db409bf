//! Sending of signed transactions and bundles, and of transactions that the node signs.

mod bundle;
mod raw;
mod transaction;

pub use self::{
    bundle::{CancelBundle, GetOutcome, SendBundle},
    raw::{SendRaw, SendRawSync},
    transaction::{Accounts, FillTransaction, SendTransaction, SendUnsigned, SignTransaction, sign_on},
};
