//! From publications to notifications.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::B256;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{changes::ChangeAnnouncer, feed::FeedAnnouncer, logs::LogsOfBlocks, round::Round};
use crate::rpc::run::subscriptions::{Subscription, Subscriptions};
use crate::{
    chain::SealedBlock,
    ledger::{Block, Chain, LateBounds, Selector, SnapshotId, Snapshots},
    pool::Pool,
};

/// Announces every snapshot from now on, and every transaction that enters the pool, until the node ends. After a
/// panic, which is logged, it continues with the then published state.
pub async fn announce(subscriptions: Arc<Subscriptions>, snapshots: Arc<Snapshots>, pool: Arc<Pool>, late: LateBounds) {
    loop {
        let round = tokio::spawn(announce_each(subscriptions.clone(), snapshots.clone(), pool.subscribe(), late));
        match round.await {
            Err(error) if error.is_panic() => tracing::error!(%error, "restarting notifications to subscribers"),
            _ => return,
        }
    }
}

async fn announce_each(
    subscriptions: Arc<Subscriptions>,
    snapshots: Arc<Snapshots>,
    mut pooled: broadcast::Receiver<Arc<Recovered<TxEnvelope>>>,
    late: LateBounds,
) {
    let mut changes = snapshots.changes();
    let mut feed = FeedAnnouncer::default();
    let mut seen = LastAnnounced::at(&snapshots.load(), late);
    let mut pool_is_open = true;
    loop {
        // Enabled before the list is read, so that no subscription that begins meanwhile is missed.
        let mut moved = std::pin::pin!(subscriptions.moved.notified());
        moved.as_mut().enable();
        if subscriptions.list().iter().any(Subscription::is_about_feed) {
            let published = snapshots.load();
            subscriptions.announce(|round| feed.announce(&published, round));
        }
        tokio::select! {
            () = moved => {}
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let published = snapshots.load();
                if subscriptions.list().iter().any(Subscription::needs_header) {
                    // The block being built is hashed before the list is locked, so that no subscriber waits for it.
                    for snapshot in published.snapshots_after(seen.snapshot) {
                        let _ = snapshot.open_block();
                    }
                }
                subscriptions.announce(|round| seen.catch_up(&published, round));
            }
            () = until(seen.logs.due()) => {
                let published = snapshots.load();
                subscriptions.announce(|round| seen.logs.catch_up(&published, round));
            }
            tx = pooled.recv(), if pool_is_open => match tx {
                Ok(tx) => subscriptions.announce(|round| round.pooled(&tx)),
                // After a flood of transactions, only the newest are announced.
                Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "pending transactions were not announced"),
                Err(RecvError::Closed) => pool_is_open = false,
            },
        }
    }
}

/// Waits until `due`; never resolves if there is no time.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// The last snapshot that was announced.
struct LastAnnounced {
    snapshot: SnapshotId,
    /// The number of times that the chain had returned to an earlier state.
    returns: u64,
    /// The newest canonical blocks, oldest first, which a reorg may remove.
    heads: VecDeque<(u64, B256)>,
    /// The logs of the late blocks.
    logs: LogsOfBlocks,
    /// The number of the block being built, and how many of its transactions were announced.
    open: (u64, usize),
    changes: ChangeAnnouncer,
}

impl LastAnnounced {
    fn at(published: &Chain, late: LateBounds) -> Self {
        let newest = &published.newest;
        let open = newest.open.as_ref().filter(|open| !open.is_draft);
        let count = open.map_or(0, |open| open.transactions.len());
        let heads = VecDeque::from([(published.head().number(), published.head().hash())]);
        let (changes, logs) = (ChangeAnnouncer::at(published), LogsOfBlocks::after(published, late));
        let open = (newest.header().number, count);
        Self { snapshot: newest.id, returns: published.returns, heads, logs, open, changes }
    }

