//! The devnet: a chain that presim builds itself, a sub-block at a time.

pub mod world;

pub use self::world::Traffic;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::eip4895::Withdrawals;
use alloy_evm::block::BlockExecutionError;
use alloy_primitives::{Address, B256, keccak256, map::B256Set};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::{MissedTickBehavior, interval_at};

use super::{
    Feed, FeedSource,
    sub_block::{Misfit, SubBlock, SubBlockStep, extend},
};
use crate::clock::{BlockClock, Clock};
use crate::{
    chain::{Attributes, ChainSpec, SealedBlock},
    engine::{Applied, ConsoleOutput, next_header, open_block_with, seal},
    ledger::{Block, Chain, FeedProblem, FeedState, OpenBlock, Snapshot},
    pool::{BlockFees, Pool},
    publish::Unpublished,
    state::{FetchError, Held, Missed},
    upstream::Fetcher,
};

/// The fields of blocks that do not follow from the chain.
#[derive(Clone, Copy, Debug)]
pub struct BlockFields {
    /// The receiver of the fees of all blocks.
    pub fee_recipient: Address,
    /// The gas limit of the next block. Later blocks inherit it.
    pub gas_limit: Option<u64>,
    /// The base fee of the next block, in wei per unit of gas.
    pub base_fee: Option<u64>,
    /// The randomness of the next block (EIP-4399).
    pub prev_randao: Option<B256>,
}

impl BlockFields {
    /// Returns the fields without choices for the next block.
    pub const fn new(fee_recipient: Address) -> Self {
        Self { fee_recipient, gas_limit: None, base_fee: None, prev_randao: None }
    }
}

/// The part of the pool that a sub-block takes.
#[derive(Clone, Copy, Debug)]
struct Filling {
    /// The most transactions.
    most: usize,
    /// Whether transactions that cannot be mined leave the pool.
    drops: bool,
    /// Whether state is missing already, so that the run only searches for more missing state.
    is_trial: bool,
}

impl Filling {
    /// All transactions.
    const ALL: Self = Self { most: usize::MAX, drops: true, is_trial: false };
}

/// The builder of the devnet's snapshots.
#[derive(Debug)]
pub struct Devnet {
    spec: ChainSpec,
    sub_blocks: u32,
    /// The fields of blocks that a client may choose.
    pub(super) fields: BlockFields,
    traffic: Option<Traffic>,
    /// The clock of the blocks' timestamps.
    pub(super) clock: BlockClock,
    /// The time for the transactions of a sub-block.
    picking: Duration,
    /// The time in which waiting requests run first.
    giving_way: Duration,
}

impl Devnet {
    /// Creates a devnet with `sub_blocks` sub-blocks per block, one at each interval `every` of `clock`.
    pub fn new(
        clock: Arc<dyn Clock>,
        spec: ChainSpec,
        sub_blocks: u32,
        every: Duration,
        fee_recipient: Address,
        traffic: Option<Traffic>,
    ) -> Self {
        // Half of the interval. The other half is for publishing, sealing, and the last transaction, which is not
        // interrupted. An eighth would be too short for that on a busy machine; on an idle machine it is more than a
        // sub-block takes.
        let clock = BlockClock::new(clock);
        Self {
            spec,
            sub_blocks,
            fields: BlockFields::new(fee_recipient),
            traffic,
            clock,
            picking: every / 2,
            giving_way: every / 8,
        }
    }

    /// Moves the clock of the blocks to `timestamp`, in Unix seconds.
    pub fn set_time(&mut self, timestamp: u64) {
        self.clock.move_to(timestamp);
    }

    /// Begins on a block with this timestamp and fee recipient. The fees go to that recipient unless another one is
    /// set.
    pub fn begin_at(&mut self, timestamp: u64, fee_recipient: Address) {
        self.clock = BlockClock::new(self.clock.source());
        self.clock.move_to(timestamp);
        self.fields = BlockFields::new(fee_recipient);
    }

    /// Chooses the gas limit and the base fee of the first block, if they are given.
    pub const fn choose_first(&mut self, gas_limit: Option<u64>, base_fee: Option<u64>) {
        (self.fields.gas_limit, self.fields.base_fee) = (gas_limit, base_fee);
    }

    /// Sets the interval between sub-blocks, and their number in a block.
    pub fn pace(&mut self, every: Duration, sub_blocks: u32) {
        (self.sub_blocks, self.picking, self.giving_way) = (sub_blocks, every / 2, every / 8);
    }

