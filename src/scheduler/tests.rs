//! Tests of what clients of a busy executor can rely on.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, U256};
use async_trait::async_trait;
use futures::future::join_all;
use revm::state::AccountInfo;
use tokio::sync::{Semaphore, oneshot};

use super::{
    ClientShare, Drain, Executor, ExecutorConfig, FetchMissed, LaneName, LocalState, Rejected, RunTarget, Task,
    TaskError, TaskName, Ticket, WorkerActor,
    constants::{PAUSE_BYTES, PAUSE_STRIDES},
    flow::QueueName,
    load::Demand,
};
use crate::{
    chain::BlockHashes,
    lock::Mutex,
    meter::Meter,
    state::{
        AccountChange, Code, FetchError, Fetched, Held, LocalWorld, LogOrigin, Missed, Overlay, RemoteSettings,
        RemoteState, RemoteView, World,
    },
    telemetry::{Metrics, Pulse},
};

/// A time limit that no test reaches.
const BOUND: Duration = Duration::from_secs(120);

struct Work<F> {
    lane: LaneName,
    params: String,
    work: F,
}

impl<F: Fn(&mut Overlay, Meter) + Send + Sync + 'static> Task for Work<F> {
    type Answer = ();

    fn name(&self) -> TaskName {
        &"test_work"
    }

    fn target(&self) -> RunTarget {
        RunTarget::On(self.lane)
    }

    fn params(&self) -> &str {
        &self.params
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) {
        (self.work)(overlay, meter);
    }
}

/// An executor that rejects nothing that these tests submit, unless it is overloaded.
fn config(workers: usize) -> ExecutorConfig {
    ExecutorConfig {
        workers,
        queue_short: 10_000,
        queue_bundle: 10_000,
        queue_wait: BOUND,
        overload_wait: 100,
        deadline: BOUND,
    }
}

fn with_workers(workers: usize) -> Executor {
    Executor::start(config(workers), &Metrics::default()).expect("the workers start")
}

/// The end of a job.
type End = tokio::task::JoinHandle<Result<(), TaskError>>;

/// Submits work of a client, and returns a handle to its end.
fn submit(
    executor: &Executor,
    flow: &Arc<ClientShare>,
    lane: LaneName,
    work: impl Fn(&mut Overlay, Meter) + Send + Sync + 'static,
) -> End {
    submit_work(executor, executor.ticket(flow), Work { lane, params: String::new(), work }, Arc::new(LocalState))
}

fn submit_work(
    executor: &Executor,
    ticket: Ticket,
    work: Work<impl Fn(&mut Overlay, Meter) + Send + Sync + 'static>,
    source: Arc<dyn FetchMissed>,
) -> End {
    let executor = executor.clone();
    tokio::spawn(async move { executor.submit(work, ticket, source.as_ref()).await })
}

/// Waits until something is the case. No event tells of it.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(BOUND, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Occupies the worker, without a pause, until the returned sender is dropped.
async fn hold(executor: &Executor) -> (std::sync::mpsc::Sender<()>, End) {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = oneshot::channel();
    let (held, begun) = (Mutex::new(held), Mutex::new(Some(begun)));
    let end = submit(executor, &ClientShare::new(), LaneName::Bundle, move |_, _| {
        let _ = begun.lock().take().map(|begun| begun.send(()));
        let _ = held.lock().recv();
    });
    has_begun.await.expect("the job begins");
    (release, end)
}

