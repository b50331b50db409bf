//! Batches: their entries run side by side, and on other nodes of a fleet, too, if they are many.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use futures::future::{join, join_all};
use jsonrpsee::{
    core::middleware::{Batch, BatchEntry, BatchEntryErr},
    types::{Id, Request as Call},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    encode,
    error::RpcError,
    fleet::{WorkPart, WorkSpread, work_headers},
    methods::MethodRoute,
    service::{Encoded, Message, NOT_A_REQUEST},
};
use crate::executor;

/// An entry of a batch: a call, or the answer to an entry that is none or was rejected.
type Entry<'a> = Result<Call<'a>, Encoded>;

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
    fn count(&self, answer: Encoded) -> Option<Encoded> {
        let others = self.so_far.fetch_add(answer.text.len() + 1, Relaxed);
        (others + answer.text.len() <= self.most).then_some(answer)
    }
}

impl Message {
    /// Runs the entries of a batch concurrently, and joins their answers in order.
    pub(super) async fn run_batch(&self, entries: Batch<'_>) -> Encoded {
        let session = &self.session;
        if entries.is_empty() {
            let error = RpcError::request("invalid request: an empty batch: expected at least one request");
            return session.failure(&Id::Null, session.admit().err().unwrap_or(error));
        }
        let bytes = AnswerBytes { so_far: AtomicUsize::new(0), most: session.limits.max_response };
        let batch = session.front.batch();
        let entries: Vec<Entry<'_>> = entries.into_iter().map(|entry| self.admit_entry(entry)).collect();
        let pure = entries.iter().filter(|entry| is_pure(entry)).count();
        let answers: Option<Vec<Encoded>> = match session.front.runner.spread_of(pure, &self.published) {
            Some(spread) => Box::pin(self.spread(spread, entries, &batch, &bytes)).await,
            None => {
                let answers = entries.into_iter().map(|entry| self.run_entry(entry, &batch, &bytes));
                join_all(answers).await.into_iter().collect()
            }
        };
        match answers {
            Some(answers) if !bytes.are_too_many() => self.join(answers),
            _ => {
                if let Some(starting) = &self.starting {
                    starting.abandon();
                }
                session.failure(&Id::Null, encode::too_long(bytes.most))
            }
        }
    }

    /// Counts an entry against the client's rate.
    fn admit_entry<'a>(&self, entry: Result<BatchEntry<'a>, BatchEntryErr<'a>>) -> Entry<'a> {
        let session = &self.session;
        match entry {
            Ok(BatchEntry::Call(call)) => match session.admit() {
                Ok(()) => Ok(call),
                Err(error) => Err(session.failure(&call.id, error)),
            },
            Ok(BatchEntry::Notification(_)) => Err(self.without_id()),
            Err(error) => {
                let (_, id) = error.into_parts();
                let error = RpcError::request(NOT_A_REQUEST);
                Err(session.failure(&id, session.admit().err().unwrap_or(error)))
            }
        }
    }

    /// Runs an entry on this node. Returns `None` if the answers are too long together.
    async fn run_entry(&self, entry: Entry<'_>, batch: &Arc<executor::Batch>, bytes: &AnswerBytes) -> Option<Encoded> {
        if bytes.are_too_many() {
            return None;
        }
        bytes.count(match entry {
            Ok(call) => self.run_call(call, Some(batch)).await,
            Err(answer) => answer,
        })
    }

