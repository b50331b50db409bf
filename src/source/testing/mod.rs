//! The devnet under the control of its clients (`--testing`): blocks, state and time as tests need them.

mod change;
pub mod fork;
pub mod state_file;

pub use self::change::{AccountEdit, ChainChange, ChainControl, ChangeError, ChangeOutcome, FieldChoice, Mining};

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::BlockNumHash;
use alloy_primitives::{B256, Bytes};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval_at},
};

use self::{
    change::Answer,
    fork::{ForkTarget, Forking},
};
use super::{
    Feed, FeedSource,
    devnet::{BlockFields, Devnet, DevnetSource},
};
use crate::{
    clock::BlockClock,
    ledger::{Chain, OpenBlock, Record, Snapshot},
    pool::Pool,
    state::{CodeCache, Held, Overlay},
};

/// The latest time to which the clock can be set, in Unix seconds: any number of blocks can follow.
const LATEST_TIME: u64 = i64::MAX as u64;

/// The time that the transactions of a block may take which is mined on request or on arrival.
const MOST_TIME: Duration = Duration::from_secs(60);

/// The pause before transactions that could not be mined are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A devnet that runs by itself, and as its clients ask.
#[derive(Debug)]
pub struct TestingSource {
    devnet: DevnetSource,
    mining: Mining,
    /// The most time between two sub-blocks of a block that is mined at an interval; `None` if it has none.
    sub_block: Option<Duration>,
    codes: Arc<CodeCache>,
    changes: mpsc::Receiver<(ChainChange, Answer)>,
    /// The most states that are saved, and blocks that one request mines.
    most: u32,
    saved: BTreeMap<u64, SavedChain>,
    next_id: u64,
    /// The beginning.
    first: SavedChain,
    /// A random name of the chain since it last began.
    instance: B256,
    /// Whether new ready transactions could not be mined or drafted.
    is_stuck: bool,
    /// The means to begin on another block; `None` on a chain that is no fork.
    forking: Option<Forking>,
}

/// A state to return to.
#[derive(Clone, Debug)]
struct SavedChain {
    published: Arc<Chain>,
    clock: BlockClock,
    fields: BlockFields,
}

impl TestingSource {
    /// Creates the source, which continues from `first` and mines on these occasions, and its handle. `sub_block` is
    /// the time between the sub-blocks of blocks that are mined at an interval, if they have any. `most` bounds the
    /// saved states, of which the oldest is forgotten for a new one, and the blocks that one request mines.
    pub fn new(
        devnet: DevnetSource,
        first: Arc<Chain>,
        mining: Mining,
        sub_block: Option<Duration>,
        codes: Arc<CodeCache>,
        most: u32,
    ) -> (Self, ChainControl) {
        let (control, changes) = ChainControl::new();
        let first = SavedChain::of(&devnet.devnet, first);
        let saved = BTreeMap::new();
        (
            Self {
                devnet,
                mining,
                sub_block,
                codes,
                changes,
                most,
                saved,
                next_id: 0,
                first,
                instance: B256::random(),
                is_stuck: false,
                forking: None,
            },
            control,
        )
    }

    /// Returns the source of a chain that began on an upstream's block, and that can begin on another.
    #[must_use]
    pub fn forked(self, forking: Forking) -> Self {
        Self { forking: Some(forking), ..self }
    }

    /// Builds and publishes the next sub-block.
    pub async fn go_on(&mut self, feed: &mut Feed) {
        self.devnet.go_on(feed).await;
    }

    /// Makes a change of the chain.
    ///
    /// # Errors
    ///
    /// Returns the [`ChangeError`] if the change was not made.
    pub async fn make(&mut self, feed: &mut Feed, change: ChainChange) -> Result<ChangeOutcome, ChangeError> {
        let changes_nothing = matches!(change, ChainChange::Save | ChainChange::Describe);
        let outcome = self.change(feed, change).await?;
        if self.drafts() && !changes_nothing {
            self.follow(feed).await?;
        }
        Ok(outcome)
    }

