//! The transactions of the pool, shared by the senders and the block producer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, map::B256Map};
use redb::WriteTransaction;
use tokio::sync::{Notify, broadcast, watch};

use super::{
    Best, BlockFees, BlocksBuilt, Bundles, DropReason, DroppedTransaction, LeastFees, OnArrival, PoolError, PoolNonce,
    PoolStatus, Pooled, SenderContent, SentTransaction, Settings,
    account::nonce_of,
    queue::{Arrival, Departure, Queue},
    rules,
    table::{self, StoredTransaction, forget},
};
use crate::{
    chain::ChainSpec,
    ledger::{Chain, Snapshot, SnapshotId, Snapshots},
    lock::Mutex,
    store::{Change, Commit, Done, Store, StoreError},
};

/// Number of transactions that a subscriber of [`Pool::subscribe`] may lag behind before it misses some.
pub const BROADCAST_CAPACITY: usize = 4_096;

/// The transaction pool, shared by the senders and the block producer.
///
/// Signatures and blob proofs, whose checks take time, are checked before the lock is taken. Accounts are checked under
/// the lock, against the newest snapshot at that moment. The transactions of a block leave the pool
/// ([`advance`](Self::advance)) only after its snapshot was published. So under the lock each accepted transaction is
/// in the newest snapshot or in the pool, and the next nonce that follows from both is right.
///
/// With a store, a transaction enters the pool at once but is *held*: it is neither mined nor visible until it is on
/// the disk. A transaction that leaves without being mined is also deleted from the store.
///
/// On an upstream's chain the pool holds only the node's own transactions, and is the record of them: a transaction
/// stays until its fate is final ([`forget_aside`](Self::forget_aside)), because a reorg may revert it.
#[derive(Debug)]
pub struct Pool {
    spec: ChainSpec,
    pub(super) settings: Settings,
    /// The lowest priority fee, in wei per gas.
    min_tip: AtomicU64,
    pub(super) snapshots: Arc<Snapshots>,
    store: Option<Store>,
    pub(super) inner: Mutex<PoolState>,
    /// The bundles that wait for a block.
    pub bundles: Bundles,
    /// The transactions as a chain sees them that mines on arrival.
    pub on_arrival: OnArrival,
    ready: broadcast::Sender<Arc<Recovered<TxEnvelope>>>,
    dropped: broadcast::Sender<DroppedTransaction>,
    /// Notified when transactions are on the disk.
    pub(super) stored: Notify,
}

/// A write to be committed together with transactions.
struct PoolCommit {
    store: Store,
    write: Change,
    then: Done,
}

#[derive(Debug, Default)]
pub(super) struct PoolState {
    pub queue: Queue,
    /// The producer's own transactions for the sub-block in progress. Not in the queue, but found by hash.
    own: B256Map<Arc<Recovered<TxEnvelope>>>,
}

impl Pool {
    /// Creates an empty pool that checks against the newest of `snapshots`, and keeps transactions in `store`, if any.
    pub fn new(spec: ChainSpec, settings: Settings, snapshots: Arc<Snapshots>, store: Option<Store>) -> Self {
        let queue = if settings.built == BlocksBuilt::Upstream { Queue::of_upstream() } else { Queue::default() };
        Self {
            bundles: Bundles::new(spec.clone(), settings, snapshots.clone()),
            spec,
            min_tip: AtomicU64::new(settings.min_tip),
            settings,
            snapshots,
            store,
            inner: Mutex::new(PoolState { queue, own: B256Map::default() }),
            on_arrival: OnArrival::default(),
            ready: broadcast::Sender::new(BROADCAST_CAPACITY),
            dropped: broadcast::Sender::new(BROADCAST_CAPACITY),
            stored: Notify::new(),
        }
    }

