//! The JSON-RPC service: from the text of a message to the text of its answer.
//!
//! jsonrpsee parses messages and calls [`Message`], their [`RpcServiceT`]. The transports are presim's own, for the
//! reasons in `README.md`. An encoded answer bypasses jsonrpsee's response, which would parse it again: it is carried
//! in the extensions of an empty response.

use std::{borrow::Cow, sync::Arc, time::Instant};

use bytes::Bytes;
use bytestring::ByteString;
use http::{HeaderValue, header};
use http_body_util::{BodyExt, Full};
use jsonrpsee::{
    core::middleware::{Batch, Notification, RpcServiceT},
    server::{BatchRequestConfig, HttpRequest, HttpResponse, MethodResponse, http::call_with_service},
    types::{
        Extensions, Id, Request as Call, Response, ResponsePayload, TwoPointZero, error::TOO_BIG_BATCH_REQUEST_CODE,
    },
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    front::{AnswerFacts, Dispatcher},
    method::{Handler, MethodRoute},
    table,
};
use crate::rpc::{
    json,
    limits::memory::{AnswerRoom, HeldBytes},
    protocol::error::RpcError,
    run::{
        ExecutedBy,
        filters::Move,
        remote::UpstreamGateway,
        request::{Caller, Request, open_answer, open_error},
        subscriptions::PendingSubscriptions,
    },
};
use crate::{ledger::Chain, objects, scheduler};

/// The answer to a message.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The JSON, which counts for the connection until it is dropped.
    pub text: Bytes,
    /// Whether it answers a single request and not a batch.
    pub single: bool,
    /// The rules by which that request was executed, and the node.
    pub by: ExecutedBy,
}

/// The text of an answer to a request, and the bytes that it holds.
#[derive(Debug)]
pub struct AnswerText {
    pub text: Vec<u8>,
    pub held: HeldBytes,
    /// The rules by which the request was executed, and the node.
    pub by: ExecutedBy,
    /// The poll that is answered, if a filter's position moves by it.
    pub poll: Option<Box<AnsweredPoll>>,
}

/// A poll of a filter that has its answer.
#[derive(Debug)]
pub struct AnsweredPoll {
    /// The move that the answer makes.
    moves: Move,
    method: &'static MethodRoute,
    /// The request, which runs again if another poll has moved the filter meanwhile.
    request: Request,
}

/// The requests of one message. All of them run on the snapshot at its arrival.
#[derive(Clone, Debug)]
pub struct Message {
    /// The front that answers.
    pub front: Arc<Dispatcher>,
    /// The sender.
    pub caller: Arc<Caller>,
    /// The publication on which the requests run.
    pub published: Arc<Chain>,
    /// The subscriptions that the message starts, if its connection can subscribe.
    pub starting: Option<Arc<PendingSubscriptions>>,
}

/// Returns the answer to a message that is rejected as a whole, with the id of `body` if it is a request. It counts against the
/// client's rate as a request does.
pub fn error_answer(caller: &Caller, body: &str, error: RpcError) -> Bytes {
    let id = Single::parse(body).and_then(|single| plain_id(single.id));
    AnswerText::refusal(caller, &id.unwrap_or(Id::Null), error).around()
}

impl AnswerText {
    /// Returns an error answer.
    pub fn failure(caller: &Caller, id: &Id<'_>, error: RpcError) -> Self {
        Self::small(caller, failure(id, (caller.dialect.told)(error)))
    }

    /// Returns an error answer that counts against the client's rate, or the error that the rate is exceeded.
    pub fn refusal(caller: &Caller, id: &Id<'_>, error: RpcError) -> Self {
        Self::failure(caller, id, caller.admit().err().unwrap_or(error))
    }

    /// Returns an answer that is always granted, because it is small or reports something that has been done.
    pub fn small(caller: &Caller, text: Vec<u8>) -> Self {
        let held = caller.memory.take_always(text.len());
        Self { text, held, by: ExecutedBy::Node, poll: None }
    }

    /// Returns the text, which holds its bytes until its last part is dropped.
    fn around(self) -> Bytes {
        self.held.attach(self.text)
    }