    async fn change(&mut self, feed: &mut Feed, change: ChainChange) -> Result<ChangeOutcome, ChangeError> {
        match change {
            ChainChange::Mine { blocks, interval, timestamp } => {
                let most = u64::from(self.most);
                if blocks > most {
                    return Err(ChangeError::TooManyBlocks { blocks, most });
                }
                if let Some(timestamp) = timestamp {
                    self.set_clock(feed, timestamp, BlockClock::set).await?;
                }
                self.mine(feed, blocks, interval).await?;
            }
            ChainChange::Edit(edit) => self.edit(feed, edit).await?,
            ChainChange::Load(file) => {
                let codes = self.codes.clone();
                self.change_state(feed, move |overlay| file.set_in(overlay, &codes)).await?;
            }
            ChainChange::Choose(choice) => self.choose(feed, choice).await?,
            ChainChange::SetTimestampInterval(interval) => {
                self.end_open_block(feed).await?;
                let before = std::mem::replace(&mut self.devnet.devnet.clock.interval, interval);
                self.reopen(feed).await?;
                if interval.is_none() {
                    return Ok(ChangeOutcome::Found(before.is_some()));
                }
            }
            ChainChange::Save => return Ok(ChangeOutcome::Saved(self.save(feed))),
            ChainChange::Return(id) => return Ok(ChangeOutcome::Found(self.return_to(feed, id))),
            ChainChange::RollBack { blocks } => self.roll_back(feed, blocks).await?,
            ChainChange::Reorganise { blocks } => self.reorganise(feed, &blocks).await?,
            ChainChange::Reset(target) => self.reset(feed, target).await?,
            ChainChange::FetchFrom(url) => {
                // As in anvil, the URL has no effect on a chain that is no fork.
                if let Some(forking) = &self.forking {
                    forking.fetch_from(url).await?;
                }
                if self.is_stuck {
                    self.follow(feed).await?;
                }
            }
            ChainChange::MoveClock(seconds) => {
                // Blocks that were mined within a second are ahead of the clock.
                let now = self.devnet.devnet.clock.now().max(feed.snapshots.newest().header().timestamp);
                self.set_clock(feed, now.saturating_add(seconds), BlockClock::move_to).await?;
                return Ok(ChangeOutcome::Ahead(self.devnet.devnet.clock.ahead));
            }
            ChainChange::MoveClockTo(timestamp) => {
                let now = self.devnet.devnet.clock.now();
                self.set_clock(feed, timestamp, BlockClock::move_to).await?;
                return Ok(ChangeOutcome::Ahead(timestamp.saturating_sub(now).cast_signed()));
            }
            ChainChange::SetClock(timestamp) => self.set_clock(feed, timestamp, BlockClock::set).await?,
            ChainChange::SetAutomine(true) => self.set_mining(feed, Mining::OnArrival).await?,
            ChainChange::SetAutomine(false) if self.mining == Mining::OnArrival => {
                self.set_mining(feed, Mining::OnRequest).await?;
            }
            ChainChange::SetAutomine(false) => {}
            ChainChange::SetInterval(0) => self.set_mining(feed, Mining::OnRequest).await?,
            ChainChange::SetInterval(seconds) => {
                self.set_mining(feed, Mining::Interval(Duration::from_secs(seconds))).await?;
            }
            ChainChange::Describe => {
                let head = |(id, saved): (&u64, &SavedChain)| {
                    let head = saved.published.head();
                    (*id, BlockNumHash::new(head.number(), head.hash()))
                };
                let saved = self.saved.iter().map(head).collect();
                return Ok(ChangeOutcome::Description { mining: self.mining, instance: self.instance, saved });
            }
        }
        Ok(ChangeOutcome::Done)
    }

