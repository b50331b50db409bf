//! The JSON-RPC 2.0 envelope: one request or a batch, borrowed from the body.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::RpcError;

/// A request whose envelope is right.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The id as the client wrote it: an unsigned integer, a string or null.
    pub id: &'a str,
    /// The method's name.
    pub method: Cow<'a, str>,
    /// The parameters as the client wrote them, where there are some.
    pub params: Option<&'a str>,
}

/// A request that cannot be answered as one: the error, and the id where there is a usable one.
#[derive(Clone, Debug)]
pub struct BadRequest<'a> {
    /// What to echo.
    pub id: &'a str,
    /// What is wrong.
    pub error: RpcError,
}

/// What a body holds.
#[derive(Debug)]
pub enum Body<'a> {
    /// One request.
    Single(Result<Request<'a>, BadRequest<'a>>),
    /// Several, to be answered in order.
    Batch(Vec<Result<Request<'a>, BadRequest<'a>>>),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    /// `null` is an id too.
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
}

/// A string, borrowed unless it is escaped.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Body<'a> {
    /// Parses a body. A batch may have up to `max_batch` entries.
    pub fn parse(body: &'a str, max_batch: usize) -> Result<Self, RpcError> {
        let text = body.trim_ascii();
        if !text.starts_with('[') {
            return match serde_json::from_str(text) {
                Ok(envelope) => Ok(Self::Single(Request::checked(envelope))),
                // It is JSON or it is not, and then it is an object or it is not.
                Err(_) => Ok(Self::Single(Request::parse(serde_json::from_str(text).map_err(not_json)?))),
            };
        }
        let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(not_json)?;
        if entries.is_empty() {
            return Err(RpcError::request("invalid request: an empty batch: expected at least one request"));
        }
        if entries.len() > max_batch {
            return Err(RpcError::limit(format!("batch of {} requests: at most {max_batch}", entries.len())));
        }
        Ok(Self::Batch(entries.into_iter().map(Request::parse).collect()))
    }
}

fn bad(id: &str, text: impl Into<Cow<'static, str>>) -> BadRequest<'_> {
    BadRequest { id, error: RpcError::request(text.into()) }
}

impl<'a> Request<'a> {
    /// A request from its JSON.
    pub fn parse(raw: &'a RawValue) -> Result<Self, BadRequest<'a>> {
        if !raw.get().starts_with('{') {
            return Err(bad("null", "invalid request: expected an object"));
        }
        let envelope =
            serde_json::from_str(raw.get()).map_err(|error| bad("null", format!("invalid request: {error}")))?;
        Self::checked(envelope)
    }

    fn checked(envelope: Envelope<'a>) -> Result<Self, BadRequest<'a>> {
        let Some(id) = envelope.id.map(RawValue::get).filter(|id| usable_id(id)) else {
            return Err(bad(
                "null",
                "invalid request: id: missing or unusable: expected an unsigned integer, a string or null",
            ));
        };
        if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(bad(id, "invalid request: jsonrpc: expected \"2.0\""));
        }
        let method = envelope.method.and_then(|method| serde_json::from_str::<Name<'_>>(method.get()).ok());
        let Some(Name(method)) = method else {
            return Err(bad(id, "invalid request: method: expected a string, the method's name"));
        };
        Ok(Self { id, method, params: envelope.params.map(RawValue::get) })
    }
}

/// Whether an id can be echoed: an unsigned integer, a string or null.
pub fn usable_id(id: &str) -> bool {
    id == "null" || id.starts_with('"') || (id.len() <= 20 && id.parse::<u64>().is_ok())
}

fn not_json(error: serde_json::Error) -> RpcError {
    RpcError::parse(format!("parse error: {error}"))
}