    /// Returns the answer to a single request, or to a batch.
    fn into_answer(self, single: bool) -> Answer {
        Answer { by: self.by, text: self.around(), single }
    }
}

impl Answer {
    /// Returns an empty response of jsonrpsee's that carries the answer.
    fn into_response(self) -> MethodResponse {
        let mut extensions = Extensions::new();
        extensions.insert(self);
        MethodResponse::notification().with_extensions(extensions)
    }
}

/// A single well-formed request within its message. jsonrpsee's own type would copy the parameters.
#[derive(Deserialize)]
struct Single<'a> {
    #[serde(rename = "jsonrpc")]
    _version: TwoPointZero,
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

impl<'a> Single<'a> {
    fn parse(body: &'a str) -> Option<Self> {
        objects::from_str(body).ok()
    }
}

/// Returns an id that is read without a parser: null, an unsigned integer or a string without escapes.
fn plain_id(id: &RawValue) -> Option<Id<'_>> {
    let text = id.get();
    if let Ok(number) = text.parse() {
        return Some(Id::Number(number));
    }
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(text) => (!text.contains('\\')).then_some(Id::Str(Cow::Borrowed(text))),
        None => (text == "null").then_some(Id::Null),
    }
}

impl Message {
    /// Creates a message of a caller that has just arrived.
    pub fn new(
        front: &Arc<Dispatcher>,
        caller: &Arc<Caller>,
        published: &Arc<Chain>,
        starting: Option<&Arc<PendingSubscriptions>>,
    ) -> Self {
        let (front, caller, published) = (front.clone(), caller.clone(), published.clone());
        Self { front, caller, published, starting: starting.cloned() }
    }

    /// Answers the message with this body. Its bytes are `held` until its requests have run.
    ///
    /// A single well-formed request takes a short cut, equivalent to
    /// [`answer_by_jsonrpsee`](Self::answer_by_jsonrpsee), without copying the body and the parameters.
    pub async fn answer(self, body: ByteString, held: HeldBytes) -> Answer {
        if let Some(Single { id, method, params, .. }) = Single::parse(&body)
            && let Some(id) = plain_id(id)
        {
            let params = params.map(|params| body.slice_ref(params.get()));
            let answer = match self.caller.admit() {
                Ok(()) => self.run(&id, &method, params, AnswerRoom::of(held), None).await,
                Err(error) => self.failure(&id, error),
            };
            return answer.into_answer(true);
        }
        // Boxed, because rare futures are large and would be moved with every request.
        Box::pin(self.answer_by_jsonrpsee(body, held)).await
    }

    /// Answers a message of any form: jsonrpsee parses it and calls the [`RpcServiceT`].
    pub async fn answer_by_jsonrpsee(self, body: ByteString, held: HeldBytes) -> Answer {
        let mut text = body.slice_ref(body.trim_ascii_start());
        let single = !text.starts_with('[');
        if !single {
            text = without_arrays(text);
        }
        let mut request = HttpRequest::new(Full::new(text.as_bytes().clone()));
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (caller, max_batch) = (self.caller.clone(), self.front.services.runner.backend.limits.max_batch);
        let most = BatchRequestConfig::Limit(u32::try_from(max_batch).unwrap_or(u32::MAX));
        let mut response = call_with_service(request, most, u32::MAX, self).await;
        drop(held);
        if let Some(answer) = response.extensions_mut().remove::<Answer>() {
            return answer;
        }
        let (id, error) = decided_before(&text, response, max_batch).await;
        AnswerText::refusal(&caller, &id, error).into_answer(single)
    }

    fn failure(&self, id: &Id<'_>, error: RpcError) -> AnswerText {
        AnswerText::failure(&self.caller, id, error)
    }

    /// Runs one request of jsonrpsee's type, which has been counted against the client's rate.
    pub async fn run_call(
        &self,
        Call { id, method, params, .. }: Call<'_>,
        batch: Option<&Arc<scheduler::Batch>>,
    ) -> AnswerText {
        // jsonrpsee has copied the parameters, so the copy is used.
        let params = params.map(|params| ByteString::from(Box::<str>::from(params.into_owned()).into_string()));
        let room = AnswerRoom::of(self.caller.memory.clone().empty());
        self.run(&id, &method, params, room, batch).await
    }

