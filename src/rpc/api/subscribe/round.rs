//! One round of announcements: encodes each notification once for each form, and passes it to its subscribers.

use std::{collections::HashMap, sync::Arc};

use alloy_consensus::{Header, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_primitives::{Log, Sealed};
use bytes::Bytes;

use crate::{
    chain::SealedBlock,
    ledger::{Block, Included, SnapshotId},
    rpc::{
        json::{self, LogView, Shape, TxPosition},
        limits::memory::IoMemory,
        protocol::dialect::Dialect,
        run::{
            subscriber::Notification,
            subscriptions::{Shown, Subject, Subscription},
        },
    },
};

impl Subscription {
    pub fn is_about_flashblocks(&self) -> bool {
        matches!(
            self.subject,
            Subject::NewFlashblocks | Subject::NewFlashblockTransactions(_) | Subject::PendingLogs(_)
        )
    }

    /// Returns whether it sends the hash of the block being built with each sub-block. The hash requires the block's
    /// roots. A filter may need the hash too, but only if something matches.
    pub const fn needs_header(&self) -> bool {
        matches!(self.subject, Subject::NewFlashblocks | Subject::NewFlashblockTransactions(Shown::Full))
    }
}

/// One round of announcements.
pub struct Round<'a> {
    list: &'a [Subscription],
    /// The memory in which texts count until they are sent.
    memory: &'a Arc<IoMemory>,
    /// Connections that could not take a notification.
    pub full: Vec<u64>,
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

/// The logs of a block that are announced.
pub enum AnnouncedLogs {
    /// The whole block with its body.
    Whole(Block),
    /// The logs are known, and the transactions are not.
    Alone(Arc<SealedBlock>),
}

/// Encoded logs or transactions of a block, by their index.
type EncodedByIndex = HashMap<u64, Bytes>;

fn encoded(memory: &Arc<IoMemory>, encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    encode(&mut out);
    // The text may be retained until its slowest subscriber has received it, so spare capacity is released.
    out.shrink_to_fit();
    memory.shared_text(out)
}

impl<'a> Round<'a> {
    pub const fn over(list: &'a [Subscription], memory: &'a Arc<IoMemory>) -> Self {
        Self { list, memory, full: Vec::new() }
    }

    /// Returns the subscriptions.
    pub const fn list(&self) -> &'a [Subscription] {
        self.list
    }

    /// Encodes a text, which counts in memory until it is sent.
    pub fn encoded(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        encoded(self.memory, encode)
    }

    /// Returns whether the subscription needs blocks that are being built.
    pub fn is_about_flashblocks(&self) -> bool {
        self.list.iter().any(Subscription::is_about_flashblocks)
    }

    /// Announces the header of a sealed block, and its time in milliseconds if that is known.
    pub fn head(&mut self, header: &Sealed<Header>, time: Option<u64>) {
        let mut headers = EncodedByDialect::default();
        for one in self.list {
            if let Subject::NewHeads = &one.subject {
                let shown = (header.inner(), header.hash(), time, one.dialect);
                let result = headers.get(one.dialect, self.memory, |out| json::Header::write(out, shown));
                self.send(one, result);
            }
        }
    }

    /// Announces the logs of a canonical block or, as `removed`, of one that is no longer canonical.
    pub fn logs_of(&mut self, block: &AnnouncedLogs, removed: bool) {
        let mut logs = EncodedByIndex::default();
        for one in self.list {
            if let Subject::Logs(filter) = &one.subject {
                match block {
                    AnnouncedLogs::Whole(block) => self.logs(one, filter.logs_in(block, 0), removed, &mut logs),
                    AnnouncedLogs::Alone(block) => self.logs(one, filter.logs_alone_in(block), removed, &mut logs),
                }
            }
        }
    }

    /// Announces the transactions and logs of a canonical block whose content arrived later than its header, to
    /// subscribers of each sub-block's transactions. The first `known` transactions were announced before.
    pub fn transactions_of(&mut self, block: &Block, known: usize) {
        let mut logs = EncodedByIndex::default();
        for one in self.list {
            if let Subject::PendingLogs(filter) = &one.subject {
                self.logs(one, filter.logs_in(block, known), false, &mut logs);
            }
        }
        self.transactions(block, known);
    }

    /// Announces a sub-block. The first `known` transactions of the block were announced before. `id` names the snapshot
    /// after it.
    pub fn flashblock(&mut self, block: &Block, id: SnapshotId, known: usize) {
        let (mut blocks, mut logs) = (EncodedByDialect::default(), EncodedByIndex::default());
        for one in self.list {
            match &one.subject {
                Subject::NewFlashblocks => {
                    let result =
                        blocks.get(one.dialect, self.memory, |out| json::flashblock(out, block, id, one.dialect));
                    self.send(one, result);
                }
                Subject::PendingLogs(filter) => self.logs(one, filter.logs_in(block, known), false, &mut logs),
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
                        Shown::Hash => json::data(out, included.tx.tx_hash().as_slice()),
                        Shown::Full | Shown::Matching(_) => json::transaction_with_receipt(out, block, included),
                    })
                });
                self.send(one, text.clone());
            }
        }
    }

    /// Announces a transaction that entered the pool.
    pub fn pooled(&mut self, tx: &Recovered<TxEnvelope>) {
        let (mut hash, mut in_full) = (EncodedByDialect::default(), EncodedByDialect::default());
        for one in self.list {
            if let Subject::NewPendingTransactions { full } = one.subject {
                let result = if full {
                    in_full.get(one.dialect, self.memory, |out| json::pooled_transaction(out, tx))
                } else {
                    hash.get(one.dialect, self.memory, |out| json::data(out, tx.tx_hash().as_slice()))
                };
                self.send(one, result);
            }
        }
    }

    /// Announces logs of a block.
    fn logs<'b>(
        &mut self,
        one: &Subscription,
        logs: impl Iterator<Item = (TxPosition<'b>, u64, &'b Log)>,
        removed: bool,
        texts: &mut EncodedByIndex,
    ) {
        for (position, index, log) in logs {
            let shown = LogView { log, position: Some(position), index, removed: Some(removed) };
            let encode = || encoded(self.memory, |out| json::Log::write(out, shown));
            let text = texts.entry(index).or_insert_with(encode).clone();
            self.send(one, text);
        }
    }

    pub fn send(&mut self, one: &Subscription, result: Bytes) {
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
