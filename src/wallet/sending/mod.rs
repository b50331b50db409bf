//! The sending of the wallet's transactions to an upstream.
//!
//! The pool is the book: it has the signed bytes of each transaction until its fate is final, and they are on the disk
//! before it shows them here. The [`WalletSender`] sends what waits there by `eth_sendRawTransaction`, and sends the same bytes
//! again as long as they wait: at intervals, and at once after a reorg, a restart, or when the upstream is back. A
//! repetition is harmless, because a transaction is mined once at most. What became of a transaction whose nonce is used
//! follows from the canonical blocks; where presim has not followed them, from the upstream's receipts, which are asked for
//! until they come, because a node may be behind another.

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
