//! Sub-blocks that wait to be applied, and the state that is fetched for them meanwhile.

use std::{collections::VecDeque, sync::Arc, task::Poll};

use alloy_consensus::transaction::Recovered;
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::time::Instant;

use super::flashblocks::{Flashblock, UnreadTx};
use crate::{
    chain::ChainTx,
    ledger::{Snapshot, StateStep, SubBlockStart},
    state::{FetchError, Held},
};

/// The sub-blocks that the rules of the stream have admitted and that are not applied yet, oldest first.
///
/// The first one is executed as far as the state that it reads is known. Where state is missing, it is fetched, and the
/// execution goes on from there. Those behind it are run in advance, without effect, so that their state is fetched at
/// the same time.
#[derive(Default)]
pub(super) struct SubBlockQueue(VecDeque<WaitingSubBlock>);

/// A sub-block that has been executed in part. The rest is executed on `snapshot`.
pub(super) struct BegunSubBlock {
    /// The state after the pre-confirmed block before it, if it begins a block on that.
    pub(super) complete: Option<Snapshot>,
    /// The relation to its block.
    pub(super) start: SubBlockStart,
    /// The transactions of its block before it that are executed again, because their refunds are others now. Empty for most.
    pub(super) again: Vec<Recovered<ChainTx>>,
    /// The state after the transactions so far.
    pub(super) snapshot: Arc<Snapshot>,
    /// The steps of the parts.
    pub(super) path: Vec<Arc<StateStep>>,
    /// The number of transactions that have been executed: of those that are executed again, and of its own.
    pub(super) executed: usize,
}

/// A sub-block in the queue.
pub(super) struct WaitingSubBlock {
    /// The number of its block.
    pub number: u64,
    /// The sub-block.
    pub flashblock: Arc<Flashblock>,
    /// The time of its arrival.
    pub received: Instant,
    /// The part of it that has been executed.
    pub begun: Option<Box<BegunSubBlock>>,
    /// Whether its parent was not known when its turn came.
    pub lacks_parent: bool,
    /// The transactions, by index, that have not run yet without missing state. `None` before the first look.
    unknown: Option<Vec<usize>>,
    /// The fetch of the state that it has missed.
    fetch: Option<LocalBoxFuture<'static, Result<Held, FetchError>>>,
    /// The state that was fetched for it.
    held: Held,
}

impl WaitingSubBlock {
    /// Returns the transactions with their senders.
    ///
    /// # Errors
    ///
    /// Returns the first transaction that cannot be read.
    pub fn transactions(&self) -> Result<&[Recovered<ChainTx>], UnreadTx> {
        self.flashblock.transactions.as_deref().map_err(Clone::clone)
    }

    /// Returns whether state is fetched for it.
    pub const fn is_fetching(&self) -> bool {
        self.fetch.is_some()
    }

    /// Waits for `fetch` before it is run again.
    pub fn wait_for(&mut self, fetch: impl Future<Output = Result<Held, FetchError>> + 'static) {
        self.fetch = Some(fetch.boxed_local());
    }

    /// Returns the transactions, from the one at `from` on, whose state may not be known yet, and whether this is the
    /// first look at them.
    pub fn unknown_from(&mut self, from: usize) -> (Vec<usize>, bool) {
        let count = self.flashblock.transactions.as_ref().map_or(0, |all| all.len());
        let is_first = self.unknown.is_none();
        let unknown = self.unknown.get_or_insert_with(|| (0..count).collect());
        unknown.retain(|index| *index >= from);
        (unknown.clone(), is_first)
    }

    /// Sets the transactions that have missed state.
    pub fn prefetched(&mut self, still: Vec<usize>) {
        self.unknown = Some(still);
    }

    /// Returns whether a run in advance may find state to fetch.
    fn wants_prefetch(&self) -> bool {
        !self.is_fetching() && self.begun.is_none() && self.unknown.as_ref().is_none_or(|unknown| !unknown.is_empty())
    }
}

impl SubBlockQueue {
    /// Appends a sub-block.
    pub fn push(&mut self, number: u64, flashblock: Arc<Flashblock>, received: Instant) {
        let waiting = WaitingSubBlock {
            number,
            flashblock,
            received,
            begun: None,
            lacks_parent: false,
            unknown: None,
            fetch: None,
            held: Held::default(),
        };
        self.0.push_back(waiting);
    }

    /// Returns the number of sub-blocks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of the sub-blocks, as JSON.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|waiting| waiting.flashblock.size).sum()
    }

    /// Returns the time at which the oldest sub-block arrived.
    pub fn since(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.received).min()
    }

    /// Returns whether a sub-block of the block with this number waits.
    pub fn has(&self, number: u64) -> bool {
        self.0.iter().any(|waiting| waiting.number == number)
    }

    /// Returns whether the first sub-block waits for state.
    pub fn is_fetching(&self) -> bool {
        self.0.front().is_some_and(WaitingSubBlock::is_fetching)
    }

    /// Returns whether the first sub-block can run.
    pub fn can_run(&self) -> bool {
        self.0.front().is_some_and(|first| !first.is_fetching() && !first.lacks_parent)
    }

    /// Returns whether a sub-block behind the first can be run in advance, or the first while its parent is not there.
    pub fn can_prefetch(&self) -> bool {
        self.0.iter().any(WaitingSubBlock::wants_prefetch)
    }

    /// Returns the first sub-block.
    pub fn first(&mut self) -> Option<&mut WaitingSubBlock> {
        self.0.front_mut()
    }

    /// Takes the first sub-block.
    pub fn pop(&mut self) -> Option<WaitingSubBlock> {
        self.0.pop_front()
    }

    /// Puts back the first sub-block.
    pub fn put_back(&mut self, first: WaitingSubBlock) {
        self.0.push_front(first);
    }

    /// Returns the oldest sub-block that can be run in advance.
    pub fn next_unknown_from(&mut self) -> Option<&mut WaitingSubBlock> {
        self.0.iter_mut().find(|waiting| waiting.wants_prefetch())
    }

    /// Lets the first sub-block look for its parent again.
    pub fn look_for_parent(&mut self) {
        if let Some(first) = self.0.front_mut() {
            first.lacks_parent = false;
        }
    }

    /// Drops the sub-blocks of the blocks from `number` on.
    pub fn drop_from(&mut self, number: u64) {
        self.0.retain(|waiting| waiting.number < number);
    }

    /// Drops the sub-blocks of the blocks up to `number`.
    pub fn drop_to(&mut self, number: u64) {
        self.0.retain(|waiting| waiting.number > number);
    }

    /// Drops all sub-blocks.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Waits until the fetch of a sub-block has ended, and returns its result. The sub-block can run again.
    pub async fn fetched(&mut self) -> Result<(), FetchError> {
        std::future::poll_fn(|context| {
            for waiting in &mut self.0 {
                if let Some(fetch) = &mut waiting.fetch
                    && let Poll::Ready(fetched) = fetch.poll_unpin(context)
                {
                    waiting.fetch = None;
                    return Poll::Ready(fetched.map(|values| waiting.held.extend(values)));
                }
            }
            Poll::Pending
        })
        .await
    }
}
