//! The state that an answer came from, found while its connection is at hand.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    answer::Answer,
    body::{Body, Tag},
    connection::Connection,
    dating::{Dating, QUESTION, answered},
    generate::Generator,
    quantity::quantity,
    sample::{Pin, Sample},
};

/// Hands an answer to the checker, with the state that it came from.
pub fn put_aside(generator: &Generator, body: &Body, request: Bytes, answer: Answer, pin: Pin) {
    let segment = &generator.segment;
    let sample = Sample { target: segment.place, request, workload: body.workload, answer: answer.body, pin };
    if segment.samples.try_send(sample).is_err() {
        generator.recorder.borrow_mut().totals.not_sampled += 1;
    }
}

/// Why a state is unknown.
const UNTOLD: &str = "the target does not say which state it answers from";

/// A connection that is of no use any more: an answer that nobody waits for may come on it.
pub struct Lost;

/// The state that an answer came from, which has just come; `before` is what is known of it by now. States only go forward, so that an answer between
/// two equal ones came from that one.
///
/// # Errors
/// The target did not say it in time, or the connection ended.
pub async fn pin(
    generator: &Generator,
    open: &mut Connection,
    body: &Body,
    dating: Dating,
    before: Option<Pin>,
) -> Result<Pin, Lost> {
    if body.writes {
        return Ok(Pin::Write);
    }
    let Some(before) = before else { return Ok(Pin::Unknown(UNTOLD)) };
    let after = match (body.tag, dating) {
        // A header and an entry of the batch say it exactly.
        (Some(Tag::Pending), Dating::Header | Dating::Entry) => return Ok(before),
        (Some(Tag::Pending), Dating::Message) => {
            let answer = ask(generator, open, QUESTION).await?;
            let stamp = answered(&answer.body).flatten();
            stamp.map(|stamp| {
                generator.segment.newest.fetch_max(stamp.id, Ordering::Relaxed);
                Pin::Snapshot(stamp.id)
            })
        }
        _ => head(generator, open).await?,
    };
    Ok(match after {
        Some(after) if after == before => before,
        Some(_) => Pin::Unknown("the state changed meanwhile"),
        None => Pin::Unknown(UNTOLD),
    })
}

/// The newest sealed block, where the target tells.
///
/// # Errors
/// As [`pin`].
pub async fn head(generator: &Generator, open: &mut Connection) -> Result<Option<Pin>, Lost> {
    let question = r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["latest",false]}"#;
    let answer = ask(generator, open, question).await?;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let (number, hash) = (quantity(&answer["result"]["number"]), answer["result"]["hash"].as_str());
    Ok(number.zip(hash).map(|(number, hash)| Pin::Block { number, hash: hash.to_owned() }))
}

async fn ask(generator: &Generator, open: &mut Connection, question: &'static str) -> Result<Answer, Lost> {
    match timeout(generator.segment.timeout, open.call(Bytes::from_static(question.as_bytes()))).await {
        Ok(Ok(answer)) => Ok(answer),
        _ => Err(Lost),
    }
}