    /// Returns the first block after the head of `on`, on which nothing is being built yet.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn first(&mut self, on: &Snapshot) -> Result<SubBlockStep, BlockExecutionError> {
        Ok(SubBlockStep { sealed: None, next: self.open(on)? })
    }

    /// Opens the block after the head of `on`.
    fn open(&mut self, on: &Snapshot) -> Result<Applied, BlockExecutionError> {
        let parent = on.head.header.inner();
        let attributes = Attributes {
            timestamp: self.clock.next(parent.timestamp),
            fee_recipient: self.fields.fee_recipient,
            prev_randao: self.fields.prev_randao.unwrap_or_else(|| keccak256(on.head_hash())),
            beacon_root: B256::ZERO,
            gas_limit: self.fields.gas_limit.unwrap_or(parent.gas_limit),
        };
        let mut header = next_header(&self.spec, on, attributes);
        if header.base_fee_per_gas.is_some() && self.fields.base_fee.is_some() {
            header.base_fee_per_gas = self.fields.base_fee;
        }
        open_block_with(&self.spec, on, header)
    }

    /// Returns the next sub-block: first the bundles for its block, then the pending transactions of `pool`, then
    /// background traffic. The last sub-block of a block also has its seal and the next block. Bundles and transactions
    /// that would make the sub-block late wait for the next.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn step(&mut self, on: &Snapshot, pool: &Pool) -> Result<SubBlockStep, BlockExecutionError> {
        let Some(open) = &on.open else { return self.first(on) };
        let next = self.fill(on, open, pool, Filling::ALL);
        match next.snapshot.index() >= self.sub_blocks {
            true => self.end_block(next),
            false => Ok(SubBlockStep { sealed: None, next }),
        }
    }

    /// Returns a sub-block with only these transactions; if `ends_block`, with the block's seal and the next block.
    /// Transactions that cannot be included are passed to `leave_out` with the reason.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn given(
        &mut self,
        on: &Snapshot,
        transactions: &[Recovered<TxEnvelope>],
        ends_block: bool,
        mut leave_out: impl FnMut(B256, String),
    ) -> Result<SubBlockStep, BlockExecutionError> {
        let Some(open) = &on.open else { return self.first(on) };
        let next = extend(&self.spec, on, open, |sub_block: &mut SubBlock<'_, '_>| {
            for tx in transactions {
                if let Err(reason) = sub_block.push(tx.clone().convert()) {
                    leave_out(*tx.tx_hash(), reason.to_string());
                }
            }
        });
        if ends_block { self.end_block(next) } else { Ok(SubBlockStep { sealed: None, next }) }
    }

    /// Returns the next sub-block as the last of its block, with the block's seal and the next block.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn last_step(&mut self, on: &Snapshot, pool: &Pool) -> Result<SubBlockStep, BlockExecutionError> {
        let Some(open) = &on.open else { return self.first(on) };
        let last = self.fill(on, open, pool, Filling::ALL);
        self.end_block(last)
    }

    /// Returns the block being built, with its last sub-block, its seal and the next block. If it has no transactions
    /// yet, which would have seen its time, it gets the current time.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn block(&mut self, chain: &Chain, pool: &Pool) -> Result<SubBlockStep, BlockExecutionError> {
        if chain.newest.open.as_ref().is_some_and(OpenBlock::has_begun) {
            return self.last_step(&chain.newest, pool);
        }
        let last = self.open_and_fill(chain.latest(), pool, Filling::ALL)?;
        self.end_block(last)
    }

    /// Returns a block after `latest`, at the current time, with only these transactions, with its seal and the next
    /// block. Transactions that cannot be mined are passed to `leave_out` with the reason.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn block_of(
        &mut self,
        latest: &Snapshot,
        transactions: &[Recovered<TxEnvelope>],
        mut leave_out: impl FnMut(B256, String),
    ) -> Result<SubBlockStep, BlockExecutionError> {
        let last = self.open_and(latest, |devnet, on, open, is_trial| {
            extend(&devnet.spec, on, open, |sub_block: &mut SubBlock<'_, '_>| {
                for tx in transactions {
                    match sub_block.push(tx.clone().convert()) {
                        Ok(true) => {}
                        // The block is built again once the state is known.
                        Ok(false) => return,
                        Err(_) if is_trial => return,
                        Err(reason) => leave_out(*tx.tx_hash(), reason.to_string()),
                    }
                }
            })
        })?;
        self.end_block(last)
    }

    /// Returns a block of now with the best transaction that waits in `pool`, alone, with its seal and the next block; `None` if no
    /// transaction can be mined. The block being built has none.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn arrival(&mut self, chain: &Chain, pool: &Pool) -> Result<Option<SubBlockStep>, BlockExecutionError> {
        if pool.is_empty() {
            return Ok(None);
        }
        let last = self.open_and_fill(chain.latest(), pool, Filling { most: 1, ..Filling::ALL })?;
        if !last.missed.is_empty() {
            return Ok(Some(SubBlockStep { sealed: None, next: last }));
        }
        let has_mined = last.snapshot.open.as_ref().is_some_and(|open| !open.transactions.is_empty());
        has_mined.then(|| self.end_block(last)).transpose()
    }

    /// Returns a draft of the block after the newest, as it would be built now.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn draft(&mut self, chain: &Chain, pool: &Pool) -> Result<Option<SubBlockStep>, BlockExecutionError> {
        let mut next = self.open_and_fill(chain.latest(), pool, Filling { drops: false, ..Filling::ALL })?;
        if let Some(open) = &mut next.snapshot.open {
            open.make_draft();
        }
        Ok(Some(SubBlockStep { sealed: None, next }))
    }

    /// Opens the block after `latest` again, and extends it by a sub-block.
    fn open_and_fill(
        &mut self,
        latest: &Snapshot,
        pool: &Pool,
        filling: Filling,
    ) -> Result<Applied, BlockExecutionError> {
        self.open_and(latest, |devnet, on, open, is_trial| devnet.fill(on, open, pool, Filling { is_trial, ..filling }))
    }

    /// Opens the block after `latest` again, and extends it with the sub-block of `fill`, which is also passed whether
    /// state is missing already.
    fn open_and(
        &mut self,
        latest: &Snapshot,
        fill: impl FnOnce(&mut Self, &Snapshot, &OpenBlock, bool) -> Applied,
    ) -> Result<Applied, BlockExecutionError> {
        self.clock.reopen();
        let opened = self.open(latest)?;
        let Some(open) = &opened.snapshot.open else { return Ok(opened) };
        // One wave fetches the transactions' state with that of the system calls.
        let mut filled = fill(self, &opened.snapshot, open, !opened.missed.is_empty());
        filled.snapshot.path.splice(..0, opened.snapshot.path);
        filled.missed.extend(opened.missed);
        Ok(filled)
    }

    /// Extends the open block of `on` by a sub-block.
    fn fill(&mut self, on: &Snapshot, open: &OpenBlock, pool: &Pool, filling: Filling) -> Applied {
        let mut best = pool.best(on, self.fees(open));
        let traffic = &mut self.traffic;
        let (clock, picking, giving_way) = (self.clock.source(), self.picking, self.giving_way);
        let began = clock.monotonic();
        let elapsed = || clock.monotonic().saturating_sub(began);
        let has_time = || elapsed() < picking;
        // A request that waits for this core runs before the next transaction. Without the pause, it would wait
        // milliseconds for the operating system's scheduler.
        let give_way = || {
            if elapsed() < giving_way {
                thread::yield_now();
            }
        };
        // Bundles that do not fit run in vain, so half of the time is the transactions'.
        let has_time_for_bundles = || elapsed() < picking / 2;
        extend(&self.spec, on, open, |sub_block: &mut SubBlock<'_, '_>| {
            let mut bundled = B256Set::default();
            for bundle in pool.bundles.for_block(open.header.number, open.header.timestamp) {
                if !has_time_for_bundles() || filling.is_trial {
                    break;
                }
                give_way();
                bundle.count_try();
                let transactions = bundle.transactions.iter().map(|tx| tx.clone().convert()).collect();
                match sub_block.push_all(transactions, |hash| bundle.may_revert(hash), has_time_for_bundles) {
                    Ok(()) => bundled.extend(bundle.transactions.iter().map(|tx| *tx.tx_hash())),
                    // The sub-block is filled again once the state is known.
                    Err(Misfit::Unknown { .. }) => return,
                    Err(reason) => {
                        tracing::debug!(hash = %bundle.hash, %reason, "a bundle does not fit");
                        bundle.record_misfit(&reason);
                    }
                }
            }
            let mut left = filling.most;
            while left > 0
                && has_time()
                && let Some(ready) = best.next(sub_block.room())
            {
                give_way();
                let tx = ready.transaction();
                if bundled.contains(tx.tx_hash()) {
                    // A bundle had the transaction of the pool among its own.
                    best.included(ready);
                    continue;
                }
                match sub_block.push(Recovered::clone(tx).convert()) {
                    Ok(true) => {
                        best.included(ready);
                        left -= 1;
                    }
                    // The sub-block is filled again once the state is known.
                    Ok(false) => return,
                    Err(_) if filling.is_trial => return,
                    Err(reason) if !filling.drops => {
                        tracing::debug!(hash = %tx.tx_hash(), %reason, "a transaction cannot be in the draft");
                    }
                    Err(reason) => {
                        tracing::info!(hash = %tx.tx_hash(), %reason, "a transaction cannot be mined and is dropped from the pool");
                        pool.remove(tx.tx_hash());
                    }
                }
            }
            // Users' transactions come first. Background traffic gets the remaining gas.
            let room = sub_block.room().gas;
            let gas = if has_time() { room.regular.min(room.state) } else { 0 };
            for tx in pool.take_own(traffic.iter_mut().flat_map(|traffic| traffic.next(on, gas, pool, give_way))) {
                give_way();
                if let Err(reason) = sub_block.push(Recovered::clone(&tx).convert()) {
                    tracing::warn!(hash = %tx.tx_hash(), %reason, "a background transaction was skipped");
                }
            }
        })
    }

    /// Seals the block that ends with the sub-block `last`, and opens the next one.
    fn end_block(&mut self, last: Applied) -> Result<SubBlockStep, BlockExecutionError> {
        let Some(open) = last.snapshot.open.as_ref().filter(|_| last.missed.is_empty()) else {
            return Ok(SubBlockStep { sealed: None, next: last });
        };
        let (mut sealed, _) = seal(&self.spec, &last.snapshot, open, Withdrawals::default())?;
        self.fields = BlockFields::new(self.fields.fee_recipient);
        let next = self.open(&sealed.snapshot)?;
        sealed.calls_console |= last.calls_console;
        // The last sub-block is published sealed, so its step precedes the step of sealing.
        sealed.snapshot.path.splice(..0, last.snapshot.path);
        Ok(SubBlockStep { sealed: Some(sealed), next })
    }

    fn fees(&self, open: &OpenBlock) -> BlockFees {
        let blob = self.spec.blob_params(open.header.timestamp).and_then(|params| open.header.blob_fee(params));
        BlockFees { base: open.header.base_fee_per_gas.unwrap_or_default(), blob: blob.unwrap_or_default() }
    }
}

