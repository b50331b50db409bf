//! One connection's share of the load: takes arrivals, sends requests, and has the answers checked and recorded.

use std::{
    rc::Rc,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use crate::{
    answer::{self, Answer, Wrong},
    body::{Body, Tag},
    connection::{Connection, ConnectionError},
    dating::{self, Dating, Stamp},
    fault::Fault,
    generate::{Generator, LoopKind},
    pin::{head, pin, put_aside},
    record::{LATE, Recorder, RequestOutcome},
    sample::Pin,
};

/// First and longest delay before a connection is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Runs one connection, which is opened again whenever it has ended.
pub async fn client(generator: Rc<Generator>, mut connection: Option<Connection>) {
    let mut backoff = BACKOFF.0;
    // The cause of the first failed attempt to connect since the last connection.
    let mut failure: Option<String> = None;
    while !generator.is_over() {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match reopen(&generator).await {
                Ok(open) => {
                    (backoff, failure) = (BACKOFF.0, None);
                    open
                }
                Err(cause) => {
                    give_up_old(&generator, failure.get_or_insert(cause));
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    continue;
                }
            },
        };
        let Some(body) = generator.pick() else { return };
        let sampled = generator.is_sampled();
        let asks_for_head = sampled && body.tag == Some(Tag::Latest) && !body.writes;
        let Ok(before) = (if asks_for_head { head(&generator, &mut open).await } else { Ok(None) }) else { continue };
        let Some(arrived) = generator.arrival().await else { return };
        if !open.ready().await {
            // A connection that ends between two requests is a fault of neither.
            match reopen(&generator).await {
                Ok(new) => open = new,
                Err(cause) => {
                    failure = Some(cause);
                    put_back(&generator, arrived);
                    continue;
                }
            }
        }
        if let Some(open) = one(&generator, open, body, arrived, sampled, before).await {
            connection = Some(open);
        }
    }
}

/// Opens a connection. Returns the cause if it fails.
async fn reopen(generator: &Generator) -> Result<Connection, String> {
    let opened = timeout(generator.segment.timeout, Connection::open(&generator.segment.target)).await;
    let now = Instant::now();
    let cause = match opened {
        Ok(Ok(open)) => {
            generator.record(now, |recorder| recorder.totals.reconnects += 1);
            return Ok(open);
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no connection in time".to_owned(),
    };
    generator.record(now, |recorder| recorder.fault(Fault::Connect, &cause));
    Err(cause)
}

fn put_back(generator: &Generator, arrived: Instant) {
    if matches!(generator.segment.load, LoopKind::Open { .. }) {
        generator.queue.waiting.borrow_mut().push_front(arrived);
        generator.queue.arrived.notify_one();
    }
}

/// Times out the requests that have waited too long without a connection, of which `cause` is the reason.
fn give_up_old(generator: &Generator, cause: &str) {
    loop {
        let first = generator.queue.waiting.borrow().front().copied();
        match first {
            Some(arrived) if arrived.elapsed() >= generator.segment.timeout => {
                generator.queue.waiting.borrow_mut().pop_front();
                give_up(generator, None, arrived, &format!(": {cause}"));
            }
            _ => return,
        }
    }
}

/// Records a timeout for a request that was not sent in time. `cause` ends the text.
fn give_up(generator: &Generator, body: Option<&Body>, arrived: Instant, cause: &str) {
    generator.record(arrived, |recorder| {
        let latency = arrived.elapsed();
        let text = format!("the request waited for a free connection until its timeout{cause}");
        match body {
            Some(body) => recorder.done(&RequestOutcome {
                workload: body.workload,
                latency,
                service: None,
                outcome: Err((Fault::Timeout, &text)),
            }),
            None => {
                recorder.interval.latency.record(latency.as_micros() as u64);
                recorder.fault(Fault::Timeout, &text);
            }
        }
    });
}

/// Sends one request. Returns the connection if it can be used again.
async fn one(
    generator: &Generator,
    mut open: Connection,
    body: &Body,
    arrived: Instant,
    sampled: bool,
    before: Option<Pin>,
) -> Option<Connection> {
    let segment = &generator.segment;
    let sent = Instant::now();
    if sent.saturating_duration_since(arrived) >= segment.timeout {
        give_up(generator, Some(body), arrived, "");
        return Some(open);
    }
    let id = generator.next_ids(body.id_count());
    let request = body.with_ids(id);
    let dating = Dating::of(segment.dating, segment.target.has_messages(), body);
    let request = if dating == Dating::Entry { dating::with_question(&request).into() } else { request };
    let newest = segment.newest.load(Ordering::Relaxed);
    generator.sent.set(generator.sent.get() + 1);
    generator.record(arrived, |recorder| recorder.totals.requests += 1);
    generator.queue.in_flight.set(generator.queue.in_flight.get() + 1);
    let answer = timeout(segment.timeout, open.call_dated(request.clone(), dating)).await;
    generator.queue.in_flight.set(generator.queue.in_flight.get() - 1);
    let now = Instant::now();
    let (latency, service) = (now.saturating_duration_since(arrived), now.saturating_duration_since(sent));
    let outcome = outcome(body, id, &answer);
    if outcome.is_ok() {
        generator.record(now, |recorder| recorder.interval.answered += 1);
    }
    generator.record(arrived, |recorder| {
        if sent.saturating_duration_since(arrived) > LATE {
            recorder.interval.late += 1;
        }
        if let (Ok(Some(stamp)), Some(Tag::Pending)) = (&outcome, body.tag) {
            date(recorder, *stamp, newest);
        }
        let outcome = outcome.as_ref().map(|_| ()).map_err(|wrong| (wrong.fault, wrong.text.as_str()));
        recorder.done(&RequestOutcome { workload: body.workload, latency, service: Some(service), outcome });
    });
    let Ok(Ok(answer)) = answer else { return None };
    // An answer that names a snapshot, even an error, announces it: later answers must not be older.
    if let Some(stamp) = outcome.as_ref().ok().copied().flatten().or(answer.stamp) {
        segment.newest.fetch_max(stamp.id, Ordering::Relaxed);
    }
    let stamp = match outcome {
        Ok(stamp) => stamp,
        // Over a WebSocket the answer belongs to an unknown request, so that later answers might be mixed up.
        Err(Wrong { fault: Fault::WrongId | Fault::NotJson, .. }) if segment.target.has_messages() => return None,
        Err(_) => return Some(open),
    };
    if sampled {
        let dated = stamp.filter(|_| body.tag == Some(Tag::Pending));
        let before = dated.map(|stamp| Pin::Snapshot(stamp.id)).or(before);
        let pin = pin(generator, &mut open, body, dating, before).await.ok()?;
        put_aside(generator, body, request, answer, pin);
    }
    Some(open)
}

type Called = Result<Result<Answer, ConnectionError>, tokio::time::error::Elapsed>;

fn outcome(body: &Body, id: u64, answer: &Called) -> Result<Option<Stamp>, Wrong> {
    match answer {
        Ok(Ok(answer)) => answer::check(body, id, answer),
        Ok(Err(error)) => Err(Wrong { fault: Fault::Disconnected, text: error.to_string() }),
        Err(_) => Err(Wrong { fault: Fault::Timeout, text: "the target did not answer in time".to_owned() }),
    }
}

/// Records the age of a `pending` answer's snapshot, and whether a newer one was announced before the request was sent.
fn date(recorder: &mut Recorder, stamp: Stamp, newest: u64) {
    recorder.interval.dated += 1;
    recorder.interval.stale += u64::from(stamp.id < newest);
    recorder.interval.age.record(stamp.age_ms);
}
