//! The JSON-RPC service: from the text of a message to the text of its answer.
//!
//! jsonrpsee parses messages and calls [`Message`], their [`RpcServiceT`]. The transports are presim's own, for the
//! reasons in `README.md`. An encoded answer bypasses jsonrpsee's response, which would parse it again: it is carried
//! in the extensions of an empty response.

use std::{borrow::Cow, num::NonZeroU32, sync::Arc, time::Instant};

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
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    front::{Answered, Front},
    table,
};
use crate::rpc::run::subscriptions::Starting;
use crate::rpc::{
    json,
    protocol::error::{Result, RpcError},
    run::{
        memory::{AnswerRoom, HeldBytes},
        remote::StateCompletion,
        request::{Caller, Request, begin},
    },
};
use crate::{ledger::Chain, scheduler};

/// Limits on one message and its answer.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Bytes of a body or a message.
    pub max_body: usize,
    /// Bytes of an answer.
    pub max_response: usize,
    /// Entries of a batch.
    pub max_batch: usize,
}

/// One client's session: its dialect, its rights, and the front.
#[derive(Clone, Debug)]
pub struct Session {
    /// The front that answers.
    pub front: Arc<Front>,
    /// The client.
    pub caller: Arc<Caller>,
    /// The limits.
    pub limits: ReplyLimits,
}

/// The answer to a message.
#[derive(Debug)]
pub struct Reply {
    /// The JSON, which counts for the connection until it is dropped.
    pub text: Bytes,
    /// Whether it answers a single request and not a batch.
    pub single: bool,
    /// Whether the upstream executed that request.
    pub by_upstream: bool,
}

/// The requests of one message. All of them run on the snapshot at its arrival.
#[derive(Clone, Debug)]
pub struct Message {
    pub session: Session,
    pub published: Arc<Chain>,
    /// The subscriptions that the message starts, if its connection can subscribe.
    pub starting: Option<Arc<Starting>>,
}

/// The text of an answer, and the bytes that it holds.
#[derive(Debug)]
pub struct Encoded {
    pub text: Vec<u8>,
    pub held: HeldBytes,
    /// Whether the upstream executed the request.
    pub by_upstream: bool,
}

/// An encoded answer in the extensions of a [`MethodResponse`].
#[derive(Clone, Debug)]
struct EncodedAnswer {
    text: Bytes,
    by_upstream: bool,
}

impl Session {
    /// Answers a message, whose bytes are `held` until its requests have run.
    ///
    /// A single well-formed request takes a short cut, which does what
    /// [`answer_by_jsonrpsee`](Self::answer_by_jsonrpsee) would, without copying the body and the parameters.
    pub async fn answer(
        &self,
        body: ByteString,
        held: HeldBytes,
        published: &Arc<Chain>,
        starting: Option<&Arc<Starting>>,
    ) -> Reply {
        if let Some(Single { id, method, params, .. }) = Single::parse(&body)
            && let Some(id) = plain_id(id)
        {
            let message = Message::new(self, published, starting);
            let params = params.map(|params| body.slice_ref(params.get()));
            if let Err(error) = self.admit() {
                return Reply { text: self.failure(&id, error).around(), single: true, by_upstream: false };
            }
            let answer = message.run(&id, &method, params, AnswerRoom::of(held), None).await;
            let by_upstream = answer.by_upstream;
            return Reply { text: answer.around(), single: true, by_upstream };
        }
        // Boxed, because rare futures are large and would be moved with every request.
        Box::pin(self.answer_by_jsonrpsee(body, held, published, starting)).await
    }

