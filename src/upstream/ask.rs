//! Calls to an upstream: their batches, and the meaning of the answers and failures.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use alloy_json_rpc::{ErrorPayload, Id, Request, RequestPacket, ResponsePacket, ResponsePayload, SerializedRequest};
use alloy_transport::{RpcError, TransportError, TransportErrorKind};
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::refusal::Refusal;
use crate::{
    shown::{self, cut},
    state::FetchError,
};

/// The most characters of a text from the upstream that an error has.
const MAX_SHOWN: usize = 300;

/// A call, and the function that reads its result.
pub struct Ask<T> {
    pub(super) method: MethodName,
    params: Box<RawValue>,
    read: Box<Read<T>>,
    /// Whether the answer is for a client, which gets each error as the node has returned it.
    is_forwarded: bool,
}

/// The name of a method. If a request is forwarded, the client chooses it.
pub type MethodName = Cow<'static, str>;

type Read<T> = dyn Fn(&RawValue) -> Result<T, String> + Send + Sync;

impl<T> Ask<T> {
    /// Creates a call of `method`. A node that is behind answers with an error or with `null`: both are read as `null`. The call
    /// is sent again if `read` rejects the result.
    pub fn new(
        method: impl Into<MethodName>,
        params: &impl serde::Serialize,
        read: impl Fn(&RawValue) -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        // Serializing cannot fail, because the parameters are plain values.
        let params = to_raw_value(params).unwrap_or_else(|_| RawValue::NULL.to_owned());
        // JSON-RPC 2.0 has no parameters that are `null`, and strict nodes reject them.
        let params = if params.get() == "null" { no_params() } else { params };
        Self { method: method.into(), params, read: Box::new(read), is_forwarded: false }
    }
}

impl<T> Ask<T> {
    /// Creates a call whose result is parsed, and then converted by `read`.
    pub fn parsed<P: DeserializeOwned>(
        method: impl Into<MethodName>,
        params: &impl serde::Serialize,
        read: impl Fn(P) -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        Self::new(method, params, move |result| {
            serde_json::from_str(result.get()).map_err(|error| error.to_string()).and_then(&read)
        })
    }
}

impl<T: DeserializeOwned + 'static> Ask<T> {
    /// Creates a call whose result is a `T`. A `null` counts as the answer of a node that is behind, unless `T` accepts
    /// it.
    pub fn typed(method: impl Into<MethodName>, params: &impl serde::Serialize) -> Self {
        Self::new(method, params, |result| {
            serde_json::from_str(result.get()).map_err(|error| format!("{error}: {}", cut(result.get(), MAX_SHOWN)))
        })
    }
}

impl Ask<Box<RawValue>> {
    /// Creates a call on behalf of a client, which gets the answer unchanged.
    pub fn forwarded(method: impl Into<MethodName>, params: &impl serde::Serialize) -> Self {
        Self { is_forwarded: true, ..Self::new(method, params, |answer| Ok(answer.to_owned())) }
    }
}

/// The reason why an upstream gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// The upstream answered with a JSON-RPC error. Its message is shortened, and its data is JSON.
    #[error("upstream: {method}: error {code}: {message}")]
    Refused { method: MethodName, code: i64, message: String, data: Option<String>, meaning: Refusal },
    /// The node that answered does not have the block, or its state, yet. It is healthy, and another node behind the same
    /// address may have both. Without an error, the result was `null`.
    #[error("upstream: {method}: {}", behind(error.as_ref()))]
    Behind { method: MethodName, error: Option<(i64, String)> },
    /// The answer is malformed or cannot be right.
    #[error("upstream: {method}: {problem}")]
    Malformed { method: MethodName, problem: String },
    /// The upstream wants to receive fewer requests.
    #[error("upstream: {method}: {problem}")]
    SlowDown { method: MethodName, problem: String, retry_after: Option<Duration> },
    /// The upstream is slow or unreachable.
    #[error("upstream: {method}: {problem}")]
    Unreachable { method: MethodName, problem: String },
    /// The URL cannot be used, or no connection could be made to it.
    #[error("--upstream: {0}")]
    Connect(String),
}

impl From<UpstreamError> for FetchError {
    fn from(error: UpstreamError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl UpstreamError {
    /// Returns whether a retry may help, however often the call has failed.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::SlowDown { .. } | Self::Behind { .. })
    }

    /// Returns whether a node of the upstream has answered the call with an error or that it is behind. A node that does so is
    /// healthy.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Behind { .. })
    }

    /// Returns whether the upstream does not have the method.
    pub fn is_unknown_method(&self) -> bool {
        self.meaning() == Some(Refusal::UnknownMethod)
    }

    /// Returns the meaning of the error that a node answered, if one did.
    pub const fn meaning(&self) -> Option<Refusal> {
        match self {
            Self::Refused { meaning, .. } => Some(*meaning),
            Self::Behind { .. } => Some(Refusal::Behind),
            Self::SlowDown { .. } => Some(Refusal::SlowDown),
            Self::Malformed { .. } | Self::Unreachable { .. } | Self::Connect(_) => None,
        }
    }
}

/// Returns the text of an answer that is behind.
fn behind(error: Option<&(i64, String)>) -> String {
    match error {
        Some((code, message)) => format!("the node is behind: error {code}: {message}"),
        None => "the node is behind: the result is null".to_owned(),
    }
}

