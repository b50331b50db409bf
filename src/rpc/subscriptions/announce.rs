//! From publications to notifications.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use alloy_consensus::{Header, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_primitives::{B256, Sealed};
use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    Notification, Subscription, Subscriptions,
    changes::ChangeTeller,
    feed::FeedTeller,
    logs::{AnnouncedLogs, LogsOfBlocks},
};
use crate::{
    chain::SealedBlock,
    ledger::{Block, Chain, Included, LateBounds, Selector, SnapshotId, Snapshots},
    pool::Pool,
    rpc::{
        dialect::Dialect,
        encode::{self, LogPlace},
        memory::IoMemory,
        wire::{LogFilter, Shown, Subject},
    },
};

/// Announces every snapshot from now on, and every transaction that enters the pool, until the node ends. After a
/// panic, which is logged, it continues with what is published then.
pub async fn announce(subscriptions: Arc<Subscriptions>, snapshots: Arc<Snapshots>, pool: Arc<Pool>, late: LateBounds) {
    loop {
        let round = tokio::spawn(announce_each(subscriptions.clone(), snapshots.clone(), pool.subscribe(), late));
        match round.await {
            Err(error) if error.is_panic() => tracing::error!(%error, "announcing to subscribers is restarted"),
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
    let mut feed = FeedTeller::default();
    let mut seen = LastAnnounced::at(&snapshots.load(), late);
    let mut pool_is_open = true;
    loop {
        // Enabled before the list is read, so that no subscription that begins meanwhile is missed.
        let mut moved = std::pin::pin!(subscriptions.moved.notified());
        moved.as_mut().enable();
        if subscriptions.list().iter().any(Subscription::is_about_feed) {
            let published = snapshots.load();
            subscriptions.announce(|round| feed.tell(&published, round));
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
    /// The number of times that the chain had returned to an earlier moment.
    returns: u64,
    /// The newest canonical blocks, oldest first, which a reorg may remove.
    heads: VecDeque<(u64, B256)>,
    /// The logs of those blocks.
    logs: LogsOfBlocks,
    /// The number of the block being built, and how many of its transactions were announced.
    open: (u64, usize),
    changes: ChangeTeller,
}

impl LastAnnounced {
    fn at(published: &Chain, late: LateBounds) -> Self {
        let newest = &published.newest;
        let count = newest.open.as_ref().map_or(0, |open| open.transactions.len());
        let heads = VecDeque::from([(published.head().number(), published.head().hash())]);
        let (changes, logs) = (ChangeTeller::at(published), LogsOfBlocks::after(published, late));
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
            // The chain returned to this block, which no new block tells.
            round.head(&published.head().header, None);
        }
        self.changes.learn(published, round.list());
        for snapshot in published.snapshots_after(self.snapshot) {
            self.changes.tell(snapshot, published, round);
            self.heads_to(snapshot.head.number().min(canonical), published, round);
            if let Some(open) = &snapshot.open {
                if open.index == 0 {
                    // The block begins, perhaps anew.
                    self.open = (open.header.number, 0);
                }
                if let Some(block) = Block::newest(snapshot).filter(|_| round.is_about_flashblocks()) {
                    self.flashblock(&block, snapshot.id, round);
                } else {
                    self.open = (open.header.number, open.transactions.len());
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
    /// Runs one round of announcements over all subscriptions, and ends those of connections that cannot take them.
    fn announce(&self, announce: impl FnOnce(&mut Round<'_>)) {
        let list = self.list();
        if list.is_empty() {
            // Skips encoding if there is no subscriber.
            let mut nobody = Round { list: &[], memory: &self.memory, full: Vec::new() };
            return announce(&mut nobody);
        }
        let mut round = Round { list: &list, memory: &self.memory, full: Vec::new() };
        announce(&mut round);
        let full = round.full;
        drop(list);
        if !full.is_empty() {
            self.dropped.increment(full.len() as u64);
            self.change(|list| list.retain(|one| !full.contains(&one.subscriber.id())));
        }
    }
}

impl Subscription {
    fn is_about_flashblocks(&self) -> bool {
        matches!(
            self.subject,
            Subject::NewFlashblocks | Subject::NewFlashblockTransactions(_) | Subject::PendingLogs(_)
        )
    }

    /// Returns whether it tells the hash of the block being built, which takes the block's roots, with each sub-block. A
    /// filter may need the hash too, but only where something matches.
    const fn needs_header(&self) -> bool {
        matches!(self.subject, Subject::NewFlashblocks | Subject::NewFlashblockTransactions(Shown::Full))
    }
}

/// One round of announcements.
pub(super) struct Round<'a> {
    list: &'a [Subscription],
    /// The memory in which texts count until they are sent.
    memory: &'a Arc<IoMemory>,
    /// Connections that could not take a notification.
    full: Vec<u64>,
}

/// Encoded texts by dialect, because most subscriptions of a kind want the same bytes.
#[derive(Default)]
struct EncodedByDialect(Vec<(*const Dialect, Bytes)>);

impl EncodedByDialect {
    fn get(&mut self, dialect: &'static Dialect, memory: &Arc<IoMemory>, encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        if let Some((_, known)) = self.0.iter().find(|(one, _)| std::ptr::eq(*one, dialect)) {
            return known.clone();
        }
        let text = encoded(memory, encode);
        self.0.push((dialect, text.clone()));
        text
    }
}

/// The logs of a block to announce.
#[derive(Clone, Copy)]
pub(super) enum Logs {
    /// Logs of the transactions after the first so many.
    After(usize),
    /// All logs, as removed.
    Removed,
}

/// Encoded logs or transactions of a block, by their index.
type EncodedByIndex = HashMap<u64, Bytes>;

fn encoded(memory: &Arc<IoMemory>, encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out);
    // The text may be kept as long as its slowest subscriber takes, so spare capacity is released.
    out.shrink_to_fit();
    memory.shared_text(out)
}

impl<'a> Round<'a> {
    /// Returns the subscriptions.
    pub(super) const fn list(&self) -> &'a [Subscription] {
        self.list
    }

    /// Encodes a text, which counts in memory until it is sent.
    pub(super) fn encoded(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        encoded(self.memory, encode)
    }

    /// Returns whether the subscription needs blocks that are being built.
    fn is_about_flashblocks(&self) -> bool {
        self.list.iter().any(Subscription::is_about_flashblocks)
    }

    /// Announces the header of a sealed block, and its time in milliseconds if that is known.
    fn head(&mut self, header: &Sealed<Header>, time: Option<u64>) {
        let mut headers = EncodedByDialect::default();
        for one in self.list {
            if let Subject::NewHeads = &one.subject {
                let result =
                    headers.get(one.dialect, self.memory, |out| encode::header(out, header, time, one.dialect));
                self.send(one, result);
            }
        }
    }

    /// Announces the logs of a canonical block, or of one that is no longer canonical.
    pub(super) fn logs_of(&mut self, block: &AnnouncedLogs, which: Logs) {
        let mut logs = EncodedByIndex::default();
        for one in self.list {
            if let Subject::Logs(filter) = &one.subject {
                match block {
                    AnnouncedLogs::Whole(block) => self.logs(one, filter, block, which, &mut logs),
                    AnnouncedLogs::Alone(block) => self.logs_alone(one, filter, block, which, &mut logs),
                }
            }
        }
    }

    /// Announces the transactions of a canonical block whose content came later than its header, and their logs, to those who
    /// are told of each sub-block's. The first `known` transactions were announced before.
    pub(super) fn transactions_of(&mut self, block: &Block, known: usize) {
        let mut logs = EncodedByIndex::default();
        for one in self.list {
            if let Subject::PendingLogs(filter) = &one.subject {
                self.logs(one, filter, block, Logs::After(known), &mut logs);
            }
        }
        self.transactions(block, known);
    }

    /// Announces a sub-block. The first `known` transactions of the block were announced before. `id` names the snapshot
    /// after it.
    fn flashblock(&mut self, block: &Block, id: SnapshotId, known: usize) {
        let (mut blocks, mut logs) = (EncodedByDialect::default(), EncodedByIndex::default());
        for one in self.list {
            match &one.subject {
                Subject::NewFlashblocks => {
                    let result =
                        blocks.get(one.dialect, self.memory, |out| encode::flashblock(out, block, id, one.dialect));
                    self.send(one, result);
                }
                Subject::PendingLogs(filter) => self.logs(one, filter, block, Logs::After(known), &mut logs),
                _ => {}
            }
        }
        self.transactions(block, known);
    }

    /// Announces the transactions of a block after the first `known`.
    fn transactions(&mut self, block: &Block, known: usize) {
        let (mut hashes, mut in_full) = (EncodedByIndex::default(), EncodedByIndex::default());
        let fresh: Vec<Included<'_>> = block.transactions_from(known).collect();
        for one in self.list {
            let Subject::NewFlashblockTransactions(shown) = &one.subject else { continue };
            for included in fresh.iter().filter(|included| shown.admits(included)) {
                let texts = if matches!(shown, Shown::Hash) { &mut hashes } else { &mut in_full };
                let text = texts.entry(included.index as u64).or_insert_with(|| {
                    encoded(self.memory, |out| match shown {
                        Shown::Hash => encode::data(out, included.tx.tx_hash().as_slice()),
                        Shown::Full | Shown::Matching(_) => encode::transaction_with_receipt(out, block, included),
                    })
                });
                self.send(one, text.clone());
            }
        }
    }

    /// Announces a transaction that entered the pool.
    fn pooled(&mut self, tx: &Recovered<TxEnvelope>) {
        let (mut hash, mut in_full) = (EncodedByDialect::default(), EncodedByDialect::default());
        for one in self.list {
            if let Subject::NewPendingTransactions { full } = one.subject {
                let result = if full {
                    in_full.get(one.dialect, self.memory, |out| encode::pooled_transaction(out, tx))
                } else {
                    hash.get(one.dialect, self.memory, |out| encode::data(out, tx.tx_hash().as_slice()))
                };
                self.send(one, result);
            }
        }
    }

    /// Announces matching logs.
    fn logs(
        &mut self,
        one: &Subscription,
        filter: &LogFilter,
        block: &Block,
        which: Logs,
        encoded_logs: &mut EncodedByIndex,
    ) {
        // The bloom of a block being built takes all its receipts, that of a receipt is there.
        if !block.is_open() && !filter.matches_bloom(block.header().logs_bloom) {
            return;
        }
        let (known, removed) = match which {
            Logs::After(known) => (known, false),
            Logs::Removed => (0, true),
        };
        for included in block.transactions_from(known).filter(|one| filter.matches_bloom(one.receipt.bloom())) {
            for (log, index) in included.receipt.logs().iter().zip(included.first_log..) {
                if filter.matches(log) {
                    let text = encoded_logs.entry(index).or_insert_with(|| {
                        let place = LogPlace::of(block, &included);
                        encoded(self.memory, |out| encode::log(out, log, &place, index, removed))
                    });
                    self.send(one, text.clone());
                }
            }
        }
    }

    /// Announces matching logs of a block whose transactions are not known.
    fn logs_alone(
        &mut self,
        one: &Subscription,
        filter: &LogFilter,
        block: &SealedBlock,
        which: Logs,
        encoded_logs: &mut EncodedByIndex,
    ) {
        if !filter.matches_bloom(block.header.logs_bloom) {
            return;
        }
        let removed = matches!(which, Logs::Removed);
        for (place, index, log) in LogPlace::of_logs_alone(block).filter(|(.., log)| filter.matches(log)) {
            let text = encoded_logs
                .entry(index)
                .or_insert_with(|| encoded(self.memory, |out| encode::log(out, log, &place, index, removed)));
            self.send(one, text.clone());
        }
    }

    pub(super) fn send(&mut self, one: &Subscription, result: Bytes) {
        if !one.has_begun || self.full.contains(&one.subscriber.id()) {
            return;
        }
        if !one.subscriber.notify(Notification { prefix: one.prefix.clone(), result }) {
            self.full.push(one.subscriber.id());
        }
    }
}

impl Shown {
    /// Returns whether a subscription that shows this is notified of a transaction.
    fn admits(&self, included: &Included<'_>) -> bool {
        match self {
            Self::Hash | Self::Full => true,
            Self::Matching(filter) => included.receipt.logs().iter().any(|log| filter.matches(log)),
        }
    }
}
