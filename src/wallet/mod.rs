//! EIP-5792 batches: rules, signing, approval, durable store.

mod approval;
mod batch;
pub mod client;
mod error;
mod executor;
pub mod keys;
mod rules;
mod socket;
mod status;

pub use approval::{Approvals, Asked, AskedCall, NoSuchBatch, Question};
pub use batch::{BatchCall, BatchId, BatchRequest, CallsState, Requested};
pub use error::WalletError;
pub use executor::{BatchExecutor, Delegation};
pub use rules::{Rules, Standing};
pub use socket::{ApprovalSocket, SOCKET, SocketError};
pub use status::{AtomicSupport, BatchStatus, CallsReceipt, SimulatedCall, Submitted};