    /// Announces everything published since, in order. If more snapshots were published than are retained, transactions
    /// are announced with their sealed blocks.
    fn catch_up(&mut self, published: &Chain, round: &mut Round<'_>) {
        let canonical = published.head().number();
        self.take_back(published, round);
        self.logs.catch_up(published, round);
        if published.returns != self.returns {
            self.returns = published.returns;
            // The chain returned to this block, so no new block announces it.
            round.head(&published.head().header, None);
        }
        self.changes.learn(published, round.list());
        for snapshot in published.snapshots_after(self.snapshot) {
            self.changes.announce(snapshot, published, round);
            self.heads_to(snapshot.head.number().min(canonical), published, round);
            if let Some(open) = &snapshot.open {
                if open.index == 0 || open.is_draft {
                    // The block begins, perhaps again. A draft is announced when it is sealed.
                    self.open = (open.header.number, 0);
                }
                match Block::newest(snapshot).filter(|_| round.is_about_flashblocks()) {
                    _ if open.is_draft => {}
                    Some(block) => self.flashblock(&block, snapshot.id, round),
                    None => self.open = (open.header.number, open.transactions.len()),
                }
            }
            self.snapshot = snapshot.id;
        }
        self.heads_to(canonical, published, round);
    }

    /// Announces the removal of blocks that are no longer canonical, newest first.
    fn take_back(&mut self, published: &Chain, round: &mut Round<'_>) {
        let is_there = |(number, hash): (u64, B256)| {
            let same = |known: &Arc<SealedBlock>| known.hash() == hash;
            number <= published.head().number() && published.blocks(number, number).next().is_none_or(same)
        };
        while let Some((number, hash)) = self.heads.pop_back_if(|block| !is_there(*block)) {
            self.logs.take_back(hash, round);
            self.open = (number, 0);
        }
    }

    /// Announces the canonical blocks up to `number`.
    fn heads_to(&mut self, number: u64, published: &Chain, round: &mut Round<'_>) {
        // If all announced blocks were removed, the branch is announced from where it is known.
        let next = self.heads.back().map_or(number, |(head, _)| head + 1);
        // A reorg cannot remove more blocks than there are states to go back to.
        let kept = published.retained_states().window.map_or(usize::MAX, |blocks| blocks as usize);
        for sealed in published.blocks(next, number) {
            let block = Block::sealed(sealed);
            let known = match self.open {
                (open, count) if open == sealed.number() => count,
                (open, _) if open > sealed.number() => usize::MAX,
                _ => 0,
            };
            // A block that was pre-confirmed in full was announced then.
            if let Some(block) = block.as_ref().filter(|block| block.number() >= self.open.0) {
                let after = published.select(Selector::Number(block.number()));
                self.flashblock(block, after.map_or(published.newest.id, |after| after.id), round);
            }
            round.head(&sealed.header, block.as_ref().and_then(|block| block.timestamp_ms()));
            self.heads.push_back((sealed.number(), sealed.hash()));
            self.logs.push(sealed, known);
            self.logs.catch_up(published, round);
            while self.heads.len() > kept {
                self.heads.pop_front();
                self.logs.forget_before(self.heads.front().map_or(0, |(number, _)| *number));
            }
        }
    }

    /// Announces a sub-block: the block as a whole, and its new transactions. `id` names the snapshot after it.
    fn flashblock(&mut self, block: &Block, id: SnapshotId, round: &mut Round<'_>) {
        let number = block.number();
        let known = if self.open.0 == number { self.open.1 } else { 0 };
        round.flashblock(block, id, known);
        self.open = (number, block.len());
    }
}

impl Subscriptions {
    /// Runs one round of announcements over all subscriptions, and ends the subscriptions of connections that cannot
    /// receive them.
    fn announce(&self, announce: impl FnOnce(&mut Round<'_>)) {
        let list = self.list();
        if list.is_empty() {
            // Skips encoding if there is no subscriber.
            return announce(&mut Round::over(&[], self.memory()));
        }
        let mut round = Round::over(&list, self.memory());
        announce(&mut round);
        let full = round.full;
        drop(list);
        if !full.is_empty() {
            self.dropped.increment(full.len() as u64);
            self.change(|list| list.retain(|one| !full.contains(&one.subscriber.id())));
        }
    }
}
