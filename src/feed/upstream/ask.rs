//! Calls to an upstream: their batches, and the meaning of the answers and failures.

use std::borrow::Cow;

use std::{collections::HashMap, time::Duration};

use alloy_json_rpc::{ErrorPayload, Id, Request, RequestPacket, ResponsePacket, ResponsePayload, SerializedRequest};
use alloy_transport::{RpcError, TransportError, TransportErrorKind};
use serde_json::value::{RawValue, to_raw_value};

/// A call, and the function that reads its result.
pub struct Ask<T> {
    pub(super) method: MethodName,
    params: Box<RawValue>,
    read: Box<Read<T>>,
}

/// The name of a method, which a client chooses where its request is forwarded.
pub type MethodName = Cow<'static, str>;

type Read<T> = dyn Fn(&RawValue) -> Result<T, String> + Send + Sync;

impl<T> Ask<T> {
    /// Creates a call of `method`. A result that `read` rejects is malformed, and the call is sent again.
    pub fn new(
        method: impl Into<MethodName>,
        params: &impl serde::Serialize,
        read: impl Fn(&RawValue) -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        // Serializing cannot fail, because the parameters are plain values.
        let params = to_raw_value(params).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self { method: method.into(), params, read: Box::new(read) }
    }
}

impl<T: serde::de::DeserializeOwned + 'static> Ask<T> {
    /// Creates a call whose result is a `T`. A `null` is malformed unless `T` accepts it.
    pub fn typed(method: impl Into<MethodName>, params: &impl serde::Serialize) -> Self {
        Self::new(method, params, |result| {
            serde_json::from_str(result.get()).map_err(|error| format!("{error}: {}", cut(result.get())))
        })
    }
}

/// The reason why an upstream gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// The upstream answered with a JSON-RPC error.
    #[error("upstream: {method}: error {code}: {message}")]
    Refused {
        /// The method that was called.
        method: MethodName,
        /// The code of the error.
        code: i64,
        /// The message of the error, shortened.
        message: String,
        /// The data of the error, as JSON.
        data: Option<String>,
    },
    /// The answer is malformed or cannot be right.
    #[error("upstream: {method}: {problem}")]
    Malformed {
        /// The method that was called.
        method: MethodName,
        /// The problem with the answer.
        problem: String,
    },
    /// The upstream is busy, slow or unreachable.
    #[error("upstream: {method}: {problem}")]
    Unreachable {
        /// The method that was called.
        method: MethodName,
        /// The cause of the failure.
        problem: String,
        /// The pause before a retry that the upstream asks for, if any.
        retry_after: Option<Duration>,
    },
    /// The URL cannot be used, or no connection could be made to it.
    #[error("--upstream: {0}")]
    Connect(String),
}

impl UpstreamError {
    /// Returns whether a retry may help, however often the call has failed.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether the upstream does not have the method.
    pub const fn is_unknown_method(&self) -> bool {
        matches!(self, Self::Refused { code: -32601 | -32004, .. })
    }
}

/// Returns the results of the calls in `asks`, each found by its id.
pub(super) fn read<T>(asks: &[&Ask<T>], ids: &[Id], packet: ResponsePacket) -> Vec<Result<T, UpstreamError>> {
    let places: HashMap<&Id, usize> = ids.iter().enumerate().map(|(place, id)| (id, place)).collect();
    let mut answers: Vec<Option<ResponsePayload>> = asks.iter().map(|_| None).collect();
    let mut for_all = None;
    let responses = match packet {
        ResponsePacket::Single(response) => vec![response],
        ResponsePacket::Batch(responses) => responses,
    };
    for response in responses {
        let place = places.get(&response.id).and_then(|place| answers.get_mut(*place));
        match (place, response.payload) {
            (Some(place), payload) => *place = Some(payload),
            // Some nodes answer a whole batch with one error.
            (None, ResponsePayload::Failure(error)) => for_all = Some(error),
            (None, ResponsePayload::Success(_)) => {}
        }
    }
    let read = |(ask, answer): (&&Ask<T>, Option<ResponsePayload>)| {
        let method = ask.method.clone();
        match answer {
            Some(ResponsePayload::Success(result)) => {
                (ask.read)(&result).map_err(|problem| UpstreamError::Malformed { method, problem })
            }
            Some(ResponsePayload::Failure(error)) => Err(refusal(method, &error)),
            None => Err(match &for_all {
                Some(error) => refusal(method, error),
                None => {
                    UpstreamError::Malformed { method, problem: "no answer to this call in the response".to_owned() }
                }
            }),
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

fn refusal(method: MethodName, error: &ErrorPayload) -> UpstreamError {
    // The node may not have the block yet, because one of several nodes behind an address may be late.
    let is_late = error.code != -32601 && method.starts_with("eth_get") && error.message.contains("not found");
    if error.is_retry_err() || error.code == -32001 || is_late {
        let problem = format!("error {}: {}", error.code, cut(&error.message));
        return UpstreamError::Unreachable { method, problem, retry_after: None };
    }
    let data = error.data.as_ref().map(|data| data.get().to_owned());
    UpstreamError::Refused { method, code: error.code, message: cut(&error.message), data }
}

pub(super) fn failure(method: MethodName, error: &TransportError) -> UpstreamError {
    let problem = text_of(error);
    let unreachable =
        |retry_after| UpstreamError::Unreachable { method: method.clone(), problem: problem.clone(), retry_after };
    match error {
        RpcError::Transport(TransportErrorKind::HttpErrorWithRetryAfter { retry_after, .. }) => {
            unreachable(Some(*retry_after))
        }
        RpcError::Transport(TransportErrorKind::HttpError(http)) if http.status < 500 && http.status != 429 => {
            UpstreamError::Malformed { method, problem }
        }
        RpcError::Transport(TransportErrorKind::NonRetryable(_)) | RpcError::DeserError { .. } => {
            UpstreamError::Malformed { method, problem }
        }
        _ => unreachable(None),
    }
}

/// Returns the text of the error and of its causes.
pub(super) fn text_of(error: &TransportError) -> String {
    let mut text = match error {
        RpcError::DeserError { err, text } => format!("the answer is no JSON-RPC response: {err}: {text}"),
        error => error.to_string(),
    };
    let mut cause = std::error::Error::source(error).and_then(std::error::Error::source);
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    cut(&text)
}

/// Shortens a text from the upstream.
fn cut(text: &str) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads a result, as `None` if it is `null`.
pub(super) fn nullable(result: &RawValue) -> Result<Option<Box<RawValue>>, String> {
    Ok((result.get() != "null").then(|| result.to_owned()))
}