/// A [`Devnet`] that runs by itself.
#[derive(Debug)]
pub struct DevnetSource {
    /// The builder.
    pub devnet: Devnet,
    /// The interval between sub-blocks.
    pub every: Duration,
    /// Whether blocks are built only when clients request it or send transactions.
    pub(super) is_still: bool,
    /// The source of the state that the chain builds on, if that is an upstream's.
    pub remote: Option<RemoteBase>,
    /// The place where the lines of contracts under test go.
    pub console: Option<ConsoleOutput>,
    /// Whether the block being built has logged lines.
    has_lines: bool,
}

/// The source of an upstream's state.
#[derive(Clone, Debug)]
pub struct RemoteBase {
    /// Fetches the state.
    pub fetcher: Arc<Fetcher>,
    /// The time that the state which a block reads next may take.
    pub timeout: Duration,
}

impl FeedSource for DevnetSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        let mut ticks = interval_at((Instant::now() + self.every).into(), self.every);
        // A late sub-block delays the next one, because two at once would be useless.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        async move {
            loop {
                ticks.tick().await;
                self.go_on(&mut feed).await;
            }
        }
        .boxed_local()
    }
}

/// The outcome of building on a chain. `None` if there is nothing to build.
type Built = Result<Option<SubBlockStep>, BlockExecutionError>;

