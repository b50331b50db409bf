//! The requests and answers that the node and an approver exchange over the socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Approvals, DigestPrefix, Question};
use crate::wallet::{BatchId, FeeBounds, ReplacedBatch, ReplacementQuote, Replacing};

/// Length of data and text in bytes after which a list ends. Further batches are only counted.
const LONG_LIST: usize = 8 << 20;

/// The request of an approver. An `id` and a `digest` may be the beginning of one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Asks for the waiting batches.
    List {},
    /// Asks for one waiting batch.
    Show { id: String },
    /// Waits for the next batch, from this number on.
    Next { from: u64 },
    /// Approves the batch that has this digest.
    Approve { id: String, digest: DigestPrefix },
    /// Rejects the batch.
    Reject { id: String },
    /// Asks for the cost of replacing the waiting transactions of a batch.
    Quote { id: String, how: Replacing },
    /// Replaces the waiting transactions of a batch, at fees that the operator was shown.
    Replace { id: BatchId, how: Replacing, bounds: FeeBounds },
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The waiting batches.
    Waiting(WaitingList),
    /// The batch that was asked for.
    Shown(Box<Question>),
    /// The next batch. `None` if none has arrived for some time.
    Next(Option<Box<Question>>),
    /// The batch was approved.
    Approved { id: BatchId },
    /// The batch was rejected.
    Rejected { id: BatchId },
    /// The fees of a replacement.
    Quoted(ReplacementQuote),
    /// Transactions of a batch were replaced.
    Replaced(ReplacedBatch),
    /// The request failed.
    Error { message: String },
}

/// The waiting batches.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingList {
    /// The batches, beginning with the one that has waited longest.
    pub batches: Vec<Question>,
    /// Number of further batches, for which the list has no room.
    pub more: usize,
    /// The ids of withdrawn batches that no other batch gets yet.
    #[serde(default)]
    pub withdrawn: Vec<WithdrawnIds>,
}

/// The withdrawn ids of one client.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct WithdrawnIds {
    /// Name of the client's token. `None` is shared by all clients without a token.
    pub client: Option<String>,
    /// Number of ids.
    pub ids: usize,
}

impl WaitingList {
    /// Returns the batches that wait now.
    pub fn of(approvals: &Approvals) -> Self {
        let withdrawn = approvals.withdrawn().into_iter().map(|(client, ids)| WithdrawnIds { client, ids }).collect();
        let (mut batches, mut length) = (approvals.waiting(), 0);
        // At least one is listed, so that an approver who decides on it sees the next.
        let is_long = |question: &Question| {
            let is_long = length > LONG_LIST;
            length += question.asked.id.as_str().len() + question.asked.act.size();
            is_long
        };
        let listed = batches.iter().position(is_long).unwrap_or(batches.len());
        let more = batches.drain(listed..).count();
        Self { batches, more, withdrawn }
    }
}
