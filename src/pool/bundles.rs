//! Bundles: signed transactions that are mined together in one block, or not at all.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{B256, Keccak256};
use parking_lot::Mutex;

use super::{
    BlocksBuilt, PoolError, SentTransaction, Settings,
    account::nonce_of,
    outcomes::{BundleDrop, BundleEnd, BundleOutcome, BundleOutcomes},
    rules,
};
use crate::{
    chain::ChainSpec,
    ledger::{Chain, FeedProblem, Snapshots},
    shown::cut,
};

/// Blocks after the one being built for which a bundle may be sent.
const BLOCKS_AHEAD: u64 = 25;
/// Maximum length of a bundle's transactions together in bytes, as Flashbots documents it for its relay.
const MAX_BYTES: usize = 300_000;
/// Maximum length of the text that tells why a bundle did not fit, in bytes.
const MAX_MISFIT: usize = 200;

/// A bundle as a client sends it.
#[derive(Clone, Debug)]
pub struct SentBundle {
    /// The client's name. `None` if clients have no tokens.
    pub client: Option<String>,
    /// The transactions in their order. Not empty.
    pub transactions: Vec<SentTransaction>,
    /// The number of the first block that the bundle is for. `None` for the block being built.
    pub block: Option<u64>,
    /// The number of the last block that the bundle is for. `None` if it is for one block.
    pub max_block: Option<u64>,
    /// The earliest timestamp of that block, in Unix seconds.
    pub min_timestamp: u64,
    /// The latest timestamp of that block, in Unix seconds.
    pub max_timestamp: u64,
    /// The hashes of the transactions that may revert. Each is that of a transaction of the bundle.
    pub may_revert: Vec<B256>,
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
    client: Option<String>,
    blocks: RangeInclusive<u64>,
    min_timestamp: u64,
    max_timestamp: u64,
    may_revert: Vec<B256>,
    name: Option<BundleName>,
    /// Length of the transactions in bytes.
    size: usize,
    /// Sub-blocks in which the bundle was tried.
    tries: AtomicU32,
    /// The reason why the bundle did not fit when it was tried last.
    misfit: Mutex<Option<Arc<str>>>,
}

/// The reason why the pool rejects a bundle.
#[expect(missing_docs, reason = "the names of the fields say what they hold")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum BundleRefusal {
    /// The chain stands still.
    #[error("the chain stands still, and no block is built: bundles need a devnet (--feed devnet)")]
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
    /// The last block is before the first one, or too far in the future.
    #[error("block {block}: expected a block from {first} to {last}, {BLOCKS_AHEAD} after the block being built")]
    MaxBlock { block: u64, first: u64, last: u64 },
    /// A transaction can be in no block.
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
    bundles: Mutex<BundleState>,
}

/// The bundles that wait, and the outcomes of those that no longer do.
#[derive(Debug)]
struct BundleState {
    /// In order of arrival.
    waiting: Vec<Arc<WaitingBundle>>,
    outcomes: BundleOutcomes,
}

impl WaitingBundle {
    /// Returns whether the bundle is for the block `number` with this timestamp.
    fn is_for(&self, number: u64, timestamp: u64) -> bool {
        if !self.blocks.contains(&number) {
            return false;
        }
        let fits = self.min_timestamp <= timestamp && timestamp <= self.max_timestamp;
        if !fits {
            let bound = if timestamp < self.min_timestamp { "minTimestamp" } else { "maxTimestamp" };
            self.note_misfit(&format!("its timestamp {timestamp} does not fit {bound}"));
        }
        fits
    }

    /// Returns how the bundle has ended: all its transactions are in a block, some are, or its last block is sealed. Returns `None` while it
    /// waits.
    fn ended(&self, published: &Chain) -> Option<BundleEnd> {
        let (head, open) = (published.newest.head.number(), published.newest.header().number);
        if *self.blocks.start() <= open {
            let block_of = |tx: &Recovered<TxEnvelope>| Some(published.transaction(tx.tx_hash())?.0.number());
            let blocks: Vec<Option<u64>> = self.transactions.iter().map(block_of).collect();
            match blocks.iter().position(Option::is_some) {
                Some(index) if blocks[index] != blocks[0] || blocks.iter().any(|block| *block != blocks[0]) => {
                    let hash = *self.transactions[index].tx_hash();
                    return Some(BundleEnd::Dropped(BundleDrop::Parted { index, hash }));
                }
                Some(_) => {
                    let first = *self.transactions[0].tx_hash();
                    return blocks[0].map(|block| BundleEnd::Mined { block, first });
                }
                None => {}
            }
        }
        let block = *self.blocks.end();
        (block <= head).then(|| {
            BundleEnd::Dropped(match self.misfit.lock().clone() {
                Some(misfit) => BundleDrop::Misfit { block, misfit },
                None => BundleDrop::Untried { block },
            })
        })
    }

    /// Returns whether the transaction with this hash may revert.
    pub fn may_revert(&self, hash: &B256) -> bool {
        self.may_revert.contains(hash)
    }

    /// Records that the bundle was tried in a sub-block.
    pub fn count_try(&self) {
        self.tries.fetch_add(1, Relaxed);
    }

    /// Records why the bundle did not fit.
    pub fn note_misfit(&self, reason: &str) {
        *self.misfit.lock() = Some(cut(reason, MAX_MISFIT).into());
    }
}