    /// Answers a message of any form: jsonrpsee parses it and calls the [`Message`].
    pub async fn answer_by_jsonrpsee(
        &self,
        body: ByteString,
        held: HeldBytes,
        published: &Arc<Chain>,
        starting: Option<&Arc<Starting>>,
    ) -> Reply {
        let text = body.slice_ref(body.trim_ascii_start());
        let single = !text.starts_with('[');
        let mut request = HttpRequest::new(Full::new(text.as_bytes().clone()));
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let most = BatchRequestConfig::Limit(u32::try_from(self.limits.max_batch).unwrap_or(u32::MAX));
        let message = Message::new(self, published, starting);
        let mut response = call_with_service(request, most, u32::MAX, message).await;
        drop(held);
        let EncodedAnswer { text, by_upstream } = match response.extensions_mut().remove::<EncodedAnswer>() {
            Some(answer) => answer,
            None => {
                let (id, error) = decided_before(&text, response, self.limits.max_batch).await;
                let error = self.admit().err().unwrap_or(error);
                EncodedAnswer { text: self.failure(&id, error).around(), by_upstream: false }
            }
        };
        Reply { text, single, by_upstream }
    }

    /// Returns the answer to a message that is rejected as a whole. It counts against the client's rate as a request does.
    pub fn reject(&self, body: &str, error: RpcError) -> Bytes {
        let id = Single::parse(body).and_then(|single| plain_id(single.id));
        self.failure(&id.unwrap_or(Id::Null), self.admit().err().unwrap_or(error)).around()
    }

    /// Returns the answer to a text that is not JSON-RPC. It counts against the client's rate as a request does.
    pub fn refuse(&self, error: RpcError) -> Bytes {
        self.failure(&Id::Null, self.admit().err().unwrap_or(error)).around()
    }

    /// Returns an error answer.
    pub fn failure(&self, id: &Id<'_>, error: RpcError) -> Encoded {
        self.small(failure(id, error))
    }

    /// Returns an answer that is always granted, because it is small or reports something that has been done.
    pub fn small(&self, text: Vec<u8>) -> Encoded {
        let held = self.caller.share.take_always(text.len());
        Encoded { text, held, by_upstream: false }
    }

