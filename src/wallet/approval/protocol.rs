//! The requests and answers that the node and an approver exchange over the socket.

use std::time::Duration;

use alloy_primitives::{Address, B256};
use serde::{Deserialize, Serialize};

use super::{Approvals, AskedAct, Asker, DigestPrefix, Question};
use crate::wallet::FeeBounds;

/// Length of data and text in bytes after which a list ends. Further batches are only counted.
const LONG_LIST: usize = 8 << 20;

/// The request of an approver.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Asks for the waiting batches.
    List {},
    /// Asks for one waiting batch.
    Show {
        /// The id of the batch, or its beginning.
        id: String,
    },
    /// Waits for the next batch.
    Next {
        /// Number of the first batch that counts.
        from: u64,
    },
    /// Approves the batch that has this digest.
    Approve {
        /// The id of the batch, or its beginning.
        id: String,
        /// The digest of the batch, or its beginning.
        digest: DigestPrefix,
    },
    /// Rejects the batch.
    Reject {
        /// The id of the batch, or its beginning.
        id: String,
    },
    /// Asks what it costs to replace the waiting transactions of a batch.
    Quote {
        /// The id of the batch, or its beginning.
        id: String,
        /// Whether the replacements do nothing.
        cancels: bool,
    },
    /// Signs the waiting transactions of a batch once more, with higher fees.
    Bump {
        /// The id of the batch, or its beginning.
        id: String,
        /// The fees that the operator was shown.
        bounds: FeeBounds,
    },
    /// Replaces the waiting transactions of a batch by ones that do nothing.
    Cancel {
        /// The id of the batch, or its beginning.
        id: String,
        /// The fees that the operator was shown.
        bounds: FeeBounds,
    },
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The waiting batches.
    Waiting(WaitingList),
    /// The batch that was asked for.
    Shown(Box<Listed>),
    /// The next batch. `None` if none has come for some time.
    Next(Option<Box<Listed>>),
    /// The batch was approved.
    Approved {
        /// Id of the batch.
        id: String,
    },
    /// The batch was rejected.
    Rejected {
        /// Id of the batch.
        id: String,
    },
    /// The fees of a replacement.
    Quoted {
        /// Id of the batch.
        id: String,
        /// Number of transactions that would be replaced.
        transactions: usize,
        /// The fees that bind the replacement.
        bounds: FeeBounds,
    },
    /// Transactions of a batch were replaced.
    Replaced {
        /// Id of the batch.
        id: String,
        /// Hashes of the transactions, each with that of the new one.
        transactions: Vec<(B256, B256)>,
    },
    /// The request failed.
    Error {
        /// The reason.
        message: String,
    },
}

/// The waiting batches.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingList {
    /// The batches, beginning with the one that has waited longest.
    pub batches: Vec<Listed>,
    /// Number of further batches, for which the list has no room.
    pub more: usize,
    /// The ids of withdrawn batches that no other batch gets yet.
    #[serde(default)]
    pub withdrawn: Vec<WithdrawnIds>,
}

/// The withdrawn ids of one client.
#[derive(Debug, Serialize, Deserialize)]
pub struct WithdrawnIds {
    /// Name of the client's token. `None` stands for all clients without a token.
    pub client: Option<String>,
    /// Number of ids.
    pub ids: usize,
}

/// A waiting batch, or a message that waits.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Number in the order of arrival.
    pub number: u64,
    /// Id of the request.
    pub id: String,
    /// Digest of the request.
    pub digest: B256,
    /// The account that signs.
    pub from: Address,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// The client that asks.
    #[serde(flatten)]
    pub asker: Asker,
    /// Time that the batch has waited.
    pub waited_ms: u64,
    /// Time until the batch is rejected.
    pub left_ms: u64,
    /// The batch or the message.
    #[serde(flatten)]
    pub act: AskedAct,
}

impl WaitingList {
    /// Returns the batches that wait now.
    pub fn of(approvals: &Approvals) -> Self {
        let withdrawn = approvals.withdrawn().into_iter().map(|(client, ids)| WithdrawnIds { client, ids });
        Self::new(approvals.waiting(), withdrawn.collect())
    }

    fn new(waiting: Vec<Question>, withdrawn: Vec<WithdrawnIds>) -> Self {
        let count = waiting.len();
        let (mut batches, mut length) = (Vec::new(), 0);
        for question in waiting {
            // At least one is listed, so that an approver who decides on it sees the next.
            if length > LONG_LIST {
                break;
            }
            let listed = Listed::new(question);
            length += listed.id.len() + listed.act.size();
            batches.push(listed);
        }
        Self { more: count - batches.len(), batches, withdrawn }
    }
}

impl Listed {
    pub(super) fn new(Question { number, asked, digest, waited, left }: Question) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            number,
            id: asked.id.as_str().to_owned(),
            digest,
            from: asked.from,
            chain_id: asked.chain_id,
            asker: asked.asker,
            waited_ms: ms(waited),
            left_ms: ms(left),
            act: asked.act,
        }
    }
}
