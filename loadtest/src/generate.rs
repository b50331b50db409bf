//! The generator: one thread that sends requests when they are due, or when an answer has come, and checks and records what comes back.
//!
//! In an open loop requests arrive on a clock and wait in a queue for a connection that is free. Latency counts from the arrival, so that a stall of
//! the target is seen by all who arrive while it lasts, as its users would see it; it cannot hold back the requests that would have shown it.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc},
    task::LocalSet,
    time::timeout,
};

use crate::{
    answer::{self, Answer, Stamp, Wrong},
    body::{Body, Tag},
    clock::Timer,
    connection::{Connection, ConnectionError},
    fault::Fault,
    record::{Done, Interval, LATE, Recorder, Totals},
    rpc::quantity,
    schedule::{Arrivals, Rate},
    target::Target,
};

/// Arrivals nearer to one another than this are sent together: each wake-up of the clock costs what a request does.
const TICK: Duration = Duration::from_micros(50);
/// How long to wait before a connection is tried again, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Each connection sends when it has the answer to what it sent before.
    Closed,
    /// On a clock.
    Open { rate: Rate, poisson: bool },
}

/// All bodies of a run, with how often each kind comes.
#[derive(Debug)]
pub struct Bodies {
    /// By workload, in the order of the mix.
    pub kinds: Vec<(String, u32, Vec<Body>)>,
}

/// A run of one load on one target.
#[derive(Clone)]
pub struct Segment {
    /// The target's place among the targets.
    pub place: usize,
    pub target: Target,
    pub bodies: Arc<Bodies>,
    pub load: Load,
    pub threads: usize,
    pub connections: usize,
    pub max_outstanding: usize,
    pub warmup: Duration,
    pub duration: Duration,
    pub interval: Duration,
    pub timeout: Duration,
    /// One request in so many is compared with a reference; none where it is 0.
    pub sample: u64,
    /// The target is presim: it says which snapshot an answer came from.
    pub presim: bool,
    pub seed: u64,
    /// The ids of the first request.
    pub first_id: u64,
    pub stop: Arc<AtomicBool>,
    /// The newest snapshot that the target has told of.
    pub newest: Arc<AtomicU64>,
    pub samples: mpsc::Sender<Sample>,
}

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
    /// By the hash of the head.
    Block(String),
    /// It may be any of several.
    Unknown(&'static str),
    /// The request changed the state: it is not asked again, but what became of it can be.
    Write,
}

/// What generators tell while they run.
pub enum Report {
    Interval(Box<Interval>),
    Ended {
        totals: Box<Totals>,
        requests: u64,
    },
    /// A generator could not run.
    Failed(String),
}

/// Runs one generator to the end of its segment.
pub fn run(segment: &Segment, thread: usize, barrier: &Barrier, reports: &mpsc::UnboundedSender<Report>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            barrier.wait();
            drop(reports.send(Report::Failed(format!("no runtime: {error}"))));
            return;
        }
    };
    let (totals, requests) = LocalSet::new().block_on(&runtime, generate(segment, thread, barrier, reports));
    drop(reports.send(Report::Ended { totals: Box::new(totals), requests }));
}