fn no_params() -> Box<RawValue> {
    // Serializing an empty list cannot fail.
    to_raw_value(&[(); 0]).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns the results of the calls in `asks`, each found by its id.
pub(super) fn read<T>(asks: &[&Ask<T>], ids: &[Id], packet: ResponsePacket) -> Vec<Result<T, UpstreamError>> {
    let indices: HashMap<&Id, usize> = ids.iter().enumerate().map(|(index, id)| (id, index)).collect();
    let mut answers: Vec<Option<ResponsePayload>> = asks.iter().map(|_| None).collect();
    let mut for_all = None;
    let responses = match packet {
        ResponsePacket::Single(response) => vec![response],
        ResponsePacket::Batch(responses) => responses,
    };
    for response in responses {
        let answer = indices.get(&response.id).and_then(|index| answers.get_mut(*index));
        match (answer, response.payload) {
            (Some(answer), payload) => *answer = Some(payload),
            // Some nodes answer a whole batch with one error.
            (None, ResponsePayload::Failure(error)) => for_all = Some(error),
            (None, ResponsePayload::Success(_)) => {}
        }
    }
    let read_null = |ask: &Ask<T>, error| {
        let behind = || UpstreamError::Behind { method: ask.method.clone(), error };
        if ask.is_forwarded { Err(behind()) } else { (ask.read)(RawValue::NULL).map_err(|_| behind()) }
    };
    let read = |(ask, answer): (&&Ask<T>, Option<ResponsePayload>)| {
        let problem = |problem| UpstreamError::Malformed { method: ask.method.clone(), problem };
        let refusal = match (answer, &for_all) {
            (Some(ResponsePayload::Success(result)), _) if result.get() == "null" && !ask.is_forwarded => {
                return read_null(ask, None);
            }
            (Some(ResponsePayload::Success(result)), _) => return (ask.read)(&result).map_err(problem),
            (Some(ResponsePayload::Failure(error)), _) => refusal(ask, &error),
            (None, Some(error)) => refusal(ask, error),
            (None, None) => return Err(problem("no answer to this call in the response".to_owned())),
        };
        match refusal {
            UpstreamError::Behind { error, .. } => read_null(ask, error),
            refusal => Err(refusal),
        }
    };
    asks.iter().zip(answers).map(read).collect()
}

/// Returns the calls as one batch, each with its id. A single call is not a batch.
pub(super) fn packet<T>(asks: &[&Ask<T>], ids: &[Id]) -> RequestPacket {
    let serialized = |(ask, id): (&&Ask<T>, &Id)| -> Option<SerializedRequest> {
        Request::new(ask.method.clone(), id.clone(), ask.params.clone()).serialize().ok()
    };
    let mut requests: Vec<_> = asks.iter().zip(ids).filter_map(serialized).collect();
    match requests.pop() {
        Some(only) if requests.is_empty() => RequestPacket::Single(only),
        last => {
            requests.extend(last);
            RequestPacket::Batch(requests)
        }
    }
}

fn refusal<T>(ask: &Ask<T>, error: &ErrorPayload) -> UpstreamError {
    let method = ask.method.clone();
    let (code, message) = (error.code, cut(&error.message, MAX_SHOWN));
    let data = error.data.as_ref().map(|data| data.get());
    match Refusal::of(&method, ask.params.get(), code, &error.message, data) {
        // A client's request may be too much by itself, and is no reason to hold up others.
        Refusal::SlowDown if !ask.is_forwarded => {
            UpstreamError::SlowDown { method, problem: format!("error {code}: {message}"), retry_after: None }
        }
        Refusal::Behind => UpstreamError::Behind { method, error: Some((code, message)) },
        meaning => UpstreamError::Refused { method, code, message, data: data.map(str::to_owned), meaning },
    }
}

pub(super) fn failure(method: MethodName, error: &TransportError) -> UpstreamError {
    let problem = text_of(error);
    match error {
        RpcError::Transport(TransportErrorKind::HttpErrorWithRetryAfter { retry_after, .. }) => {
            UpstreamError::SlowDown { method, problem, retry_after: Some(*retry_after) }
        }
        RpcError::Transport(TransportErrorKind::HttpError(http)) if http.status == 429 => {
            UpstreamError::SlowDown { method, problem, retry_after: None }
        }
        RpcError::Transport(TransportErrorKind::HttpError(http)) if http.status < 500 => {
            UpstreamError::Malformed { method, problem }
        }
        RpcError::Transport(TransportErrorKind::NonRetryable(_)) | RpcError::DeserError { .. } => {
            UpstreamError::Malformed { method, problem }
        }
        _ => UpstreamError::Unreachable { method, problem },
    }
}

/// Returns the text of the error and of its causes.
pub(super) fn text_of(error: &TransportError) -> String {
    let text = match error {
        RpcError::DeserError { err, text } => format!("the answer is no JSON-RPC response: {err}: {text}"),
        error => error.to_string(),
    };
    let cause = std::error::Error::source(error).and_then(std::error::Error::source);
    cut(&shown::with_causes(text, cause), MAX_SHOWN)
}

/// Reads a result, as `None` if it is `null`.
pub(super) fn nullable(result: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    Ok((result.get() != "null").then(|| result.to_owned()))
}
