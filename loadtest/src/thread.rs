//! One thread of the generator, with some of the connections. Sends requests when they are due, or when an answer came.

use std::{
    rc::Rc,
    sync::Barrier,
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::SmallRng};
use tokio::{sync::mpsc, task::LocalSet, time::timeout};

use crate::{
    client::client,
    clock::Timer,
    connection::Connection,
    fault::Fault,
    generate::{Generator, GeneratorMessage, LoopKind, Segment},
    record::{Recorder, Totals},
    schedule::Arrivals,
};

/// Arrivals closer together than this are sent together, because each wake-up of the clock costs as much as a request.
const TICK: Duration = Duration::from_micros(50);

/// Runs one generator to the end of its segment.
pub fn run(segment: &Segment, thread: usize, barrier: &Barrier, reports: &mpsc::UnboundedSender<GeneratorMessage>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            barrier.wait();
            drop(reports.send(GeneratorMessage::Failed(format!("cannot start a runtime: {error}"))));
            return;
        }
    };
    let recorder = match Recorder::new(segment.bodies.kinds.len()) {
        Ok(recorder) => recorder,
        Err(error) => {
            barrier.wait();
            drop(reports.send(GeneratorMessage::Failed(format!("cannot create a histogram: {error}"))));
            return;
        }
    };
    let (totals, sent) = LocalSet::new().block_on(&runtime, generate(segment, thread, recorder, barrier, reports));
    drop(reports.send(GeneratorMessage::Ended { totals: Box::new(totals), sent }));
}

async fn generate(
    segment: &Segment,
    thread: usize,
    recorder: Recorder,
    barrier: &Barrier,
    reports: &mpsc::UnboundedSender<GeneratorMessage>,
) -> (Totals, u64) {
    let share = |of: usize| of / segment.threads + usize::from(thread < of % segment.threads);
    let open = (0..share(segment.connections)).map(|_| timeout(segment.timeout, Connection::open(&segment.target)));
    let connections = futures::future::join_all(open).await;
    barrier.wait();
    let begun = Instant::now();
    let generator = Rc::new(Generator::new(segment, thread, begun, recorder));
    let scheduler = match segment.load {
        LoopKind::Open { rate, poisson } => {
            let rng = poisson.then(|| SmallRng::seed_from_u64(segment.seed.rotate_left(32) ^ thread as u64));
            let offset = thread as f64 / segment.threads as f64;
            let arrivals = Arrivals::new(rate.share(segment.threads), segment.warmup, segment.duration, offset, rng);
            let most = share(segment.max_outstanding).max(1);
            Some(tokio::task::spawn_local(arrive(generator.clone(), arrivals, begun, most)))
        }
        LoopKind::Closed => None,
    };
    let clients: Vec<_> = connections
        .into_iter()
        .map(|connection| {
            let connection = match connection {
                Ok(Ok(connection)) => Some(connection),
                Ok(Err(error)) => {
                    generator.record(generator.start, |recorder| recorder.fault(Fault::Connect, &error.to_string()));
                    None
                }
                Err(_) => {
                    generator
                        .record(generator.start, |recorder| recorder.fault(Fault::Connect, "no connection in time"));
                    None
                }
            };
            tokio::task::spawn_local(client(generator.clone(), connection))
        })
        .collect();
    let turns = tokio::task::spawn_local(turn(generator.clone(), reports.clone()));
    if let Some(scheduler) = scheduler {
        // A panic ends only its task: the others still report what they saw.
        drop(scheduler.await);
        generator.queue.close();
    }
    for client in clients {
        drop(client.await);
    }
    turns.abort();
    // The last interval is taken even if the ticker was late, so that it holds only what ended after the run.
    let last = generator.recorder.borrow_mut().turn(0);
    drop(reports.send(GeneratorMessage::Interval(Box::new(last))));
    let sent = generator.sent.get();
    let totals = generator.recorder.borrow().totals.clone();
    (totals, sent)
}

/// Reports each interval when it has ended.
async fn turn(generator: Rc<Generator>, reports: mpsc::UnboundedSender<GeneratorMessage>) {
    let Segment { interval, duration, .. } = generator.segment;
    let mut index = 0;
    let mut end = Duration::ZERO;
    while end < duration {
        end = (end + interval).min(duration);
        tokio::time::sleep_until((generator.start + end).into()).await;
        index += 1;
        let ended = generator.recorder.borrow_mut().turn(index);
        if reports.send(GeneratorMessage::Interval(Box::new(ended))).is_err() {
            return;
        }
    }
}

/// Queues arrivals when they are due.
pub async fn arrive(generator: Rc<Generator>, arrivals: Arrivals, begun: Instant, most: usize) {
    let timer = match Timer::new() {
        Ok(timer) => timer,
        Err(error) => {
            return generator.recorder.borrow_mut().fault(Fault::Dropped, &format!("cannot create a timer: {error}"));
        }
    };
    let mut now = Instant::now();
    for arrival in arrivals {
        let due = begun + arrival;
        if due > now {
            // Sleeps for at least a tick, so that not every arrival of many causes a wake-up.
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
