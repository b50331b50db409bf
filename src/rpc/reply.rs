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
    front::{Front, Job},
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
}

/// An answer, envelope included.
#[derive(Debug)]
pub struct Reply {
    /// The JSON.
    pub text: Vec<u8>,
    /// Whether it answers one request, and no batch.
    pub single: bool,
}

impl Session {
    /// Answers a body. All its entries run on `published`. Where there is a connection to subscribe on, `starting` collects what is to begin.
    pub async fn reply(&self, body: ByteString, published: &Arc<Published>, starting: Option<&Arc<Starting>>) -> Reply {
        match Body::parse(&body, self.limits.max_batch) {
            Err(error) => Reply { text: failure("null", &error), single: true },
            Ok(Body::Single(request)) => {
                Reply { text: self.one(request, &body, published, starting, None).await, single: true }
            }
            Ok(Body::Batch(requests)) => {
                // Answers pile up while others are still made: what they may hold together is counted as they end.
                let held = AtomicUsize::new(0);
                let batch = self.front.batch();
                let entries = requests.into_iter().map(|request| async {
                    if held.load(Relaxed) > self.limits.max_response {
                        return Vec::new();
                    }
                    let answer = self.one(request, &body, published, starting, Some(&batch)).await;
                    let others = held.fetch_add(answer.len() + 1, Relaxed);
                    if others + answer.len() > self.limits.max_response { Vec::new() } else { answer }
                });
                let answers = join_all(entries).await;
                if held.into_inner() > self.limits.max_response {
                    if let Some(starting) = starting {
                        starting.abandon();
                    }
                    return Reply { text: failure("null", &encode::too_long(self.limits.max_response)), single: false };
                }
                Reply { text: join(&answers), single: false }
            }
        }
    }

    /// The answer to one request, its envelope included.
    async fn one(
        &self,
        request: Result<Request<'_>, BadRequest<'_>>,
        body: &ByteString,
        published: &Arc<Published>,
        starting: Option<&Arc<Starting>>,
        batch: Option<&Arc<Batch>>,
    ) -> Vec<u8> {
        let parsed = Instant::now();
        let request = match request {
            Ok(request) => request,
            Err(BadRequest { id, error }) => return failure(id, &error),
        };
        if let Some(Err(error)) = self.client.as_ref().map(|client| client.admit(NonZeroU32::MIN)) {
            return failure(request.id, &error);
        }
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(request.id.as_bytes());
        out.extend_from_slice(b",\"result\":");
        let job = Job {
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
        match result {
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
        }
    }
}

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

/// The answers of a batch in order, as one array.
fn join(answers: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(answers.iter().map(|answer| answer.len() + 1).sum::<usize>() + 1);
    out.push(b'[');
    for (index, answer) in answers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(answer);
    }
    out.push(b']');
    out
}
