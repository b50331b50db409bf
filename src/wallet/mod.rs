//! EIP-5792 batches: rules, signing, approval, durable store.

mod approval;
mod batch;
pub mod client;
mod error;
pub mod keys;
mod socket;

pub use approval::{Approvals, Asked, AskedCall, NoSuchBatch, Question};
pub use batch::{BatchCall, BatchId, BatchRequest, CallsState, Requested};
pub use error::WalletError;
pub use socket::{ApprovalSocket, SOCKET, SocketError};
