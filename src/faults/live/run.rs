//! One run of the live feed through a script, and the invariants that hold in it.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{
    chain::BASE_FEE_VAULT,
    ledger::{Chain, Retention, Snapshot, SnapshotId, Snapshots},
    pool::{self, Pool},
    source::{
        Feed, FeedSource,
        live::{
            LiveSource,
            flashblocks::{Event, Flashblock},
        },
    },
    state::{Lookup, World},
    telemetry::Metrics,
    upstream::link::LinkError,
    watch::StateHistory,
};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, U256, map::B256Set};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::{sync::mpsc, time::Instant};

use super::{
    super::shrink::{Simulated, Violation},
    following::SimFollowing,
    node::SimNode,
    replicas::Replicas,
    script::{Delivery, LiveScript, LiveStep},
    truth::{FEES, SOMEBODY, STORE, TrueBlock, TruePart, Truth, flashblock},
    watch::LiveWatch,
};

/// A defect that a run is given, which its invariants must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveMutant {
    None,
    /// The upstream tells balances that are off by one.
    LyingUpstream,
    /// The stream gives sub-blocks whose gas and roots were changed to fit other transactions.
    OtherTransactions,
    /// Bundles that stand forget that they have read slots and balances.
    ForgottenReads,
}

/// Totals of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    pub steps: usize,
    pub snapshots: usize,
    /// The pairs of snapshots whose steps are known.
    pub steps_known: usize,
    /// The snapshots of sub-blocks.
    pub pre_confirmed: usize,
    /// The answers of standing bundles that were compared with fresh runs.
    pub answers: usize,
    pub reorgs: usize,
    pub blocks: u64,
}

impl LiveCounts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.snapshots += other.snapshots;
        self.steps_known += other.steps_known;
        self.pre_confirmed += other.pre_confirmed;
        self.answers += other.answers;
        self.reorgs += other.reorgs;
        self.blocks += other.blocks;
    }
}

impl fmt::Display for LiveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, snapshots, steps_known, pre_confirmed, answers, reorgs, blocks } = self;
        write!(
            f,
            "{steps} steps of live chains, {snapshots} snapshots, {pre_confirmed} of sub-blocks, {steps_known} differences and {answers} answers checked, {reorgs} reorgs, {blocks} blocks"
        )
    }
}

/// The most blocks that the builder is ahead of the canonical chain.
const AHEAD: usize = 4;
/// The time between two looks at what is published.
const LOOK: Duration = Duration::from_millis(20);
/// The time in which a feed is live again after the faults have ended.
const RECOVERY: Duration = Duration::from_secs(60);

/// The time that an answer of the upstream takes at most until it is believed.
const BELIEF: Duration = Duration::from_secs(12);

/// Runs a script.
///
/// # Errors
///
/// Returns the first violation of an invariant.
pub fn run_live(script: &LiveScript, mutant: LiveMutant) -> Result<LiveCounts, Violation> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut world = LiveWorld::new(script, mutant).await;
        let feed = world.feed();
        let source = Box::new(world.source.take().expect("the source has not run"));
        tokio::select! {
            biased;
            () = source.run(feed) => unreachable!("the feed is followed for as long as it is polled"),
            done = world.play(script) => done,
        }
    })
}

