//! Standing bundles: what each has read and answered, and which are due. Pure bookkeeping, without clocks and I/O.

use std::{cmp::Reverse, sync::Arc};

use alloy_primitives::I256;

use super::{
    bundle::{Answer, StaleReason},
    history::StateHistory,
    index::ReadIndex,
};
use crate::{
    engine::{BlockContext, ContextChange},
    ledger::{Snapshot, SnapshotId, StateId},
    state::ReadSet,
};

/// The standing bundles of one client, each with its request `R` and its answer `A`.
#[derive(Debug)]
pub struct StandingBundles<R, A> {
    bundles: Vec<StandingBundle<R, A>>,
    index: ReadIndex,
    /// The point of the chain for which the due bundles are known.
    at: Option<Arc<ChainPoint>>,
    /// Whether the bundles behind at this point were announced.
    pub(super) announced_behind: bool,
    /// The bytes that the bundles take without their requests.
    bytes: usize,
}

/// A point of the chain, from which steps lead to others.
#[derive(Debug)]
pub struct ChainPoint {
    name: SnapshotName,
    state: StateId,
    context: BlockContext,
}

/// The names of a snapshot, by which clients ask for the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    /// The id of the snapshot.
    pub id: SnapshotId,
    /// The number of the newest sealed block.
    pub sealed: u64,
    /// The number of the block being built, or of the newest one where none is built.
    pub number: u64,
    /// The time of that block in seconds.
    pub timestamp: u64,
    /// The base fee of that block in wei; `None` before London.
    pub base_fee: Option<u64>,
}

/// A standing bundle.
#[derive(Debug)]
pub struct StandingBundle<R, A> {
    /// The name given by the client.
    pub name: String,
    /// The request.
    pub request: R,
    /// The answer that was announced last; `None` before the first.
    pub announced: Option<StandingAnswer<A>>,
    reads: ReadSet,
    /// Whether it must run.
    pub is_due: bool,
    /// The snapshot of the last run, or the newest one for which the answer holds if the bundle is due. `None` before the
    /// first run.
    pub holds_at: Option<SnapshotName>,
    /// The reason why its last run gave no answer.
    pub stale: Option<StaleReason>,
    /// Whether its last run was too long to be one of several on a worker.
    is_long: bool,
    /// The number of snapshots at which it was due and did not run.
    passed_over: u32,
    /// The objective of its last run.
    pub gained: Option<I256>,
}

/// An answer that was announced.
#[derive(Clone, Debug)]
pub struct StandingAnswer<A> {
    /// The answer. `None` if the objective is not above the client's minimum.
    pub answer: Option<A>,
    /// The snapshot with which it began to hold.
    pub since: SnapshotId,
    /// Whether it was announced before that the bundle is behind at this snapshot.
    is_late: bool,
}

/// The end of a run of a bundle.
#[derive(Debug)]
pub enum StandingRun<A> {
    /// An answer or an error, which holds until something that was read changes. The answer is `None` if the objective
    /// is not above the client's minimum. `is_long` is whether the run was too long to share a worker with others.
    Answered { answer: Option<A>, reads: ReadSet, gained: Option<I256>, is_long: bool },
    /// No answer, because a bound or a fault ended the run.
    Stale(StaleReason),
    /// No answer yet: the run was ended because others wait behind it, and the bundle must run by itself.
    TooLong,
}

/// The number of snapshots after which a bundle that was passed over goes first.
const MAX_PASSED_OVER: u32 = 5;

impl<R, A: Answer> StandingBundles<R, A> {
    /// Creates bundles that are all due.
    pub fn new(bundles: impl IntoIterator<Item = (String, R)>) -> Self {
        let new = |(name, request)| StandingBundle {
            name,
            request,
            announced: None,
            reads: ReadSet::default(),
            is_due: true,
            holds_at: None,
            stale: None,
            is_long: false,
            passed_over: 0,
            gained: None,
        };
        let bundles: Vec<_> = bundles.into_iter().map(new).collect();
        let bytes = bundles.iter().map(StandingBundle::bytes).sum();
        Self { bundles, index: ReadIndex::default(), at: None, announced_behind: false, bytes }
    }

    /// Returns the bundles, in the client's order.
    pub fn bundles(&self) -> &[StandingBundle<R, A>] {
        &self.bundles
    }

    /// Returns the bytes that the bundles take without their requests.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes that bundle `at` takes more with this answer and these reads than it does now.
    pub fn growth(&self, at: u32, answer: &A, reads: &ReadSet) -> usize {
        (answer.bytes() + reads_bytes(reads)).saturating_sub(self.bundles[at as usize].answer_bytes())
    }