    /// Runs the entries of a batch, of which the nodes of a fleet run those that each of them answers the same. Returns
    /// `None` if the answers are too long together.
    async fn spread(
        &self,
        spread: &WorkSpread,
        entries: Vec<Entry<'_>>,
        batch: &Arc<executor::Batch>,
        bytes: &AnswerBytes,
    ) -> Option<Vec<Encoded>> {
        let (mut places, mut pure, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let count = entries.len();
        for (place, entry) in entries.into_iter().enumerate() {
            match entry {
                Ok(call) if MethodRoute::by_name(&call.method).is_some_and(|method| method.is_pure) => {
                    places.push(place);
                    pure.push(call);
                }
                other => others.push((place, other)),
            }
        }
        let (shards, at) = (spread.cut(pure.len()), self.published.last);
        let (pure, shards, caller) = (&pure, &shards, &self.session.caller);
        let deadline = self.session.front.ticket(caller).deadline();
        let ask = |peer: Arc<str>, shard: usize| async move {
            let calls = &pure[shards[shard].clone()];
            let headers = work_headers(&WorkPart::Entries, caller, at, deadline);
            let body = serde_json::to_vec(calls).ok()?;
            let answer = spread.ask(&peer, headers, body.into(), deadline).await?;
            let texts: Vec<&RawValue> = serde_json::from_slice(&answer).ok()?;
            if texts.len() != calls.len() || texts.iter().any(|text| is_of_the_node(text)) {
                return None;
            }
            let answers = calls.iter().zip(texts).map(|(call, text)| bytes.count(self.answer_of_peer(call, text)));
            Some(answers.collect::<Option<Vec<Encoded>>>())
        };
        let here = |shard: usize| async move {
            let calls = pure[shards[shard].clone()].iter().cloned();
            let answers = join_all(calls.map(|call| self.run_entry(Ok(call), batch, bytes))).await;
            answers.into_iter().collect::<Option<Vec<Encoded>>>()
        };
        let beside =
            others.into_iter().map(|(place, entry)| async move { (place, self.run_entry(entry, batch, bytes).await) });
        let (spread_answers, others) = join(spread.run(shards.len(), ask, here), join_all(beside)).await;
        let mut answers: Vec<Option<Encoded>> = (0..count).map(|_| None).collect();
        let spread_answers = spread_answers.into_iter().collect::<Option<Vec<_>>>()?;
        for (place, answer) in places.into_iter().zip(spread_answers.into_iter().flatten()) {
            answers[place] = Some(answer);
        }
        for (place, answer) in others {
            answers[place] = answer;
        }
        answers.into_iter().collect()
    }

    /// Returns the answer of another node to a call.
    fn answer_of_peer(&self, call: &Call<'_>, text: &RawValue) -> Encoded {
        let (session, length) = (&self.session, text.get().len());
        match session.caller.share.take(length) {
            Some(held) => Encoded { text: text.get().into(), held, by_upstream: false },
            None => session.failure(&call.id, session.caller.share.memory().full("the answer", length)),
        }
    }

    /// Returns the answers of a batch in order, as one array.
    fn join(&self, answers: Vec<Encoded>) -> Encoded {
        let length: usize = answers.iter().map(|answer| answer.text.len()).sum();
        let mut joined = self.session.small(Vec::new());
        joined.text.reserve_exact(length + answers.len() + 1);
        for (index, Encoded { text, held, .. }) in answers.into_iter().enumerate() {
            joined.text.push(if index == 0 { b'[' } else { b',' });
            joined.text.extend_from_slice(&text);
            joined.held.absorb(held);
        }
        joined.text.push(b']');
        joined.held.absorb(self.session.caller.share.take_always(joined.text.len() - length));
        joined
    }
}

/// Returns whether each node of a fleet answers an entry the same.
fn is_pure(entry: &Entry<'_>) -> bool {
    let method = entry.as_ref().ok().and_then(|call| MethodRoute::by_name(&call.method));
    method.is_some_and(|method| method.is_pure)
}

/// Returns whether an answer is an error that this node may not give: of a limit, a deadline or a fault, or because of a
/// past that the other node does not retain. A revert has data, unless it reverted without.
fn is_of_the_node(answer: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct MaybeFailed {
        error: Option<FailedCode>,
    }
    #[derive(Deserialize)]
    struct FailedCode {
        code: i32,
        data: Option<IgnoredAny>,
    }
    let Ok(MaybeFailed { error }) = serde_json::from_str(answer.get()) else { return true };
    error.is_some_and(|error| match error.code {
        -32005 | -32016 | -32603 | 4444 => true,
        -32000 => error.data.is_none(),
        _ => false,
    })
}