impl DevnetSource {
    /// Creates a source that builds a sub-block at each interval `every`, on a state of its own.
    pub const fn new(devnet: Devnet, every: Duration) -> Self {
        Self { devnet, every, is_still: false, remote: None, console: None, has_lines: false }
    }

    /// Builds and publishes the next sub-block.
    pub async fn go_on(&mut self, feed: &mut Feed) {
        // The feed reports the problem.
        let _ = self.go_on_by(feed, |devnet, chain, pool| devnet.step(chain.settled(), pool).map(Some)).await;
    }

    /// Builds and publishes the result of `step`. Returns whether something was published.
    ///
    /// # Errors
    ///
    /// Returns a [`DevnetError`] if nothing can be published.
    pub(super) async fn go_on_by(
        &mut self,
        feed: &mut Feed,
        step: impl Fn(&mut Devnet, &Chain, &Pool) -> Built,
    ) -> Result<bool, DevnetError> {
        let began = Instant::now();
        let published = self.publish_next(feed, step).await;
        if matches!(published, Ok(false)) {
            return published;
        }
        if let Err(error) = &published {
            feed.pool.drop_own();
            let is_other = match error.problem() {
                // The trouble of this node's disk is no change of the chain.
                Some(problem @ FeedProblem::Store) => feed.show_state(FeedState::Degraded(problem)),
                Some(problem) => feed.set_state(FeedState::Degraded(problem)),
                None => false,
            };
            if is_other {
                tracing::error!(%error, "the devnet cannot continue");
            }
            return published;
        }
        feed.pool.advance();
        if feed.status.is_degraded() {
            tracing::info!("the devnet continues");
            feed.set_state(self.health());
        }
        feed.count(began);
        published
    }