    /// Returns the snapshot for which the due bundles are known.
    pub fn at(&self) -> Option<SnapshotId> {
        self.name().map(|name| name.id)
    }

    /// Returns the names of that snapshot.
    pub fn name(&self) -> Option<SnapshotName> {
        self.at.as_ref().map(|at| at.name)
    }

    /// Returns the point of the chain at which that snapshot is, for runs that may end when it is no longer the current
    /// one.
    pub fn point(&self) -> Option<Arc<ChainPoint>> {
        self.at.clone()
    }

    /// Moves to a snapshot. Bundles whose reads have changed since the last one become due, or all bundles if the
    /// changes are unknown. Due bundles stay due.
    pub fn advance(&mut self, snapshot: &Snapshot, context: BlockContext, history: &StateHistory) {
        let now = ChainPoint { name: SnapshotName::of(snapshot), state: snapshot.state, context };
        self.announced_behind = false;
        if let Some(was) = self.at.take() {
            let bundles = &mut self.bundles;
            bundles.iter_mut().filter(|bundle| bundle.is_due).for_each(|bundle| bundle.passed_over += 1);
            let due = |reader: u32| bundles[reader as usize].become_due(was.name);
            match self.index.between(&was, &now, history, due) {
                Some(change) => {
                    let short = bundles.iter_mut().filter(|bundle| bundle.reads.gas > change.gas_left);
                    short.for_each(|bundle| bundle.become_due(was.name));
                }
                None => bundles.iter_mut().for_each(|bundle| bundle.become_due(was.name)),
            }
        }
        self.at = Some(Arc::new(now));
    }

    /// Returns the due bundles that `may_run` and are not long, in running order: bundles passed over several times,
    /// then the best objectives. Bundles whose last run gave no answer are last.
    pub fn due(&self, may_run: impl Fn(&R) -> bool) -> Vec<u32> {
        let mut due = self.due_among(|bundle| !bundle.is_long && may_run(&bundle.request));
        due.sort_by_key(|at| {
            let bundle = &self.bundles[*at as usize];
            (bundle.stale.is_some(), Reverse(bundle.passed_over >= MAX_PASSED_OVER), Reverse(bundle.gained))
        });
        due
    }

    /// Returns the due long bundles that `may_run`, in running order: the most often passed over, then the best
    /// objectives.
    pub fn long_due(&self, may_run: impl Fn(&R) -> bool) -> Vec<u32> {
        let mut due = self.due_among(|bundle| bundle.is_long && may_run(&bundle.request));
        due.sort_by_key(|at| {
            let bundle = &self.bundles[*at as usize];
            (Reverse(bundle.passed_over), Reverse(bundle.gained))
        });
        due
    }

    fn due_among(&self, is_meant: impl Fn(&StandingBundle<R, A>) -> bool) -> Vec<u32> {
        let due = (0..).zip(&self.bundles).filter(|(_, bundle)| bundle.is_due && is_meant(bundle));
        due.map(|(at, _)| at).collect()
    }

    /// Returns the names of the bundles that are due and that `may_run`, each with the newest snapshot for which its
    /// answer holds and the reason why its last run gave none.
    pub fn behind(&self, may_run: impl Fn(&R) -> bool) -> impl Iterator<Item = &StandingBundle<R, A>> {
        self.bundles.iter().filter(move |bundle| bundle.is_due && may_run(&bundle.request))
    }

    /// Returns the newest snapshot for which the answer of a bundle is known to hold, or `None` before its first run.
    pub fn holds_at(&self, bundle: &StandingBundle<R, A>) -> Option<SnapshotName> {
        if bundle.is_due { bundle.holds_at } else { self.name() }
    }

    /// Returns the bundles whose answers began to hold after the snapshot `id`.
    pub fn changed_after(&self, id: SnapshotId) -> impl Iterator<Item = (&StandingBundle<R, A>, &StandingAnswer<A>)> {
        self.announced().filter(move |(_, announced)| announced.since > id)
    }

    /// Returns the bundles whose answers a client may lack if it has the news of the snapshot `id`, including bundles
    /// that were behind then.
    pub fn news_since(&self, id: SnapshotId) -> impl Iterator<Item = (&StandingBundle<R, A>, &StandingAnswer<A>)> {
        self.announced()
            .filter(move |(_, announced)| announced.since > id || announced.is_late && announced.since == id)
    }