async fn generate(
    segment: &Segment,
    thread: usize,
    barrier: &Barrier,
    reports: &mpsc::UnboundedSender<Report>,
) -> (Totals, u64) {
    let share = |of: usize| of / segment.threads + usize::from(thread < of % segment.threads);
    let open = (0..share(segment.connections)).map(|_| timeout(segment.timeout, Connection::open(&segment.target)));
    let connections = futures::future::join_all(open).await;
    barrier.wait();
    let begun = Instant::now();
    let start = begun + segment.warmup;
    let generator = Rc::new(Generator {
        segment: segment.clone(),
        start,
        end: start + segment.duration,
        recorder: RefCell::new(Recorder::new(segment.bodies.kinds.len())),
        queue: Queue::default(),
        rng: RefCell::new(SmallRng::seed_from_u64(segment.seed.wrapping_add(thread as u64))),
        // Each thread has ids of its own, in turn.
        id: Cell::new(segment.first_id + (thread as u64) * (1 << 31)),
        sent: Cell::new(0),
        until_sample: Cell::new(segment.sample),
    });
    let scheduler = match segment.load {
        Load::Open { rate, poisson } => {
            let rng = poisson.then(|| SmallRng::seed_from_u64(segment.seed.rotate_left(32) ^ thread as u64));
            let offset = thread as f64 / segment.threads as f64;
            let arrivals = Arrivals::new(rate.share(segment.threads), segment.warmup, segment.duration, offset, rng);
            let most = share(segment.max_outstanding).max(1);
            Some(tokio::task::spawn_local(arrive(generator.clone(), arrivals, begun, most)))
        }
        Load::Closed => None,
    };
    let clients: Vec<_> = connections
        .into_iter()
        .map(|connection| {
            let connection = match connection {
                Ok(Ok(connection)) => Some(connection),
                Ok(Err(error)) => {
                    generator.record(start, |recorder| recorder.fault(Fault::Connect, &error.to_string()));
                    None
                }
                Err(_) => {
                    generator.record(start, |recorder| recorder.fault(Fault::Connect, "no connection in time"));
                    None
                }
            };
            tokio::task::spawn_local(client(generator.clone(), connection))
        })
        .collect();
    let turns = tokio::task::spawn_local(turn(generator.clone(), reports.clone()));
    if let Some(scheduler) = scheduler {
        // A panic in a task ends with it: the others still tell what they saw.
        drop(scheduler.await);
        generator.queue.close();
    }
    for client in clients {
        drop(client.await);
    }
    turns.abort();
    // What ended during the run and what ended after it do not belong together: the turn is taken even when the ticker was not in time.
    let last = generator.recorder.borrow_mut().turn(0);
    drop(reports.send(Report::Interval(Box::new(last))));
    let totals = std::mem::replace(&mut generator.recorder.borrow_mut().totals, Totals::new(0));
    (totals, generator.sent.get())
}

/// Sends off each interval when it has ended.
async fn turn(generator: Rc<Generator>, reports: mpsc::UnboundedSender<Report>) {
    let Segment { interval, duration, .. } = generator.segment;
    let mut index = 0;
    let mut end = Duration::ZERO;
    while end < duration {
        end = (end + interval).min(duration);
        tokio::time::sleep_until((generator.start + end).into()).await;
        index += 1;
        let ended = generator.recorder.borrow_mut().turn(index);
        if reports.send(Report::Interval(Box::new(ended))).is_err() {
            return;
        }
    }
}

/// What the tasks of a thread share.
struct Generator {
    segment: Segment,
    start: Instant,
    end: Instant,
    recorder: RefCell<Recorder>,
    queue: Queue,
    rng: RefCell<SmallRng>,
    id: Cell<u64>,
    sent: Cell<u64>,
    until_sample: Cell<u64>,
}

/// Arrivals that wait for a connection.
#[derive(Default)]
struct Queue {
    waiting: RefCell<VecDeque<Instant>>,
    arrived: Notify,
    closed: Cell<bool>,
    in_flight: Cell<usize>,
}

impl Queue {
    fn close(&self) {
        self.closed.set(true);
        self.arrived.notify_waiters();
    }

    /// The arrival that has waited longest; none when no more will come.
    async fn take(&self) -> Option<Instant> {
        loop {
            let first = self.waiting.borrow_mut().pop_front();
            if first.is_some() {
                return first;
            }
            if self.closed.get() {
                return None;
            }
            self.arrived.notified().await;
        }
    }
}

impl Generator {
    fn stopped(&self) -> bool {
        self.segment.stop.load(Ordering::Relaxed)
    }

    /// Writes down what belongs to the run: what arrived during the warm-up does not.
    fn record(&self, arrived: Instant, record: impl FnOnce(&mut Recorder)) {
        if arrived >= self.start {
            record(&mut self.recorder.borrow_mut());
        }
    }