    /// Returns the health of a feed without problems.
    pub fn health(&self) -> FeedState {
        if self.is_still { FeedState::Static } else { FeedState::live(self.every) }
    }

    /// Runs `step` until all the state that it reads is known, and returns its result.
    ///
    /// # Errors
    ///
    /// Returns a [`DevnetError`] if a system call fails, or the state is still unknown after the time that it may take.
    pub async fn build(&mut self, step: impl Fn(&mut Devnet) -> Built) -> Result<Option<SubBlockStep>, DevnetError> {
        // Held to the end, so that each round only misses state that no earlier round has fetched.
        let mut held = Held::default();
        loop {
            let before = (self.devnet.clock.clone(), self.devnet.fields);
            let Some(mut step) = step(&mut self.devnet)? else { return Ok(None) };
            let missed = step.take_missed();
            if missed.is_empty() {
                return Ok(Some(step));
            }
            (self.devnet.clock, self.devnet.fields) = before;
            held.extend(self.fetch(&missed).await?);
        }
    }

    /// Fetches state that was missed.
    ///
    /// # Errors
    ///
    /// Returns a [`FetchError`] if the state is still unknown after the time limit.
    pub(super) async fn fetch(&self, missed: &Missed) -> Result<Held, FetchError> {
        let RemoteBase { fetcher, timeout } = self.remote.as_ref().ok_or(FetchError::Local)?;
        fetcher.fetch(missed, None, tokio::time::Instant::now() + *timeout).await
    }

    /// Prints the lines that a sealed block has logged.
    fn print_lines(&self, sealed: &Arc<SealedBlock>, chain: &Chain) {
        let Some(console) = &self.console else { return };
        let before = sealed.number().checked_sub(1).and_then(|parent| chain.state_after(parent));
        let (Some(before), Some(block)) = (before, Block::sealed(sealed)) else { return };
        if let Err(error) = console.print_block(&self.devnet.spec, &block, before) {
            tracing::warn!(%error, number = sealed.number(), "the lines of console.log in a block are lost");
        }
    }

    /// Builds and publishes the result of `step`. Returns whether there was one.
    async fn publish_next(
        &mut self,
        feed: &mut Feed,
        step: impl Fn(&mut Devnet, &Chain, &Pool) -> Built,
    ) -> Result<bool, DevnetError> {
        if let Some(failure) = feed.failure() {
            // The sub-block could not be written. Otherwise subscribers would be notified of transactions that never
            // appear.
            return Err(Unpublished::Store(failure).into());
        }
        let (chain, pool) = (feed.snapshots.load(), feed.pool.clone());
        let Some(step) = self.build(|devnet| step(devnet, &chain, &pool)).await? else { return Ok(false) };
        if let Some(sealed) = &step.sealed {
            let head = &sealed.snapshot.head;
            tracing::debug!(number = head.number(), hash = %head.hash(), "sealed");
        }
        let has_lines = self.has_lines | step.calls_console();
        self.has_lines = has_lines && step.sealed.is_none();
        let sealed = step.sealed.as_ref().filter(|_| has_lines).map(|sealed| sealed.snapshot.head.clone());
        feed.publish(step.into())?;
        if let Some(sealed) = sealed {
            self.print_lines(&sealed, &feed.snapshots.load());
        }
        Ok(true)
    }
}

/// The reason why nothing can be published.
#[derive(Debug, thiserror::Error)]
pub enum DevnetError {
    /// A system call fails.
    #[error(transparent)]
    Execution(#[from] BlockExecutionError),
    /// The sub-block is not published.
    #[error(transparent)]
    Unpublished(#[from] Unpublished),
    /// The upstream's state is not known.
    #[error(transparent)]
    State(#[from] FetchError),
}

impl DevnetError {
    /// Returns the problem of the feed. `None` if a fork's upstream does not answer, which does not degrade the feed.
    const fn problem(&self) -> Option<FeedProblem> {
        match self {
            Self::Execution(_) => Some(FeedProblem::Execution),
            Self::Unpublished(error) => Some(error.problem()),
            Self::State(_) => None,
        }
    }
}