    /// Counts a request against the client's rate.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the client asks more often than it may.
    pub fn admit(&self) -> Result<()> {
        self.caller.client.as_ref().map_or(Ok(()), |client| client.admit(NonZeroU32::MIN))
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
        serde_json::from_str(body).ok()
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
    fn new(session: &Session, published: &Arc<Chain>, starting: Option<&Arc<Starting>>) -> Self {
        Self { session: session.clone(), published: published.clone(), starting: starting.cloned() }
    }

    /// Runs one request of jsonrpsee's type, which has been counted against the client's rate.
    pub async fn run_call(
        &self,
        Call { id, method, params, .. }: Call<'_>,
        batch: Option<&Arc<scheduler::Batch>>,
    ) -> Encoded {
        // jsonrpsee has copied the parameters, so the copy is used.
        let params = params.map(|params| ByteString::from(Box::<str>::from(params.into_owned()).into_string()));
        let room = AnswerRoom::of(self.session.caller.share.clone().nothing());
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
    ) -> Encoded {
        let parsed = Instant::now();
        let Self { session, published, starting } = self;
        let Some(method) = table::by_name(name) else {
            session.front.count_unknown(parsed);
            return match session.front.services.runner.forwards(name) {
                Some(remote) => Box::pin(self.forward(id, name, params.as_deref(), remote)).await,
                None => session.failure(id, table::unknown(name)),
            };
        };
        if let Err(error) = session.front.services.testing.check(&method.info) {
            session.front.count_unknown(parsed);
            return session.failure(id, error);
        }
        let ticket = session.front.services.runner.ticket(&session.caller);
        let request = Request {
            id: id.clone().into_owned(),
            method: &method.info,
            params: params.unwrap_or_else(|| ByteString::from_static("[]")),
            caller: session.caller.clone(),
            published: published.clone(),
            ticket: match batch {
                Some(batch) => ticket.of(batch),
                None => ticket,
            },
            starting: starting.clone(),
            room: room.clone(),
        };
        let Answered { answer, by_upstream } = session.front.answer(method, request).await;
        let most = session.limits.max_response;
        let text = match answer {
            Ok(mut answer) if answer.len() < most => {
                answer.push(b'}');
                answer
            }
            Ok(_) => failure(id, json::too_long(most)),
            Err(error) => {
                let is_busy = error.is_busy();
                let text = failure(id, error);
                if is_busy {
                    session.front.count_refusal(parsed);
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
            return session.failure(id, session.caller.share.memory().full("the answer", text.len()));
        }
        Encoded { text, held, by_upstream }
    }

    /// Answers a method that presim does not have with the upstream's answer.
    async fn forward(&self, id: &Id<'_>, name: &str, params: Option<&str>, remote: &StateCompletion) -> Encoded {
        let session = &self.session;
        let deadline = session.front.services.runner.ticket(&session.caller).deadline();
        match remote.forward_unknown(name, params.unwrap_or("[]"), deadline).await {
            Ok(result) if result.get().len() < session.limits.max_response => {
                let mut text = begin(id, "result");
                text.extend_from_slice(result.get().as_bytes());
                text.push(b'}');
                session.small(text)
            }
            Ok(_) => session.failure(id, json::too_long(session.limits.max_response)),
            Err(error) => session.failure(id, error),
        }
    }

    /// Rejects a request without a usable id. jsonrpsee takes it for a notification, and presim has none.
    pub fn without_id(&self) -> Encoded {
        let session = &self.session;
        let error = RpcError::request(
            "invalid request: id: missing or unusable: expected an unsigned integer, a string or null",
        );
        session.failure(&Id::Null, session.admit().err().unwrap_or(error))
    }
}

impl RpcServiceT for Message {
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Call<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let message = self.clone();
        async move {
            let answer = match message.session.admit() {
                Ok(()) => message.run_call(request, None).await,
                Err(error) => message.session.failure(&request.id, error),
            };
            answer.into()
        }
    }

    fn batch<'a>(&self, requests: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let message = self.clone();
        async move { message.run_batch(requests).await.into() }
    }

    fn notification<'a>(&self, _: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        std::future::ready(self.without_id().into())
    }
}

impl Encoded {
    /// Returns the text, which holds its bytes until its last part is dropped.
    fn around(self) -> Bytes {
        self.held.around(self.text)
    }
}

impl From<Encoded> for MethodResponse {
    fn from(encoded: Encoded) -> Self {
        let mut extensions = Extensions::new();
        let by_upstream = encoded.by_upstream;
        extensions.insert(EncodedAnswer { text: encoded.around(), by_upstream });
        Self::notification().with_extensions(extensions)
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
    let answered = serde_json::from_slice::<Response<'_, ()>>(&body).ok();
    let id = answered.as_ref().map_or(Id::Null, |answered| answered.id.clone().into_owned());
    let code = answered.and_then(|answered| match answered.payload {
        ResponsePayload::Error(error) => Some(error.code()),
        ResponsePayload::Success(_) => None,
    });
    let error = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Err(error) => RpcError::parse(format!("parse error: {error}")),
        Ok(_) if code == Some(TOO_BIG_BATCH_REQUEST_CODE) => {
            RpcError::limit(format!("batch of more than {max_batch} requests: send several (--max-batch)"))
        }
        Ok(_) => {
            // The error names the field that makes an object an invalid request.
            match serde_json::from_str::<Call<'_>>(text) {
                Err(problem) if text.starts_with('{') => RpcError::request(format!("invalid request: {problem}")),
                _ => RpcError::request(NOT_A_REQUEST),
            }
        }
    };
    (id, error)
}

/// Returns an error answer.
pub fn failure(id: &Id<'_>, error: RpcError) -> Vec<u8> {
    let mut out = begin(id, "error");
    json::value(&mut out, &error.into_object());
    out.push(b'}');
    out
}
