//! The changes of a chain.

use std::sync::Arc;

use super::{BlockChanges, Chain, FeedState, Snapshot, Tags, Verified};
use crate::chain::{BlockHashes, SealedBlock};

/// The relation of a sub-block of a pre-confirmed block to the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubBlockStart {
    /// The sub-block extends the block being built.
    Extends,
    /// The sub-block begins its block. Everything pre-confirmed from that block on is removed.
    Opens,
    /// The sub-block replaces the block being built, which was executed again from its start because the refunds of
    /// earlier transactions have changed. The earlier snapshots stay.
    Restates,
}

/// One change of a chain. Each takes the next sequence of its epoch, whether it brings a snapshot or not.
#[derive(Debug)]
pub enum Record {
    /// The next sub-block of the block being built, or the block opened on a head that has none.
    SubBlock(Snapshot),
    /// The block being built is complete and canonical. The same head may be sealed again with another state, for tests.
    Seal {
        /// The state after the block, with no open block.
        sealed: Snapshot,
        /// The empty block opened on it, under the same id, if the chain continues.
        next: Option<Snapshot>,
    },
    /// A sub-block of a block that is not canonical yet.
    Preconfirmed {
        /// The state after the pre-confirmed block before it, if the sub-block is the first on that. Everything pre-confirmed
        /// from there on is removed.
        complete: Option<Snapshot>,
        /// The relation of the sub-block to its block.
        start: SubBlockStart,
        /// The state after the sub-block. Its open block is the pre-confirmed one.
        open: Snapshot,
    },
    /// The upstream's next block. The pre-confirmed blocks on it stay if it is one of them, unchanged, and are removed
    /// otherwise.
    Canonical {
        /// The block.
        block: SealedBlock,
        /// The changes of the state.
        changes: BlockChanges,
        /// The extent to which the block was compared with its producer's word.
        verified: Verified,
    },
    /// The content of a canonical block that was published as a header only: its body, its logs, or neither if the
    /// upstream will not provide them.
    Content(SealedBlock),
    /// The return to a block: from which the chain takes another branch, or to the canonical head, from which the
    /// pre-confirmed blocks are removed. Everything after the block is removed at once.
    GoBack {
        /// The block's number.
        number: u64,
        /// The health of the feed.
        feed: FeedState,
    },
    /// A canonical block of the upstream without known ancestors. Everything known before is removed.
    Restart {
        /// The block.
        block: SealedBlock,
        /// The hashes of the block and of its ancestors, as far as they are known.
        hashes: BlockHashes,
        /// The extent to which the block was compared with its producer's word.
        verified: Verified,
    },
    /// The return to an earlier moment. Everything published since is removed.
    Return(Arc<Chain>),
    /// The blocks that the upstream calls safe and final. They may be above the head, while that is caught up with.
    Tags(Tags),
    /// The health of the feed.
    Feed(FeedState),
}
