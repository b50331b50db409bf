//! Bundles: signed transactions that are mined together in one block, or not at all.

use std::{
    fmt::Display,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{B256, Keccak256};

use super::{
    BlocksBuilt, BundleOutcome, PoolError, SentTransaction, Settings, account::nonce_of, outcomes::Outcomes, rules,
};
use crate::{
    chain::ChainSpec,
    ledger::{Chain, FeedProblem, Snapshots},
    lock::Mutex,
};

/// Blocks after the one being built for which a bundle may be sent.
const BLOCKS_AHEAD: u64 = 25;
/// Maximum length of a bundle's transactions together in bytes, as Flashbots documents it for its relay.
const MAX_BYTES: usize = 300_000;

/// A bundle as a client sends it.
#[derive(Clone, Debug)]
pub struct SentBundle {
    /// The transactions in their order. Not empty.
    pub transactions: Vec<SentTransaction>,
    /// The number of the first block that may have the bundle. `None` for the block being built.
    pub block: Option<u64>,
    /// The number of the last block that may contain it. `None` for the first.
    pub max_block: Option<u64>,
    /// The earliest timestamp of that block, in Unix seconds.
    pub min_timestamp: u64,
    /// The latest timestamp of that block, in Unix seconds.
    pub max_timestamp: u64,
    /// The hashes of the transactions that may revert, all of them in the bundle.
    pub may_revert: Vec<B256>,
    /// The client's name. `None` if clients have no tokens.
    pub client: Option<String>,
    /// The name under which the client replaces and cancels the bundle.
    pub name: Option<BundleName>,
}

/// The name of a bundle: the client, if clients have names, and its `replacementUuid`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleName {
    /// The client's name. `None` if clients have no tokens.
    pub client: Option<String>,
    /// The client's name of the bundle.
    pub uuid: String,
}

/// A bundle that waits for its block.
#[derive(Debug)]
pub struct WaitingBundle {
    /// Keccak hash of the transactions' hashes.
    pub hash: B256,
    /// The transactions in their order, with their senders.
    pub transactions: Vec<Recovered<TxEnvelope>>,
    blocks: RangeInclusive<u64>,
    min_timestamp: u64,
    max_timestamp: u64,
    may_revert: Vec<B256>,
    client: Option<String>,
    name: Option<BundleName>,
    /// Length of the transactions in bytes.
    size: usize,
    /// Sub-blocks in which the bundle was tried.
    tries: AtomicU32,
    /// The reason why the last try has failed.
    misfit: Mutex<Option<String>>,
}

/// The reason why the pool rejects a bundle.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BundleRefusal {
    /// The chain does not advance.
    #[error("this node builds no blocks: bundles require a devnet (--feed devnet)")]
    Static,
    /// Builders of the upstream's chain build the blocks.
    #[error("the chain is an upstream's, whose blocks are not built here: send the bundle to a builder of that chain")]
    Upstream,
    /// The devnet has failed, and builds no more blocks.
    #[error("the devnet cannot continue ({}): {}", .0.as_str(), .0.meaning())]
    Degraded(FeedProblem),
    /// The block is sealed, or too far in the future.
    #[error("block {block}: expected the block being built, {open}, or one of the {BLOCKS_AHEAD} after it")]
    Block { block: u64, open: u64 },
    /// The last block is before the first, or too far in the future.
    #[error("block {block}: expected {first}, the first block that may have the bundle, or one after it up to {last}")]
    MaxBlock { block: u64, first: u64, last: u64 },
    /// No block can contain a transaction.
    #[error("transaction {index} of the bundle ({hash}): {error}")]
    Transaction { index: usize, hash: B256, error: Box<PoolError> },
    /// The transactions and their blobs are too long.
    #[error("{size} bytes: expected at most {MAX_BYTES} together")]
    Size { size: usize },
    /// As many bundles wait as may.
    #[error("{waiting} bundles wait already: expected at most {most} (--pool-bundles): send it again in a later block")]
    TooMany { waiting: usize, most: usize },
    /// The bundles that wait take as many bytes as they may.
    #[error(
        "the bundles that wait already leave {left} bytes: expected at least {size} (--pool-bytes): send it again in a later block"
    )]
    Full { left: usize, size: usize },
}

/// The bundles of a pool that wait for their blocks.
#[derive(Debug)]
pub struct Bundles {
    spec: ChainSpec,
    settings: Settings,
    snapshots: Arc<Snapshots>,
    list: Mutex<BundleList>,
}

#[derive(Debug, Default)]
struct BundleList {
    /// In order of arrival.
    waiting: Vec<Arc<WaitingBundle>>,
    /// The outcomes of the waiting bundles and of earlier ones.
    outcomes: Outcomes,
}