    /// Runs one request, which has been counted against the client's rate.
    async fn run(
        &self,
        id: &Id<'_>,
        name: &str,
        params: Option<ByteString>,
        room: AnswerRoom,
        batch: Option<&Arc<scheduler::Batch>>,
    ) -> AnswerText {
        let parsed = Instant::now();
        let Self { front, caller, published, starting } = self;
        let runner = &front.services.runner;
        let Some(method) = table::by_name(name) else {
            front.count_unknown(parsed);
            return match runner.forwards(name) {
                Some(remote) => Box::pin(self.forward(id, name, params.as_deref(), remote)).await,
                None => self.failure(id, table::unknown(name)),
            };
        };
        if let Err(error) = front.services.testing.check(&method.info) {
            front.count_unknown(parsed);
            return self.failure(id, error);
        }
        let ticket = runner.ticket(caller);
        let request = Request {
            id: id.clone().into_owned(),
            method: &method.info,
            params: params.unwrap_or_else(|| ByteString::from_static("[]")),
            caller: caller.clone(),
            published: published.clone(),
            ticket: match batch {
                Some(batch) => ticket.of(batch),
                None => ticket,
            },
            starting: starting.clone(),
            room,
        };
        let answer = self.run_request(id, method, request, parsed).await;
        match batch {
            // The bytes are granted once the answers of all entries fit.
            Some(_) => answer,
            None => self.settle(answer, usize::MAX).await,
        }
    }

    /// Runs a request, and takes the bytes of its answer.
    async fn run_request(
        &self,
        id: &Id<'_>,
        method: &'static MethodRoute,
        request: Request,
        parsed: Instant,
    ) -> AnswerText {
        let Self { front, caller, .. } = self;
        let (room, most) = (request.room.clone(), front.services.runner.backend.limits.max_response);
        let again = matches!(method.handler, Handler::Poll(_)).then(|| request.clone());
        let mut facts = AnswerFacts::default();
        let answer = front.answer(method, request, parsed, &mut facts).await;
        let text = match answer {
            Ok(mut answer) if answer.len() < most => {
                answer.push(b'}');
                answer
            }
            Ok(_) => return self.failure(id, json::too_long(most)),
            Err(error) => {
                let is_busy = error.is_busy();
                let text = failure(id, (caller.dialect.told)(error));
                if is_busy {
                    front.count_refusal(parsed);
                }
                text
            }
        };
        let mut held = room.taken();
        // Bytes for text that is not sent are released, and the end of the envelope is added.
        held.shrink(held.bytes().saturating_sub(text.len()));
        let more = text.len() - held.bytes();
        if more <= ENVELOPE || method.info.commits {
            held.grow_always(more);
        } else if !held.grow(more) {
            return self.failure(id, caller.memory.memory().full("the answer", text.len()));
        }
        let AnswerFacts { by, moves } = facts;
        let poll = moves.zip(again).map(|(moves, request)| Box::new(AnsweredPoll { moves, method, request }));
        AnswerText { text, held, by, poll }
    }

    /// Moves the position of the filter that `answer` is about, if it is the answer to a poll, and returns the answer. If
    /// another poll has moved the filter since, the bytes are released and the request runs again, within its deadline. An
    /// answer of more than `most` bytes moves nothing and is replaced by an error.
    pub async fn settle(&self, mut answer: AnswerText, most: usize) -> AnswerText {
        while let Some(poll) = answer.poll.take() {
            let AnsweredPoll { moves, method, request } = *poll;
            if answer.text.len() > most {
                return self.failure(&request.id, json::too_long(most));
            }
            if moves.store() {
                break;
            }
            drop(answer);
            let id = request.id.clone();
            answer = self.run_request(&id, method, request, Instant::now()).await;
        }
        answer
    }

