//! The wallet: batches of calls (EIP-5792), and the methods that pages expect of a browser's wallet.

mod approval;
mod batch;
mod calls;
mod capabilities;
mod message;
mod page;
mod status;

pub use self::{
    approval::{GetApprovals, answer},
    batch::SendCalls,
    calls::{Waiting, prepare, send_approved, send_or_ask},
    capabilities::GetCapabilities,
    message::{PersonalSign, Sign, SignTypedData, admit as admit_signature},
    page::{GetPermissions, RequestAccounts, RequestPermissions, SwitchChain},
    status::{GetCallsStatus, ShowCallsStatus},
};
