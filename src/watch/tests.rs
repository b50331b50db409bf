//! Searches and standing bundles in a program: engine types in, typed answers out, without a server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::attendance::Attendance;
use crate::{
    chain::{BlockHashes, ChainSpec, genesis_block},
    clock::SystemClock,
    engine::{
        AccountOverride, Aim, BaseFeeRule, BlockContext, BundleSearch, Call, CallIndex, CallOutcome, Engine, Objective,
        Outputs, SearchedValues, SimBlock, Simulation, SimulationRules, ValueList, VariedPart, VariedTarget,
    },
    ledger::{FeedState, Retention, Selector, Snapshot, SnapshotId, Snapshots},
    pool::{self, Pool},
    scheduler::{ClientShare, Executor, ExecutorConfig, Host, LaneName, LocalState},
    search::{BegunSearch, RunRate, SearchError, SearchOutcome, Searcher, search_whole},
    source::devnet::{
        Devnet,
        world::{dev_genesis, dev_signers},
    },
    state::{BlockReads, CodeCache, LocalWorld, Overlay, ReadSet},
    telemetry::Metrics,
    watch::{
        Answer, Behind, BehindNow, Bundle, BundleError, BundleRun, Listener, SnapshotName, StaleReason,
        StandingBundles, StandingRun, StateHistory, Watch, WatchId, WatchLimits, WatchList, WatchTask,
    },
};
use alloy_primitives::{Address, Bytes, I256, TxKind, U256, hex};
use bytestring::ByteString;
use tokio::sync::mpsc;

/// A test that waits for longer than this hangs.
const BOUND: Duration = Duration::from_secs(120);

const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: Some(Duration::from_secs(1)),
    state_roots: false,
    gas_cap: 50_000_000,
    max_blocks: 8,
    max_trace: 1 << 16,
    estimate_tolerance: 0.0,
};
const RECEIVER: Address = Address::repeat_byte(0xaa);

/// A program that builds a devnet for itself.
struct Program {
    host: Arc<Host>,
    devnet: Devnet,
    pool: Pool,
    sender: Address,
}

impl Program {
    fn start() -> Self {
        let signers = dev_signers().unwrap();
        let genesis = dev_genesis(&signers, 1_000);
        let spec = ChainSpec::new(genesis.config.clone(), Duration::from_secs(1)).unwrap();
        let codes = CodeCache::new(1 << 24);
        let world = LocalWorld::of_genesis(&genesis, &codes);
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(0, block.hash());
        let first = Snapshot::at_head(world, Arc::new(block), hashes);
        let retention = Retention { blocks: 16, snapshots: 16, history: 16, history_bytes: u64::MAX };
        let snapshots = Arc::new(Snapshots::new(first, FeedState::Static, retention));
        let (clock, every) = (Arc::new(SystemClock::default()), Duration::from_millis(200));
        let mut devnet = Devnet::new(clock, spec.clone(), 1, every, Address::ZERO, None);
        snapshots.apply(devnet.first(&snapshots.newest()).unwrap().into()).unwrap();
        let config = ExecutorConfig {
            workers: 2,
            queue_short: 1_000,
            queue_bundle: 1_000,
            queue_wait: BOUND,
            overload_wait: 100,
            deadline: BOUND,
        };
        Self {
            pool: Pool::new(spec.clone(), pool::Settings::default(), snapshots.clone(), None),
            host: Arc::new(Host {
                executor: Executor::start(config, &Metrics::default()).unwrap(),
                source: Arc::new(LocalState),
                snapshots,
                spec: Arc::new(spec),
                codes: Arc::new(codes),
            }),
            devnet,
            sender: signers[0].address(),
        }
    }

    /// Seals the block that is being built, and opens the next one. Returns the snapshot.
    fn next_block(&mut self) -> SnapshotId {
        let step = self.devnet.last_step(&self.host.snapshots.newest(), &self.pool).unwrap();
        self.host.snapshots.apply(step.into()).unwrap()
    }

    fn call(&self, value: u64) -> Call {
        let (to, value) = (TxKind::Call(RECEIVER), U256::from(value));
        Call { from: self.sender, to, gas: Some(100_000), value, ..Call::default() }
    }

