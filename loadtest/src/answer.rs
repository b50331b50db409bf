//! Checks every answer. The checks are cheap, because the generator shares its machine with the target.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::{
    body::{Body, Ids, written},
    dating::{Stamp, is_answered_by},
    fault::Fault,
};

/// The JSON-RPC code with which a target rejects requests that it has no capacity for (EIP-1474: limit exceeded).
const LIMIT_EXCEEDED: i64 = -32005;
/// Most bytes of a wrong answer that a report shows.
const SHOWN: usize = 240;

/// An answer as it was received.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status; 200 for an answer over a WebSocket.
    pub status: u16,
    /// The snapshot that the answer came from, if a header or another message names it.
    pub stamp: Option<Stamp>,
    pub body: bytes::Bytes,
}

/// A fault, and the text that shows it.
#[derive(Debug)]
pub struct Wrong {
    pub fault: Fault,
    pub text: String,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Reads a member that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct ErrorCode {
    code: i64,
}

/// Checks status, shape, ids, errors and simulated calls. Returns the snapshot that the answer came from, if known.
///
/// # Errors
///
/// Returns the first fault found.
pub fn check(body: &Body, first_id: u64, answer: &Answer) -> Result<Option<Stamp>, Wrong> {
    let wrong = |fault, text: String| Err(Wrong { fault, text });
    if answer.status != 200 {
        return wrong(Fault::HttpStatus, format!("HTTP {}: {}", answer.status, shown(&answer.body)));
    }
    let not_json =
        |error: serde_json::Error| Wrong { fault: Fault::NotJson, text: format!("{error}: {}", shown(&answer.body)) };
    if !body.batch {
        let envelope: Envelope<'_> = serde_json::from_slice(&answer.body).map_err(not_json)?;
        let id = envelope.id.map_or("", RawValue::get);
        let right = match &body.ids {
            Ids::Written(_) => id.parse() == Ok(written(first_id)),
            Ids::Recorded(ids) => ids.iter().any(|expected| expected.get() == id),
        };
        return entry(body, &envelope, right, answer).map(|()| answer.stamp);
    }
    let envelopes: Vec<Envelope<'_>> = match serde_json::from_slice(&answer.body) {
        Ok(envelopes) => envelopes,
        // A target that rejects a whole batch answers with one object.
        Err(error) => match serde_json::from_slice::<Envelope<'_>>(&answer.body) {
            Ok(envelope) => return entry(body, &envelope, envelope.error.is_some(), answer).map(|()| None),
            Err(_) => return Err(not_json(error)),
        },
    };
    let mut seen = vec![false; body.id_count() as usize];
    let mut stamp = None;
    for envelope in &envelopes {
        if envelope.id.is_some_and(is_answered_by) {
            stamp = envelope.result.and_then(Stamp::of_result);
            continue;
        }
        let id = envelope.id.map_or("", RawValue::get);
        let place = match &body.ids {
            Ids::Written(count) => {
                (0..*count).find(|add| id.parse() == Ok(written(first_id + add))).map(|add| add as usize)
            }
            Ids::Recorded(ids) => (0..ids.len()).find(|place| ids[*place].get() == id && !seen[*place]),
        };
        let right = place.is_some_and(|place| !std::mem::replace(&mut seen[place], true));
        entry(body, envelope, right, answer)?;
    }
    let missing = seen.iter().filter(|seen| !**seen).count();
    if missing > 0 {
        return wrong(Fault::WrongId, format!("{missing} of {} entries are not answered", seen.len()));
    }
    Ok(stamp)
}

fn entry(body: &Body, envelope: &Envelope<'_>, right_id: bool, answer: &Answer) -> Result<(), Wrong> {
    let wrong = |fault| Err(Wrong { fault, text: shown(&answer.body) });
    if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
        return wrong(Fault::NotJson);
    }
    if !right_id {
        return wrong(Fault::WrongId);
    }
    match (envelope.result, envelope.error) {
        (Some(result), None) => match body.simulates && has_failed_call(result.get().as_bytes()) {
            true => wrong(Fault::FailedCall),
            false => Ok(()),
        },
        (None, Some(error)) => {
            let code = serde_json::from_str::<ErrorCode>(error.get()).map(|error| error.code);
            let fault = if matches!(code, Ok(LIMIT_EXCEEDED)) { Fault::Refused } else { Fault::RpcError };
            Err(Wrong { fault, text: shown(error.get().as_bytes()) })
        }
        _ => wrong(Fault::NotJson),
    }
}

/// Returns whether the JSON has a member `status` with the value `"0x0"`. The bytes `"status"` before a colon are
/// always a member's name, because quotes within a string are escaped. So nothing else needs parsing.
fn has_failed_call(json: &[u8]) -> bool {
    static STATUS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""status""#));
    STATUS.find_iter(json).any(|at| {
        let rest = json[at + STATUS.needle().len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| value.starts_with(br#""0x0""#))
    })
}

/// Returns the start of a body as text, for a report.
pub fn shown(body: &[u8]) -> String {
    let cut = &body[..body.len().min(SHOWN)];
    let text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < body.len() { format!("{text}… ({} bytes)", body.len()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Draft, FIRST_ID};

    fn fault(simulates: bool, answer: &str) -> Option<Fault> {
        let mut draft = Draft::default();
        draft.request(if simulates { "eth_simulateV1" } else { "eth_call" }, "[]");
        let answer = Answer { status: 200, stamp: None, body: answer.to_owned().into() };
        check(&draft.body(0, None, false), 7, &answer).err().map(|wrong| wrong.fault)
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told_apart() {
        let id = FIRST_ID + 7;
        let cases = [
            (format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1"}}"#), None),
            (format!(r#"{{"jsonrpc":"2.0","id":{id},"result":null}}"#), None),
            (format!(r#"{{"jsonrpc":"2.0","id":{},"result":"0x1"}}"#, id + 1), Some(Fault::WrongId)),
            (r#"{"jsonrpc":"2.0","result":"0x1"}"#.to_owned(), Some(Fault::WrongId)),
            (format!(r#"{{"jsonrpc":"2.0","id":{id}}}"#), Some(Fault::NotJson)),
            (format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1""#), Some(Fault::NotJson)),
            (format!(r#"{{"id":{id},"result":"0x1"}}"#), Some(Fault::NotJson)),
            (
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"no"}}}}"#),
                Some(Fault::RpcError),
            ),
            (
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32005,"message":"no"}}}}"#),
                Some(Fault::Refused),
            ),
        ];
        for (answer, expected) in cases {
            assert_eq!(fault(false, &answer), expected, "{answer}");
        }
    }

    #[test]
    fn a_failed_simulated_call_is_found_and_a_text_about_one_is_not() {
        let answer = |call: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{},"result":[{{"calls":[{{"status":"0x1"}},{call}]}}]}}"#, FIRST_ID + 7)
        };
        assert_eq!(fault(true, &answer(r#"{"status":"0x0"}"#)), Some(Fault::FailedCall));
        assert_eq!(fault(true, &answer(r#"{"status" : "0x0"}"#)), Some(Fault::FailedCall));
        assert_eq!(fault(true, &answer(r#"{"status":"0x1","error":"\"status\":\"0x0\""}"#)), None);
        assert_eq!(fault(false, &answer(r#"{"status":"0x0"}"#)), None, "not a simulation");
    }
}