/// The chain, its upstream and its builder, and what was published so far.
struct LiveWorld {
    truth: Truth,
    node: SimNode,
    stream: mpsc::Sender<Event>,
    source: Option<LiveSource>,
    snapshots: Arc<Snapshots>,
    metrics: Metrics,
    mutant: LiveMutant,
    rng: SmallRng,
    /// The block that the builder makes, and the number of its sub-blocks that are done.
    building: Option<(Arc<TrueBlock>, usize)>,
    /// The blocks that the builder has made, and that are not canonical yet, oldest first.
    ahead: Vec<Arc<TrueBlock>>,
    /// A sub-block that arrives after the next one.
    late: Option<Arc<Flashblock>>,
    /// The transactions that were told in the place of others, and the hashes of the blocks that were told to have them.
    lies: B256Set,
    /// All blocks that were ever built.
    built: Vec<Arc<TrueBlock>>,
    /// The hashes of all blocks that were ever canonical.
    canonical: B256Set,
    /// The steps between the states that were published, and the snapshot that was seen last.
    history: StateHistory,
    last: Arc<Snapshot>,
    replicas: Replicas,
    /// The bundles that stand on the newest snapshot, and those that stand on the newest canonical one.
    watches: [LiveWatch; 2],
    /// The state that each id named.
    named: BTreeMap<u64, (B256, u64, u32, usize, u64)>,
    seen: SnapshotId,
    latest: u64,
    latest_watched: Option<SnapshotId>,
    /// Whether the upstream has told that the chain went back, and the feed has not come to the newest block since.
    went_back: bool,
    /// The time until which the feed may believe an older answer that the upstream gave before.
    believes_until: Instant,
    counts: LiveCounts,
    step: usize,
}

impl LiveWorld {
    async fn new(script: &LiveScript, mutant: LiveMutant) -> Self {
        let truth = Truth::new();
        let metrics = Metrics::default();
        let first = truth.genesis.clone();
        let node = SimNode::new(first.clone(), mutant == LiveMutant::LyingUpstream);
        let kept = Retention { blocks: 32, snapshots: 256, history: 32, history_bytes: u64::MAX };
        let following = SimFollowing::begin(&truth.spec, &node, &first, kept, script.seed, &metrics).await;
        let SimFollowing { snapshots, source, stream } = following;
        let snapshots_newest = snapshots.newest();
        let replicas = Replicas::new(&snapshots.load(), kept, script.seed ^ 0x2e9);
        let forgets = mutant == LiveMutant::ForgottenReads;
        let watches = [0x57a7, 0x57a8].map(|salt| LiveWatch::new(script.seed ^ salt, &truth.senders(), forgets));
        Self {
            canonical: [first.hash].into_iter().collect(),
            lies: B256Set::default(),
            built: vec![first],
            truth,
            node,
            stream,
            source: Some(source),
            seen: snapshots_newest.id,
            snapshots,
            metrics,
            mutant,
            rng: SmallRng::seed_from_u64(script.seed),
            building: None,
            ahead: Vec::new(),
            late: None,
            named: BTreeMap::new(),
            history: StateHistory::new(256),
            replicas,
            last: snapshots_newest,
            watches,
            latest: 0,
            latest_watched: None,
            went_back: false,
            believes_until: Instant::now(),
            counts: LiveCounts::default(),
            step: 0,
        }
    }

    fn feed(&self) -> Feed {
        let pool = Pool::new(self.truth.spec.clone(), pool::Settings::default(), self.snapshots.clone(), None);
        Feed::new(self.snapshots.clone(), Some(self.replicas.sink()), Arc::new(pool), &self.metrics)
    }

    async fn play(&mut self, script: &LiveScript) -> Result<LiveCounts, Violation> {
        self.tell(Event::Connected).await;
        for (index, step) in script.steps.iter().enumerate() {
            self.step = index;
            self.take(*step).await;
            self.counts.steps += 1;
            let pause = self.rng.random_range(20..400);
            self.pass(Duration::from_millis(pause)).await?;
        }
        self.recover().await?;
        Ok(self.counts)
    }