    /// Returns a search for the value of a transfer that makes its receiver gain most.
    fn search(&self, values: SearchedValues) -> Arc<BundleSearch> {
        let block = SimBlock { calls: vec![self.call(0).into()], ..SimBlock::default() };
        Arc::new(BundleSearch {
            simulation: Simulation { blocks: vec![block], outputs: Outputs::STATUS, ..Simulation::default() },
            shows: true,
            targets: vec![VariedTarget::Call(CallIndex { block: 0, call: 0 }, VariedPart::Value)],
            values,
            aim: Aim::Gain(Objective::Ether(RECEIVER), U256::ZERO),
            least: None,
            top: 2,
        })
    }

    /// Runs a search in parts, on the workers.
    async fn run_in_parts(&self, snapshot: Arc<Snapshot>, search: Arc<BundleSearch>) -> SearchOutcome {
        let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
        let Host { spec, codes, .. } = &*self.host;
        let mut engine = Engine { spec, rules: &RULES, codes, overlay: &mut overlay };
        let begun = Arc::new(BegunSearch::begin(&mut engine, &snapshot, &search).unwrap());
        self.searcher().finish(&begun, &Unlimited, Ok::<_, SearchError>).await.unwrap()
    }

    fn searcher(&self) -> Searcher {
        Searcher {
            host: self.host.clone(),
            rules: RULES,
            ticket: self.host.executor.ticket(&ClientShare::new()),
            stops: Instant::now() + BOUND,
            params: ByteString::new(),
            lane: LaneName::Bundle,
        }
    }
}

/// A rate without a limit.
#[derive(Clone, Copy, Debug)]
struct Unlimited;

impl RunRate for Unlimited {
    fn try_draw(&self) -> bool {
        true
    }

    async fn draw(&self, _: usize, _: Instant) -> bool {
        true
    }
}

fn three_values() -> SearchedValues {
    SearchedValues::Each(vec![ValueList::Listed([1, 3, 2].map(U256::from).to_vec())])
}

#[tokio::test]
async fn a_program_gets_the_outcome_of_a_search_as_a_type() {
    let program = Program::start();
    let snapshot = program.host.snapshots.newest();
    for (values, best, runs) in [
        (three_values(), [3, 2], 3..=3),
        (
            SearchedValues::Maximize { from: U256::ONE, to: U256::from(1_000), tolerance: U256::ONE },
            [1_000, 934],
            16..=64,
        ),
    ] {
        let search = program.search(values);
        let outcome = program.run_in_parts(snapshot.clone(), search).await;
        let found: Vec<_> = outcome.best.iter().map(|variant| variant.values[0]).collect();
        assert_eq!(found[0], U256::from(best[0]));
        assert!(found[1] < found[0] && found[1] >= U256::from(best[1]), "{found:?}");
        assert_eq!(outcome.objective(), Some(I256::try_from(best[0]).unwrap()));
        assert!(outcome.complete && runs.contains(&outcome.runs), "{outcome:?}");
        assert_eq!(outcome.gas_used, 21_000 * outcome.runs as u64);
        assert_eq!(outcome.shown.unwrap().blocks[0].calls[0].outcome, CallOutcome::Success);
    }
}

#[tokio::test]
async fn a_search_in_one_run_finds_the_same_and_records_its_reads() {
    let program = Program::start();
    let snapshot = program.host.snapshots.newest();
    let search = program.search(three_values());
    let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
    let mut engine =
        Engine { spec: &program.host.spec, rules: &RULES, codes: &program.host.codes, overlay: &mut overlay };
    let whole = search_whole(&mut engine, &snapshot, &search).unwrap();
    let parts = program.run_in_parts(snapshot, search).await;
    assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
    let reads = overlay.reads();
    for address in [program.sender, RECEIVER] {
        assert!(reads.accounts.iter().any(|account| account.address == address), "{reads:?}");
    }
}

/// A call of code, which returns a word.
#[derive(Debug)]
struct Word(Simulation);

/// The word that a call has returned.
#[derive(Clone, Debug, PartialEq)]
enum WordAnswer {
    Word(U256),
    Failed(String),
}