/// Begins a bundle that runs until the flag is set, and pauses now and then.
async fn run_until(executor: &Executor, flag: &Arc<AtomicBool>) -> End {
    let (begun, has_begun) = oneshot::channel();
    let (begun, flag) = (Mutex::new(Some(begun)), flag.clone());
    let end = submit(executor, &ClientShare::new(), LaneName::Bundle, move |_, mut meter| {
        let _ = begun.lock().take().map(|begun| begun.send(()));
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
        let flow = ClientShare::new();
        for _ in 0..count {
            let order = order.clone();
            ends.push(submit(&executor, &flow, LaneName::Bundle, move |_, _| {
                order.lock().push(name);
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
    let order = order.lock().clone();
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
        submit(&executor, &ClientShare::new(), passing, move |_, _| passed.store(true, SeqCst))
            .await
            .expect("no panic")
            .expect("the job runs");
        long.await.expect("no panic").expect("the job runs");
    }
}

/// A request with these parameters, whose answer is the thread on which it ran.
struct Located(String);

impl Task for Located {
    type Answer = ThreadId;

    fn name(&self) -> TaskName {
        &"test_located"
    }

    fn target(&self) -> RunTarget {
        RunTarget::InlineThen(LaneName::Bundle)
    }

    fn params(&self) -> &str {
        &self.0
    }

    fn run(&self, _: &mut Overlay, _: Meter) -> Self::Answer {
        thread::current().id()
    }
}

#[tokio::test]
async fn a_request_of_many_bytes_runs_inline_if_it_has_few_objects() {
    let executor = with_workers(1);
    for (objects, kib, is_inline) in [(17, 8, true), (16, 64, true), (17, 9, false), (1, 65, false)] {
        let params = "{".repeat(objects) + &"0".repeat((kib << 10) - objects);
        let ticket = executor.ticket(&ClientShare::new());
        let ran_on = executor.submit(Located(params), ticket, &LocalState).await.expect("the request runs");
        assert_eq!(ran_on == thread::current().id(), is_inline, "{objects} objects, {kib} KiB");
    }
}

#[tokio::test]
async fn what_is_too_long_to_pass_runs_when_the_worker_is_free() {
    let executor = with_workers(1);
    for passing in [LaneName::Read, LaneName::Short, LaneName::Bundle] {
        let tried = Arc::new(AtomicBool::new(false));
        let long = run_until(&executor, &tried).await;
        let runs = Arc::new(Mutex::new(Vec::new()));
        let seen = runs.clone();
        let other = submit(&executor, &ClientShare::new(), passing, move |overlay, mut meter| {
            // The run takes a thousand strides.
            while meter.spent().strides < 1_000 && meter.check().is_ok() {}
            seen.lock().push(meter.spent().strides);
            tried.store(true, SeqCst);
            overlay.meter = meter;
        });
        long.await.expect("no panic").expect("the job runs");
        other.await.expect("no panic").expect("the job runs");
        let runs = runs.lock().clone();
        assert_eq!(runs, [PAUSE_STRIDES + 1, 1_000], "{passing}: the strides in the pause, and without a bound");
    }
}

#[tokio::test]
async fn short_jobs_keep_no_long_one_waiting() {
    let executor = with_workers(1);
    for lane in [LaneName::Read, LaneName::Short, LaneName::Bundle] {
        let (release, held) = hold(&executor).await;
        let order = Arc::new(Mutex::new(String::new()));
        let mut ends = Vec::new();
        for index in 0..40 {
            let (order, is_long) = (order.clone(), index == 39);
            let (lane, name) = if is_long { (lane, 'L') } else { (LaneName::Read, 's') };
            let params = " ".repeat(if is_long { PAUSE_BYTES + 1 } else { 0 });
            let work = move |_: &mut Overlay, _| order.lock().push(name);
            let work = Work { lane, params, work };
            ends.push(submit_work(&executor, executor.ticket(&ClientShare::new()), work, Arc::new(LocalState)));
            // Lets the job reach the queue.
            tokio::task::yield_now().await;
        }
        drop(release);
        held.await.expect("no panic").expect("the job runs");
        for end in join_all(ends).await {
            end.expect("no panic").expect("the job runs");
        }
        let order = order.lock().clone();
        let before = order.find('L').expect("all jobs have run");
        assert!(before < QueueName::FIRST.len(), "{lane}: {order}: short jobs come first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_forgotten() {
    let executor = with_workers(4);
    for _ in 0..50 {
        let flow = ClientShare::new();
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
        let flow = ClientShare::new();
        let first = submit(&executor, &flow, LaneName::Bundle, move |overlay, _| {
            overlay.log_numbers.restart();
            overlay.log_numbers.push(0, LogOrigin::Contract);
            assert!(!panics, "the test wants it");
        });
        assert_eq!(first.await.expect("it is caught").is_err(), panics);
        let found = Arc::new(Mutex::new(None));
        let next = found.clone();
        let second = submit(&executor, &flow, LaneName::Bundle, move |overlay, _| {
            *next.lock() = Some(overlay.log_numbers.marks(1).len());
        });
        second.await.expect("no panic").expect("the job runs");
        assert_eq!(*found.lock(), Some(usize::from(!panics)));
    }
}

/// More than any of these tests takes.
const HOUR: Duration = Duration::from_secs(3_600);
/// The account that the runs of these tests miss.
const MISSED: Address = Address::repeat_byte(0xaa);

/// A source of state that answers when it may.
#[derive(Debug)]
struct SlowSource {
    view: RemoteView,
    asked: AtomicUsize,
    answers: Semaphore,
}

impl SlowSource {
    fn new() -> Arc<Self> {
        let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 20), 1, B256::repeat_byte(1));
        Arc::new(Self { view, asked: AtomicUsize::new(0), answers: Semaphore::new(0) })
    }

    /// Returns work that misses state of the source, until it was fetched.
    fn work(&self, lane: LaneName) -> Work<impl Fn(&mut Overlay, Meter) + Send + Sync + 'static> {
        let view = self.view.clone();
        let work = move |overlay: &mut Overlay, meter| {
            overlay.reset(World::on(view.clone()), BlockHashes::default(), meter);
            overlay.balance_and_nonce(MISSED);
        };
        Work { lane, params: String::new(), work }
    }

    /// Waits until so many fetches were asked for.
    async fn is_asked(&self, times: usize) {
        until("the source is asked", || self.asked.load(SeqCst) == times).await;
    }
}

#[async_trait]
impl FetchMissed for SlowSource {
    fn rounds(&self) -> usize {
        1
    }

    async fn fetch(&self, _: &Missed, _: Option<&str>, _: Instant) -> Result<Held, FetchError> {
        self.asked.fetch_add(1, SeqCst);
        let _answer = self.answers.acquire().await;
        let code = Code::default();
        Ok(self.view.insert_held([Fetched::Account { address: MISSED, balance: U256::ONE, nonce: 0, code }]))
    }
}

/// Creates a client whose requests take an hour, so far.
fn client_of_hours(lane: LaneName) -> Arc<ClientShare> {
    let flow = ClientShare::new();
    flow.load(lane).cost.learn(HOUR);
    flow
}

/// Overloads a lane for longer than a test takes: its requests have taken an hour, so far.
fn overload(executor: &Executor, lane: LaneName) {
    let lane = executor.lane(lane);
    lane.cost.learn(HOUR);
    lane.load.serve(HOUR);
    lane.load.overload(Instant::now());
}

#[tokio::test]
async fn a_request_whose_state_is_fetched_is_no_load() {
    let lane = LaneName::Bundle;
    for is_batch in [false, true] {
        let (executor, source) = (with_workers(1), SlowSource::new());
        overload(&executor, lane);
        let batch = executor.batch();
        let mut ends = Vec::new();
        for asked in 1..=20 {
            let ticket = executor.ticket(&client_of_hours(lane));
            let ticket = if is_batch { ticket.of(&batch) } else { ticket };
            ends.push(submit_work(&executor, ticket, source.work(lane), source.clone()));
            source.is_asked(asked).await;
        }
        // Two requests below their quotas may wait for each worker. None of the twenty does.
        let demand = executor.lane(lane).load.weigh(client_of_hours(lane).load(lane), Instant::now);
        assert_eq!(demand, Demand::BelowQuota, "in a batch: {is_batch}");
        source.answers.add_permits(Semaphore::MAX_PERMITS >> 1);
        for end in ends {
            end.await.expect("no panic").expect("the job runs");
        }
    }
}

#[tokio::test]
async fn a_modest_client_is_not_rejected_after_its_state_was_fetched() {
    let lane = LaneName::Bundle;
    let (executor, source) = (with_workers(1), SlowSource::new());
    let modest = submit_work(&executor, executor.ticket(&client_of_hours(lane)), source.work(lane), source.clone());
    source.is_asked(1).await;
    // Meanwhile more requests arrive than can be served for hours.
    let (release, held) = hold(&executor).await;
    let flow = ClientShare::new();
    let others: Vec<End> = (0..20).map(|_| submit(&executor, &flow, lane, |_, _| ())).collect();
    until("they wait", || executor.waiting(lane) == 20).await;
    overload(&executor, lane);
    source.answers.add_permits(1);
    until("it waits, too", || executor.waiting(lane) == 21 || modest.is_finished()).await;
    drop(release);
    modest.await.expect("no panic").expect("it is admitted");
    for end in others.into_iter().chain([held]) {
        end.await.expect("no panic").expect("the job runs");
    }
}

#[tokio::test]
async fn a_drain_lets_requests_end_whose_state_is_fetched() {
    let (executor, source) = (with_workers(1), SlowSource::new());
    let fetching =
        submit_work(&executor, executor.ticket(&ClientShare::new()), source.work(LaneName::Short), source.clone());
    source.is_asked(1).await;
    let drained = tokio::spawn({
        let executor = executor.clone();
        async move { executor.drain().await }
    });
    let is_closed = async || {
        let late = submit(&executor, &ClientShare::new(), LaneName::Short, |_, _| ()).await.expect("no panic");
        late == Err(TaskError::Rejected(Rejected::Stopping))
    };
    while !is_closed().await {}
    assert!(!drained.is_finished(), "a request is under way");
    source.answers.add_permits(1);
    fetching.await.expect("no panic").expect("it runs to its end");
    tokio::time::timeout(BOUND, drained).await.expect("nothing is under way").expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_runs_in_the_middle_of_another() {
    let change = |index: u64| AccountChange {
        address: Address::left_padding_from(&index.to_be_bytes()),
        info: Some(AccountInfo { balance: U256::ONE, ..AccountInfo::default() }),
        slots: (0..70).map(|slot| (U256::from(slot), U256::from(index + 1))).collect(),
        ..AccountChange::default()
    };
    // So many that another thread would apply a part of them.
    let changes: Arc<Vec<AccountChange>> = Arc::new((0..150).map(change).collect());
    let executor = with_workers(2);
    // The thread that is in the middle of a job.
    let busy = Arc::new(Mutex::new(None));
    let (ended, mixed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    const OTHERS: usize = 100;
    let one = {
        let (busy, ended, changes) = (busy.clone(), ended.clone(), changes.clone());
        submit(&executor, &ClientShare::new(), LaneName::Bundle, move |_, _| {
            *busy.lock() = Some(thread::current().id());
            while ended.load(SeqCst) < OTHERS {
                LocalWorld::default().apply_many(&changes);
            }
            *busy.lock() = None;
        })
    };
    until("it begins", || busy.lock().is_some()).await;
    let flow = ClientShare::new();
    let others = (0..OTHERS).map(|_| {
        let (busy, ended, mixed, changes) = (busy.clone(), ended.clone(), mixed.clone(), changes.clone());
        submit(&executor, &flow, LaneName::Bundle, move |_, _| {
            let is_inside = *busy.lock() == Some(thread::current().id());
            mixed.fetch_add(usize::from(is_inside), Relaxed);
            LocalWorld::default().apply_many(&changes[..20]);
            ended.fetch_add(1, SeqCst);
        })
    });
    for end in join_all(others).await.into_iter().chain([one.await]) {
        end.expect("no panic").expect("the job runs");
    }
    assert_eq!(mixed.load(Relaxed), 0, "of {OTHERS} jobs");
}

#[actix::test]
async fn a_worker_that_hangs_while_jobs_wait_is_stalled_until_it_goes_on() {
    let metrics = Metrics::default();
    let (executor, workers) = Executor::prepare(config(1), &metrics).expect("the pool is built");
    let spawn = |worker| WorkerActor::spawn(worker, executor.clone(), Duration::from_millis(8), &metrics);
    let actor = workers.into_iter().map(|worker| spawn(worker).expect("it starts")).next().expect("one worker");
    let (release, held) = hold(&executor).await;
    let waiting = submit(&executor, &ClientShare::new(), LaneName::Read, |_, _| ());
    until("the worker stalls", || executor.stall().is_some()).await;
    let text = executor.stall().map(|stall| stall.to_string()).unwrap_or_default();
    let expected = "worker 0 makes no progress while requests wait: it has run test_work of the bundle lane for ";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(actor.send(Pulse).await, Ok(false));
    assert!(metrics.render().lines().any(|line| line == "presim_worker_stalls_total 1"));
    drop(release);
    for end in [held, waiting] {
        end.await.expect("no panic").expect("the job runs");
    }
    until("it is seen to go on", || executor.stall().is_none()).await;
    assert_eq!(actor.send(Pulse).await, Ok(true));
    executor.drain().await;
    assert_eq!(actor.send(Drain).await, Ok(()));
}
