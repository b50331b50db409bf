//! Batches, whose entries run concurrently.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures::future::join_all;
use jsonrpsee::{
    core::middleware::{Batch, BatchEntry, BatchEntryErr},
    types::{Id, Request as Call},
};

use super::service::{AnswerText, Message, NOT_A_REQUEST};
use crate::rpc::{json, protocol::error::RpcError};
use crate::scheduler;

/// An entry of a batch: a call, or the answer to an entry that is none or was rejected.
type Entry<'a> = Result<Call<'a>, AnswerText>;

/// The bytes of the answers so far. Finished answers wait for the others, so their total is bounded while they end.
struct AnswerBytes {
    so_far: AtomicUsize,
    most: usize,
}

impl AnswerBytes {
    fn are_too_many(&self) -> bool {
        self.so_far.load(Relaxed) > self.most
    }

    /// Counts an answer. Returns `None` if it is one too many.
    fn count(&self, answer: AnswerText) -> Option<AnswerText> {
        let others = self.so_far.fetch_add(answer.text.len() + 1, Relaxed);
        (others + answer.text.len() <= self.most).then_some(answer)
    }
}

impl Message {
    /// Runs the entries of a batch concurrently, and joins their answers in order.
    pub async fn run_batch(&self, entries: Batch<'_>) -> AnswerText {
        if entries.is_empty() {
            let error = RpcError::request("invalid request: an empty batch: expected at least one request");
            return AnswerText::refusal(&self.caller, &Id::Null, error);
        }
        let runner = &self.front.services.runner;
        let bytes = AnswerBytes { so_far: AtomicUsize::new(0), most: runner.backend.limits.max_response };
        let batch = runner.host.executor.batch();
        let entries: Vec<Entry<'_>> = entries.into_iter().map(|entry| self.admit_entry(entry)).collect();
        let answers = entries.into_iter().map(|entry| self.run_entry(entry, &batch, &bytes));
        let answers: Option<Vec<AnswerText>> = join_all(answers).await.into_iter().collect();
        match answers {
            Some(answers) if !bytes.are_too_many() => self.join(self.settle_all(answers, bytes).await),
            _ => {
                if let Some(starting) = &self.starting {
                    starting.abandon();
                }
                AnswerText::failure(&self.caller, &Id::Null, json::too_long(bytes.most))
            }
        }
    }

    /// Moves the positions of the filters that were polled, in the order of the entries, because the answers fit now. A poll
    /// that runs again gets an error if its answer does not fit any more.
    async fn settle_all(&self, mut answers: Vec<AnswerText>, bytes: AnswerBytes) -> Vec<AnswerText> {
        let mut free = bytes.most - bytes.so_far.into_inner().min(bytes.most);
        for answer in &mut answers {
            if answer.poll.is_some() {
                free += answer.text.len();
                let polled = std::mem::replace(answer, AnswerText::small(&self.caller, Vec::new()));
                *answer = self.settle(polled, free).await;
                free = free.saturating_sub(answer.text.len());
            }
        }
        answers
    }

    /// Counts an entry against the client's rate.
    fn admit_entry<'a>(&self, entry: Result<BatchEntry<'a>, BatchEntryErr<'a>>) -> Entry<'a> {
        match entry {
            Ok(BatchEntry::Call(call)) => match self.caller.admit() {
                Ok(()) => Ok(call),
                Err(error) => Err(AnswerText::failure(&self.caller, &call.id, error)),
            },
            Ok(BatchEntry::Notification(_)) => Err(self.without_id()),
            Err(error) => {
                let (_, id) = error.into_parts();
                let error = RpcError::request(NOT_A_REQUEST);
                Err(AnswerText::refusal(&self.caller, &id, error))
            }
        }
    }

    /// Runs an entry. Returns `None` if the answers are too long together.
    async fn run_entry(
        &self,
        entry: Entry<'_>,
        batch: &Arc<scheduler::Batch>,
        bytes: &AnswerBytes,
    ) -> Option<AnswerText> {
        if bytes.are_too_many() {
            return None;
        }
        bytes.count(match entry {
            Ok(call) => self.run_call(call, Some(batch)).await,
            Err(answer) => answer,
        })
    }

    /// Returns the answers of a batch in order, as one array.
    fn join(&self, answers: Vec<AnswerText>) -> AnswerText {
        let length: usize = answers.iter().map(|answer| answer.text.len()).sum();
        let mut joined = AnswerText::small(&self.caller, Vec::new());
        joined.text.reserve_exact(length + answers.len() + 1);
        for (index, AnswerText { text, held, .. }) in answers.into_iter().enumerate() {
            joined.text.push(if index == 0 { b'[' } else { b',' });
            joined.text.extend_from_slice(&text);
            joined.held.merge(held);
        }
        joined.text.push(b']');
        joined.held.merge(self.caller.memory.take_always(joined.text.len() - length));
        joined
    }
}
