//! The JSON-RPC messages of an upstream.

use alloy_json_rpc::{ErrorPayload, EthNotification, Id, Response, ResponsePacket, ResponsePayload, SubId};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;

/// A response or a notification. A `null` `error` next to a `result` counts as no error, as in JSON-RPC 1.0.
#[derive(Debug, Deserialize)]
struct WireMessage {
    id: Option<Id>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    error: Option<ErrorPayload>,
    /// The parameters of a notification.
    params: Option<Box<RawValue>>,
}

/// A message of a connection with subscriptions.
pub(super) enum SocketMessage {
    /// The response to a request, or the responses to a batch.
    Responses(Vec<Response>),
    Notification {
        subscription: SubId,
        result: Box<RawValue>,
    },
    /// Any other message. It is ignored.
    Other,
}

impl SocketMessage {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// Returns an error if `text` is no JSON-RPC message.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        if text.trim_ascii_start().starts_with(b"[") {
            return Ok(Self::Responses(read_batch(text)?));
        }
        let mut message: WireMessage = serde_json::from_slice(text)?;
        Ok(match message.params.take().map(|params| serde_json::from_str(params.get())) {
            Some(Ok(EthNotification { subscription, result })) => Self::Notification { subscription, result },
            Some(Err(_)) => Self::Other,
            None => Self::Responses(vec![message.try_into()?]),
        })
    }
}

/// Reads a value that is present, but may be `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl TryFrom<WireMessage> for Response {
    type Error = serde_json::Error;

    fn try_from(message: WireMessage) -> Result<Self, serde_json::Error> {
        let payload = match (message.error, message.result) {
            (Some(error), _) => ResponsePayload::Failure(error),
            (None, Some(result)) => ResponsePayload::Success(result),
            (None, None) => return Err(serde_json::Error::missing_field("result or error")),
        };
        Ok(Self { id: message.id.unwrap_or(Id::None), payload })
    }
}

/// Reads the response to a request, or the responses to a batch.
///
/// # Errors
///
/// Returns an error if `body` is neither a JSON-RPC response nor a list of responses.
pub(super) fn read_packet(body: &[u8]) -> Result<ResponsePacket, serde_json::Error> {
    if body.trim_ascii_start().starts_with(b"[") {
        return Ok(ResponsePacket::Batch(read_batch(body)?));
    }
    Ok(ResponsePacket::Single(serde_json::from_slice::<WireMessage>(body)?.try_into()?))
}

fn read_batch(body: &[u8]) -> Result<Vec<Response>, serde_json::Error> {
    let messages: Vec<WireMessage> = serde_json::from_slice(body)?;
    messages.into_iter().map(Response::try_from).collect()
}
