//! The canonical blocks that are still to be published, and the search for the upstream's newest one.

use std::{collections::VecDeque, time::Duration};

use futures::future::{LocalBoxFuture, OptionFuture};
use tokio::time::Instant;

use super::import::CanonicalNews;
use crate::upstream::UpstreamBlock;

/// The canonical blocks that are being imported.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The blocks to import, each the parent of the next.
    pub(super) path: VecDeque<WaitingBlock>,
    /// The number of them, at the end, that were found while blocks before them were imported.
    pub(super) beside: usize,
    /// The time since which the first of them waits for its sub-blocks to be applied.
    pub(super) waits_since: Option<Instant>,
    /// The task for the first of them, or to begin anew.
    pub(super) task: Option<LocalBoxFuture<'static, CanonicalNews>>,
    /// The time since which the upstream's newest block is to be looked at again.
    pub(super) due_since: Option<Instant>,
    /// The search for the path to the upstream's newest block, also while blocks before it are executed, and the time at
    /// which the block was announced.
    pub(super) look: Option<(LocalBoxFuture<'static, CanonicalNews>, Instant)>,
    /// Whether the newest block is not a descendant of the path, so that it is looked for at the path's end.
    pub(super) leaves_path: bool,
    /// The time since which the upstream does not have a block that it has announced, or an ancestor of it.
    pub(super) unknown_since: Option<Instant>,
}

/// A canonical block that is to be imported.
pub(super) struct WaitingBlock {
    pub(super) block: UpstreamBlock,
    /// The time at which the upstream announced it, or a block after it.
    pub(super) since: Instant,
}

impl CatchUp {
    /// Waits for the result of the task.
    pub async fn news(&mut self) -> CanonicalNews {
        let Self { task, look, .. } = self;
        let search = look.as_mut().map(|(search, _)| search);
        tokio::select! {
            biased;
            Some(news) = OptionFuture::from(task.as_mut()) => {
                self.task = None;
                news
            }
            Some(news) = OptionFuture::from(search) => news,
            else => std::future::pending().await,
        }
    }

    /// Notes that the upstream's newest block is to be looked at.
    pub fn look(&mut self) {
        self.look_since(Instant::now());
    }

    /// Notes that the upstream's newest block, which was announced at `since`, is to be looked at.
    pub fn look_since(&mut self, since: Instant) {
        self.due_since.get_or_insert(since);
    }

    /// Appends blocks, newest first, the newest of which was announced at `since`.
    pub fn append(&mut self, path: Vec<UpstreamBlock>, since: Instant) {
        self.path.extend(path.into_iter().rev().map(|block| WaitingBlock { block, since }));
    }

    /// Returns the time since which a newer block than the published one is announced.
    pub fn since(&self) -> Option<Instant> {
        let first = self.path.front().map(|waiting| waiting.since);
        let looks = first.or_else(|| self.look.as_ref().map(|(_, since)| *since)).or(self.due_since);
        looks.into_iter().chain(self.unknown_since).min()
    }

    /// Returns the number of blocks that are known to wait.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.path.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether the upstream's newest block is to be looked for now: at most `gap` blocks wait to be imported.
    pub fn may_look(&self, gap: usize) -> bool {
        let is_free = match self.path.len() {
            0 => self.task.is_none(),
            waiting => waiting < gap && !self.leaves_path,
        };
        is_free && self.look.is_none() && self.due_since.is_some()
    }

    /// Returns the time at which a block no longer waits for its sub-blocks.
    pub fn deadline(&self, execute: Duration) -> Option<Instant> {
        self.waits_since.map(|since| since + execute)
    }
}
