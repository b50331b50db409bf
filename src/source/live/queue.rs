//! Sub-blocks that wait to be applied, and the state that is fetched for them meanwhile.

use std::{collections::VecDeque, sync::Arc, task::Poll};

use alloy_consensus::transaction::Recovered;
use tokio::time::Instant;

use super::{
    flashblocks::{Flashblock, UnreadTx},
    lookahead::Lookahead,
};
use crate::{
    chain::ChainTx,
    engine::BlockRun,
    ledger::{Snapshot, SubBlockStart},
    state::FetchError,
};

/// The sub-blocks that the rules of the stream have admitted and that are not applied yet, oldest first.
///
/// The first one is executed as far as the state that it reads is known. Missing state is fetched, and the execution
/// continues from there. Later ones are run in advance, without effect, so that their state is fetched at the same
/// time.
#[derive(Default)]
pub(super) struct SubBlockQueue(pub(super) VecDeque<WaitingSubBlock>);

/// A sub-block that is being executed.
pub(super) struct SubBlockRun {
    /// The state after the pre-confirmed block before it, if it begins a block on that.
    pub(super) complete: Option<Snapshot>,
    /// The relation to its block.
    pub(super) start: SubBlockStart,
    /// The transactions of its block before it that are executed again, because their refunds are others now. Empty for most.
    pub(super) again: Vec<Recovered<ChainTx>>,
    /// The run of those transactions, and of its own.
    pub(super) run: BlockRun,
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
    pub begun: Option<Box<SubBlockRun>>,
    /// Whether its parent was unknown when it was its turn.
    pub lacks_parent: bool,
    /// The state that it will read.
    pub lookahead: Lookahead,
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

    /// Returns whether a run in advance may find state to fetch.
    fn wants_prefetch(&self) -> bool {
        self.begun.is_none() && self.lookahead.wants_prefetch()
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
            lookahead: Lookahead::default(),
        };
        self.0.push_back(waiting);
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
        self.0.front().is_some_and(|first| first.lookahead.is_fetching())
    }

    /// Returns whether the first sub-block can run.
    pub fn can_run(&self) -> bool {
        self.0.front().is_some_and(|first| !first.lookahead.is_fetching() && !first.lacks_parent)
    }

    /// Returns whether a sub-block behind the first can be run in advance, or the first while its parent is not there.
    pub fn can_prefetch(&self) -> bool {
        self.0.iter().any(WaitingSubBlock::wants_prefetch)
    }

    /// Returns the oldest sub-block that can be run in advance.
    pub fn next_unknown_from(&mut self) -> Option<&mut WaitingSubBlock> {
        self.0.iter_mut().find(|waiting| waiting.wants_prefetch())
    }

    /// Makes the first sub-block search for its parent again.
    pub fn find_parent(&mut self) {
        if let Some(first) = self.0.front_mut() {
            first.lacks_parent = false;
        }
    }

    /// Waits until the fetch of a sub-block has ended, and returns its result. The sub-block can run again.
    pub async fn fetched(&mut self) -> Result<(), FetchError> {
        std::future::poll_fn(|context| {
            let mut all = self.0.iter_mut().map(|waiting| waiting.lookahead.poll(context));
            all.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}