    /// Answers a method that presim does not have with the upstream's answer.
    async fn forward(&self, id: &Id<'_>, name: &str, params: Option<&str>, remote: &UpstreamGateway) -> AnswerText {
        let runner = &self.front.services.runner;
        let (deadline, most) = (runner.ticket(&self.caller).deadline(), runner.backend.limits.max_response);
        match remote.forward_unknown(name, params.unwrap_or("[]"), deadline).await {
            Ok(result) if result.get().len() < most => {
                let mut text = open_answer(id);
                text.extend_from_slice(result.get().as_bytes());
                text.push(b'}');
                AnswerText::small(&self.caller, text)
            }
            Ok(_) => self.failure(id, json::too_long(most)),
            Err(error) => self.failure(id, error),
        }
    }

    /// Rejects a request without a usable id. jsonrpsee takes it for a notification, and presim has none.
    pub fn without_id(&self) -> AnswerText {
        let error = RpcError::request(
            "invalid request: id: missing or unusable: expected an unsigned integer, a string or null",
        );
        AnswerText::refusal(&self.caller, &Id::Null, error)
    }
}

impl RpcServiceT for Message {
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Call<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let message = self.clone();
        async move {
            let answer = match message.caller.admit() {
                Ok(()) => message.run_call(request, None).await,
                Err(error) => message.failure(&request.id, error),
            };
            answer.into_answer(true).into_response()
        }
    }

    fn batch<'a>(&self, requests: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let message = self.clone();
        async move { message.run_batch(requests).await.into_answer(false).into_response() }
    }

    fn notification<'a>(&self, _: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        std::future::ready(self.without_id().into_answer(true).into_response())
    }
}

/// Replaces the entries of a batch that are arrays by null, because jsonrpsee would take them for objects.
fn without_arrays(batch: ByteString) -> ByteString {
    // An array within an object follows a colon or is within another array, so most batches have no bracket that may begin an entry.
    let may_begin_entry = |(at, _): (usize, &str)| !batch[..at].trim_ascii_end().ends_with(':');
    if !batch.match_indices('[').skip(1).any(may_begin_entry) {
        return batch;
    }
    let is_array = |entry: &RawValue| entry.get().starts_with('[');
    match objects::from_str::<Vec<&RawValue>>(&batch) {
        Ok(entries) if entries.iter().any(|entry| is_array(entry)) => {
            let entries: Vec<&str> =
                entries.into_iter().map(|entry| if is_array(entry) { "null" } else { entry.get() }).collect();
            format!("[{}]", entries.join(",")).into()
        }
        _ => batch,
    }
}

/// Bytes that are granted to any answer: an error, or the envelope of a result.
const ENVELOPE: usize = 256;

pub const NOT_A_REQUEST: &str = "invalid request: expected an object with jsonrpc \"2.0\", an id and a method";

/// Returns the error of a message that jsonrpsee has answered itself, with the id that it found, in the codes and words
/// of this service.
///
/// jsonrpsee answers -32700 to everything that begins neither as an object nor as an array, and -32010 to a batch that
/// is too long.
async fn decided_before(text: &str, response: HttpResponse, max_batch: usize) -> (Id<'static>, RpcError) {
    let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let answered = objects::from_slice::<Response<'_, ()>>(&body).ok();
    let id = answered.as_ref().map_or(Id::Null, |answered| answered.id.clone().into_owned());
    let code = answered.and_then(|answered| match answered.payload {
        ResponsePayload::Error(error) => Some(error.code()),
        ResponsePayload::Success(_) => None,
    });
    let error = match objects::from_str::<IgnoredAny>(text) {
        Err(error) => RpcError::parse(format!("parse error: {error}")),
        Ok(_) if code == Some(TOO_BIG_BATCH_REQUEST_CODE) => {
            RpcError::limit(format!("batch of more than {max_batch} requests: send several (--max-batch)"))
        }
        Ok(_) => {
            // The error names the field that makes an object an invalid request.
            match objects::from_str::<Call<'_>>(text) {
                Err(problem) if text.starts_with('{') => RpcError::request(format!("invalid request: {problem}")),
                _ => RpcError::request(NOT_A_REQUEST),
            }
        }
    };
    (id, error)
}

/// Returns an error answer.
pub fn failure(id: &Id<'_>, error: RpcError) -> Vec<u8> {
    let mut out = open_error(id);
    json::value(&mut out, &error.into_object());
    out.push(b'}');
    out
}