/// The news of a snapshot.
#[derive(Debug)]
struct WordNews {
    snapshot: SnapshotName,
    changed: Vec<(String, WordAnswer)>,
    behind: Vec<String>,
}

#[derive(Debug)]
struct Channel(mpsc::UnboundedSender<WordNews>);

impl Bundle for Word {
    type Answer = WordAnswer;

    fn run(&self, engine: &mut Engine<'_>, snapshot: &Arc<Snapshot>) -> BundleRun<WordAnswer> {
        let answer = match engine.simulate(snapshot, &self.0) {
            Ok(simulated) => WordAnswer::Word(U256::from_be_slice(&simulated.blocks[0].calls[0].return_data)),
            Err(error) => WordAnswer::Failed(error.to_string()),
        };
        BundleRun { answer: Some(answer), gained: None, complete: true }
    }

    fn failed(&self, error: BundleError) -> WordAnswer {
        WordAnswer::Failed(error.to_string())
    }
}

impl Answer for WordAnswer {
    fn bytes(&self) -> usize {
        match self {
            Self::Word(_) => 0,
            Self::Failed(text) => text.len(),
        }
    }
}

impl Listener<Word> for Channel {
    type News = WordNews;

    fn is_there(&self) -> bool {
        !self.0.is_closed()
    }

    fn begin(&self, snapshot: SnapshotName, _: bool) -> WordNews {
        WordNews { snapshot, changed: Vec::new(), behind: Vec::new() }
    }

    fn add_answer(&self, news: &mut WordNews, bundle: &str, answer: Option<&WordAnswer>) {
        news.changed.extend(answer.map(|answer| (bundle.to_owned(), answer.clone())));
    }

    fn add_behind(&self, news: &mut WordNews, bundle: Behind<'_>) {
        news.behind.push(bundle.name.to_owned());
    }

    async fn send(&self, _: &mut WordNews) {}

    async fn end(&self, mut news: WordNews, behind: &BehindNow<'_>) {
        behind(&mut |bundle| self.add_behind(&mut news, bundle));
        let _ = self.0.send(news);
    }

    fn close(&self) {}
}

#[tokio::test]
async fn a_program_is_told_by_a_channel_what_a_new_block_changes() {
    let mut program = Program::start();
    let metrics = Metrics::default();
    let limits = WatchLimits { bundles: 2, bytes: 1 << 20, share: 1.0, retention: BOUND };
    let list = Arc::new(WatchList::new(limits, &program.host.executor, &metrics));
    let bundles = [("seven", "60075f5260205ff3"), ("number", "435f5260205ff3")].map(|(name, code)| {
        let code = Some(Bytes::from(hex::decode(code).unwrap()));
        let state = vec![(RECEIVER, AccountOverride { code, ..AccountOverride::default() })];
        let block = SimBlock { state, calls: vec![program.call(0).into()], ..SimBlock::default() };
        let outputs = Outputs::RETURN_DATA;
        (name.to_owned(), Word(Simulation { blocks: vec![block], outputs, ..Simulation::default() }))
    });
    let (sender, mut told) = mpsc::unbounded_channel();
    let id = WatchId([1; 16]);
    let watch = Arc::new(Watch::new(id, None, Selector::Pending, bundles, 0, Channel(sender)));
    list.add(&watch).unwrap();
    let (host, flow) = (program.host.clone(), ClientShare::new());
    WatchTask { list: list.clone(), watch, host, rules: RULES, flow, strict_pending: false }.spawn();
    let word = |name: &str, word: u64| (name.to_owned(), WordAnswer::Word(U256::from(word)));
    let first = tokio::time::timeout(BOUND, told.recv()).await.unwrap().unwrap();
    assert_eq!(first.snapshot.id, program.host.snapshots.newest().id);
    let mut changed = first.changed;
    changed.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(changed, [word("number", 1), word("seven", 7)]);
    assert!(first.behind.is_empty(), "{:?}", first.behind);
    let id_of_next = program.next_block();
    let next = tokio::time::timeout(BOUND, told.recv()).await.unwrap().unwrap();
    assert_eq!((next.snapshot.id, next.snapshot.number), (id_of_next, 2));
    assert_eq!(next.changed, [word("number", 2)]);
    assert!(list.remove(id) && list.get(id).is_none());
    // The task ends, and with it the channel.
    while tokio::time::timeout(BOUND, told.recv()).await.unwrap().is_some() {}
}

