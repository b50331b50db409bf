//! The transaction pool: what was sent and is not yet in a block.
//!
//! It refuses what geth's pools refuse, in their words. What they have against floods from a public network is left out: one transaction in
//! flight for delegated accounts, accounts reserved to blobs or to all else, an age after which what waits is dropped.

mod account;
mod best;
mod decode;
mod error;
mod keep;
mod queue;
mod rules;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, map::B256Map};
use redb::WriteTransaction;
use tokio::sync::broadcast;

pub use self::{
    account::Pooled,
    best::{Best, BlockFees, BlockSpace, Ready},
    decode::SentTransaction,
    error::PoolError,
    keep::forget,
    queue::PoolPlace,
};
use self::{
    keep::StoredTransaction,
    queue::{Checked, Coming, Left, Queue},
};
use crate::{
    chain::ChainSpec,
    state::{Published, Snapshot, Snapshots},
    store::{Change, Commit, Done, Store, StoreError},
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
///
/// Where there is a store, a transaction has its place here at once, and is *held*: it is mined and told of when it is on the disk. What leaves
/// without being mined is forgotten there, too.
#[derive(Debug)]
pub struct Pool {
    spec: ChainSpec,
    limits: PoolLimits,
    snapshots: Arc<Snapshots>,
    store: Option<Store>,
    inner: Mutex<PoolState>,
    ready: broadcast::Sender<Arc<Recovered<TxEnvelope>>>,
}

/// What is written with transactions.
struct PoolCommit {
    store: Store,
    write: Change,
    then: Done,
}

#[derive(Debug, Default)]
struct PoolState {
    queue: Queue,
    /// Of the producer's own for the sub-block under way: never in the queue, found by their hash all the same.
    own: B256Map<Arc<Recovered<TxEnvelope>>>,
}

impl Pool {
    /// An empty pool that checks against what `snapshots` publishes, and keeps what waits in `store`, if there is one.
    pub fn new(spec: ChainSpec, limits: PoolLimits, snapshots: Arc<Snapshots>, store: Option<Store>) -> Self {
        Self { spec, limits, snapshots, store, inner: Mutex::default(), ready: broadcast::Sender::new(BROADCAST) }
    }

    /// Takes in what waited when the node last ended, though the bounds be narrower now. What the accounts allow no longer is forgotten, with a
    /// line in the log.
    ///
    /// # Errors
    /// That the store cannot be read.
    pub fn restore(&self) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let kept = store.read(keep::read)?;
        let mut inner = self.lock();
        let newest = self.snapshots.newest();
        let mut gone = Vec::new();
        for (arrived, own, tx) in kept {
            let hash = *tx.tx_hash();
            inner.queue.arrive_after(arrived - 1);
            let coming = Coming { own, held: false, place: PoolPlace::Former };
            if let Err(reason) = inner.queue.insert(tx.into(), coming, &newest.world, &self.limits) {
                tracing::warn!(%hash, %reason, "a transaction that waited cannot any longer: it is forgotten");
                gone.push(hash);
            }
        }
        gone.extend(inner.queue.take_left().iter().map(Left::hash));
        self.forget(gone);
        Ok(())
    }

    /// Takes a transaction as a client sends it: EIP-2718 bytes, blob transactions with their sidecar. It is to be acknowledged when it
    /// is on the disk.
    ///
    /// # Errors
    /// What geth's pool says of it.
    pub fn add_raw(self: &Arc<Self>, raw: &[u8]) -> Result<(B256, Commit), PoolError> {
        let sent = SentTransaction::decode(raw)?;
        if !sent.tx.is_replay_protected() {
            return Err(PoolError::Unprotected);
        }
        let hash = *sent.tx.tx_hash();
        if self.lock().queue.get(&hash).is_some() {
            return Err(PoolError::AlreadyKnown);
        }
        Ok((hash, self.add_all([sent], false, PoolPlace::Any, None)?))
    }

    /// Takes a transaction that this node has signed, as [`add_raw`](Self::add_raw) does. Where the node chose its nonce too, `place` is a free one.
    ///
    /// # Errors
    /// What geth's pool says of it; that its place is not free.
    pub fn add_signed(self: &Arc<Self>, tx: Recovered<TxEnvelope>, place: PoolPlace) -> Result<Commit, PoolError> {
        self.add_all([tx.into()], true, place, None)
    }

    /// Takes transactions that this node has signed with nonces of its choice, in their order, all or none of them. `beside` is written to `store` with them, and
    /// `then` is called when that is done, or has failed. Until then they are held.
    ///
    /// # Errors
    /// What geth's pool says of the first that it does not take; that a nonce is taken. Whatever made room for them is there again then.
    pub fn add_own(
        self: &Arc<Self>,
        transactions: impl IntoIterator<Item = Recovered<TxEnvelope>>,
        store: &Store,
        beside: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
        then: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) -> Result<Commit, PoolError> {
        let sent = transactions.into_iter().map(SentTransaction::from);
        let beside = PoolCommit { store: store.clone(), write: Box::new(beside), then: Box::new(then) };
        self.add_all(sent, true, PoolPlace::Free, Some(beside))
    }

    fn add_all(
        self: &Arc<Self>,
        sent: impl IntoIterator<Item = SentTransaction>,
        own: bool,
        place: PoolPlace,
        beside: Option<PoolCommit>,
    ) -> Result<Commit, PoolError> {
        let head = self.snapshots.newest();
        let check = |sent| rules::check(&self.spec, head.header(), self.limits.min_tip, sent).map(Checked::from);
        let transactions: Vec<_> = sent.into_iter().map(check).collect::<Result<_, _>>()?;
        let mut inner = self.lock();
        let newest = self.snapshots.newest();
        let coming = Coming { own, held: self.store.is_some() || beside.is_some(), place };
        let (mut pooled, mut ready) = (Vec::with_capacity(transactions.len()), Vec::new());
        let taken = || {
            for checked in transactions {
                let hash = *checked.tx.tx_hash();
                ready.extend(inner.queue.insert(checked, coming, &newest.world, &self.limits)?);
                pooled.extend(inner.queue.get(&hash).cloned());
            }
            self.keep(&mut inner.queue, &pooled, beside)
        };
        match taken() {
            Ok(commit) => {
                self.tell(ready);
                Ok(commit)
            }
            Err(error) => {
                let left = inner.queue.take_left();
                inner.queue.undo(&pooled, left, &newest.world);
                Err(error)
            }
        }
    }

    /// Writes transactions that have their place, and lets them go on when they are on the disk. What they drove out is forgotten with it. An error
    /// leaves that in the queue's record of what left.
    fn keep(
        self: &Arc<Self>,
        queue: &mut Queue,
        coming: &[Arc<Pooled>],
        beside: Option<PoolCommit>,
    ) -> Result<Commit, PoolError> {
        let Some(store) = beside.as_ref().map(|beside| &beside.store).or(self.store.as_ref()).cloned() else {
            queue.take_left();
            return Ok(Commit::done());
        };
        let left = queue.left().to_vec();
        let (mut stored, mut gone) = (Vec::new(), Vec::new());
        if self.store.is_some() {
            stored.extend(coming.iter().map(|pooled| (*pooled.tx.tx_hash(), StoredTransaction::from(&**pooled))));
            gone.extend(left.iter().map(Left::hash));
        }
        let (write, then) = beside.map(|beside| (beside.write, beside.then)).unzip();
        let (pool, coming) = (Arc::downgrade(self), coming.to_vec());
        let change = move |transaction: &WriteTransaction| {
            forget(transaction, gone)?;
            keep::write(transaction, stored)?;
            write.map_or(Ok(()), |write| write(transaction))
        };
        let commit = store.write_then(change, move |how| {
            if let Some(pool) = pool.upgrade() {
                pool.let_go(&coming, left, how.is_ok());
            }
            if let Some(then) = then {
                then(how);
            }
        })?;
        queue.take_left();
        Ok(commit)
    }

    /// Held transactions have come to the disk; or they never will, and what left for them is there again if it is on the disk.
    fn let_go(&self, coming: &[Arc<Pooled>], mut left: Vec<Left>, kept: bool) {
        let mut inner = self.lock();
        let newest = self.snapshots.newest();
        if kept {
            for pooled in coming {
                self.tell(inner.queue.release(pooled, &newest.world));
            }
        } else {
            left.retain(|left| !left.pooled.is_held());
            inner.queue.undo(coming, left, &newest.world);
        }
    }

    /// Forgets transactions on the disk, some time soon: whoever finds one again after a restart sees that it cannot wait.
    fn forget(&self, hashes: Vec<B256>) {
        if let Some(store) = self.store.as_ref().filter(|_| !hashes.is_empty()) {
            let _soon = store.write(move |transaction| forget(transaction, hashes));
        }
    }

    /// The transaction with this hash, while it waits and is on the disk: before that, nobody is told of it.
    pub fn get(&self, hash: &B256) -> Option<Arc<Recovered<TxEnvelope>>> {
        let inner = self.lock();
        let pooled = inner.queue.get(hash).filter(|pooled| !pooled.is_held());
        pooled.map(|pooled| pooled.tx.clone()).or_else(|| inner.own.get(hash).cloned())
    }

    /// Whether the transaction with this hash has its place here, on the disk or on its way there. One is on the disk a moment before the pool
    /// hears of it.
    pub fn has_place(&self, hash: &B256) -> bool {
        self.lock().queue.get(hash).is_some()
    }

    /// The nonce of the next transaction of `address`, where its account is at `state_nonce`: the first, from there on, that none of
    /// those in the pool uses, for itself or for an authorization of its sender's. Never less than what the newest snapshot says, though the caller's be older.
    pub fn next_nonce(&self, address: Address, state_nonce: u64) -> u64 {
        self.next_nonces(address, state_nonce, 1)
    }

    /// The same, for one that uses `count` nonces in a row: the first of them.
    pub fn next_nonces(&self, address: Address, state_nonce: u64, count: u64) -> u64 {
        let inner = self.lock();
        let newest = self.snapshots.newest();
        let nonce = newest.world.account(&address).map_or(0, |account| account.nonce);
        let own = inner.own.values().filter(|tx| tx.signer() == address).map(|tx| tx.nonce() + 1).max();
        inner.queue.next_nonces(&address, nonce.max(state_nonce).max(own.unwrap_or_default()), count)
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

    /// Whether a transaction of `address` waits that delegates its own account, to whomever (EIP-7702).
    pub fn delegates(&self, address: &Address) -> bool {
        self.lock().queue.delegates(address)
    }

    /// The transactions that could be mined on `on` at these fees, the best first.
    pub fn best(&self, on: &Snapshot, fees: BlockFees) -> Best {
        Best::new(fees, self.lock().queue.runs(&on.world))
    }

    /// Takes out a transaction that can never be mined.
    pub fn remove(&self, hash: &B256) {
        let mut inner = self.lock();
        inner.queue.remove(hash);
        self.forget(inner.queue.take_left().iter().map(Left::hash).collect());
    }

    /// Takes out what has been mined, or can no longer be. To be called after each publication. Costs a look at each sender's account,
    /// nothing where the pool is empty.
    pub fn advance(&self) {
        let mut inner = self.lock();
        inner.own.clear();
        if inner.queue.len() == 0 {
            return;
        }
        let published = self.snapshots.load();
        let world = &published.newest.world;
        inner.queue.drop_used(world);
        // What was mined has been forgotten with the record of its sub-block.
        let left = inner.queue.take_left();
        let unmined = left.iter().map(Left::hash).filter(|hash| published.transaction(hash).is_none());
        self.forget(unmined.collect());
        for sender in inner.queue.senders() {
            self.tell(inner.queue.newly_ready(&sender, world));
        }
    }

    /// Transactions that the producer adds of its own, but for those of accounts that somebody else sends from. Subscribers are told of them before
    /// their sub-block is published. They do not wait here; [`get`](Self::get) finds them, and their nonces count as taken, until
    /// [`advance`](Self::advance).
    pub fn take_own(
        &self,
        transactions: impl IntoIterator<Item = Recovered<TxEnvelope>>,
    ) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let transactions: Vec<_> = transactions.into_iter().collect();
        let mut inner = self.lock();
        let mut taken = Vec::with_capacity(transactions.len());
        for tx in transactions
            .into_iter()
            .filter(|tx| !inner.queue.has_sender(&tx.signer()))
            .map(Arc::new)
            .collect::<Vec<_>>()
        {
            inner.own.insert(*tx.tx_hash(), tx.clone());
            let _ = self.ready.send(tx.clone());
            taken.push(tx);
        }
        taken
    }

    /// Lets go of what [`take_own`](Self::take_own) took: its sub-block does not come.
    pub fn drop_own(&self) {
        self.lock().own.clear();
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
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
