//! EIP-5792 batches: rules, signing, approval, durable store.
//!
//! [`Wallet::admit`] checks a parsed batch by the rules, claims its id, runs it at `pending` and plans its
//! transactions. If an approver must be asked, [`Approvals`] waits for the decision, which arrives over the
//! [`ApprovalSocket`]. [`Wallet::submit`] then chooses nonces and signs with one of the [`Accounts`]. The transactions
//! enter the pool while they are written to the disk together with the batch, which the [`Ledger`] stores. Only once
//! they are on the disk is the client answered, and do the transactions become visible. The state of a batch is not
//! stored: [`Wallet::status`] derives it from the chain. On an upstream's chain the [`WalletSender`] sends the stored
//! transactions, and stores the outcomes.

mod accounts;
mod ahead;
mod approval;
mod batch;
mod batches;
mod data_fee;
mod error;
mod executor;
mod fees;
pub mod keys;
mod ledger;
mod outcome;
mod plan;
mod progress;
mod rules;
mod sending;
mod signature;
mod status;
mod typed;

pub use self::{
    accounts::{Accounts, Impersonated, SigningAccount, TxFields, with_signature, without_signature},
    approval::{
        ApprovalSocket, Approvals, Asked, AskedBatch, AskedMessage, AskedTransaction, AskedTypedData, DigestPrefix,
        Question, RequestedAction, Requester, WaitingList, ether, protocol, socket_path, units,
    },
    batch::{BatchCall, BatchId, BatchRequest, CallsState, ChosenFields, Requested},
    batches::{NONCE_TRIES, PreparedBatch, Wallet},
    error::WalletError,
    executor::{BatchExecutor, Delegation},
    fees::{FeeError, Fees},
    ledger::{Ledger, Replacement, TakenBatch},
    outcome::{NonceTaker, TxOutcome},
    plan::FeeBounds,
    rules::Policy,
    sending::{ReplacedBatch, ReplacementQuote, Replacing, Sending, SendingSettings, WalletSender},
    signature::{MessageToSign, SignatureRequest},
    status::{AtomicSupport, BatchStatus, CallsReceipt, SimulatedCall, TakenTx, WaitingTx},
    typed::{ShownField, TypedMessage},
};
