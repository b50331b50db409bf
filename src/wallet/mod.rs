//! EIP-5792 batches: rules, signing, approval, durable store.

mod batch;
mod error;
mod executor;
mod rules;
mod status;

pub use batch::{BatchCall, BatchId, BatchRequest, CallsState, Requested};
pub use error::WalletError;
pub use executor::{BatchExecutor, Delegation};
pub use rules::{Rules, Standing};
pub use status::{AtomicSupport, BatchStatus, CallsReceipt, SimulatedCall, Submitted};
