//! EIP-5792 batches: rules, signing, approval, durable store.

mod batch;
mod error;

pub use batch::{BatchCall, BatchId, BatchRequest, CallsState, Requested};
pub use error::WalletError;