impl Bundles {
    pub(super) fn new(spec: ChainSpec, settings: Settings, snapshots: Arc<Snapshots>) -> Self {
        let outcomes = BundleOutcomes::new(settings.outcomes, settings.outcome_bytes);
        let bundles = Mutex::new(BundleState { waiting: Vec::new(), outcomes });
        Self { spec, settings, snapshots, bundles }
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
        let SentBundle { client, transactions, block, max_block, min_timestamp, max_timestamp, may_revert, name } =
            sent;
        let blocks = self.blocks(block, max_block)?;
        let size = transactions.iter().map(|sent| sent.size).sum();
        if size > MAX_BYTES {
            return Err(BundleRefusal::Size { size });
        }
        let head = self.snapshots.newest();
        let check = |(index, sent): (usize, SentTransaction)| {
            let hash = *sent.tx.tx_hash();
            let refused = |error| BundleRefusal::Transaction { index, hash, error: Box::new(error) };
            if !sent.tx.is_replay_protected() {
                return Err(refused(PoolError::Unprotected));
            }
            // A bundle may pay the producer in another way than by tips.
            let tx = rules::check(&self.spec, head.header(), 0, sent).map_err(refused)?;
            let (next, nonce) = (nonce_of(&head.world, &tx.signer()), tx.nonce());
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
            client,
            blocks,
            min_timestamp,
            max_timestamp,
            may_revert,
            name,
            size,
            tries: AtomicU32::new(0),
            misfit: Mutex::new(None),
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

    /// Returns the blocks of a bundle, by default the one being built. Each is being built, or soon will be.
    fn blocks(&self, block: Option<u64>, max_block: Option<u64>) -> Result<RangeInclusive<u64>, BundleRefusal> {
        let open = self.snapshots.newest().header().number;
        let (first, last) = (block.unwrap_or(open), open.saturating_add(BLOCKS_AHEAD));
        if !(open..=last).contains(&first) {
            return Err(BundleRefusal::Block { block: first, open });
        }
        match max_block {
            Some(block) if !(first..=last).contains(&block) => Err(BundleRefusal::MaxBlock { block, first, last }),
            max_block => Ok(first..=max_block.unwrap_or(first)),
        }
    }

    /// Returns the outcome of a client's bundle with this hash. `None` if the client has sent none, or its outcome was evicted.
    pub fn outcome(&self, client: Option<&str>, hash: &B256) -> Option<BundleOutcome> {
        let (bundles, published) = (self.bundles.lock(), self.snapshots.load());
        let mut ended = None;
        for bundle in bundles.waiting.iter().filter(|bundle| bundle.hash == *hash && bundle.client.as_deref() == client)
        {
            // A bundle waits a moment longer than its block is published.
            match bundle.ended(&published) {
                None => return Some(BundleOutcome::Pending { misfit: bundle.misfit.lock().clone() }),
                end => ended = end,
            }
        }
        let ended = ended.as_ref().or_else(|| bundles.outcomes.get(client, hash));
        ended.map(|end| end.outcome(&published))
    }

    /// Cancels the bundles with this name that are not mined yet. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// Returns [`BundleRefusal::Static`], [`BundleRefusal::Upstream`] or [`BundleRefusal::Degraded`] if no blocks are built here.
    pub fn cancel(&self, name: &BundleName) -> Result<bool, BundleRefusal> {
        self.check_built()?;
        let mut bundles = self.bundles.lock();
        let before = bundles.waiting.len();
        bundles.end(|bundle| (bundle.name.as_ref() == Some(name)).then_some(BundleEnd::Dropped(BundleDrop::Cancelled)));
        Ok(bundles.waiting.len() < before)
    }

    /// Returns the bundles to be tried in a sub-block of the block `number` with this timestamp: those first that were tried
    /// least, in order of arrival.
    pub fn for_block(&self, number: u64, timestamp: u64) -> Vec<Arc<WaitingBundle>> {
        let mut bundles: Vec<_> =
            self.bundles.lock().waiting.iter().filter(|bundle| bundle.is_for(number, timestamp)).cloned().collect();
        bundles.sort_by_key(|bundle| bundle.tries.load(Relaxed));
        bundles
    }

    /// Ends the bundles of sealed blocks, and those of the open block with a transaction that is in a block already.
    pub(super) fn advance(&self, published: &Chain) {
        self.bundles.lock().end(|bundle| bundle.ended(published));
    }

    /// Adds a bundle in place of that with the same name; without a name, of the same bundle for the same block.
    fn push(&self, bundle: WaitingBundle) -> Result<(), BundleRefusal> {
        let mut bundles = self.bundles.lock();
        let stays = |other: &WaitingBundle| {
            other.name != bundle.name
                || (bundle.name.is_none() && (other.hash, &other.blocks) != (bundle.hash, &bundle.blocks))
                || other.client != bundle.client
        };
        let (mut staying, mut bytes) = (0, 0);
        for other in bundles.waiting.iter().filter(|other| stays(other)) {
            (staying, bytes) = (staying + 1, bytes + other.size);
        }
        if staying >= self.settings.bundles {
            return Err(BundleRefusal::TooMany { waiting: staying, most: self.settings.bundles });
        }
        let left = self.settings.bytes.saturating_sub(bytes);
        if bundle.size > left {
            return Err(BundleRefusal::Full { left, size: bundle.size });
        }
        bundles.end(|other| (!stays(other)).then_some(BundleEnd::Dropped(BundleDrop::Replaced)));
        bundles.waiting.push(Arc::new(bundle));
        Ok(())
    }
}

impl BundleState {
    /// Removes the bundles that have ended, and records how.
    fn end(&mut self, how: impl Fn(&WaitingBundle) -> Option<BundleEnd>) {
        let Self { waiting, outcomes } = self;
        waiting.retain(|bundle| match how(bundle) {
            Some(end) => {
                outcomes.add(bundle.client.as_deref(), bundle.hash, end);
                false
            }
            None => true,
        });
    }
}
