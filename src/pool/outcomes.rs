//! The outcomes of the bundles that clients have sent.

use std::{collections::BTreeMap, sync::Arc};

use alloy_primitives::{
    B256,
    map::{B256Map, HashMap},
};

use crate::ledger::Chain;

/// The outcome of a bundle, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleOutcome {
    /// The bundle waits for its block. `misfit` tells why it did not fit when it was tried last.
    Pending {
        /// The reason. `None` before the first try.
        misfit: Option<Arc<str>>,
    },
    /// All transactions of the bundle are in a block.
    Mined {
        /// The number of the block.
        block: u64,
    },
    /// The bundle waits no longer, and was not mined.
    Dropped(BundleDrop),
}

/// The reason why a bundle was dropped.
#[expect(missing_docs, reason = "the names of the fields say what they hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleDrop {
    /// The last block of the bundle was sealed without it.
    #[error("block {block} was sealed without it: {misfit}")]
    Misfit { block: u64, misfit: Arc<str> },
    /// The last block of the bundle was sealed before the bundle was tried.
    #[error("block {block} was sealed before it was tried: no sub-block had time for it")]
    Untried { block: u64 },
    /// A transaction of the bundle was mined without the others.
    #[error("transaction {index} ({hash}) was mined without the others")]
    Parted { index: usize, hash: B256 },
    /// The client sent another bundle with the same name.
    #[error("another bundle with its replacementUuid was sent")]
    Replaced,
    /// The client cancelled the bundle.
    #[error("it was cancelled (eth_cancelBundle)")]
    Cancelled,
    /// The chain returned to a state before the block that had the bundle.
    #[error("it was in block {block}, and the chain has returned to a state before that")]
    Undone { block: u64 },
}

/// The end of a bundle.
#[derive(Clone, Debug)]
pub enum BundleEnd {
    /// The bundle was mined in a block, with this transaction as its first.
    Mined { block: u64, first: B256 },
    /// The bundle was dropped.
    Dropped(BundleDrop),
}

impl BundleEnd {
    /// Returns the outcome. A devnet under test may have returned to a state before the block of a bundle that was mined.
    pub fn outcome(&self, published: &Chain) -> BundleOutcome {
        match self {
            Self::Mined { block, first } => match published.transaction(first) {
                Some((block, _)) => BundleOutcome::Mined { block: block.number() },
                None if has_lost(published, *block) => BundleOutcome::Dropped(BundleDrop::Undone { block: *block }),
                None => BundleOutcome::Mined { block: *block },
            },
            Self::Dropped(reason) => BundleOutcome::Dropped(reason.clone()),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Dropped(BundleDrop::Misfit { misfit, .. }) => ENTRY + misfit.len(),
            Self::Dropped(_) | Self::Mined { .. } => ENTRY,
        }
    }
}

/// Returns whether a transaction that is not found was in a block which the chain no longer has. Else the block is pruned, or is not
/// shown while the feed is broken.
fn has_lost(published: &Chain, block: u64) -> bool {
    match block > published.head().number() {
        true => block > published.newest.header().number || published.pending().is_some(),
        false => published.has_blocks(block, block).is_ok(),
    }
}

/// About how many bytes an outcome takes besides its reason.
const ENTRY: usize = 256;

/// The outcomes of bundles that have ended: of each client the last ones.
#[derive(Debug)]
pub struct BundleOutcomes {
    /// Maximum number of outcomes of one client.
    most: usize,
    /// Maximum bytes of all outcomes.
    most_bytes: usize,
    bytes: usize,
    /// The number of bundles that have ended.
    count: u64,
    clients: HashMap<Option<String>, ClientOutcomes>,
}

/// The outcomes of a client's bundles.
#[derive(Debug, Default)]
struct ClientOutcomes {
    by_hash: B256Map<(u64, BundleEnd)>,
    /// The bundles in the order in which they ended.
    by_age: BTreeMap<u64, B256>,
    bytes: usize,
}

impl BundleOutcomes {
    /// Creates an empty list of at most `most` outcomes of each client, and `most_bytes` bytes of all clients.
    pub fn new(most: usize, most_bytes: usize) -> Self {
        Self { most, most_bytes, bytes: 0, count: 0, clients: HashMap::default() }
    }

    /// Returns how a client's bundle has ended.
    pub fn get(&self, client: Option<&str>, hash: &B256) -> Option<&BundleEnd> {
        let client = self.clients.get(&client.map(str::to_owned))?;
        client.by_hash.get(hash).map(|(_, end)| end)
    }

    /// Adds the end of a client's bundle. Evicts the client's oldest beyond its number, and beyond the bytes of all clients the oldest of
    /// the one that has most.
    pub fn add(&mut self, client: Option<&str>, hash: B256, end: BundleEnd) {
        let name = client.map(str::to_owned);
        self.count += 1;
        let client = self.clients.entry(name.clone()).or_default();
        let before = client.bytes;
        client.remove(&hash);
        client.bytes += end.size();
        client.by_age.insert(self.count, hash);
        client.by_hash.insert(hash, (self.count, end));
        let evicts = client.by_age.len() > self.most;
        self.bytes = self.bytes + client.bytes - before;
        if evicts {
            self.evict_from(&name);
        }
        while self.bytes > self.most_bytes
            && let Some(largest) = self.clients.iter().max_by_key(|(_, client)| client.bytes)
        {
            let largest = largest.0.clone();
            self.evict_from(&largest);
        }
    }

    /// Evicts the oldest outcome of a client.
    fn evict_from(&mut self, name: &Option<String>) {
        let Some(client) = self.clients.get_mut(name) else { return };
        let before = client.bytes;
        if let Some((_, hash)) = client.by_age.first_key_value() {
            let hash = *hash;
            client.remove(&hash);
        }
        self.bytes = self.bytes + client.bytes - before;
        if client.by_age.is_empty() {
            self.clients.remove(name);
        }
    }
}

impl ClientOutcomes {
    fn remove(&mut self, hash: &B256) {
        if let Some((age, end)) = self.by_hash.remove(hash) {
            self.by_age.remove(&age);
            self.bytes -= end.size();
        }
    }
}