    fn announced(&self) -> impl Iterator<Item = (&StandingBundle<R, A>, &StandingAnswer<A>)> {
        self.bundles.iter().filter_map(|bundle| Some((bundle, bundle.announced.as_ref()?)))
    }

    /// Records the end of a run of bundle `at` on the current snapshot. Returns the answer if it is another than before.
    pub fn record(&mut self, at: u32, run: StandingRun<A>) -> Option<(&str, &StandingAnswer<A>)> {
        let now = self.name()?;
        let bundle = &mut self.bundles[at as usize];
        self.bytes -= bundle.bytes();
        let is_news = match run {
            StandingRun::Stale(reason) => {
                (bundle.stale, bundle.passed_over) = (Some(reason), 0);
                false
            }
            StandingRun::TooLong => {
                bundle.is_long = true;
                false
            }
            StandingRun::Answered { answer, reads, gained, is_long } => {
                self.index.replace(at, &bundle.reads, &reads);
                (bundle.reads, bundle.gained, bundle.is_long) = (reads, gained, is_long);
                (bundle.is_due, bundle.stale, bundle.passed_over, bundle.holds_at) = (false, None, 0, Some(now));
                // A fall below is announced once, and only if the objective was above before.
                let is_news = match &bundle.announced {
                    Some(announced) => announced.answer != answer,
                    None => answer.is_some(),
                };
                if is_news {
                    bundle.announced = Some(StandingAnswer { answer, since: now.id, is_late: self.announced_behind });
                }
                is_news
            }
        };
        self.bytes += bundle.bytes();
        let announced = bundle.announced.as_ref().filter(|_| is_news)?;
        Some((&bundle.name, announced))
    }

    /// Records the end of a run of bundle `at` that began at `point`, like [`record`](Self::record). If its reads may
    /// have changed since, the answer holds at `point`, and the bundle stays due.
    pub fn record_from(
        &mut self,
        point: &ChainPoint,
        history: &StateHistory,
        at: u32,
        run: StandingRun<A>,
    ) -> Option<(&str, &StandingAnswer<A>)> {
        let now = self.at.clone()?;
        let is_news = self.record(at, run).is_some();
        if point.name.id != now.name.id {
            let mut is_touched = false;
            let change = self.index.between(point, &now, history, |reader| is_touched |= reader == at);
            let bundle = &mut self.bundles[at as usize];
            if is_touched || change.is_none_or(|change| bundle.reads.gas > change.gas_left) {
                bundle.become_due(point.name);
            }
        }
        let bundle = &self.bundles[at as usize];
        let announced = bundle.announced.as_ref().filter(|_| is_news)?;
        Some((&bundle.name, announced))
    }
}

impl ReadIndex {
    /// Calls `found` with each bundle that has read something that differs between two points. Returns how the block
    /// differs, or `None` if the differences are unknown. Ignores bounds of gas.
    fn between(
        &self,
        was: &ChainPoint,
        now: &ChainPoint,
        history: &StateHistory,
        mut found: impl FnMut(u32),
    ) -> Option<ContextChange> {
        let change = was.context.change_to(&now.context);
        let steps = if change.everything { None } else { history.between(was.state, now.state) };
        steps?.iter().for_each(|step| self.touched(&step.touched, &mut found));
        self.changed(&change, found);
        Some(change)
    }
}

impl SnapshotName {
    fn of(snapshot: &Snapshot) -> Self {
        let header = snapshot.header();
        Self {
            id: snapshot.id,
            sealed: snapshot.head.number(),
            number: header.number,
            timestamp: header.timestamp,
            base_fee: header.base_fee_per_gas,
        }
    }
}

impl<R, A: Answer> StandingBundle<R, A> {
    /// Makes the bundle due. Its answer holds up to the snapshot `last`.
    fn become_due(&mut self, last: SnapshotName) {
        if !self.is_due {
            (self.is_due, self.holds_at) = (true, Some(last));
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.answer_bytes()
    }

    fn answer_bytes(&self) -> usize {
        self.announced.as_ref().and_then(|told| told.answer.as_ref()).map_or(0, Answer::bytes)
            + reads_bytes(&self.reads)
    }
}

/// Returns about how many bytes reads take, with their entries in the index.
fn reads_bytes(reads: &ReadSet) -> usize {
    let slots: usize = reads.accounts.iter().map(|account| 32 * account.slots.len()).sum();
    slots + 64 * reads.accounts.len() + ReadIndex::size(reads)
}