    async fn take(&mut self, step: LiveStep) {
        match step {
            LiveStep::Send(delivery) => self.send(delivery).await,
            LiveStep::Seal if !self.ahead.is_empty() => {
                let block = self.ahead.remove(0);
                self.put(vec![block]);
            }
            LiveStep::Seal => {
                let block = self.block();
                self.building = None;
                self.put(vec![block]);
            }
            LiveStep::Replace => {
                self.begin_anew();
                let block = self.next(None);
                self.put(vec![block]);
            }
            LiveStep::Reorg(depth) => {
                self.begin_anew();
                let canonical = self.node.state().canonical.clone();
                let depth = depth.min(canonical.len() - 1);
                let mut parent = canonical[canonical.len() - 1 - depth].clone();
                let mut branch = Vec::new();
                for _ in 0..=depth {
                    parent = self.next(Some(&parent));
                    branch.push(parent.clone());
                }
                self.went_back |= depth > 0;
                self.counts.reorgs += usize::from(depth > 0);
                self.put(branch);
            }
            LiveStep::ChangeMind => self.building = None,
            LiveStep::Fail(fault, requests) => self.node.state().fault = Some((fault, requests)),
            LiveStep::Slow(milliseconds) => self.node.state().delay = Duration::from_millis(milliseconds),
            LiveStep::Lag(blocks) => self.lag(blocks),
            LiveStep::Disconnect => {
                self.late = None;
                self.tell(Event::Disconnected(LinkError::Other("cut".to_owned()))).await;
                self.tell(Event::Connected).await;
            }
            LiveStep::Silent => self.tell(Event::Silent).await,
            LiveStep::Wait(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        }
    }

    /// Lets the upstream tell an older block than its newest one. A node that lasts in this is believed, possibly only
    /// after it has ended.
    fn lag(&mut self, blocks: usize) {
        self.went_back |= blocks > 0;
        if std::mem::replace(&mut self.node.state().lag, blocks) > 0 {
            self.believes_until = Instant::now() + BELIEF;
        }
    }

    /// Sends the builder's next sub-block.
    async fn send(&mut self, delivery: Delivery) {
        let mut block = self.block();
        if self.building.as_ref().is_some_and(|(block, done)| *done == block.parts.len()) && self.ahead.len() < AHEAD {
            // The builder goes on before its block is canonical.
            self.ahead.push(block);
            block = self.block();
        }
        let Some((_, done)) = &mut self.building else { return };
        let Some(part) = block.parts.get(*done) else { return };
        *done += 1;
        let mut payload = part.payload.clone();
        match delivery {
            Delivery::WrongBalance => {
                payload.metadata.new_account_balances.insert(SOMEBODY, U256::MAX);
            }
            Delivery::WrongGas => payload.diff.gas_used += 1,
            Delivery::Swapped => {
                if let (Some(other), Some(last)) = (&part.swapped, payload.diff.transactions.last_mut()) {
                    *last = other.encoded_2718().into();
                    self.lies.extend([*other.tx_hash(), block.hash]);
                }
            }
            _ => {}
        }
        if self.mutant == LiveMutant::OtherTransactions {
            // The sub-block is of another block's transactions, and nothing that it tells gives that away.
            payload.diff.transactions.pop();
            payload.diff.gas_used = 0;
            payload.diff.receipts_root = B256::ZERO;
            payload.diff.logs_bloom = Default::default();
            payload.metadata.new_account_balances.clear();
        }
        if self.lies.contains(&block.hash) {
            // True balances would give a lie away.
            payload.metadata.new_account_balances.clear();
        }
        let flashblock = flashblock(&payload, part.post_exec.as_ref());
        let late = self.late.take();
        match delivery {
            Delivery::Lost => {}
            Delivery::Late => self.late = Some(flashblock),
            Delivery::Garbage => {
                let error = Flashblock::from_text(b"{\"hello\": 1}", 1 << 10).expect_err("no sub-block");
                self.tell(Event::Garbage(error)).await;
            }
            Delivery::Twice => {
                self.arrive(flashblock.clone()).await;
                self.arrive(flashblock).await;
            }
            Delivery::Whole | Delivery::WrongBalance | Delivery::WrongGas | Delivery::Swapped => {
                self.arrive(flashblock).await;
            }
        }
        if let Some(late) = late {
            self.arrive(late).await;
        }
    }

    async fn arrive(&self, flashblock: Arc<Flashblock>) {
        self.tell(Event::Flashblock { flashblock, received: Instant::now() }).await;
    }

    async fn tell(&self, event: Event) {
        self.stream.send(event).await.expect("the feed reads the stream");
    }

    /// Forgets what the builder has made that is not canonical.
    fn begin_anew(&mut self) {
        self.building = None;
        self.ahead.clear();
    }

    /// Returns the newest block on which the builder may build.
    fn tip(&self) -> Arc<TrueBlock> {
        self.ahead.last().cloned().unwrap_or_else(|| self.node.state().head().clone())
    }

    /// Returns the block that the builder makes, which it begins on the newest block if it has none.
    fn block(&mut self) -> Arc<TrueBlock> {
        let tip = self.tip();
        if let Some((block, _)) = self.building.as_ref().filter(|(block, _)| block.parent == tip.hash) {
            return block.clone();
        }
        let block = self.next(Some(&tip));
        self.building = Some((block.clone(), 0));
        block
    }

    /// Builds a block on `parent`, by default the newest canonical block.
    fn next(&mut self, parent: Option<&Arc<TrueBlock>>) -> Arc<TrueBlock> {
        let parent = parent.cloned().unwrap_or_else(|| self.node.state().head().clone());
        let parts: Vec<usize> = (0..self.rng.random_range(1..4)).map(|_| self.rng.random_range(0..3)).collect();
        let block = self.truth.build(&parent, &parts, self.rng.random_range(1..1 << 40));
        self.built.push(block.clone());
        block
    }

    fn put(&mut self, branch: Vec<Arc<TrueBlock>>) {
        self.canonical.extend(branch.iter().map(|block| block.hash));
        self.counts.blocks += branch.len() as u64;
        self.node.state().put(branch);
    }

    /// Lets time pass, and looks at what is published meanwhile.
    async fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(LOOK).await;
            self.look()?;
        }
        Ok(())
    }

    fn violation(&self, invariant: &'static str, text: String) -> Violation {
        Violation { invariant, text, step: self.step }
    }

    /// Compares what was published since the last look with the true chain.
    fn look(&mut self) -> Result<(), Violation> {
        let published = self.snapshots.load();
        if let Err(text) = self.replicas.follow(&published, &self.accounts()) {
            return Err(self.violation("a replica has what its leader has", text));
        }
        let new: Vec<Arc<Snapshot>> = published.snapshots_after(self.seen).cloned().collect();
        new.iter().for_each(|snapshot| self.history.learn(snapshot));
        self.history.learn(published.latest());
        for snapshot in new {
            self.counts.snapshots += 1;
            self.counts.pre_confirmed += usize::from(snapshot.open.is_some());
            self.seen = snapshot.id;
            let transactions = snapshot.open.as_ref().map_or(0, |open| open.transactions.len());
            let header = snapshot.header();
            let is = (snapshot.head_hash(), header.number, snapshot.index(), transactions, header.gas_used);
            let was = *self.named.entry(snapshot.id.0).or_insert(is);
            if was != is {
                return Err(
                    self.violation("an id names one state", format!("{:?} named {was:?}, then {is:?}", snapshot.id))
                );
            }
            let is_true = !self.is_deceived(&snapshot, published.latest());
            let truth = if is_true { Some(self.check(&snapshot)?) } else { None };
            self.check_steps(&snapshot)?;
            self.check_steps(published.latest())?;
            self.check_watch(0, &snapshot, truth)?;
            self.last = snapshot;
        }
        let latest = published.latest();
        if let Some(before) = self.latest_watched.replace(latest.id).filter(|before| *before != latest.id) {
            if before > latest.id {
                return Err(self.violation("the ids of latest grow", format!("{before:?}, then {:?}", latest.id)));
            }
            let truth = self.true_world(latest).ok();
            self.check_watch(1, latest, truth)?;
        }
        self.check_latest(&published)
    }

    /// Lets a client's bundles stand on a snapshot, and checks what the client holds then.
    fn check_watch(&mut self, watch: usize, snapshot: &Snapshot, truth: Option<World>) -> Result<(), Violation> {
        let truth = truth.unwrap_or_else(|| snapshot.world.clone());
        match self.watches[watch].follow(&self.truth.spec, snapshot, &self.history, &truth) {
            Ok(compared) => {
                self.counts.answers += compared;
                Ok(())
            }
            Err(text) => Err(self.violation("what is held is what a fresh run gives", text)),
        }
    }

    /// Returns whether a snapshot is of what a builder told falsely in a way that shows only when the block is canonical.
    fn is_deceived(&self, snapshot: &Snapshot, latest: &Snapshot) -> bool {
        let is_told = |tx: &B256| self.lies.contains(tx);
        let open = snapshot.open.as_ref();
        let transactions = open.is_some_and(|open| open.transactions.iter().any(|tx| is_told(tx.tx_hash())));
        let mut block = self.built.iter().find(|block| block.hash == snapshot.head_hash());
        let mut stands_on_lies = false;
        while let Some(ahead) = block.filter(|block| block.number > latest.head.number()) {
            stands_on_lies |= self.lies.contains(&ahead.hash);
            block = self.built.iter().find(|block| block.hash == ahead.parent);
        }
        // A snapshot that was published before the block was canonical may be seen after it.
        let was_before = snapshot.id < latest.id && self.lies.contains(&latest.head_hash());
        transactions || stands_on_lies || was_before
    }

    /// Checks that a snapshot is of one branch of the true chain, and that what it knows of the state is true. Returns
    /// the true state.
    fn check(&self, snapshot: &Snapshot) -> Result<World, Violation> {
        let truth = self.true_world(snapshot)?;
        let place = match &snapshot.open {
            None => format!("after block {}", snapshot.head.number()),
            Some(open) => format!("sub-block {} of block {}", open.index, open.header.number),
        };
        self.compare(&snapshot.world, &truth, &place)?;
        Ok(truth)
    }

    /// Returns the state that a snapshot has on the true chain.
    fn true_world(&self, snapshot: &Snapshot) -> Result<World, Violation> {
        let Some(head) = self.built.iter().find(|block| block.hash == snapshot.head_hash()) else {
            return Err(self.violation(
                "a snapshot is of one branch",
                format!("its head {} was never built", snapshot.head_hash()),
            ));
        };
        let Some(open) = &snapshot.open else { return Ok(head.sealed.world.clone()) };
        let hashes: Vec<B256> = open.transactions.iter().map(|tx| *tx.tx_hash()).collect();
        let children = self.built.iter().filter(|block| block.parent == head.hash);
        let is_so_far = |part: &&TruePart| part.transactions == hashes && part.payload.index == u64::from(open.index);
        let mut parts = children
            .filter(|block| block.sealed.head.header.mix_hash == open.header.mix_hash)
            .flat_map(|block| &block.parts)
            .filter(is_so_far);
        match parts.next() {
            Some(part) => Ok(part.world.clone()),
            None => {
                let text = format!(
                    "sub-block {} of block {} with {} transactions was never built on {}",
                    open.index,
                    open.header.number,
                    hashes.len(),
                    head.hash
                );
                Err(self.violation("a snapshot is of one branch", text))
            }
        }
    }

    /// Checks that the steps from the snapshot seen last to another touch all that differs between them.
    fn check_steps(&mut self, snapshot: &Snapshot) -> Result<(), Violation> {
        let Some(steps) = self.history.between(self.last.state, snapshot.state) else { return Ok(()) };
        self.counts.steps_known += 1;
        for address in self.accounts() {
            let [one, other] = [&self.last.world, &snapshot.world].map(|world| match world.look_up(&address) {
                Lookup::Known(info) => Some(info.map_or((U256::ZERO, 0), |info| (info.balance, info.nonce))),
                Lookup::Unknown => None,
            });
            let (Some(one), Some(other)) = (one, other) else { continue };
            let is_touched = steps.iter().any(|step| step.touched.accounts().any(|(touched, _)| *touched == address));
            if one != other && !is_touched {
                let text = format!("{address} has {one:?}, then {other:?}, and no step touches it");
                return Err(self.violation("a step touches all that it changes", text));
            }
        }
        Ok(())
    }

    /// Returns the accounts that are compared.
    fn accounts(&self) -> Vec<Address> {
        self.truth.senders().into_iter().chain([SOMEBODY, STORE, FEES, BASE_FEE_VAULT]).collect()
    }

    /// Compares what is known of a state with the true one.
    fn compare(&self, known: &World, truth: &World, place: &str) -> Result<(), Violation> {
        let truth = truth.local().expect("a local world");
        for address in self.accounts() {
            let Lookup::Known(info) = known.look_up(&address) else { continue };
            let is = info.map_or((U256::ZERO, 0), |info| (info.balance, info.nonce));
            let account = truth.account(&address);
            let should = account.map_or((U256::ZERO, 0), |account| (account.balance, account.nonce));
            if is != should {
                let text = format!("{place}: {address} has {is:?}, and should have {should:?}");
                return Err(self.violation("a state is true", text));
            }
        }
        Ok(())
    }

    fn check_latest(&mut self, published: &Chain) -> Result<(), Violation> {
        let latest = published.latest();
        let (number, hash) = (latest.head.number(), latest.head_hash());
        if !self.canonical.contains(&hash) {
            return Err(self.violation("latest is canonical", format!("block {number} {hash} never was")));
        }
        if number < self.latest && !self.went_back {
            let text = format!("from block {} to {number} without a reorg", self.latest);
            return Err(self.violation("latest never goes behind but by a reorg", text));
        }
        self.latest = number;
        let state = self.node.state();
        self.went_back &= state.lag > 0 || Instant::now() < self.believes_until || hash != state.head().hash;
        drop(state);
        Ok(())
    }

    /// Ends all faults. The feed must be live again in time, with the builder's newest sub-block.
    async fn recover(&mut self) -> Result<(), Violation> {
        {
            let mut state = self.node.state();
            (state.fault, state.delay) = (None, Duration::from_millis(1));
        }
        self.lag(0);
        self.begin_anew();
        self.late = None;
        let end = Instant::now() + RECOVERY;
        while Instant::now() < end {
            let block = self.block();
            for index in 0..block.parts.len() {
                self.send(Delivery::Whole).await;
                self.pass(Duration::from_millis(200)).await?;
                let published = self.snapshots.load();
                let (newest, is_live) = (&published.newest, !published.feed().is_degraded());
                let is_newest = newest.head_hash() == block.parent
                    && newest.open.as_ref().is_some_and(|open| {
                        open.index as usize == index && open.header.mix_hash == block.sealed.head.header.mix_hash
                    });
                if is_live && is_newest && published.latest().head_hash() == block.parent {
                    return Ok(());
                }
            }
            self.take(LiveStep::Seal).await;
            self.pass(Duration::from_millis(1000)).await?;
        }
        let published = self.snapshots.load();
        let text = format!("{:?}, at block {}", published.feed(), published.newest.header().number);
        Err(self.violation("the feed is live again after the faults", text))
    }
}

impl Simulated for LiveScript {
    type Mutant = LiveMutant;
    type Step = LiveStep;
    type Counts = LiveCounts;

    const SOUND: LiveMutant = LiveMutant::None;
    // A block retired as it was pre-confirmed although the canonical one had another transfer in the place of one; the same
    // after a reorg.
    const FOUND: &[u64] = &[123, 2743];

    fn of(seed: u64) -> Self {
        Self::of(seed)
    }

    fn steps(&mut self) -> &mut Vec<LiveStep> {
        &mut self.steps
    }

    fn run(&self, mutant: LiveMutant) -> Result<LiveCounts, Violation> {
        run_live(self, mutant)
    }

    fn add(total: &mut LiveCounts, ran: &LiveCounts) {
        total.add(ran);
    }
}
