//! From the text of a request or a batch to the text of its answer: what both doors do.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use bytestring::ByteString;
use futures::future::join_all;

use super::{
    access::Client,
    dialect::Dialect,
    encode,
    envelope::{BadRequest, Body, Request},
    error::RpcError,
    front::{AnswerRoom, Front, Job},
    memory::{HeldBytes, MemoryShare},
    methods::Method,
    subscriptions::Starting,
};
use crate::{executor::Batch, state::Published};

/// Limits on what is asked at once.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Bytes of a body or a message.
    pub max_body: usize,
    /// Bytes of an answer.
    pub max_response: usize,
    /// Entries of a batch.
    pub max_batch: usize,
}

/// One client's conversation: how it speaks, and who answers.
#[derive(Clone, Debug)]
pub struct Session {
    /// Who answers.
    pub front: Arc<Front>,
    /// How the client speaks.
    pub dialect: &'static Dialect,
    /// Which client it is, where clients have names.
    pub client: Option<Arc<Client>>,
    /// Whether it may use the wallet.
    pub may_use_wallet: bool,
    /// How much it may ask at once.
    pub limits: ReplyLimits,
    /// The bytes that its connection makes the node hold.
    pub share: Arc<MemoryShare>,
}

/// The text of an answer, and the bytes that it holds until it is sent.
#[derive(Debug)]
pub struct Answer {
    /// The JSON, envelope included.
    pub text: Vec<u8>,
    /// At least as many bytes as the text has.
    pub held: HeldBytes,
}

/// The answer to a body.
#[derive(Debug)]
pub struct Reply {
    /// Its text.
    pub answer: Answer,
    /// Whether it answers one request, and no batch.
    pub single: bool,
}

impl Session {
    /// Answers a body, whose bytes are `held` until its requests have run. All its entries run on `published`. Where there is a connection to
    /// subscribe on, `starting` collects what is to begin.
    pub async fn reply(
        &self,
        body: ByteString,
        held: HeldBytes,
        published: &Arc<Published>,
        starting: Option<&Arc<Starting>>,
    ) -> Reply {
        match Body::parse(&body, self.limits.max_batch) {
            Err(error) => Reply { answer: self.refuse(error), single: true },
            Ok(Body::Single(request)) => {
                Reply { answer: self.one(request, &body, Some(held), published, starting, None).await, single: true }
            }
            Ok(Body::Batch(requests)) => {
                // Answers pile up while others are still made: what they may hold together is counted as they end.
                let so_far = AtomicUsize::new(0);
                let most = self.limits.max_response;
                let batch = self.front.batch();
                let entries = requests.into_iter().map(|request| async {
                    if so_far.load(Relaxed) > most {
                        return None;
                    }
                    let answer = self.one(request, &body, None, published, starting, Some(&batch)).await;
                    let others = so_far.fetch_add(answer.text.len() + 1, Relaxed);
                    (others + answer.text.len() <= most).then_some(answer)
                });
                let answers: Option<Vec<Answer>> = join_all(entries).await.into_iter().collect();
                drop(held);
                let answer = match answers {
                    Some(answers) if so_far.into_inner() <= most => self.join(answers),
                    _ => {
                        if let Some(starting) = starting {
                            starting.abandon();
                        }
                        self.small(failure("null", &encode::too_long(most)))
                    }
                };
                Reply { answer, single: false }
            }
        }
    }

    /// Refuses what is no JSON-RPC. It counts against the client's rate as a request does.
    pub fn refuse(&self, error: RpcError) -> Answer {
        let error = self.admit().err().unwrap_or(error);
        self.small(failure("null", &error))
    }

    /// An answer that is given in any case, because it is small or tells of something that has been done.
    fn small(&self, text: Vec<u8>) -> Answer {
        let held = self.share.take_always(text.len());
        Answer { text, held }
    }

    fn admit(&self) -> Result<(), RpcError> {
        self.client.as_ref().map_or(Ok(()), |client| client.admit(NonZeroU32::MIN))
    }

    /// The answer to one request. Where it came alone its body's bytes are given back before the answer takes any.
    async fn one(
        &self,
        request: Result<Request<'_>, BadRequest<'_>>,
        body: &ByteString,
        held: Option<HeldBytes>,
        published: &Arc<Published>,
        starting: Option<&Arc<Starting>>,
        batch: Option<&Arc<Batch>>,
    ) -> Answer {
        let parsed = Instant::now();
        let request = match request {
            Ok(request) => request,
            Err(BadRequest { id, error }) => {
                return self.small(failure(id, &self.admit().err().unwrap_or(error)));
            }
        };
        if let Err(error) = self.admit() {
            return self.small(failure(request.id, &error));
        }
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(request.id.as_bytes());
        out.extend_from_slice(b",\"result\":");
        let room = AnswerRoom::of(&self.share);
        let job = Job {
            room: room.clone(),
            params: request.params.map_or(ByteString::from_static("[]"), |params| body.slice_ref(params)),
            published: published.clone(),
            dialect: self.dialect,
            client: self.client.clone(),
            may_use_wallet: self.may_use_wallet,
            ticket: batch.map_or_else(|| self.front.ticket(), |batch| self.front.ticket().of(batch)),
            starting: starting.cloned(),
            alone: batch.is_none(),
        };
        let (mut out, result) = self.front.run(&request.method, job, out).await;
        drop(held);
        let text = match result {
            Ok(()) if out.len() < self.limits.max_response => {
                out.push(b'}');
                out
            }
            Ok(()) => failure(request.id, &encode::too_long(self.limits.max_response)),
            Err(error) => {
                let text = failure(request.id, &error);
                if error.busy {
                    self.front.count_refusal(parsed);
                }
                text
            }
        };
        let mut held = room.taken();
        // What was taken for a text that is not sent is given back, and an envelope's end is added.
        held.shrink(held.bytes().saturating_sub(text.len()));
        let more = text.len() - held.bytes();
        if more <= ENVELOPE || Method::by_name(&request.method).is_some_and(Method::commits) {
            held.grow_always(more);
        } else if !held.grow(more) {
            return self.small(failure(request.id, &self.share.memory().full("the answer", text.len())));
        }
        Answer { text, held }
    }

    /// The answers of a batch in order, as one array.
    fn join(&self, answers: Vec<Answer>) -> Answer {
        let length: usize = answers.iter().map(|answer| answer.text.len() + 1).sum();
        let mut joined = Answer {
            text: Vec::with_capacity(length + 1),
            // The commas and the brackets.
            held: self.share.take_always(answers.len() + 1),
        };
        joined.text.push(b'[');
        for (index, Answer { text, held }) in answers.into_iter().enumerate() {
            if index > 0 {
                joined.text.push(b',');
            }
            joined.text.extend_from_slice(&text);
            joined.held.absorb(held);
        }
        joined.text.push(b']');
        joined
    }
}

/// Bytes that are granted to any answer: an error, or what stands around a result.
const ENVELOPE: usize = 256;

/// An error answer.
pub fn failure(id: &str, error: &RpcError) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"error\":");
    error.write(&mut out);
    out.push(b'}');
    out
}