#[test]
fn the_best_of_last_time_goes_first_but_for_who_was_passed_over_five_times() {
    let Program { host, .. } = Program::start();
    let first = host.snapshots.newest();
    let mut bundles = StandingBundles::new(["poor", "rich", "late"].map(|name| (name.to_owned(), ())));
    let history = StateHistory::new(16);
    let answered = |gained: i64| StandingRun::Answered {
        answer: Some(WordAnswer::Word(U256::ONE)),
        reads: ReadSet { block: BlockReads::NUMBER, ..ReadSet::default() },
        gained: Some(I256::try_from(gained).unwrap()),
        is_long: false,
    };
    // Nothing is known of the steps between these snapshots, so each makes everything due.
    let mut id = 0;
    let mut next = |bundles: &mut StandingBundles<(), WordAnswer>| {
        id += 1;
        let mut snapshot = Snapshot::new(first.world.clone(), first.head.clone(), None, first.hashes.clone());
        snapshot.id = SnapshotId(id);
        bundles.advance(&snapshot, BlockContext::of(&host.spec, &snapshot, &RULES).unwrap(), &history);
        bundles.due(|()| true)
    };
    assert_eq!(next(&mut bundles), [0, 1, 2], "in the client's order at first");
    bundles.record(0, answered(-5)).expect("an answer");
    bundles.record(1, answered(7)).expect("an answer");
    assert_eq!(bundles.due(|()| true), [2], "what was not run stays due");
    for passed in 1..=5 {
        let due = next(&mut bundles);
        // The last has no objective yet, and was passed over since the first snapshot.
        assert_eq!(due, if passed < 5 { [1, 0, 2] } else { [2, 1, 0] }, "{passed}");
        bundles.record(1, answered(7));
        bundles.record(0, answered(-5));
        let behind: Vec<_> =
            bundles.behind(|()| true).map(|one| (one.name.as_str(), one.holds_at.map(|name| name.id))).collect();
        assert_eq!(behind, [("late", None)]);
    }
    assert!(bundles.record(2, answered(1)).is_some_and(|(name, told)| name == "late" && told.since == SnapshotId(6)));
    assert_eq!(next(&mut bundles), [1, 2, 0]);
    let holds: Vec<_> = bundles.behind(|()| true).map(|one| one.holds_at.map(|name| name.id)).collect();
    assert_eq!(holds, [Some(SnapshotId(6)); 3], "what was answered held until now");
}

/// Returns the answer of a bundle that reads the number of the block.
fn answered(word: u64, is_long: bool) -> StandingRun<WordAnswer> {
    let reads = ReadSet { block: BlockReads::NUMBER, ..ReadSet::default() };
    StandingRun::Answered { answer: Some(WordAnswer::Word(U256::from(word))), reads, gained: None, is_long }
}

#[test]
fn an_answer_that_comes_late_holds_where_its_run_began() {
    let Program { host, .. } = Program::start();
    let first = host.snapshots.newest();
    let history = StateHistory::new(16);
    let mut bundles = StandingBundles::new(["long", "short"].map(|name| (name.to_owned(), ())));
    // Nothing is known of the steps between these snapshots.
    let mut id = 0;
    let mut next = |bundles: &mut StandingBundles<(), WordAnswer>| {
        id += 1;
        let mut snapshot = Snapshot::new(first.world.clone(), first.head.clone(), None, first.hashes.clone());
        snapshot.id = SnapshotId(id);
        bundles.advance(&snapshot, BlockContext::of(&host.spec, &snapshot, &RULES).unwrap(), &history);
        (bundles.due(|()| true), bundles.long_due(|()| true))
    };
    assert_eq!(next(&mut bundles), (vec![0, 1], vec![]));
    assert!(bundles.record(0, StandingRun::TooLong).is_none());
    assert_eq!((bundles.due(|()| true), bundles.long_due(|()| true)), (vec![1], vec![0]));
    let point = bundles.point().expect("a point");
    assert_eq!(next(&mut bundles), (vec![1], vec![0]));
    let late = bundles.record_from(&point, &history, 0, answered(1, true)).map(|(name, told)| (name, told.since));
    assert_eq!(late, Some(("long", SnapshotId(2))), "it is told with the snapshot that is current");
    let behind: Vec<_> =
        bundles.behind(|()| true).map(|one| (one.name.as_str(), one.holds_at.map(|name| name.id))).collect();
    assert_eq!(behind, [("long", Some(SnapshotId(1))), ("short", None)]);

    let point = bundles.point().expect("a point");
    assert!(bundles.record_from(&point, &history, 0, answered(2, true)).is_some());
    assert_eq!((bundles.long_due(|()| true), next(&mut bundles)), (vec![], (vec![1], vec![0])));
    // A run that was not long makes it one of the others.
    let point = bundles.point().expect("a point");
    bundles.record_from(&point, &history, 0, answered(2, false));
    assert_eq!(next(&mut bundles), (vec![0, 1], vec![]));
}

