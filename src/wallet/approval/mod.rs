//! Approval: what is asked of a person, in words, and the socket over which the decision comes.

mod approvals;
mod asked;
mod digest;
pub mod protocol;
mod question;
mod socket;
mod words;

pub use self::{
    approvals::{Approvals, DecisionError, Question},
    asked::{Asked, AskedAct, AskedBatch, AskedCall, AskedMessage, AskedTransaction, AskedTypedData, Asker},
    digest::{DigestPrefix, NoDigest},
    protocol::WaitingList,
    socket::{ApprovalSocket, SOCKET, socket_path},
    words::{CallWords, ReadCall, WordReader, ether, units},
};
