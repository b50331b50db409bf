//! EIP-5792 batches: rules, signing, approval, durable store.

mod batch;
mod error;
mod executor;

pub use batch::{BatchCall, BatchId, BatchRequest, CallsState, Requested};
pub use error::WalletError;
pub use executor::{BatchExecutor, Delegation};
