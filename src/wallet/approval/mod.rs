//! Approval: what is asked of a person, in words, and the socket over which the decision comes.

mod approvals;
mod asked;
mod digest;
mod question;
pub(super) mod socket;
mod words;

pub use self::{
    approvals::{Approvals, DecisionError, Question},
    asked::{Asked, AskedAct, AskedBatch, AskedCall, AskedMessage, AskedTypedData, Asker},
    digest::{DigestPrefix, NoDigest},
    socket::{ApprovalSocket, SOCKET, SocketError, WaitingList},
    words::{CallWords, ReadCall, WordReader, ether},
};