#[test]
fn what_gave_no_answer_goes_behind_the_others() {
    let Program { host, .. } = Program::start();
    let first = host.snapshots.newest();
    let history = StateHistory::new(16);
    let mut bundles = StandingBundles::new(["first", "second", "third"].map(|name| (name.to_owned(), ())));
    for id in 1..20 {
        let mut snapshot = Snapshot::new(first.world.clone(), first.head.clone(), None, first.hashes.clone());
        snapshot.id = SnapshotId(id);
        bundles.advance(&snapshot, BlockContext::of(&host.spec, &snapshot, &RULES).unwrap(), &history);
        let due = bundles.due(|()| true);
        assert_eq!(due, if id == 1 { [0, 1, 2] } else { [1, 2, 0] }, "{id}");
        bundles.record(0, StandingRun::Stale(StaleReason::Unfinished));
        // The second is not run, however often.
        bundles.record(2, answered(1, false));
    }
}

#[test]
fn bundles_run_for_30_s_after_a_client_was_there_and_are_kept_for_their_time() {
    let (begun, keep) = (Instant::now(), Duration::from_secs(300));
    let at = |ms: u64| begun + Duration::from_millis(ms);
    let mut clients = Attendance::new(begun);
    let look = |clients: &mut Attendance, has_connection: bool, ms: u64| {
        clients.update(has_connection, at(ms));
        (clients.may_run(at(ms)), clients.idle_for(keep, true, at(ms)).map(|rest| rest.as_millis()))
    };
    // The client that lets them stand counts, but has no connection.
    for (ms, expected) in [
        (0, (true, Some(1_000))),
        (29_999, (true, Some(1_000))),
        (30_000, (false, Some(30_000))),
        (270_001, (false, Some(29_999))),
        (299_999, (false, Some(1))),
    ] {
        assert_eq!(look(&mut clients, false, ms), expected, "{ms} ms");
    }
    // One that polls in time finds them, and they run on, for as long as it waits and 30 s longer.
    clients.ask(at(299_999));
    clients.begin_poll();
    assert_eq!(look(&mut clients, false, 299_999), (true, Some(1_000)));
    assert_eq!(look(&mut clients, false, 600_000), (true, Some(1_000)));
    clients.end_poll(at(700_000));
    assert_eq!(look(&mut clients, false, 700_000), (true, Some(1_000)));
    assert_eq!(look(&mut clients, false, 729_999), (true, Some(1_000)));
    assert_eq!(look(&mut clients, false, 730_000), (false, Some(30_000)));
    // So does a connection.
    assert_eq!(look(&mut clients, true, 900_000), (true, Some(1_000)));
    assert_eq!(look(&mut clients, true, 5_000_000), (true, Some(1_000)));
    assert_eq!(look(&mut clients, false, 5_000_500), (true, Some(1_000)), "it has ended");
    assert_eq!(look(&mut clients, false, 5_030_500), (false, Some(30_000)));
    assert_eq!(look(&mut clients, false, 5_300_499), (false, Some(1)));
    assert_eq!(look(&mut clients, false, 5_300_500), (false, None), "they are gone");
    // Where nothing is behind, nothing is to be done before that.
    clients.ask(at(6_000_000));
    assert_eq!(clients.idle_for(keep, false, at(6_000_000)), Some(Attendance::IDLE));
}
