//! Tests of what clients of a busy executor can rely on.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::sync::oneshot;

use super::{Executor, ExecutorConfig, Flow, LaneName, LocalState, RunTarget, Task, TaskError};
use crate::{
    meter::Meter,
    state::{LogOrigin, Overlay},
    telemetry::Metrics,
};

/// A time limit that no test reaches.
const BOUND: Duration = Duration::from_secs(120);

struct Work<F> {
    lane: LaneName,
    work: F,
}

impl<F: Fn(&mut Overlay, Meter) + Send + Sync + 'static> Task for Work<F> {
    type Answer = ();

    fn target(&self) -> RunTarget {
        RunTarget::On(self.lane)
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) {
        (self.work)(overlay, meter);
    }
}

/// Starts an executor that rejects nothing that these tests submit.
fn with_workers(workers: usize) -> Executor {
    let config = ExecutorConfig {
        workers,
        queue_short: 10_000,
        queue_bundle: 10_000,
        queue_wait: BOUND,
        overload_wait: 100,
        deadline: BOUND,
    };
    Executor::start(config, &Metrics::default()).expect("the workers start")
}

/// Submits work of a client, and returns a handle to its end.
fn submit(
    executor: &Executor,
    flow: &Arc<Flow>,
    lane: LaneName,
    work: impl Fn(&mut Overlay, Meter) + Send + Sync + 'static,
) -> tokio::task::JoinHandle<Result<(), TaskError>> {
    let (executor, flow) = (executor.clone(), flow.clone());
    tokio::spawn(async move { executor.submit(Work { lane, work }, executor.ticket(&flow), &LocalState).await })
}

/// Occupies the worker, without a pause, until the returned sender is dropped.
async fn hold(executor: &Executor) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), TaskError>>) {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = oneshot::channel();
    let (held, begun) = (Mutex::new(held), Mutex::new(Some(begun)));
    let end = submit(executor, &Flow::new(), LaneName::Bundle, move |_, _| {
        let _ = begun.lock().expect("no panic").take().map(|begun| begun.send(()));
        let _ = held.lock().expect("no panic").recv();
    });
    has_begun.await.expect("the job begins");
    (release, end)
}

/// Begins a bundle that runs until the flag is set, and pauses now and then.
async fn run_until(executor: &Executor, flag: &Arc<AtomicBool>) -> tokio::task::JoinHandle<Result<(), TaskError>> {
    let (begun, has_begun) = oneshot::channel();
    let (begun, flag) = (Mutex::new(Some(begun)), flag.clone());
    let end = submit(executor, &Flow::new(), LaneName::Bundle, move |_, mut meter| {
        let _ = begun.lock().expect("no panic").take().map(|begun| begun.send(()));
        while !flag.load(SeqCst) && meter.between_calls().is_ok() {}
    });
    has_begun.await.expect("the job begins");
    end
}

#[tokio::test]
async fn clients_take_turns() {
    let executor = with_workers(1);
    let (release, held) = hold(&executor).await;
    let order = Arc::new(Mutex::new(String::new()));
    let mut ends = Vec::new();
    for (name, count) in [('a', 12), ('b', 3)] {
        let flow = Flow::new();
        for _ in 0..count {
            let order = order.clone();
            ends.push(submit(&executor, &flow, LaneName::Bundle, move |_, _| {
                order.lock().expect("no panic").push(name);
            }));
            // Lets the job reach the queue.
            tokio::task::yield_now().await;
        }
    }
    drop(release);
    held.await.expect("no panic").expect("the job runs");
    for end in join_all(ends).await {
        end.expect("no panic").expect("the job runs");
    }
    let order = order.lock().expect("no panic").clone();
    let last = order.rfind('b').expect("all jobs have run");
    assert!(last < 8, "{order}: the second client does not wait for all of the first");
}

#[tokio::test]
async fn a_long_run_lets_others_pass() {
    let executor = with_workers(1);
    for passing in [LaneName::Read, LaneName::Short, LaneName::Bundle] {
        let passed = Arc::new(AtomicBool::new(false));
        // There is no other worker: the long run ends only if the other job runs in its pause.
        let long = run_until(&executor, &passed).await;
        submit(&executor, &Flow::new(), passing, move |_, _| passed.store(true, SeqCst))
            .await
            .expect("no panic")
            .expect("the job runs");
        long.await.expect("no panic").expect("the job runs");
    }
}

#[tokio::test]
async fn what_is_too_long_to_pass_runs_when_the_worker_is_free() {
    let executor = with_workers(1);
    let tried = Arc::new(AtomicBool::new(false));
    let long = run_until(&executor, &tried).await;
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    let other = submit(&executor, &Flow::new(), LaneName::Short, move |overlay, mut meter| {
        let is_bounded = meter.is_short();
        while is_bounded && meter.between_calls().is_ok() {}
        end.store(!is_bounded, SeqCst);
        tried.store(true, SeqCst);
        overlay.meter = meter;
    });
    long.await.expect("no panic").expect("the job runs");
    other.await.expect("no panic").expect("the job runs");
    assert!(ended.load(SeqCst), "it has run without the bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_forgotten() {
    let executor = with_workers(4);
    for _ in 0..50 {
        let flow = Flow::new();
        let ends = (0..100).map(|index| {
            let lane = if index % 2 == 0 { LaneName::Short } else { LaneName::Bundle };
            submit(&executor, &flow, lane, |_, mut meter| {
                let _ = meter.between_calls();
            })
        });
        let ends = tokio::time::timeout(BOUND, join_all(ends)).await.expect("all jobs end in time");
        assert!(ends.into_iter().all(|end| end.expect("no panic").is_ok()));
    }
}

#[tokio::test]
async fn an_overlay_is_used_again_unless_its_run_has_panicked() {
    let executor = with_workers(1);
    for panics in [false, true] {
        let flow = Flow::new();
        let first = submit(&executor, &flow, LaneName::Bundle, move |overlay, _| {
            overlay.log_numbers.restart();
            overlay.log_numbers.push(0, LogOrigin::Contract);
            assert!(!panics, "the test wants it");
        });
        assert_eq!(first.await.expect("it is caught").is_err(), panics);
        let found = Arc::new(Mutex::new(None));
        let next = found.clone();
        let second = submit(&executor, &flow, LaneName::Bundle, move |overlay, _| {
            *next.lock().expect("no panic") = Some(overlay.log_numbers.marks(1).len());
        });
        second.await.expect("no panic").expect("the job runs");
        assert_eq!(*found.lock().expect("no panic"), Some(usize::from(!panics)));
    }
}
