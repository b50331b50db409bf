//! Finds the state that an answer came from, while its connection is at hand.

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

/// The reason of an unknown state, if the target does not name it.
const UNTOLD: &str = "the target does not say which state it answers from";

/// A connection that cannot be used any more, because an unexpected answer may come on it.
pub struct Lost;

/// Returns the state of an answer that has just come; `before` is what is known of it so far. States only move forward,
/// so an answer between two equal states came from that one.
///
/// # Errors
///
/// Returns [`Lost`] if the target does not answer in time, or if the connection ends.
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
        // A header and an entry of the batch name the state exactly.
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

/// Returns the newest sealed block; `None` if the target does not name it.
///
/// # Errors
///
/// Returns [`Lost`] if the target does not answer in time, or if the connection ends.
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