    /// The next request: of a kind as the mix has it.
    fn pick(&self) -> Option<&Body> {
        let mut rng = self.rng.borrow_mut();
        let kinds = &self.segment.bodies.kinds;
        let total: u32 = kinds.iter().map(|(_, weight, _)| weight).sum();
        let mut at = rng.random_range(0..total.max(1));
        let (_, _, bodies) = kinds.iter().find(|(_, weight, _)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        })?;
        bodies.get(rng.random_range(0..bodies.len().max(1)))
    }

    fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left == 0 {
            return false;
        }
        self.until_sample.set(if left == 1 { self.segment.sample } else { left - 1 });
        left == 1
    }

    fn next_ids(&self, count: u64) -> u64 {
        self.id.replace(self.id.get() + count)
    }

    /// When the next request arrives; none when the run is over.
    async fn arrival(&self) -> Option<Instant> {
        match self.segment.load {
            Load::Open { .. } => self.queue.take().await,
            Load::Closed => {
                let now = Instant::now();
                (now < self.end && !self.stopped()).then_some(now)
            }
        }
    }

    fn is_over(&self) -> bool {
        match self.segment.load {
            Load::Open { .. } => self.queue.closed.get() && self.queue.waiting.borrow().is_empty(),
            Load::Closed => Instant::now() >= self.end || self.stopped(),
        }
    }
}

/// Puts arrivals into the queue when they are due.
async fn arrive(generator: Rc<Generator>, arrivals: Arrivals, begun: Instant, most: usize) {
    let timer = match Timer::new() {
        Ok(timer) => timer,
        Err(error) => {
            return generator.recorder.borrow_mut().fault(Fault::Dropped, &format!("there is no clock: {error}"));
        }
    };
    let mut now = Instant::now();
    for arrival in arrivals {
        let due = begun + arrival;
        if due > now {
            // Not to be woken for each when there are many.
            if timer.sleep_until(due.max(now + TICK)).await.is_err() {
                tokio::time::sleep_until(due.into()).await;
            }
            now = Instant::now();
        }
        if generator.stopped() {
            generator.queue.waiting.borrow_mut().clear();
            return;
        }
        let mut waiting = generator.queue.waiting.borrow_mut();
        if waiting.len() + generator.queue.in_flight.get() >= most {
            generator.record(due, |recorder| {
                recorder.fault(Fault::Dropped, "as many requests as --max-outstanding allows were waiting");
            });
        } else {
            waiting.push_back(due);
            generator.queue.arrived.notify_one();
        }
    }
}

