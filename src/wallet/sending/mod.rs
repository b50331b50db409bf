//! The sending of the wallet's transactions to an upstream.
//!
//! The pool is the record: it holds the signed bytes of each transaction until its fate is final, and shows them here
//! only once they are on the disk. The [`WalletSender`] sends waiting transactions by `eth_sendRawTransaction`, and
//! repeats the same bytes while they wait: at intervals, and at once after a reorg, a restart, or when the upstream is
//! back. A repetition is harmless, because a transaction is mined at most once. Once a nonce is used, the
//! transaction's outcome follows from the canonical blocks. For blocks that presim has not followed, it follows from
//! the upstream's receipts, which are requested until they arrive, because a node may be behind another.

mod outcomes;
mod replace;
mod search;
mod state;
mod submit;

pub use self::{
    outcomes::WalletSender,
    replace::{ReplacedBatch, ReplacementQuote, Replacing},
    state::{Sending, SendingSettings},
};
