//! Finds the snapshot that an answer came from, if the target is presim.
//!
//! An HTTP answer to a single request names it in a header (`x-presim-snapshot`). All entries of a batch run on one
//! snapshot, so that one more entry, `presim_snapshot`, names it for the batch. For a single request over a WebSocket,
//! `presim_snapshot` is asked in the message before the request's, written together with it: the answer should be from
//! that snapshot or a newer one, and counts as from that one.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    body::{Body, Tag},
    quantity::number,
};

/// The request for the snapshot. No other request has its id.
pub const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"loadtest-dating","method":"presim_snapshot","params":[]}"#;
/// The id of the [`QUESTION`], as written in JSON.
const ID: &str = r#""loadtest-dating""#;

/// Most bytes of an answer to the [`QUESTION`].
const MAX_ANSWER: usize = 4 << 10;

/// The way in which the snapshot of an answer becomes known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dating {
    /// By a header, if the answer has it.
    Header,
    /// By one more entry of the batch.
    Entry,
    /// By a message of its own, before the request's.
    Message,
}

impl Dating {
    /// Returns the dating of the answers to a body.
    pub fn of(is_asked: bool, has_messages: bool, body: &Body) -> Self {
        let asks = is_asked && body.tag == Some(Tag::Pending);
        match (asks, body.batch, has_messages) {
            (true, true, _) => Self::Entry,
            (true, false, true) => Self::Message,
            _ => Self::Header,
        }
    }
}

/// A snapshot, and its age when the target named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The snapshot's `snapshotId`. Newer snapshots have higher ones.
    pub id: u64,
    /// Milliseconds from the snapshot's publication until the target named it.
    pub age_ms: u64,
}

impl Stamp {
    /// Reads a header such as `id=0x109, block=23, index=0, age_ms=101, feed=live`.
    pub fn of_header(header: &str) -> Option<Self> {
        let field = |name: &str| header.split(',').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='));
        Some(Self { id: number(field("id")?)?, age_ms: field("age_ms")?.parse().ok()? })
    }

    /// Reads the result of `presim_snapshot`.
    pub fn of_result(result: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Snapshot<'a> {
            id: &'a str,
            age_ms: u64,
        }
        let Snapshot { id, age_ms } = serde_json::from_str(result.get()).ok()?;
        Some(Self { id: number(id)?, age_ms })
    }
}

/// Returns whether `id`, in an answer, is that of the [`QUESTION`].
pub fn is_answered_by(id: &RawValue) -> bool {
    id.get() == ID
}

/// Returns `Some` if the message answers the [`QUESTION`]: the snapshot, if the answer names one.
pub fn answered(message: &[u8]) -> Option<Option<Stamp>> {
    #[derive(Deserialize)]
    struct DatedAnswer<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    // The answer is short, so a long message need not be searched to its end.
    memchr::memmem::find(&message[..message.len().min(MAX_ANSWER)], ID.as_bytes())?;
    let DatedAnswer { id, result } = serde_json::from_slice(message).ok()?;
    is_answered_by(id).then(|| result.and_then(Stamp::of_result))
}

/// Returns a batch with the [`QUESTION`] as its last entry.
pub fn with_question(batch: &[u8]) -> Vec<u8> {
    let entries = batch.trim_ascii_end().strip_suffix(b"]").unwrap_or(batch);
    [entries, b",", QUESTION.as_bytes(), b"]"].concat()
}

/// Removes the [`QUESTION`] from a batch, or the answer to it from the answer to a batch.
pub fn forget(batch: &mut Value) {
    if let Value::Array(entries) = batch {
        let id = ID.trim_matches('"');
        entries.retain(|entry| entry["id"] != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_header_is_read() {
        let stamp = Stamp::of_header("id=0x109, block=23, index=0, age_ms=101, feed=live");
        assert_eq!(stamp, Some(Stamp { id: 0x109, age_ms: 101 }));
        assert_eq!(Stamp::of_header("something else"), None);
    }

    #[test]
    fn the_question_and_its_answer_are_told_from_others() {
        let batch = with_question(br#"[{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}]"#);
        let mut batch: Value = serde_json::from_slice(&batch).expect("JSON");
        assert_eq!(batch[1]["method"], "presim_snapshot");
        forget(&mut batch);
        assert_eq!(batch.as_array().map(Vec::len), Some(1));
        let answer = r#"{"jsonrpc":"2.0","id":"loadtest-dating","result":{"id":"0x1f","block":"0x2","ageMs":12}}"#;
        assert_eq!(answered(answer.as_bytes()), Some(Some(Stamp { id: 31, age_ms: 12 })));
        let refused = r#"{"jsonrpc":"2.0","id":"loadtest-dating","error":{"code":-32005,"message":"no"}}"#;
        assert_eq!(answered(refused.as_bytes()), Some(None));
        assert_eq!(answered(br#"{"jsonrpc":"2.0","id":1000000007,"result":"loadtest-dating"}"#), None);
    }
}