    /// Seals `blocks` blocks, `interval` seconds apart.
    async fn mine(&mut self, feed: &mut Feed, blocks: u64, interval: Option<u64>) -> Result<(), ChangeError> {
        for block in 1..=blocks {
            if let Some(interval) = interval.filter(|_| block > 1) {
                let mined = feed.snapshots.load().head().header.timestamp;
                self.devnet.devnet.clock.set(mined.saturating_add(interval).min(LATEST_TIME));
            }
            self.end_block(feed).await?;
            // The thread also runs the actor of the feed.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Seals the block being built with the pending transactions of the pool, and opens the next one.
    async fn end_block(&mut self, feed: &mut Feed) -> Result<(), ChangeError> {
        self.devnet.go_on_by(feed, |devnet, chain, pool| devnet.block(chain, pool).map(Some)).await?;
        Ok(())
    }

    /// Mines on these occasions from now on, and mines the pending transactions if it is on arrival.
    async fn set_mining(&mut self, feed: &mut Feed, mining: Mining) -> Result<(), ChangeError> {
        self.mining = mining;
        self.pace(feed);
        feed.set_state(self.devnet.health());
        if !self.drafts() && feed.snapshots.newest().is_draft() {
            self.reopen(feed).await?;
        }
        self.follow(feed).await
    }

    /// Takes the pace of the occasions on which it mines.
    fn pace(&mut self, feed: &Feed) {
        match (self.mining, self.sub_block) {
            (Mining::Interval(interval), Some(sub_block)) => {
                self.devnet.every = interval.min(sub_block);
                let sub_blocks = interval.as_nanos() / self.devnet.every.as_nanos().max(1);
                self.devnet.devnet.pace(self.devnet.every, u32::try_from(sub_blocks).unwrap_or(u32::MAX));
            }
            (Mining::Interval(interval), None) => {
                self.devnet.every = interval;
                self.devnet.devnet.pace(MOST_TIME, 1);
            }
            (Mining::OnArrival | Mining::OnRequest, _) => self.devnet.devnet.pace(MOST_TIME, 1),
        }
        self.devnet.is_still = !matches!(self.mining, Mining::Interval(_));
        feed.pool.on_arrival.follow(self.follows());
    }

    /// Returns whether the block being built is a draft of the pending transactions.
    fn drafts(&self) -> bool {
        match self.mining {
            Mining::OnRequest => true,
            Mining::Interval(_) => self.sub_block.is_none(),
            Mining::OnArrival => false,
        }
    }

    /// Returns whether transactions are taken up as they arrive.
    fn follows(&self) -> bool {
        self.mining == Mining::OnArrival || self.drafts()
    }

    /// Handles transactions that have become ready or have left: mines each in its own block, or drafts the next block
    /// of all.
    async fn follow(&mut self, feed: &mut Feed) -> Result<(), ChangeError> {
        let ready = *feed.pool.on_arrival.subscribe().borrow();
        let followed = self.take_up(feed).await;
        self.is_stuck = followed.is_err();
        match &followed {
            Ok(()) => feed.pool.on_arrival.mined_to(ready),
            Err(error) => feed.pool.on_arrival.stuck(ready, error),
        }
        followed
    }

    async fn take_up(&mut self, feed: &mut Feed) -> Result<(), ChangeError> {
        if self.mining == Mining::OnArrival {
            while self.devnet.go_on_by(feed, Devnet::arrival).await? {
                // The thread also runs the actor of the feed.
                tokio::task::yield_now().await;
            }
        } else if self.drafts() && !feed.pool.is_empty() {
            self.devnet.go_on_by(feed, Devnet::draft).await?;
        } else if self.drafts() && feed.snapshots.newest().is_draft() {
            self.reopen(feed).await?;
        }
        Ok(())
    }

    /// Seals the block being built if it has transactions, because they have seen its fields and its state.
    async fn end_open_block(&mut self, feed: &mut Feed) -> Result<(), ChangeError> {
        match feed.snapshots.newest().open.as_ref().is_some_and(OpenBlock::has_begun) {
            true => self.end_block(feed).await,
            false => Ok(()),
        }
    }

    /// Opens the block being built again. It has no transactions.
    async fn reopen(&mut self, feed: &mut Feed) -> Result<(), ChangeError> {
        let began = Instant::now();
        let published = feed.snapshots.load();
        let next = self.open(published.latest()).await?;
        publish(feed, Record::SubBlock(next))?;
        feed.count(began);
        Ok(())
    }

    /// Chooses a field of the next block.
    async fn choose(&mut self, feed: &mut Feed, choice: FieldChoice) -> Result<(), ChangeError> {
        self.end_open_block(feed).await?;
        let fields = &mut self.devnet.devnet.fields;
        match choice {
            FieldChoice::FeeRecipient(address) => fields.fee_recipient = address,
            FieldChoice::GasLimit(limit) => fields.gas_limit = Some(limit),
            FieldChoice::BaseFee(fee) => fields.base_fee = Some(fee),
            FieldChoice::PrevRandao(random) => fields.prev_randao = Some(random),
        }
        self.reopen(feed).await
    }

    /// Removes the newest blocks, and the block being built.
    async fn roll_back(&mut self, feed: &mut Feed, blocks: u64) -> Result<(), ChangeError> {
        let published = feed.snapshots.load();
        let head = published.head().number();
        let most = head - published.retained_states().oldest.min(head);
        let Some(number) = head.checked_sub(blocks).filter(|_| blocks <= most) else {
            return Err(ChangeError::TooDeep { blocks, most });
        };
        publish(feed, Record::GoBack { number, feed: published.feed() })?;
        self.reopen(feed).await?;
        feed.pool.advance();
        Ok(())
    }

    /// Removes as many of the newest blocks as `blocks` are, and mines these in their place.
    async fn reorganise(&mut self, feed: &mut Feed, blocks: &[Vec<Recovered<TxEnvelope>>]) -> Result<(), ChangeError> {
        self.roll_back(feed, blocks.len() as u64).await?;
        let left_out = RefCell::new(Vec::new());
        for transactions in blocks {
            let before = left_out.borrow().len();
            let mine = |devnet: &mut Devnet, chain: &Chain, _: &Pool| {
                // Runs again for each round of missing state.
                left_out.borrow_mut().truncate(before);
                let leave_out = |hash, reason: String| left_out.borrow_mut().push((hash, reason));
                devnet.block_of(chain.latest(), transactions, leave_out).map(Some)
            };
            self.devnet.go_on_by(feed, mine).await?;
            // The thread also runs the actor of the feed.
            tokio::task::yield_now().await;
        }
        let left_out = left_out.into_inner();
        let count = left_out.len();
        left_out.into_iter().next().map_or(Ok(()), |(hash, reason)| Err(ChangeError::LeftOut { count, hash, reason }))
    }

    /// Returns to the beginning, or begins on another block of an upstream's.
    async fn reset(&mut self, feed: &mut Feed, target: Option<ForkTarget>) -> Result<(), ChangeError> {
        match (&self.forking, target) {
            (_, None) => {}
            (None, Some(target)) if target == ForkTarget::default() => {}
            (None, Some(_)) => return Err(ChangeError::NoFork),
            (Some(forking), Some(target)) => {
                let begun = Arc::new(forking.begin_again(target).await?);
                let head = begun.head().header.inner();
                self.devnet.devnet.begin_at(head.timestamp, head.beneficiary);
                self.first = SavedChain::of(&self.devnet.devnet, begun);
            }
        }
        self.saved.clear();
        self.instance = B256::random();
        feed.pool.withdraw(|_| true);
        self.go_back_to(feed, self.first.clone());
        if feed.snapshots.newest().open.is_none() {
            self.reopen(feed).await?;
        }
        Ok(())
    }

    /// Sets the timestamp of the next block. A block being built with transactions is sealed first, because they have
    /// seen its time.
    async fn set_clock(
        &mut self,
        feed: &mut Feed,
        timestamp: u64,
        set: fn(&mut BlockClock, u64),
    ) -> Result<(), ChangeError> {
        let published = feed.snapshots.load();
        let open = published.newest.open.as_ref().filter(|open| open.has_begun());
        let previous = open.map_or(published.head().header.timestamp, |open| open.header.timestamp);
        if timestamp <= previous {
            return Err(ChangeError::Timestamp { timestamp, previous });
        }
        if timestamp > LATEST_TIME {
            return Err(ChangeError::TooLate(timestamp));
        }
        set(&mut self.devnet.devnet.clock, timestamp);
        if open.is_some() { self.end_block(feed).await } else { self.reopen(feed).await }
    }

    /// Changes an account.
    async fn edit(&mut self, feed: &mut Feed, edit: AccountEdit) -> Result<(), ChangeError> {
        // A copy, because the bytes are a part of the request's body.
        let code = edit.code.as_ref().map(|code| self.codes.chain(Bytes::copy_from_slice(code)));
        self.change_state(feed, move |overlay| {
            let balance = edit.balance.or_else(|| {
                let has = overlay.balance_and_nonce(edit.address).0;
                (!edit.credit.is_zero()).then(|| has.saturating_add(edit.credit))
            });
            overlay.set(edit.address, balance, edit.nonce, code.clone());
            if let Some((slot, value)) = edit.slot {
                overlay.set_slot(edit.address, slot, value);
            }
        })
        .await
    }

    /// Changes the state after the newest block, and opens the next block on it. The newest block's state root does not
    /// change, and the next block's includes the change. A block being built with transactions is sealed first, because
    /// they have run on the state before.
    async fn change_state(&mut self, feed: &mut Feed, change: impl Fn(&mut Overlay)) -> Result<(), ChangeError> {
        self.end_open_block(feed).await?;
        let began = Instant::now();
        let published = feed.snapshots.load();
        let latest = published.latest();
        let mut held = Held::default();
        let (world, changes) = loop {
            let mut overlay = Overlay::new(latest.world.clone(), latest.hashes.clone());
            change(&mut overlay);
            let missed = overlay.take_missed();
            if missed.is_empty() {
                break overlay.changed();
            }
            held.extend(self.devnet.fetch(&missed).await?);
        };
        let edited =
            Snapshot::at_head(world, latest.head.clone(), latest.hashes.clone()).after(latest, Arc::new(changes));
        self.devnet.devnet.clock.reopen();
        let next = self.open(&edited).await?;
        publish(feed, Record::Seal { sealed: edited, next: Some(next) })?;
        feed.pool.advance();
        feed.count(began);
        Ok(())
    }

    /// Opens the next block on `head`.
    async fn open(&mut self, head: &Snapshot) -> Result<Snapshot, ChangeError> {
        let opened = self.devnet.build(|devnet| devnet.first(head).map(Some)).await?;
        opened.map(|opened| opened.next.snapshot).ok_or(ChangeError::Failed)
    }

    fn save(&mut self, feed: &Feed) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.saved.insert(id, SavedChain::of(&self.devnet.devnet, feed.snapshots.load()));
        if self.saved.len() > self.most as usize {
            self.saved.pop_first();
        }
        id
    }

    fn return_to(&mut self, feed: &mut Feed, id: u64) -> bool {
        let Some(saved) = self.saved.remove(&id) else { return false };
        self.saved.split_off(&id);
        self.go_back_to(feed, saved);
        true
    }

    fn go_back_to(&mut self, feed: &mut Feed, saved: SavedChain) {
        let began = Instant::now();
        let SavedChain { published, clock, fields } = saved;
        (self.devnet.devnet.clock, self.devnet.devnet.fields) = (clock, fields);
        feed.publish_or_log(Record::Return(published));
        feed.pool.advance();
        feed.count(began);
    }
}

impl SavedChain {
    fn of(devnet: &Devnet, published: Arc<Chain>) -> Self {
        Self { published, clock: devnet.clock.clone(), fields: devnet.fields }
    }
}

/// Publishes a change that a client has asked for.
fn publish(feed: &mut Feed, record: Record) -> Result<(), ChangeError> {
    feed.publish(record).map(drop).map_err(|error| {
        tracing::error!(%error, "the change is not made");
        ChangeError::Failed
    })
}

impl FeedSource for TestingSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        let mut arrived = feed.pool.on_arrival.subscribe();
        async move {
            self.pace(&feed);
            let mut ticks = Ticks::of(self.mining, self.devnet.every);
            loop {
                tokio::select! {
                    biased;
                    Some((change, answer)) = self.changes.recv() => {
                        let before = self.mining;
                        // Fails if the client no longer waits.
                        let _ = answer.send(self.make(&mut feed, change).await);
                        if self.mining != before {
                            ticks = Ticks::of(self.mining, self.devnet.every);
                        }
                    }
                    Ok(()) = arrived.changed(), if self.follows() => {
                        // The feed says why nothing can be mined.
                        let _ = self.follow(&mut feed).await;
                    }
                    () = tokio::time::sleep(RETRY_INTERVAL), if self.is_stuck => {
                        let _ = self.follow(&mut feed).await;
                    }
                    () = ticks.tick() => match self.drafts() {
                        // The feed says why nothing can be mined.
                        true => drop(self.end_block(&mut feed).await),
                        false => self.go_on(&mut feed).await,
                    },
                }
            }
        }
        .boxed_local()
    }
}

/// The clock of a chain that mines by itself.
struct Ticks(Option<Interval>);

impl Ticks {
    fn of(mining: Mining, sub_block: Duration) -> Self {
        let Mining::Interval(_) = mining else { return Self(None) };
        let mut ticks = interval_at((Instant::now() + sub_block).into(), sub_block);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(Some(ticks))
    }

    /// Waits for the next tick. Never returns on a chain that does not mine by itself.
    async fn tick(&mut self) {
        match &mut self.0 {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }
}