    /// Restores the stored transactions, even beyond the limits. Logs and drops those that the accounts no longer
    /// allow.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] or [`StoreError::Open`] if the store cannot be read, and [`StoreError::Foreign`]
    /// if it holds own transactions of another chain.
    pub fn restore(&self) -> Result<(), StoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let kept = store.read(table::read)?;
        let here = self.spec.chain_id();
        let chains = kept.iter().filter(|(_, own, _)| *own).filter_map(|(.., tx)| tx.chain_id());
        if let Some(other) = chains.into_iter().find(|chain| *chain != here) {
            return Err(store.foreign(format!(
                "it holds transactions of chain {other} that wait, and this is chain {here}: give another --data-dir"
            )));
        }
        let mut inner = self.inner.lock();
        let newest = self.snapshots.settled();
        let mut gone = Vec::new();
        for (arrived, own, tx) in kept {
            let hash = *tx.tx_hash();
            inner.queue.arrive_after(arrived - 1);
            let arrival = Arrival { own, held: false, nonce: PoolNonce::Former };
            if let Err(reason) = inner.queue.insert(tx.into(), arrival, &newest.world, &self.settings) {
                tracing::warn!(%hash, %reason, "a stored transaction is no longer valid: it is dropped");
                gone.push(hash);
            }
        }
        let left = inner.queue.take_left();
        gone.extend(left.iter().map(Departure::hash).filter(|hash| !inner.queue.is_aside(hash)));
        self.forget(gone);
        Ok(())
    }

    /// Adds a transaction in EIP-2718 bytes, with the sidecar of a blob transaction. Wait for the [`Commit`] before
    /// acknowledging it.
    ///
    /// # Errors
    /// Returns the [`PoolError`] of the first check that fails, in geth's order.
    pub fn add_raw(self: &Arc<Self>, raw: &[u8]) -> Result<(B256, Commit), PoolError> {
        let sent = SentTransaction::decode(raw)?;
        if !sent.tx.is_replay_protected() {
            return Err(PoolError::Unprotected);
        }
        let hash = *sent.tx.tx_hash();
        if self.inner.lock().queue.get(&hash).is_some() {
            return Err(PoolError::AlreadyKnown);
        }
        Ok((hash, self.add_all([sent], Arrival::OF_CLIENT, None)?))
    }

    /// Sets the lowest priority fee of transactions that are sent from now on, in wei per gas.
    pub fn set_min_tip(&self, wei: u64) {
        self.min_tip.store(wei, Relaxed);
    }

    fn min_tip(&self) -> u128 {
        self.min_tip.load(Relaxed).into()
    }

    /// Adds a transaction that this node has signed, with a nonce as this `nonce` allows. See [`add_raw`](Self::add_raw).
    ///
    /// # Errors
    /// Returns [`PoolError::NonceTaken`] if a free nonce is required and this one is taken, else as `add_raw`.
    pub fn add_signed(self: &Arc<Self>, tx: Recovered<TxEnvelope>, nonce: PoolNonce) -> Result<Commit, PoolError> {
        self.add_of_node([tx], nonce, None)
    }

    fn add_of_node(
        self: &Arc<Self>,
        transactions: impl IntoIterator<Item = Recovered<TxEnvelope>>,
        nonce: PoolNonce,
        beside: Option<PoolCommit>,
    ) -> Result<Commit, PoolError> {
        let arrival = Arrival { own: true, nonce, ..Arrival::OF_CLIENT };
        self.add_all(transactions.into_iter().map(SentTransaction::from), arrival, beside)
    }

    /// Adds transactions that this node has signed with nonces of its choice, as `nonce` allows: in order, and all or
    /// none. Writes `beside` to `store` in the same commit, and calls `then` with the outcome. The transactions are
    /// held until then.
    ///
    /// # Errors
    /// Returns the [`PoolError`] of the first rejected transaction: [`PoolError::NonceTaken`] if its nonce must be
    /// free and is not, [`PoolError::ReplacementUnderpriced`] if it pays too little more than the one it replaces.
    /// Transactions that were evicted for the batch are then restored.
    pub fn add_own(
        self: &Arc<Self>,
        nonce: PoolNonce,
        transactions: impl IntoIterator<Item = Recovered<TxEnvelope>>,
        store: &Store,
        beside: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
        then: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) -> Result<Commit, PoolError> {
        let beside = PoolCommit { store: store.clone(), write: Box::new(beside), then: Box::new(then) };
        self.add_of_node(transactions, nonce, Some(beside))
    }

    fn add_all(
        self: &Arc<Self>,
        sent: impl IntoIterator<Item = SentTransaction>,
        arrival: Arrival,
        beside: Option<PoolCommit>,
    ) -> Result<Commit, PoolError> {
        let head = self.snapshots.newest();
        let check = |sent| rules::check(&self.spec, head.header(), self.min_tip(), sent).map(Pooled::from);
        let transactions: Vec<_> = sent.into_iter().map(check).collect::<Result<_, _>>()?;
        let mut inner = self.inner.lock();
        let newest = self.snapshots.settled();
        let arrival = Arrival { held: self.store.is_some() || beside.is_some(), ..arrival };
        let (mut pooled, mut ready) = (Vec::with_capacity(transactions.len()), Vec::new());
        let taken = || {
            for new in transactions {
                let hash = *new.tx.tx_hash();
                ready.extend(inner.queue.insert(new, arrival, &newest.world, &self.settings)?);
                pooled.extend(inner.queue.get(&hash).cloned());
            }
            self.commit(&mut inner.queue, &pooled, beside)
        };
        match taken() {
            Ok(commit) => {
                self.notify_ready(ready);
                Ok(commit)
            }
            Err(error) => {
                let left = inner.queue.take_left();
                inner.queue.undo(&pooled, left, &newest.world);
                Err(error)
            }
        }
    }

    /// Stores transactions that have entered the queue, and releases them once they are on the disk. Deletes the
    /// evicted ones in the same commit. On an error, these stay in `Queue::left`.
    fn commit(
        self: &Arc<Self>,
        queue: &mut Queue,
        arrival: &[Arc<Pooled>],
        beside: Option<PoolCommit>,
    ) -> Result<Commit, PoolError> {
        let Some(store) = beside.as_ref().map(|beside| &beside.store).or(self.store.as_ref()).cloned() else {
            let left = queue.take_left();
            self.notify_dropped(queue, &left);
            return Ok(Commit::done());
        };
        let left = queue.left().to_vec();
        let (mut stored, mut gone) = (Vec::new(), Vec::new());
        if self.store.is_some() {
            stored.extend(arrival.iter().map(|pooled| (*pooled.tx.tx_hash(), StoredTransaction::from(&**pooled))));
            gone.extend(left.iter().map(Departure::hash).filter(|hash| !queue.is_aside(hash)));
        }
        let (write, then) = beside.map(|beside| (beside.write, beside.then)).unzip();
        let (pool, arrival) = (Arc::downgrade(self), arrival.to_vec());
        let change = move |transaction: &WriteTransaction| {
            forget(transaction, gone)?;
            table::write(transaction, stored)?;
            write.map_or(Ok(()), |write| write(transaction))
        };
        let commit = store.write_then(change, move |how| {
            if let Some(pool) = pool.upgrade() {
                pool.release_stored(&arrival, left, how.is_ok());
            }
            if let Some(then) = then {
                then(how);
            }
        })?;
        queue.take_left();
        Ok(commit)
    }

    /// Releases held transactions that are stored. If storing failed, removes them and restores the evicted ones.
    fn release_stored(&self, arrival: &[Arc<Pooled>], mut left: Vec<Departure>, kept: bool) {
        let mut inner = self.inner.lock();
        let newest = self.snapshots.settled();
        if kept {
            for pooled in arrival {
                self.notify_ready(inner.queue.release(pooled, &newest.world));
            }
            self.notify_dropped(&inner.queue, &left);
            self.stored.notify_one();
        } else {
            left.retain(|left| !left.pooled.is_held());
            inner.queue.undo(arrival, left, &newest.world);
        }
    }

    /// Deletes transactions from the store without waiting. [`restore`](Self::restore) drops any that remain.
    fn forget(&self, hashes: Vec<B256>) {
        if let Some(store) = self.store.as_ref().filter(|_| !hashes.is_empty()) {
            let _soon = store.write(move |transaction| forget(transaction, hashes));
        }
    }

    /// Returns the transaction with this hash, if it is in the pool and not held.
    pub fn get(&self, hash: &B256) -> Option<Arc<Recovered<TxEnvelope>>> {
        let inner = self.inner.lock();
        let pooled = inner.queue.get(hash).filter(|pooled| !pooled.is_held());
        pooled.map(|pooled| pooled.tx.clone()).or_else(|| inner.own.get(hash).cloned())
    }

    /// Whether the pool holds the transaction with this hash, even if it is not stored yet, or on an upstream's chain
    /// not settled yet. A transaction is on the disk shortly before the pool releases it.
    pub fn holds(&self, hash: &B256) -> bool {
        let inner = self.inner.lock();
        inner.queue.get(hash).is_some() || inner.queue.is_aside(hash)
    }

    /// Returns the nonce for the next transaction of `address`: the first from `state_nonce` on that no transaction in
    /// the pool uses, for itself or for an authorization of its sender. The result is never below the account's nonce
    /// in the newest snapshot, even if the caller's snapshot is older.
    pub fn next_nonce(&self, address: Address, state_nonce: u64) -> u64 {
        self.next_nonces(address, state_nonce, 1)
    }

    /// Returns the first of `count` consecutive nonces that are free in the sense of [`next_nonce`](Self::next_nonce).
    pub fn next_nonces(&self, address: Address, state_nonce: u64, count: u64) -> u64 {
        let inner = self.inner.lock();
        let newest = self.snapshots.settled();
        let nonce = nonce_of(&newest.world, &address);
        let own = inner.own.values().filter(|tx| tx.signer() == address).map(|tx| tx.nonce() + 1).max();
        inner.queue.next_nonces(&address, nonce.max(state_nonce).max(own.unwrap_or_default()), count)
    }

    /// Returns the least fees of a transaction of `sender` with this nonce, which may replace one that waits.
    pub fn least_fees(&self, sender: &Address, nonce: u64) -> LeastFees {
        let inner = self.inner.lock();
        let replaced = inner.queue.with_nonce(sender, nonce);
        replaced.map(|old| LeastFees::of_replacement(&old.tx, self.settings.price_bump)).unwrap_or_default()
    }

    /// Returns the nonce that is missing before the transaction with this hash can be mined, if it waits behind a gap.
    pub fn gap_before(&self, hash: &B256) -> Option<u64> {
        let inner = self.inner.lock();
        let tx = &inner.queue.get(hash)?.tx;
        let newest = self.snapshots.settled();
        let nonce = nonce_of(&newest.world, &tx.signer());
        Some(inner.queue.next_nonces(&tx.signer(), nonce, 1)).filter(|gap| *gap < tx.nonce())
    }

    /// Returns the published state, which includes all transactions that were mined and left the pool before the call.
    pub fn published(&self) -> Arc<Chain> {
        self.snapshots.load()
    }

    /// Returns a receiver that wakes on each publication.
    pub fn changes(&self) -> watch::Receiver<SnapshotId> {
        self.snapshots.changes()
    }

    /// Returns the number of transactions, including any behind a nonce gap.
    pub fn len(&self) -> usize {
        self.inner.lock().queue.len()
    }

    /// Whether no transaction waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the pool holds a transaction of `address`.
    pub fn has_sender(&self, address: &Address) -> bool {
        self.inner.lock().queue.has_sender(address)
    }

    /// Whether the pool holds a transaction of `address` that delegates its own account, to any address (EIP-7702).
    pub fn delegates(&self, address: &Address) -> bool {
        let inner = self.inner.lock();
        // A mined transaction leaves shortly after its snapshot was published.
        inner.queue.delegates(address, nonce_of(&self.snapshots.settled().world, address))
    }

    /// Returns the transactions that can be mined on the snapshot `on` at these fees, best first.
    pub fn best(&self, on: &Snapshot, fees: BlockFees) -> Best {
        Best::new(fees, self.settings.is_fifo, self.inner.lock().queue.runs(&on.world))
    }

    /// Returns the transactions of all senders, in order of the senders' addresses. The producer's own transactions of
    /// [`take_own`](Self::take_own) are not among them, because they do not wait.
    pub fn content(&self) -> Vec<SenderContent> {
        let mut content: Vec<_> = {
            let inner = self.inner.lock();
            let world = &self.snapshots.settled().world;
            inner.queue.senders().into_iter().map(|sender| inner.queue.content(sender, world)).collect()
        };
        content.sort_unstable_by_key(|sender| sender.address);
        content
    }

    /// Returns the transactions of one sender.
    pub fn content_from(&self, sender: Address) -> SenderContent {
        let inner = self.inner.lock();
        inner.queue.content(sender, &self.snapshots.settled().world)
    }

    /// Returns the numbers of transactions.
    pub fn status(&self) -> PoolStatus {
        let inner = self.inner.lock();
        inner.queue.status(&self.snapshots.settled().world)
    }

    /// Removes a transaction that can never be mined.
    pub fn remove(&self, hash: &B256) {
        let mut inner = self.inner.lock();
        inner.queue.remove(hash, DropReason::Unminable);
        let left = inner.queue.take_left();
        self.notify_dropped(&inner.queue, &left);
        self.forget(left.iter().map(Departure::hash).collect());
    }

    /// Removes the transactions that `is_withdrawn` selects, and returns their hashes.
    pub fn withdraw(&self, is_withdrawn: impl Fn(&Recovered<TxEnvelope>) -> bool) -> Vec<B256> {
        let mut inner = self.inner.lock();
        let withdrawn = inner.queue.select(is_withdrawn);
        withdrawn.iter().for_each(|hash| inner.queue.remove(hash, DropReason::Withdrawn));
        let left = inner.queue.take_left();
        self.notify_dropped(&inner.queue, &left);
        self.forget(withdrawn.clone());
        self.on_arrival.add(withdrawn.len());
        withdrawn
    }

    /// Removes transactions and bundles that were mined or no longer can be. Called after each publication; looks up
    /// each sender.
    pub fn advance(&self) {
        self.bundles.advance(&self.snapshots.load());
        let mut inner = self.inner.lock();
        inner.own.clear();
        if inner.queue.is_idle() {
            return;
        }
        let published = self.snapshots.load();
        let world = &published.settled().world;
        inner.queue.drop_used(world);
        inner.queue.restore_freed(world);
        // Mined transactions were deleted from the store with the record of their sub-block.
        let mut left = inner.queue.take_left();
        left.retain(|left| published.transaction(&left.hash()).is_none());
        self.notify_dropped(&inner.queue, &left);
        self.forget(left.iter().map(Departure::hash).collect());
        for sender in inner.queue.senders() {
            self.notify_ready(inner.queue.newly_ready(&sender, world));
        }
    }

    /// Adds the producer's own transactions and returns them, except if their senders are in the pool. Subscribers are
    /// notified before the sub-block is published. The transactions do not wait in the queue, but [`get`](Self::get)
    /// finds them, and their nonces count as taken, until [`advance`](Self::advance).
    pub fn take_own(
        &self,
        transactions: impl IntoIterator<Item = Recovered<TxEnvelope>>,
    ) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let mut taken: Vec<_> = transactions.into_iter().map(Arc::new).collect();
        let mut inner = self.inner.lock();
        taken.retain(|tx| !inner.queue.has_sender(&tx.signer()));
        for tx in &taken {
            inner.own.insert(*tx.tx_hash(), tx.clone());
            let _ = self.ready.send(tx.clone());
        }
        taken
    }

    /// Drops the transactions of [`take_own`](Self::take_own), because their sub-block was abandoned.
    pub fn drop_own(&self) {
        self.inner.lock().own.clear();
    }

    /// Subscribes to transactions as they become ready to be mined: at once, or when the gap before them is filled.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Recovered<TxEnvelope>>> {
        self.ready.subscribe()
    }

    /// Subscribes to transactions that leave the pool without being mined.
    pub fn dropped(&self) -> broadcast::Receiver<DroppedTransaction> {
        self.dropped.subscribe()
    }

    fn notify_dropped(&self, queue: &Queue, left: &[Departure]) {
        // A transaction that is set aside may still be mined.
        for left in left.iter().filter(|left| !queue.is_aside(&left.hash())) {
            let dropped = DroppedTransaction { hash: left.hash(), reason: left.reason };
            // Fails if there is no subscriber.
            let _ = self.dropped.send(dropped);
        }
    }

    fn notify_ready(&self, ready: Vec<Arc<Recovered<TxEnvelope>>>) {
        self.on_arrival.add(ready.len());
        for tx in ready {
            // Fails if there is no subscriber.
            let _ = self.ready.send(tx);
        }
    }
}