impl WaitingBundle {
    /// Returns whether the bundle is for the block `number` with this timestamp.
    fn is_for(&self, number: u64, timestamp: u64) -> bool {
        self.blocks.contains(&number) && self.min_timestamp <= timestamp && timestamp <= self.max_timestamp
    }

    /// Returns whether the transaction with this hash may revert.
    pub fn may_revert(&self, hash: &B256) -> bool {
        self.may_revert.contains(hash)
    }

    /// Records that the bundle was tried in a sub-block.
    pub fn count_try(&self) {
        self.tries.fetch_add(1, Relaxed);
    }

    /// Records why a try has failed.
    pub fn record_misfit(&self, reason: &impl Display) {
        *self.misfit.lock() = Some(reason.to_string());
    }

    /// Returns the outcome of the bundle on a chain, or `None` if it still waits.
    fn outcome(&self, published: &Chain) -> Option<BundleOutcome> {
        let newest = &published.newest;
        let (head, open) = (newest.head.number(), newest.header().number);
        if *self.blocks.start() > open {
            return None;
        }
        let hashes = || self.transactions.iter().map(|tx| tx.tx_hash());
        if let Some((index, hash, block)) =
            hashes().enumerate().find_map(|(index, hash)| Some((index, hash, published.block_of(hash)?)))
        {
            let is_whole = hashes().all(|hash| published.block_of(hash) == Some(block));
            return Some(match is_whole {
                true => BundleOutcome::Mined { block },
                false => BundleOutcome::dropped(format!(
                    "transaction {index} of the bundle ({hash}) is in block {block} without the others"
                )),
            });
        }
        (*self.blocks.end() <= head).then(|| {
            let misfit = self.misfit.lock().take();
            let misfit = misfit.unwrap_or_else(|| {
                "the bundle was not tried, because no block had a timestamp that it allows, or time for it".to_owned()
            });
            BundleOutcome::dropped(format!("block {} is sealed: {misfit}", self.blocks.end()))
        })
    }
}

impl BundleList {
    /// Removes the bundles that have an outcome, and records it.
    fn end(&mut self, outcome: impl Fn(&WaitingBundle) -> Option<BundleOutcome>) -> usize {
        let Self { waiting, outcomes } = self;
        let mut ended = Vec::new();
        waiting.retain(|bundle| match outcome(bundle) {
            Some(outcome) => {
                ended.push((bundle.clone(), outcome));
                false
            }
            None => true,
        });
        for (bundle, outcome) in &ended {
            // The same bundle may wait for other blocks, too.
            let still_waits = |other: &Arc<WaitingBundle>| other.hash == bundle.hash && other.client == bundle.client;
            if matches!(outcome, BundleOutcome::Mined { .. }) || !waiting.iter().any(still_waits) {
                outcomes.end(&bundle.client, &bundle.hash, outcome.clone());
            }
        }
        ended.len()
    }
}

impl Bundles {
    pub(super) fn new(spec: ChainSpec, settings: Settings, snapshots: Arc<Snapshots>) -> Self {
        Self { spec, settings, snapshots, list: Mutex::default() }
    }

    /// Adds a bundle and returns its hash. It waits in memory only, and is tried in each sub-block of its block until it
    /// is mined, or the block is sealed. Its transactions are not visible before they are mined.
    ///
    /// # Errors
    ///
    /// Returns the [`BundleRefusal`] of the first check that fails. Balances, and nonces that are not used yet, are not
    /// checked, because the state in the bundle's block is not known yet.
    pub fn add(&self, sent: SentBundle) -> Result<B256, BundleRefusal> {
        self.check_built()?;
        let SentBundle { transactions, block, max_block, min_timestamp, max_timestamp, may_revert, client, name } =
            sent;
        let blocks = self.check_blocks(block, max_block)?;
        let size = transactions.iter().map(|sent| sent.size).sum();
        if size > MAX_BYTES {
            return Err(BundleRefusal::Size { size });
        }
        let (head, settled) = (self.snapshots.newest(), self.snapshots.settled());
        let check = |(index, sent): (usize, SentTransaction)| {
            let hash = *sent.tx.tx_hash();
            let refused = |error| BundleRefusal::Transaction { index, hash, error: Box::new(error) };
            if !sent.tx.is_replay_protected() {
                return Err(refused(PoolError::Unprotected));
            }
            // A bundle may pay the producer in another way than by tips.
            let tx = rules::check(&self.spec, head.header(), 0, sent).map_err(refused)?;
            let (next, nonce) = (nonce_of(&settled.world, &tx.signer()), tx.nonce());
            if nonce < next { Err(refused(PoolError::NonceTooLow { next, nonce })) } else { Ok(tx) }
        };
        let transactions: Vec<_> = transactions.into_iter().enumerate().map(check).collect::<Result<_, _>>()?;
        let mut hash = Keccak256::new();
        transactions.iter().for_each(|tx| hash.update(tx.tx_hash()));
        let hash = hash.finalize();
        let size = transactions.iter().map(|tx| tx.eip2718_encoded_length()).sum();
        self.push(WaitingBundle {
            hash,
            transactions,
            blocks,
            min_timestamp,
            max_timestamp,
            may_revert,
            client,
            name,
            size,
            tries: AtomicU32::new(0),
            misfit: Mutex::default(),
        })?;
        Ok(hash)
    }

