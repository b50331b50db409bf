//! Request bodies, which are made before the run. During the run only their ids are written.

use std::{fmt, path::Path};

use bytes::Bytes;
use eyre::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// The least id that is written into a body. All of the 9e9 ids from it on have the same length.
pub const FIRST_ID: u64 = 1_000_000_000;
/// Number of digits of a written id.
const ID_DIGITS: usize = 10;
/// Number of ids of that length.
const IDS: u64 = 9_000_000_000;

/// The state that a body asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tag {
    /// The newest sealed block.
    Latest,
    /// The pre-confirmed state.
    Pending,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Latest => "latest",
            Self::Pending => "pending",
        })
    }
}

/// The ids that an answer must have.
#[derive(Clone, Debug)]
pub enum Ids {
    /// This many ids in a row, from the one that was written.
    Written(u64),
    /// The ids of a recorded body, as written there.
    Recorded(Vec<Box<RawValue>>),
}

/// A request body of a workload.
#[derive(Clone, Debug)]
pub struct Body {
    /// Index of the body's kind in the mix.
    pub workload: usize,
    pub ids: Ids,
    /// Whether the body is a JSON-RPC batch.
    pub batch: bool,
    /// The one state asked for; `None` if there are several, or one that is neither `latest` nor `pending`.
    pub tag: Option<Tag>,
    /// Whether answers hold simulated calls, whose status says whether they failed.
    pub simulates: bool,
    /// Whether the request changes the target's state, so that a second answer would differ.
    pub writes: bool,
    text: Vec<u8>,
    /// Byte offsets of the ids, and what is added to the first id there.
    splices: Vec<(usize, u64)>,
}

impl Body {
    /// Returns the size of the body in bytes.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the body with ids from `first` on, each as [`written`] gives it.
    pub fn with_ids(&self, first: u64) -> Bytes {
        if self.splices.is_empty() {
            return Bytes::copy_from_slice(&self.text);
        }
        let mut text = self.text.clone();
        for (at, add) in &self.splices {
            let mut rest = written(first + add);
            for digit in text[*at..*at + ID_DIGITS].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        text.into()
    }

    /// Returns how many ids the body takes.
    pub fn id_count(&self) -> u64 {
        match &self.ids {
            Ids::Written(count) => *count,
            Ids::Recorded(ids) => ids.len() as u64,
        }
    }
}

/// Returns the id that is written for `number`. The numbers past the last id start again.
pub fn written(number: u64) -> u64 {
    FIRST_ID + (number % IDS)
}

/// A body under construction.
#[derive(Default)]
pub struct Draft {
    text: Vec<u8>,
    splices: Vec<(usize, u64)>,
    entries: u64,
    simulates: bool,
}

impl Draft {
    /// Begins a batch, whose entries are the requests added to it.
    pub fn batch() -> Self {
        Self { text: b"[".to_vec(), ..Self::default() }
    }

    /// Adds a request. `params` is JSON.
    pub fn request(&mut self, method: &str, params: &str) -> &mut Self {
        self.request_with(method, |draft| draft.push(params))
    }

