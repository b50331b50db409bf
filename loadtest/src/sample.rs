//! Answers that are put aside to be compared with a reference, with the state that they came from.

use std::{sync::atomic::Ordering, time::Instant};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    answer::{Answer, Stamp},
    body::{Body, Tag},
    client::date,
    connection::Connection,
    generate::Generator,
    rpc::quantity,
};

/// An answer to compare with a reference.
pub struct Sample {
    /// The target's place.
    pub target: usize,
    pub request: Bytes,
    pub workload: usize,
    pub answer: Bytes,
    pub pin: Pin,
}

/// The state that an answer came from, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    Snapshot(u64),
    /// The head, where the request asked for it.
    Block {
        number: u64,
        hash: String,
    },
    /// It may be any of several.
    Unknown(&'static str),
    /// The request changed the state: it is not asked again, but what became of it can be.
    Write,
}

/// Hands an answer to the checker, with the state that it came from.
pub async fn sample(
    generator: &Generator,
    open: &mut Connection,
    body: &Body,
    request: Bytes,
    answer: Answer,
    before: Option<Pin>,
) -> Result<(), Lost> {
    let pin = match (body.writes, body.tag, answer.stamp) {
        (true, ..) => Pin::Write,
        (false, Some(Tag::Pending), Some(stamp)) => Pin::Snapshot(stamp.id),
        (false, ..) => match (before, state(generator, open, body).await?) {
            (Some(before), Some(after)) if before == after => after,
            (Some(_), Some(_)) => Pin::Unknown("the state changed meanwhile"),
            _ => Pin::Unknown("the target does not say which state it answers from"),
        },
    };
    let segment = &generator.segment;
    let sample = Sample { target: segment.place, request, workload: body.workload, answer: answer.body, pin };
    if segment.samples.try_send(sample).is_err() {
        generator.recorder.borrow_mut().totals.not_sampled += 1;
    }
    Ok(())
}

/// A connection that is of no use any more: an answer that nobody waits for may come on it.
pub struct Lost;

/// The state that a body's tag means just now, where the target tells. States only go forward, so that an answer between two equal ones came from
/// that one.
pub async fn state(generator: &Generator, open: &mut Connection, body: &Body) -> Result<Option<Pin>, Lost> {
    let segment = &generator.segment;
    let ask = match body.tag {
        None => return Ok(None),
        // An HTTP answer to a single request says it itself.
        Some(Tag::Pending) if !segment.presim || !(body.batch || segment.target.web_socket) => return Ok(None),
        Some(Tag::Pending) => r#"{"jsonrpc":"2.0","id":1,"method":"presim_snapshot","params":[]}"#,
        Some(Tag::Latest) => r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["latest",false]}"#,
    };
    let newest = segment.newest.load(Ordering::Relaxed);
    let answer = timeout(segment.timeout, open.call(Bytes::from_static(ask.as_bytes()))).await;
    let Ok(Ok(answer)) = answer else { return Err(Lost) };
    let answer: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let result = &answer["result"];
    if body.tag == Some(Tag::Latest) {
        let (number, hash) = (quantity(&result["number"]), result["hash"].as_str());
        return Ok(number.zip(hash).map(|(number, hash)| Pin::Block { number, hash: hash.to_owned() }));
    }
    let (Some(id), Some(age_ms)) = (quantity(&result["id"]), result["ageMs"].as_u64()) else { return Ok(None) };
    generator.record(Instant::now(), |recorder| date(recorder, Stamp { id, age_ms }, newest));
    segment.newest.fetch_max(id, Ordering::Relaxed);
    Ok(Some(Pin::Snapshot(id)))
}
