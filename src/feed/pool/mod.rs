//! The transaction pool: what was sent and is not yet in a block.
//!
//! It refuses what geth's pools refuse, in their words. What they have against floods from a public network is left out: one transaction in
//! flight for delegated accounts, accounts reserved to blobs or to all else, an age after which what waits is dropped.

mod best;
mod decode;
mod error;
mod queue;
mod rules;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, map::B256Map};
use tokio::sync::broadcast;

use self::queue::Queue;
pub use self::{
    best::{Best, BlockFees, Ready},
    decode::SentTransaction,
    error::PoolError,
    queue::Pooled,
};
use crate::{
    chain::ChainSpec,
    state::{Published, Snapshot, Snapshots},
};

/// Transactions that a subscriber to [`Pool::subscribe`] may be behind before it misses some.
const BROADCAST: usize = 4_096;

/// Bounds and prices of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Transactions in all.
    pub transactions: usize,
    /// Transactions of one account.
    pub per_account: usize,
    /// Bytes of all transactions together.
    pub bytes: usize,
    /// How much more a transaction must pay than the one whose place it takes, in per cent.
    pub price_bump: u32,
    /// The least tip, in wei a unit of gas.
    pub min_tip: u128,
}

/// The pool, shared by those who send and the one who builds.
///
/// What costs time, signatures and blob proofs, is checked before its lock is taken; what depends on the accounts is checked under
/// it, against the snapshot that is the newest at that moment. A block's transactions leave the pool ([`advance`](Self::advance))
/// only after its snapshot was published, so under the lock each transaction sent is in the newest snapshot or in the pool, and
/// the next nonce that follows from both is right.
#[derive(Debug)]
pub struct Pool {
    spec: ChainSpec,
    limits: PoolLimits,
    snapshots: Arc<Snapshots>,
    inner: Mutex<Inner>,
    ready: broadcast::Sender<Arc<Recovered<TxEnvelope>>>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: Queue,
    /// Of the producer's own for the sub-block under way: never in the queue, found by their hash all the same.
    own: B256Map<Arc<Recovered<TxEnvelope>>>,
}

impl Pool {
    /// An empty pool that checks against what `snapshots` publishes.
    pub fn new(spec: ChainSpec, limits: PoolLimits, snapshots: Arc<Snapshots>) -> Self {
        Self { spec, limits, snapshots, inner: Mutex::default(), ready: broadcast::Sender::new(BROADCAST) }
    }

    /// Takes a transaction as a client sends it: EIP-2718 bytes, blob transactions with their sidecar.
    ///
    /// # Errors
    /// What geth's pool says of it.
    pub fn add_raw(&self, raw: &[u8]) -> Result<B256, PoolError> {
        self.add(SentTransaction::decode(raw)?)
    }

    /// The same for a transaction that is decoded.
    pub fn add(&self, sent: SentTransaction) -> Result<B256, PoolError> {
        if !sent.tx.is_replay_protected() {
            return Err(PoolError::Unprotected);
        }
        let hash = *sent.tx.tx_hash();
        if self.lock().queue.get(&hash).is_some() {
            return Err(PoolError::AlreadyKnown);
        }
        let head = self.snapshots.newest();
        let tx = rules::check(&self.spec, head.header(), self.limits.min_tip, sent)?;
        let size = tx.eip2718_encoded_length();
        let mut inner = self.lock();
        let newest = self.snapshots.newest();
        self.tell(inner.queue.insert(tx, size, &newest.world, &self.limits)?);
        Ok(hash)
    }

    /// The transaction with this hash, while it waits.
    pub fn get(&self, hash: &B256) -> Option<Arc<Recovered<TxEnvelope>>> {
        let inner = self.lock();
        inner.queue.get(hash).map(|pooled| pooled.tx.clone()).or_else(|| inner.own.get(hash).cloned())
    }

    /// The nonce of the next transaction of `address`, where its account is at `state_nonce`: the first, from there on, that none of
    /// those in the pool has. Never less than what the newest snapshot says, though the caller's be older.
    pub fn next_nonce(&self, address: Address, state_nonce: u64) -> u64 {
        let inner = self.lock();
        let newest = self.snapshots.newest();
        let nonce = newest.world.account(&address).map_or(0, |account| account.nonce);
        inner.queue.next_nonce(&address, nonce.max(state_nonce))
    }

    /// The nonce that is missing before the transaction with this hash can be mined, if it waits and one is.
    pub fn gap_before(&self, hash: &B256) -> Option<u64> {
        let inner = self.lock();
        let tx = &inner.queue.get(hash)?.tx;
        let newest = self.snapshots.newest();
        let nonce = newest.world.account(&tx.signer()).map_or(0, |account| account.nonce);
        Some(inner.queue.next_nonce(&tx.signer(), nonce)).filter(|gap| *gap < tx.nonce())
    }

    /// What is published now, and so at least what had left the pool before this was called.
    pub fn published(&self) -> Arc<Published> {
        self.snapshots.load()
    }

    /// How many transactions wait, those behind a nonce gap included.
    pub fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `address` has a transaction here.
    pub fn has_sender(&self, address: &Address) -> bool {
        self.lock().queue.has_sender(address)
    }

    /// The transactions that could be mined on `on` at these fees, the best first.
    pub fn best(&self, on: &Snapshot, fees: BlockFees) -> Best {
        Best::new(fees, self.lock().queue.runs(&on.world))
    }

    /// Takes out a transaction that can never be mined.
    pub fn remove(&self, hash: &B256) {
        self.lock().queue.remove(hash);
    }

    /// Takes out what has been mined, or can no longer be. To be called after each publication. Costs a look at each sender's account,
    /// nothing where the pool is empty.
    pub fn advance(&self) {
        let mut inner = self.lock();
        inner.own.clear();
        if inner.queue.len() == 0 {
            return;
        }
        let newest = self.snapshots.newest();
        inner.queue.drop_used(&newest.world);
        for sender in inner.queue.senders() {
            self.tell(inner.queue.newly_ready(&sender, &newest.world));
        }
    }

    /// Tells subscribers of transactions that the producer adds of its own, before their sub-block is published. They do not wait
    /// here; [`get`](Self::get) finds them until [`advance`](Self::advance).
    pub fn tell_own(&self, transactions: impl IntoIterator<Item = Arc<Recovered<TxEnvelope>>>) {
        let mut inner = self.lock();
        for tx in transactions {
            inner.own.insert(*tx.tx_hash(), tx.clone());
            let _ = self.ready.send(tx);
        }
    }

    /// Transactions as they become ready to be mined: at once, or when the gap before them is filled.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Recovered<TxEnvelope>>> {
        self.ready.subscribe()
    }

    fn tell(&self, ready: Vec<Arc<Recovered<TxEnvelope>>>) {
        for tx in ready {
            // Nobody may be listening.
            let _ = self.ready.send(tx);
        }
    }

    /// A panic under the lock leaves the pool as it was between two of its changes: it is used on.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