    /// Adds a request whose parameters may contain ids.
    pub fn request_with(&mut self, method: &str, params: impl FnOnce(&mut Self)) -> &mut Self {
        if self.entries > 0 {
            self.push(",");
        }
        self.push(r#"{"jsonrpc":"2.0","id":"#);
        self.push_id();
        self.push(&format!(r#","method":"{method}","params":"#));
        params(self);
        self.push("}");
        self.entries += 1;
        self.simulates |= method == "eth_simulateV1";
        self
    }

    pub fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    /// Adds the id of the current request.
    pub fn push_id(&mut self) {
        self.splices.push((self.text.len(), self.entries));
        self.text.extend_from_slice(&[b'0'; ID_DIGITS]);
    }

    pub fn body(mut self, workload: usize, tag: Option<Tag>, writes: bool) -> Body {
        let batch = self.text.starts_with(b"[");
        if batch {
            self.push("]");
        }
        let ids = Ids::Written(self.entries);
        Body { workload, ids, batch, tag, simulates: self.simulates, writes, text: self.text, splices: self.splices }
    }
}

#[derive(Deserialize)]
struct Recorded {
    id: Option<Box<RawValue>>,
    method: String,
}

/// Reads recorded bodies, one per line. If `tag` is given, it replaces `latest` and `pending` among their parameters.
///
/// # Errors
///
/// Returns an error if the file cannot be read, has more than `max_bytes` or no request, or if a line is not a JSON-RPC
/// request or batch with an id; the error then names the line.
pub fn read(path: &Path, workload: usize, tag: Option<Tag>, max_bytes: u64) -> Result<Vec<Body>> {
    let length =
        std::fs::metadata(path).wrap_err_with(|| format!("--bodies {}: cannot be read", path.display()))?.len();
    ensure!(
        length <= max_bytes,
        "--bodies {}: {length} bytes, but at most {max_bytes} are kept in memory (--max-body-bytes)",
        path.display()
    );
    let text =
        std::fs::read_to_string(path).wrap_err_with(|| format!("--bodies {}: cannot be read", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let bodies: Vec<Body> = lines
        .map(|(number, line)| {
            recorded(line.trim(), workload, tag)
                .wrap_err_with(|| format!("--bodies {}: line {}", path.display(), number + 1))
        })
        .collect::<Result<_>>()?;
    ensure!(!bodies.is_empty(), "--bodies {}: has no request; expected JSON-RPC bodies, one per line", path.display());
    Ok(bodies)
}

fn recorded(line: &str, workload: usize, tag: Option<Tag>) -> Result<Body> {
    let mut value: Value = serde_json::from_str(line).wrap_err("not JSON")?;
    let text = match tag {
        Some(tag) => {
            select(&mut value, &Value::String(tag.to_string()));
            value.to_string()
        }
        None => line.to_owned(),
    };
    let batch = value.is_array();
    let requests: Vec<Recorded> =
        if batch { serde_json::from_str(line) } else { serde_json::from_str(line).map(|request| vec![request]) }
            .wrap_err("not a JSON-RPC request or batch")?;
    let simulates = requests.iter().any(|request| request.method == "eth_simulateV1");
    let writes = requests.iter().any(|request| request.method.contains("send") || request.method.contains("Filter"));
    let ids: Vec<_> = requests.into_iter().filter_map(|request| request.id).collect();
    if ids.is_empty() {
        bail!("no id: a request without an id gets no answer");
    }
    let tag = tag_of(&value);
    Ok(Body {
        workload,
        ids: Ids::Recorded(ids),
        batch,
        tag,
        simulates,
        writes,
        text: text.into_bytes(),
        splices: Vec::new(),
    })
}

/// Returns the one tag among the parameters of a request, or of all requests of a batch.
fn tag_of(value: &Value) -> Option<Tag> {
    let each = |request: &Value| {
        let params = request.get("params")?.as_array()?;
        let mut tags = params.iter().filter_map(|param| match param.as_str()? {
            "latest" => Some(Tag::Latest),
            "pending" => Some(Tag::Pending),
            _ => None,
        });
        let first = tags.next()?;
        tags.all(|tag| tag == first).then_some(first)
    };
    match value {
        Value::Array(requests) => {
            let first = each(requests.first()?)?;
            requests.iter().all(|request| each(request) == Some(first)).then_some(first)
        }
        request => each(request),
    }
}

/// Replaces `latest` and `pending` in a request, or in each of a batch, with a block selector.
pub fn select(value: &mut Value, selector: &Value) {
    match value {
        Value::Array(requests) => requests.iter_mut().for_each(|request| select(request, selector)),
        request => {
            let params = request.get_mut("params").and_then(Value::as_array_mut);
            for param in params.into_iter().flatten() {
                if matches!(param.as_str(), Some("latest" | "pending")) {
                    *param = selector.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_into_every_entry_of_a_batch() {
        let mut draft = Draft::batch();
        draft.request("eth_chainId", "[]").request("eth_blockNumber", "[]");
        let body = draft.body(0, None, false);
        let value: Value = serde_json::from_slice(&body.with_ids(41)).expect("JSON");
        assert_eq!(value[0]["id"], FIRST_ID + 41);
        assert_eq!(value[1]["id"], FIRST_ID + 42);
        assert_eq!(value[1]["method"], "eth_blockNumber");
    }

    #[test]
    fn ids_begin_anew_when_they_are_used_up() {
        let mut draft = Draft::default();
        draft.request("eth_chainId", "[]");
        let value: Value = serde_json::from_slice(&draft.body(0, None, false).with_ids(IDS + 5)).expect("JSON");
        assert_eq!(value["id"], FIRST_ID + 5);
    }

    #[test]
    fn a_recorded_body_keeps_its_ids_and_takes_the_tag() {
        let line = r#"{"jsonrpc":"2.0","id":"x7","method":"eth_getCode","params":["0x00","latest"]}"#;
        let as_it_is = recorded(line, 0, None).expect("a request");
        assert_eq!(as_it_is.with_ids(9), line.as_bytes());
        assert_eq!(as_it_is.tag, Some(Tag::Latest));
        let pending = recorded(line, 0, Some(Tag::Pending)).expect("a request");
        let value: Value = serde_json::from_slice(&pending.with_ids(9)).expect("JSON");
        assert_eq!(value["params"][1], "pending");
        assert_eq!(value["id"], "x7");
        assert_eq!(pending.tag, Some(Tag::Pending));
    }

    #[test]
    fn a_body_without_an_id_is_refused() {
        let error = recorded(r#"{"jsonrpc":"2.0","method":"eth_chainId","params":[]}"#, 0, None).expect_err("no id");
        assert!(error.to_string().contains("no id"), "{error}");
    }
}
