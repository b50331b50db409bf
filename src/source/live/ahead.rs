//! Pre-confirmed blocks: sub-blocks applied as they arrive, each at the cost of its own transactions.

use std::sync::Arc;

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{B256, Sealed};
use op_alloy::rpc_types_engine::{OpFlashblockPayloadBase, OpFlashblockPayloadDelta};
use tokio::time::Instant;

use super::flashblocks::Action;
use super::{
    counts::BlockFate,
    error::LiveError,
    preconfirmed::Preconfirmed,
    queue::{SubBlockRun, WaitingSubBlock},
    state::Live,
    verify::{verify, verify_base},
};
use crate::{
    chain::{Attributes, BlockBody, GasRefunds, SealedBlock},
    engine::BlockRun,
    ledger::{FeedProblem, OpenBlock, Record, Snapshot, SubBlockStart},
    state::Missed,
};

/// A sub-block that has been executed and checked.
struct DoneSubBlock {
    /// The state after the preceding pre-confirmed block, if the sub-block begins a block on it.
    complete: Option<Snapshot>,
    /// The relation to its block.
    start: SubBlockStart,
    /// The state after it.
    snapshot: Snapshot,
}

/// The reason why a sub-block is not executed.
enum Unready {
    /// State is missing.
    Missed(Missed),
    /// The block that it is built on is being imported.
    NoParent,
    /// The sub-block cannot be executed.
    Failed(LiveError),
}