    fn check_built(&self) -> Result<(), BundleRefusal> {
        match self.settings.built {
            BlocksBuilt::Here => {}
            BlocksBuilt::Nowhere => return Err(BundleRefusal::Static),
            BlocksBuilt::Upstream => return Err(BundleRefusal::Upstream),
        }
        self.snapshots.load().feed().problem().map_or(Ok(()), |problem| Err(BundleRefusal::Degraded(problem)))
    }

    /// Returns the blocks that may contain a bundle. Each is being built or soon will be.
    fn check_blocks(&self, first: Option<u64>, last: Option<u64>) -> Result<RangeInclusive<u64>, BundleRefusal> {
        let open = self.snapshots.newest().header().number;
        let may = open..=open.saturating_add(BLOCKS_AHEAD);
        let first = first.unwrap_or(open);
        if !may.contains(&first) {
            return Err(BundleRefusal::Block { block: first, open });
        }
        let last = last.unwrap_or(first);
        match (first..=*may.end()).contains(&last) {
            true => Ok(first..=last),
            false => Err(BundleRefusal::MaxBlock { block: last, first, last: *may.end() }),
        }
    }

    /// Cancels the bundles with this name that are not mined yet. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// Returns [`BundleRefusal::Static`], [`BundleRefusal::Upstream`] or [`BundleRefusal::Degraded`] if no blocks are built here.
    pub fn cancel(&self, name: &BundleName) -> Result<bool, BundleRefusal> {
        self.check_built()?;
        let is_named = |bundle: &WaitingBundle| bundle.name.as_ref() == Some(name);
        let cancelled = |bundle: &WaitingBundle| is_named(bundle).then(|| BundleOutcome::dropped("it was cancelled"));
        Ok(self.list.lock().end(cancelled) > 0)
    }

    /// Returns the outcome of a client's bundle, or `None` if it waits, was never sent, or is forgotten.
    pub fn outcome(&self, client: Option<&str>, hash: &B256) -> Option<BundleOutcome> {
        // The newest block may have been published a moment ago.
        self.advance(&self.snapshots.load());
        self.list.lock().outcomes.get(client, hash).cloned()
    }

    /// Returns the bundles to try in a sub-block of the block `number` with this timestamp. Bundles with the fewest
    /// attempts are first, then in order of arrival.
    pub fn for_block(&self, number: u64, timestamp: u64) -> Vec<Arc<WaitingBundle>> {
        let mut bundles: Vec<_> =
            self.list.lock().waiting.iter().filter(|bundle| bundle.is_for(number, timestamp)).cloned().collect();
        bundles.sort_by_key(|bundle| bundle.tries.load(Relaxed));
        bundles
    }

    /// Drops the bundles of sealed blocks, and bundles of the open block with a transaction that a block already
    /// contains.
    pub(super) fn advance(&self, published: &Chain) {
        self.list.lock().end(|bundle| bundle.outcome(published));
    }

    /// Adds a bundle. Replaces the bundle with the same name or, without a name, the same bundle for the same block.
    fn push(&self, bundle: WaitingBundle) -> Result<(), BundleRefusal> {
        let mut list = self.list.lock();
        let is_replaced = |other: &WaitingBundle| match &bundle.name {
            Some(name) => other.name.as_ref() == Some(name),
            None => other.name.is_none() && (other.hash, &other.blocks) == (bundle.hash, &bundle.blocks),
        };
        let (mut staying, mut bytes) = (0, 0);
        for other in list.waiting.iter().filter(|other| !is_replaced(other)) {
            (staying, bytes) = (staying + 1, bytes + other.size);
        }
        if staying >= self.settings.bundles {
            return Err(BundleRefusal::TooMany { waiting: staying, most: self.settings.bundles });
        }
        let left = self.settings.bytes.saturating_sub(bytes);
        if bundle.size > left {
            return Err(BundleRefusal::Full { left, size: bundle.size });
        }
        let replaced = |other: &WaitingBundle| is_replaced(other).then(|| BundleOutcome::dropped("it was replaced"));
        list.end(replaced);
        list.outcomes.begin(&bundle.client, bundle.hash);
        list.waiting.push(Arc::new(bundle));
        Ok(())
    }
}
