//! Approval: the question to a person, in words, and the socket that receives the decision.

mod approvals;
mod asked;
mod digest;
pub mod protocol;
mod question;
mod socket;
#[cfg(test)]
mod tests;
mod words;

pub use self::{
    approvals::{Approvals, Question},
    asked::{Asked, AskedBatch, AskedCall, AskedMessage, AskedTransaction, AskedTypedData, RequestedAction, Requester},
    digest::DigestPrefix,
    protocol::WaitingList,
    socket::{ApprovalSocket, socket_path},
    words::{CallWords, ReadCall, WordReader, ether, units},
};