impl<E> From<E> for Unready
where
    LiveError: From<E>,
{
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A run on the state for a sub-block, or the reason why there is none.
type Begun = Result<Box<SubBlockRun>, Unready>;

impl Live {
    /// Takes the actions in order.
    pub(super) fn apply_actions(&mut self, actions: Vec<Action>, received: Instant) {
        for action in actions {
            match action {
                Action::Add { number, flashblock } => {
                    self.cut_since = None;
                    self.queue.push(number, flashblock, received);
                }
                Action::FallBack(problem) => self.fall_back(problem),
                // The rules have dropped the block. Its canonical block is imported by the caller.
                Action::Replace { number, by } => {
                    self.counts.record_outcome(number.., BlockFate::Replaced(by));
                    self.queue.0.retain(|waiting| waiting.number < number);
                }
                Action::Retire { number } => {
                    self.counts.record_outcome(number..=number, BlockFate::Canonical);
                    self.queue.0.retain(|waiting| waiting.number > number);
                }
                Action::Ignore(_) => {}
            }
        }
        if self.queue.bytes() > self.chain.limits.held {
            tracing::warn!(waiting = self.queue.0.len(), "Flashblocks arrive faster than they are applied");
            self.fail(FeedProblem::TooLate);
        }
    }

    /// Drops the pre-confirmed blocks, for a reason that the rules do not see.
    pub(super) fn fail(&mut self, problem: FeedProblem) {
        if let Some(source) = &mut self.flashblocks {
            source.rules.fail(problem);
        }
        self.fall_back(problem);
    }

    fn fall_back(&mut self, problem: FeedProblem) {
        self.counts.record_outcome(.., BlockFate::Dropped);
        self.queue.0.clear();
        self.cut_since = None;
        self.go_back(self.feed.snapshots.load().head().number(), problem);
    }

    /// Executes the first sub-block of the queue as far as its state is known, or runs a later one in advance.
    pub(super) fn execute_next(&mut self) {
        if !self.queue.can_run() {
            return self.prefetch_next();
        }
        let Some(mut first) = self.queue.0.pop_front() else { return };
        match LiveError::unless_panicked(|| self.advance(&mut first)) {
            Ok(done) => self.publish(done, &first),
            Err(Unready::Missed(missed)) => {
                self.fetch_for(&mut first, missed);
                self.queue.0.push_front(first);
            }
            Err(Unready::NoParent) => {
                first.lacks_parent = true;
                self.queue.0.push_front(first);
            }
            Err(Unready::Failed(error)) => {
                tracing::warn!(%error, block = first.number, index = first.flashblock.index, "a Flashblock is not applied");
                if !matches!(error, LiveError::Transaction { .. }) {
                    self.diverged(first.number, Some(first.flashblock.index), &error);
                }
                self.fail(error.problem());
            }
        }
    }

    /// Continues the execution of a sub-block, and checks the result, or returns the reason why it waits.
    fn advance(&self, first: &mut WaitingSubBlock) -> Result<DoneSubBlock, Unready> {
        let mut begun = match first.begun.take() {
            Some(begun) => begun,
            None => self.begin(first)?,
        };
        let transactions = first.transactions()?;
        let again = begun.again.len();
        loop {
            let executed = begun.run.executed();
            // First the transactions that are executed again, then the sub-block's own.
            let rest = if executed < again { &begun.again[executed..] } else { &transactions[executed - again..] };
            let missed = begun.run.go_on(&self.chain.spec, rest, u64::MAX)?;
            LiveError::unless_executable(&missed)?;
            if !missed.is_empty() {
                first.begun = Some(begun);
                return Err(Unready::Missed(missed));
            }
            if begun.run.executed() == again + transactions.len() {
                break;
            }
        }
        let SubBlockRun { complete, start, run, .. } = *begun;
        let mut snapshot = run.into_snapshot();
        let Some(open) = &mut snapshot.open else { return Err(LiveError::Gone(first.number).into()) };
        open.index = u32::try_from(first.flashblock.index).unwrap_or(u32::MAX);
        let verified = verify(&first.flashblock, open, transactions, &snapshot.world)?;
        let published = self.feed.snapshots.load();
        let below = published.ahead().filter(|ahead| ahead.head.number() < first.number).map(|ahead| ahead.verified);
        let below = below.chain(complete.as_ref().map(|complete| complete.verified)).min();
        snapshot.verified = below.map_or(verified, |below| below.min(verified));
        Ok(DoneSubBlock { complete, start, snapshot })
    }

    /// Returns the state on which to execute a sub-block, or the reason why there is none yet.
    fn begin(&self, first: &WaitingSubBlock) -> Begun {
        let number = first.number;
        let Some(base) = &first.flashblock.base else {
            let newest = self.feed.snapshots.newest();
            let is_of_block = newest.open.as_ref().is_some_and(|open| open.header.number == number);
            if !is_of_block || self.is_superseded() {
                return Err(self.no_parent(number));
            }
            return self.begin_next(first, newest);
        };
        let latest = self.feed.snapshots.load().latest().clone();
        let complete = if latest.head_hash() == base.parent_hash {
            None
        } else if let Some(before) = number.checked_sub(1).and_then(|before| self.preconfirmed(before)) {
            Some(self.seal_preconfirmed(before, base.parent_hash)?)
        } else {
            return Err(self.no_parent(number));
        };
        let parent = complete.as_ref().unwrap_or(&latest);
        let mut on = Snapshot::at_head(parent.world.clone(), parent.head.clone(), parent.hashes.clone());
        verify_base(&self.chain.spec, &self.feed.snapshots.load(), &on.head.header, base)?;
        on.state = parent.state;
        let header = self.header(&on.head.header, base, &first.flashblock.diff);
        let (mut run, missed) = BlockRun::begin(&self.chain.spec, &on, header)?;
        if !missed.is_empty() {
            return Err(Unready::Missed(missed));
        }
        if let Some(open) = &run.at().open {
            run.refund(self.refunds(first, open)?);
        }
        let (start, again) = (SubBlockStart::Opens, Vec::new());
        Ok(Box::new(SubBlockRun { complete, start, again, run }))
    }

    /// Returns the refunds of the block `open` with the sub-block after it, which restates all of them.
    fn refunds(&self, first: &WaitingSubBlock, open: &OpenBlock) -> Result<GasRefunds, LiveError> {
        let (word, own) = (first.flashblock.post_exec.clone()?, first.transactions()?);
        let Some(post_exec) = word else { return Ok(GasRefunds::default()) };
        let before = open.transactions.len();
        let at = |index: usize| match index.checked_sub(before) {
            None => open.transactions.get(index),
            Some(index) => own.get(index),
        };
        let is_lagoon = self.chain.spec.has_post_exec(open.header.timestamp);
        let kinds = |index| at(index).map(Recovered::inner);
        Ok(GasRefunds::checked(is_lagoon, open.header.number, post_exec, kinds)?)
    }

    /// Returns the state on which to execute the next sub-block of the block being built: `newest`, unless the refunds
    /// of executed transactions have changed. Then the block is executed again from its start.
    fn begin_next(&self, first: &WaitingSubBlock, newest: Arc<Snapshot>) -> Begun {
        let Some(open) = &newest.open else { return Err(self.no_parent(first.number)) };
        let refunds = self.refunds(first, open)?;
        let (complete, again) = Default::default();
        let executed = open.transactions.len();
        if !refunds.agrees_on(executed, &open.refunds) {
            return self.begin_again(first.number, &newest, open, refunds);
        }
        let is_same = refunds == open.refunds;
        let mut run = BlockRun::resume(newest);
        if !is_same {
            run.refund(refunds);
        }
        let start = SubBlockStart::Extends;
        Ok(Box::new(SubBlockRun { complete, start, again, run }))
    }

    /// Returns the start of the block being built, with other refunds.
    fn begin_again(&self, number: u64, newest: &Snapshot, open: &OpenBlock, refunds: GasRefunds) -> Begun {
        let published = self.feed.snapshots.load();
        let parent = number.checked_sub(1).and_then(|before| published.state_after(before));
        let parent = parent.filter(|parent| parent.head_hash() == newest.head_hash()).ok_or(LiveError::Gone(number))?;
        let mut on = Snapshot::at_head(parent.world.clone(), parent.head.clone(), parent.hashes.clone());
        on.state = parent.state;
        let (mut run, missed) = BlockRun::begin(&self.chain.spec, &on, open.header.clone())?;
        if !missed.is_empty() {
            return Err(Unready::Missed(missed));
        }
        run.refund(refunds);
        let again = open.transactions.iter().cloned().collect();
        let (complete, start) = (None, SubBlockStart::Restates);
        Ok(Box::new(SubBlockRun { complete, start, again, run }))
    }

    /// Returns that the parent of a sub-block is still being imported, or that it is gone if nothing is imported.
    fn no_parent(&self, number: u64) -> Unready {
        if self.is_importing() { Unready::NoParent } else { LiveError::Gone(number).into() }
    }

    /// Publishes a sub-block that has been executed and checked.
    fn publish(&mut self, done: DoneSubBlock, first: &WaitingSubBlock) {
        let DoneSubBlock { complete, start, snapshot } = done;
        if self.is_superseded() && !(start == SubBlockStart::Opens && complete.is_none()) {
            return;
        }
        if start == SubBlockStart::Opens {
            self.counts.begin(first.number);
        }
        // Counted first, so that a client that sees the snapshot finds it in the metrics, too.
        self.counts.applied.increment(1);
        // Set first, so that a client that sees the snapshot finds it at `pending`.
        if self.feed.status.is_degraded() {
            self.set(self.live());
        }
        match self.feed.publish(Record::Preconfirmed { complete, start, open: snapshot }) {
            Ok(_) => self.feed.count(first.received.into_std()),
            Err(error) => {
                tracing::warn!(%error, "a Flashblock is not applied");
                self.fail(FeedProblem::UnknownParent);
            }
        }
    }

    /// Fetches the state that the first sub-block of the queue has missed, and the state that its other transactions
    /// will need.
    fn fetch_for(&self, first: &mut WaitingSubBlock, missed: Missed) {
        let (executed, on) = match &first.begun {
            Some(begun) => (begun.run.executed().saturating_sub(begun.again.len()), begun.run.at().clone()),
            None => (0, self.feed.snapshots.newest()),
        };
        self.prefetch(first, executed, &on, missed);
    }

    /// Runs a sub-block behind the first in advance, on the newest state that there is.
    fn prefetch_next(&mut self) {
        let begun = self.queue.0.front().and_then(|first| first.begun.as_ref()).map(|begun| begun.run.at().clone());
        let on = begun.unwrap_or_else(|| self.feed.snapshots.newest());
        let mut queue = std::mem::take(&mut self.queue);
        if let Some(next) = queue.next_unknown_from() {
            self.prefetch(next, 0, &on, Missed::default());
        }
        self.queue = queue;
    }

    /// Runs the transactions of a sub-block from `from` on without effect, and fetches the state that they lack and
    /// `missed`.
    fn prefetch(&self, waiting: &mut WaitingSubBlock, from: usize, on: &Snapshot, missed: Missed) {
        let WaitingSubBlock { flashblock, lookahead, .. } = waiting;
        // An unreadable transaction is reported when it is the sub-block's turn.
        let transactions = flashblock.transactions.as_deref().unwrap_or_default();
        lookahead.prefetch(&self.chain, on, transactions, from, missed);
    }

    /// Returns the state after a pre-confirmed block, with no block open, after a block with this parent hash has begun.
    fn seal_preconfirmed(&self, before: Preconfirmed, hash: B256) -> Result<Snapshot, LiveError> {
        let Preconfirmed(newest) = before;
        let number = newest.header().number;
        let gone = || LiveError::Gone(number);
        let published = self.feed.snapshots.load();
        let Some(open) = &newest.open else {
            // A builder that changes a block also begins the next block again.
            let is_same = newest.head_hash() == hash;
            return if is_same { Ok(published.as_parent(newest.head.as_ref().clone())?) } else { Err(gone()) };
        };
        let rules = self.flashblocks.as_ref().map(|source| &source.rules);
        let word = rules.and_then(|rules| rules.newest_of(number)).ok_or_else(gone)?;
        let mut header = Header { state_root: word.diff.state_root, ..open.header.clone() };
        open.totals().close(&mut header);
        let receipts = open.receipts.iter().cloned().collect();
        let withdrawals = header.withdrawals_root.map(|_| word.diff.withdrawals.clone().into());
        let transactions = open.transactions.iter().cloned().collect();
        // Builders may leave out the state root. The next block's parent hash is the block's hash nevertheless.
        let sealed = SealedBlock::named(
            Sealed::new_unchecked(header, hash),
            BlockBody { transactions, receipts, withdrawals, ..BlockBody::default() },
        );
        Ok(published.as_parent(sealed.with_refunds(open.refunds.clone()))?)
    }

    /// Returns the header of a block, with the fields of its first sub-block.
    fn header(
        &self,
        parent: &Sealed<Header>,
        base: &OpFlashblockPayloadBase,
        diff: &OpFlashblockPayloadDelta,
    ) -> Header {
        let spec = &self.chain.spec;
        let attributes = Attributes {
            timestamp: base.timestamp,
            fee_recipient: base.fee_recipient,
            prev_randao: base.prev_randao,
            beacon_root: base.parent_beacon_block_root,
            gas_limit: base.gas_limit,
        };
        let next = spec.next_header(parent, base.block_number, attributes);
        Header {
            // The producer's value decides.
            parent_hash: base.parent_hash,
            extra_data: base.extra_data.clone(),
            base_fee_per_gas: Some(base.base_fee_per_gas.saturating_to()),
            excess_blob_gas: next.blob_gas_used,
            withdrawals_root: next
                .withdrawals_root
                .map(|none| if diff.withdrawals_root.is_zero() { none } else { diff.withdrawals_root }),
            ..next
        }
    }
}
