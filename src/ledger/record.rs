//! The changes of what is published.

use std::{sync::Arc, time::Instant};

use super::{Chain, FeedState, Snapshot, Tags};
use crate::chain::SealedBlock;
use crate::state::AccountChange;

/// One change of what [`Snapshots`](super::Snapshots) publish. Each takes the next sequence of its epoch, whether it brings
/// a snapshot or not.
#[derive(Debug)]
pub enum Publication {
    /// The next sub-block of the block being built, or the block opened on a head that has none.
    SubBlock(Snapshot),
    /// A sealed block.
    Seal {
        /// The state after the block, with no open block.
        sealed: Snapshot,
        /// The empty block opened on it, under the same id, if the chain goes on.
        next: Option<Snapshot>,
    },
    /// The next canonical block of an upstream, with no open block. Everything from its number on is removed: the dead
    /// branch of a reorg, and blocks that were pre-confirmed otherwise.
    Canonical(Snapshot),
    /// A sub-block of a pre-confirmed block. Everything pre-confirmed from the open block's number on, or from the complete
    /// one's, is removed.
    PreConfirmed {
        /// The state after the pre-confirmed block before it, if the sub-block is the first of its block.
        complete: Option<Snapshot>,
        /// The state after the sub-block, whose open block is the pre-confirmed one.
        open: Snapshot,
    },
    /// A pre-confirmed block that is canonical without a change: the snapshot replaces it, and the pre-confirmed blocks on
    /// it stay.
    Confirm(Snapshot),
    /// All that is pre-confirmed, in place of what was: complete blocks, oldest first, and the one being built on them.
    Ahead {
        /// The states after the complete blocks, each with the changes since the canonical head.
        complete: Vec<(Snapshot, Arc<Vec<AccountChange>>)>,
        /// The state of the block being built; `None` if nothing is pre-confirmed.
        open: Option<Snapshot>,
    },
    /// The return of the canonical chain to a block from which it takes another branch. Everything after it is removed at
    /// once.
    GoBack {
        /// The block's number.
        number: u64,
        /// The health of the feed.
        feed: FeedState,
    },
    /// The removal of what was pre-confirmed: the newest snapshot is the canonical one again.
    FallBack(FeedState),
    /// The content of a canonical block that was published as a header alone: its body, its logs, or neither if the upstream
    /// will not tell them.
    Content(SealedBlock),
    /// A canonical block without known ancestors. Everything known before is removed.
    Restart(Snapshot),
    /// The return to what was published at an earlier moment. Everything published since is removed.
    Return(Arc<Chain>),
    /// The blocks that the upstream calls safe and final.
    Tags(Tags),
    /// The health of the feed.
    Feed(FeedState),
}

impl Publication {
    /// Returns the newest snapshot of the change; `None` if it brings none.
    pub fn newest(&self) -> Option<&Snapshot> {
        match self {
            Self::SubBlock(next) | Self::Canonical(next) | Self::Confirm(next) | Self::Restart(next) => Some(next),
            Self::Seal { sealed, next } => Some(next.as_ref().unwrap_or(sealed)),
            Self::PreConfirmed { open, .. } => Some(open),
            Self::Ahead { complete, open } => open.as_ref().or_else(|| complete.last().map(|(last, _)| last)),
            Self::GoBack { .. }
            | Self::FallBack(_)
            | Self::Content(_)
            | Self::Return(_)
            | Self::Tags(_)
            | Self::Feed(_) => None,
        }
    }

    /// Returns the same, whose snapshots were published at this moment.
    #[must_use]
    pub fn dated(mut self, moment: Instant) -> Self {
        let date = |snapshot: &mut Snapshot| snapshot.published = moment;
        match &mut self {
            Self::SubBlock(next) | Self::Canonical(next) | Self::Confirm(next) | Self::Restart(next) => date(next),
            Self::Seal { sealed, next } => [Some(sealed), next.as_mut()].into_iter().flatten().for_each(date),
            Self::PreConfirmed { complete, open } => {
                [complete.as_mut(), Some(open)].into_iter().flatten().for_each(date)
            }
            Self::Ahead { complete, open } => {
                complete.iter_mut().map(|(complete, _)| complete).chain(open).for_each(date)
            }
            Self::GoBack { .. }
            | Self::FallBack(_)
            | Self::Content(_)
            | Self::Return(_)
            | Self::Tags(_)
            | Self::Feed(_) => {}
        }
        self
    }

    /// Returns the name of the kind of change, as metrics and errors show it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SubBlock(_) => "sub_block",
            Self::Seal { .. } => "seal",
            Self::Canonical(_) => "canonical",
            Self::PreConfirmed { .. } => "pre_confirmed",
            Self::Confirm(_) => "confirm",
            Self::Ahead { .. } => "ahead",
            Self::GoBack { .. } => "go_back",
            Self::FallBack(_) => "fall_back",
            Self::Content(_) => "content",
            Self::Restart(_) => "begin_anew",
            Self::Return(_) => "return",
            Self::Tags(_) => "tags",
            Self::Feed(_) => "feed",
        }
    }
}