/// One connection, made anew whenever it has ended.
async fn client(generator: Rc<Generator>, mut connection: Option<Connection>) {
    let mut backoff = BACKOFF.0;
    while !generator.is_over() {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match reopen(&generator).await {
                Ok(open) => {
                    backoff = BACKOFF.0;
                    open
                }
                Err(()) => {
                    give_up_old(&generator);
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    continue;
                }
            },
        };
        let Some(body) = generator.pick() else { return };
        let sampled = generator.is_sampled();
        let Ok(before) = (if sampled { state(&generator, &mut open, body).await } else { Ok(None) }) else { continue };
        let Some(arrived) = generator.arrival().await else { return };
        if !open.ready().await {
            // It ended between two requests, which is no fault of either's.
            match reopen(&generator).await {
                Ok(new) => open = new,
                Err(()) => {
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

async fn reopen(generator: &Generator) -> Result<Connection, ()> {
    let opened = timeout(generator.segment.timeout, Connection::open(&generator.segment.target)).await;
    let now = Instant::now();
    match opened {
        Ok(Ok(open)) => {
            generator.record(now, |recorder| recorder.totals.reconnects += 1);
            Ok(open)
        }
        Ok(Err(error)) => {
            generator.record(now, |recorder| recorder.fault(Fault::Connect, &error.to_string()));
            Err(())
        }
        Err(_) => {
            generator.record(now, |recorder| recorder.fault(Fault::Connect, "no connection in time"));
            Err(())
        }
    }
}

fn put_back(generator: &Generator, arrived: Instant) {
    if matches!(generator.segment.load, Load::Open { .. }) {
        generator.queue.waiting.borrow_mut().push_front(arrived);
        generator.queue.arrived.notify_one();
    }
}

/// Ends the requests that have waited for too long while there was no connection.
fn give_up_old(generator: &Generator) {
    loop {
        let first = generator.queue.waiting.borrow().front().copied();
        match first {
            Some(arrived) if arrived.elapsed() >= generator.segment.timeout => {
                generator.queue.waiting.borrow_mut().pop_front();
                give_up(generator, None, arrived);
            }
            _ => return,
        }
    }
}

/// A request that was not sent in time: whoever made it waits no longer.
fn give_up(generator: &Generator, body: Option<&Body>, arrived: Instant) {
    generator.record(arrived, |recorder| {
        let (latency, text) = (arrived.elapsed(), "it waited for a free connection until its time was up");
        match body {
            Some(body) => recorder.done(&Done {
                workload: body.workload,
                latency,
                service: None,
                outcome: Err((Fault::Timeout, text)),
            }),
            None => {
                recorder.interval.latency.record(latency.as_micros() as u64);
                recorder.fault(Fault::Timeout, text);
            }
        }
    });
}

/// Sends one request. Gives the connection back when it can be used again.
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
        give_up(generator, Some(body), arrived);
        return Some(open);
    }
    let id = generator.next_ids(body.id_count());
    let request = body.with_ids(id);
    let newest = segment.newest.load(Ordering::Relaxed);
    generator.sent.set(generator.sent.get() + 1);
    generator.queue.in_flight.set(generator.queue.in_flight.get() + 1);
    let answer = timeout(segment.timeout, open.call(request.clone())).await;
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
        let stamp = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()?.stamp);
        if let (Some(stamp), Some(Tag::Pending), Ok(())) = (stamp, body.tag, &outcome) {
            date(recorder, stamp, newest);
        }
        let outcome = outcome.as_ref().copied().map_err(|wrong| (wrong.fault, wrong.text.as_str()));
        recorder.done(&Done { workload: body.workload, latency, service: Some(service), outcome });
    });
    let Ok(Ok(answer)) = answer else { return None };
    if let Some(stamp) = answer.stamp {
        // Whoever is told of a snapshot may rely on it: an answer tells of one.
        segment.newest.fetch_max(stamp.id, Ordering::Relaxed);
    }
    if sampled && outcome.is_ok() {
        sample(generator, &mut open, body, request, answer, before).await.ok()?;
    }
    Some(open)
}

type Called = Result<Result<Answer, ConnectionError>, tokio::time::error::Elapsed>;

fn outcome(body: &Body, id: u64, answer: &Called) -> Result<(), Wrong> {
    match answer {
        Ok(Ok(answer)) => answer::check(body, id, answer),
        Ok(Err(error)) => Err(Wrong { fault: Fault::Disconnected, text: error.to_string() }),
        Err(_) => Err(Wrong { fault: Fault::Timeout, text: "the target did not answer in time".to_owned() }),
    }
}

fn date(recorder: &mut Recorder, stamp: Stamp, newest: u64) {
    recorder.interval.dated += 1;
    recorder.interval.stale += u64::from(stamp.id < newest);
    recorder.interval.age.record(stamp.age_ms);
}

/// Hands an answer to the checker, with the state that it came from.
async fn sample(
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
struct Lost;

/// The state that a body's tag means just now, where the target tells. States only go forward, so that an answer between two equal ones came from
/// that one.
async fn state(generator: &Generator, open: &mut Connection, body: &Body) -> Result<Option<Pin>, Lost> {
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
        return Ok(result["hash"].as_str().map(|hash| Pin::Block(hash.to_owned())));
    }
    let (Some(id), Some(age_ms)) = (quantity(&result["id"]), result["ageMs"].as_u64()) else { return Ok(None) };
    generator.record(Instant::now(), |recorder| date(recorder, Stamp { id, age_ms }, newest));
    segment.newest.fetch_max(id, Ordering::Relaxed);
    Ok(Some(Pin::Snapshot(id)))
}
