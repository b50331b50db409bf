//! The transactions of the pool by sender and nonce, and their limits.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map},
};

use super::{
    DropReason, PoolError, PoolStatus, SenderContent, Settings,
    account::{Pooled, check_account, check_replacement, nonce_of},
    aside::{Aside, free_on},
};
use crate::state::{Lookup, World};

/// The circumstances under which a transaction enters the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Whether this node signed the transaction.
    pub own: bool,
    /// Whether the transaction is still on its way to the disk.
    pub held: bool,
    pub nonce: PoolNonce,
}

impl Arrival {
    /// A transaction that a client has sent.
    pub(super) const OF_CLIENT: Self = Self { own: false, held: false, nonce: PoolNonce::Any };
}

/// The nonces that a new transaction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolNonce {
    /// Any nonce, because the sender chose it. It may be in the pool already if the new transaction pays more.
    Any,
    /// Only a free nonce, because this node chose it and can choose another.
    Free,
    /// The nonce that the transaction had before a restart. The limits were checked then.
    Former,
}

/// A transaction that has left the queue, for another one or for good.
#[derive(Clone, Debug)]
pub(super) struct Departure {
    pub pooled: Arc<Pooled>,
    pub reason: DropReason,
    /// [`Sender::announced`] before the transaction left.
    announced: u64,
}

impl Departure {
    pub(super) fn hash(&self) -> B256 {
        *self.pooled.tx.tx_hash()
    }
}

/// The transactions of one sender.
#[derive(Debug, Default)]
struct Sender {
    by_nonce: BTreeMap<u64, Arc<Pooled>>,
    /// Maximum cost of all of them together, in wei.
    cost: U256,
    /// Subscribers were notified of all transactions with a nonce below this one.
    announced: u64,
}

/// All transactions in the pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    senders: AddressMap<Sender>,
    by_hash: B256Map<Arc<Pooled>>,
    bytes: usize,
    arrivals: u64,
    /// Transactions that left since the last [`take_left`](Self::take_left).
    left: Vec<Departure>,
    /// The own transactions that are set aside. `None` unless the chain is an upstream's.
    aside: Option<Aside>,
}

impl Queue {
    /// Creates the queue of an upstream's chain, on which own transactions are set aside until they are settled.
    pub(super) fn of_upstream() -> Self {
        Self { aside: Some(Aside::default()), ..Self::default() }
    }

    pub(super) const fn aside(&self) -> Option<&Aside> {
        self.aside.as_ref()
    }

    /// Whether a transaction is set aside.
    pub(super) fn is_aside(&self, hash: &B256) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.contains_key(hash))
    }

    /// Whether no transaction waits or is set aside.
    pub(super) fn is_idle(&self) -> bool {
        self.by_hash.is_empty() && self.aside.as_ref().is_none_or(Aside::is_empty)
    }

    pub(super) fn forget_aside(&mut self, hashes: impl IntoIterator<Item = B256>) {
        if let Some(aside) = &mut self.aside {
            hashes.into_iter().for_each(|hash| drop(aside.remove(&hash)));
        }
    }

    /// Returns the transactions of a sender that wait from the nonce `next` on, without a gap unless `with_gaps`.
    pub(super) fn waiting_of(&self, sender: &Address, next: u64, with_gaps: bool) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let Some(sender) = self.senders.get(sender) else { return Vec::new() };
        let tx = |pooled: &Arc<Pooled>| pooled.tx.clone();
        if with_gaps {
            sender.by_nonce.range(next..).map(|(_, pooled)| tx(pooled)).collect()
        } else {
            sender.run(next).map(tx).collect()
        }
    }

    /// Returns the own transactions that wait and are on the disk.
    pub(super) fn own_waiting(&self) -> Vec<Arc<Pooled>> {
        let all = self.senders.values().flat_map(|sender| sender.by_nonce.values());
        all.filter(|pooled| pooled.own && !pooled.is_held()).cloned().collect()
    }

    /// Adds a transaction to its sender's list.
    fn link(&mut self, pooled: Arc<Pooled>) -> &mut Sender {
        self.bytes += pooled.size;
        self.by_hash.insert(*pooled.tx.tx_hash(), pooled.clone());
        let sender = self.senders.entry(pooled.tx.signer()).or_default();
        sender.cost = sender.cost.saturating_add(pooled.cost);
        sender.by_nonce.insert(pooled.tx.nonce(), pooled);
        sender
    }

    /// Returns the transaction of `sender` with this nonce.
    pub(super) fn with_nonce(&self, sender: &Address, nonce: u64) -> Option<&Arc<Pooled>> {
        self.senders.get(sender)?.by_nonce.get(&nonce)
    }

    /// Moves the transactions that were set aside and whose nonces are free again back to the waiting ones, unless another
    /// version waits there.
    pub(super) fn restore_freed(&mut self, world: &World) {
        let Some(aside) = &self.aside else { return };
        for pooled in free_on(aside, world) {
            if self.with_nonce(&pooled.tx.signer(), pooled.tx.nonce()).is_none() {
                self.forget_aside([*pooled.tx.tx_hash()]);
                self.link(pooled);
            }
        }
    }

    pub(super) fn get(&self, hash: &B256) -> Option<&Arc<Pooled>> {
        self.by_hash.get(hash)
    }

    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub(super) fn has_sender(&self, sender: &Address) -> bool {
        self.senders.contains_key(sender)
    }

    /// Whether the queue holds a transaction of `sender`, with the nonce `next` or a later one, that delegates its own account,
    /// to any address (EIP-7702).
    pub(super) fn delegates(&self, sender: &Address, next: u64) -> bool {
        let of_it = self.senders.get(sender).into_iter().flat_map(|sender| sender.by_nonce.range(next..));
        of_it.into_iter().any(|(_, pooled)| pooled.delegates_sender())
    }

    /// Returns the first of `count` consecutive nonces from `nonce` on that no transaction of `sender` uses.
    pub(super) fn next_nonces(&self, sender: &Address, nonce: u64, count: u64) -> u64 {
        let Some(sender) = self.senders.get(sender) else { return nonce };
        let mut first = sender.first_gap(nonce);
        while let Some((taken, _)) = sender.by_nonce.range(first..first.saturating_add(count)).next() {
            first = sender.first_gap(*taken);
        }
        first
    }

    /// Returns for each sender the transactions that can be mined in sequence on `world`.
    pub(super) fn runs(&self, world: &World) -> impl Iterator<Item = VecDeque<Arc<Pooled>>> {
        self.senders.iter().map(|(address, sender)| {
            let nonce = nonce_of(world, address);
            sender.ready(nonce).cloned().collect()
        })
    }

    /// Returns the transactions of a sender that are not held, and whether they can be mined on `world`.
    pub(super) fn content(&self, address: Address, world: &World) -> SenderContent {
        let mut content = SenderContent { address, pending: Vec::new(), queued: Vec::new() };
        let sender = self.senders.get(&address);
        for (is_ready, pooled) in sender.into_iter().flat_map(|sender| sender.visible(nonce_of(world, &address))) {
            let list = if is_ready { &mut content.pending } else { &mut content.queued };
            list.push(pooled.tx.clone());
        }
        content
    }

    /// Counts the transactions that are not held, by whether they can be mined on `world`.
    pub(super) fn status(&self, world: &World) -> PoolStatus {
        let mut status = PoolStatus::default();
        let visible = self.senders.iter().flat_map(|(address, sender)| sender.visible(nonce_of(world, address)));
        for (is_ready, _) in visible {
            *(if is_ready { &mut status.pending } else { &mut status.queued }) += 1;
        }
        status
    }

    /// Adds a transaction if the accounts of `world` allow it: checks geth's `ValidateTransactionWithState`, the
    /// replacement rule and the limits, in geth's order. Returns the transactions that became ready to be mined.
    pub(super) fn insert(
        &mut self,
        new: Pooled,
        arrival: Arrival,
        world: &World,
        limits: &Settings,
    ) -> Result<Vec<Arc<Recovered<TxEnvelope>>>, PoolError> {
        let Pooled { tx, next, size, cost, .. } = &new;
        if self.by_hash.contains_key(tx.tx_hash()) {
            return Err(PoolError::AlreadyKnown);
        }
        let (address, nonce) = (tx.signer(), tx.nonce());
        let sender = self.senders.get(&address);
        let replaced = self.with_nonce(&address, nonce).cloned();
        let queued = sender.map_or(U256::ZERO, |sender| sender.cost);
        if arrival.nonce == PoolNonce::Free && sender.is_some_and(|sender| sender.is_taken(nonce)) {
            return Err(PoolError::NonceTaken { nonce });
        }
        // On an upstream's chain a transaction of before a restart may have been mined meanwhile, or may be so yet.
        let is_former = arrival.nonce == PoolNonce::Former && self.aside.is_some();
        if !is_former {
            // Unknown state of an upstream is the upstream's to check.
            if let Lookup::Known(account) = world.look_up(&address) {
                check_account(tx, account, *cost, queued, replaced.as_deref(), limits.contracts_may_send)?;
            }
            if let Some(replaced) = &replaced {
                check_replacement(tx, &replaced.tx, limits.price_bump)?;
            }
        }
        if arrival.nonce != PoolNonce::Former {
            // An authorization would use up the nonce of a transaction in the queue.
            if let Some((used, _)) = sender.and_then(|sender| sender.by_nonce.range(nonce + 1..*next).next()) {
                return Err(PoolError::NonceUsedUp { nonce: *used });
            }
            let pooled = sender.map_or(0, |sender| sender.by_nonce.len());
            if replaced.is_none() && pooled >= limits.per_account {
                return Err(PoolError::AccountLimit { pooled });
            }
            self.make_room(tx, *size, replaced.as_deref(), world, limits)?;
        }
        self.arrivals += 1;
        let Arrival { own, held, nonce: _ } = arrival;
        let pooled = Arc::new(Pooled { arrived: self.arrivals, own, held: AtomicBool::new(held), ..new });
        let sender = self.link(pooled.clone());
        let announced = sender.announced;
        if let Some(replaced) = replaced {
            sender.cost = sender.cost.saturating_sub(replaced.cost);
            self.bytes -= replaced.size;
            self.by_hash.remove(replaced.tx.tx_hash());
            if let Some(aside) = self.aside.as_mut().filter(|_| replaced.own) {
                // The upstream may have it already, and may still mine it.
                aside.insert(*replaced.tx.tx_hash(), replaced.clone());
            }
            self.left.push(Departure { pooled: replaced, reason: DropReason::Replaced, announced });
        }
        Ok(if held { Vec::new() } else { self.newly_ready_from(&pooled, world) })
    }

    /// Returns the transactions that became ready because `pooled` may be mined now.
    fn newly_ready_from(&mut self, pooled: &Pooled, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let (address, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        if self.senders.get(&address).is_some_and(|sender| nonce < sender.announced) {
            // Subscribers were already notified of the replaced transaction and of its followers.
            return vec![pooled.tx.clone()];
        }
        self.newly_ready(&address, world)
    }

    /// Removes a transaction that cannot be mined. Later ones of its sender wait until another one has its nonce.
    pub(super) fn remove(&mut self, hash: &B256, reason: DropReason) {
        if let Some(pooled) = self.take(hash, reason)
            && let Some(sender) = self.senders.get_mut(&pooled.tx.signer())
        {
            sender.announced = sender.announced.min(pooled.tx.nonce());
        }
    }

    fn take(&mut self, hash: &B256, reason: DropReason) -> Option<Arc<Pooled>> {
        let pooled = self.by_hash.remove(hash)?;
        self.bytes -= pooled.size;
        let address = pooled.tx.signer();
        if let Some(sender) = self.senders.get_mut(&address) {
            self.left.push(Departure { pooled: pooled.clone(), reason, announced: sender.announced });
            sender.by_nonce.remove(&pooled.tx.nonce());
            sender.cost = sender.cost.saturating_sub(pooled.cost);
            if sender.by_nonce.is_empty() {
                self.senders.remove(&address);
            }
        }
        Some(pooled)
    }

    /// Releases a transaction that is on the disk. Returns the transactions that became ready, none if it has left
    /// meanwhile.
    pub(super) fn release(&mut self, pooled: &Arc<Pooled>, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        pooled.held.store(false, Relaxed);
        match self.by_hash.get(pooled.tx.tx_hash()) {
            Some(there) if Arc::ptr_eq(there, pooled) => self.newly_ready_from(pooled, world),
            _ => Vec::new(),
        }
    }

    /// Removes transactions that were not accepted after all, and restores the ones that left for them, except if the
    /// nonce is used, or taken by a transaction on the disk.
    pub(super) fn undo(&mut self, arrival: &[Arc<Pooled>], left: Vec<Departure>, world: &World) {
        for pooled in arrival.iter().rev() {
            if self.by_hash.get(pooled.tx.tx_hash()).is_some_and(|there| Arc::ptr_eq(there, pooled)) {
                self.remove(pooled.tx.tx_hash(), DropReason::Rejected);
            }
        }
        for Departure { pooled, announced, .. } in left.into_iter().rev() {
            let (address, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
            let there = self.with_nonce(&address, nonce).cloned();
            if nonce < nonce_of(world, &address) || there.as_ref().is_some_and(|there| !there.is_held()) {
                continue;
            }
            // A held transaction in its place never reaches the disk: a store that has failed accepts no more writes.
            if let Some(there) = there {
                self.take(there.tx.tx_hash(), DropReason::Rejected);
            }
            self.forget_aside([*pooled.tx.tx_hash()]);
            let sender = self.link(pooled);
            sender.announced = sender.announced.max(announced);
        }
        self.left.clear();
    }

    /// Returns the transactions that left since the last [`take_left`](Self::take_left).
    pub(super) fn left(&self) -> &[Departure] {
        &self.left
    }

    /// Takes the transactions that left since the last call.
    pub(super) fn take_left(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.left)
    }

    /// Gives all later arrivals a number above `arrived`.
    pub(super) fn arrive_after(&mut self, arrived: u64) {
        self.arrivals = self.arrivals.max(arrived);
    }

    /// Removes transactions whose nonces are used on `world`. On an upstream's chain, own ones are set aside.
    pub(super) fn drop_used(&mut self, world: &World) {
        let used: Vec<B256> = self
            .senders
            .iter()
            .flat_map(|(address, sender)| sender.by_nonce.range(..nonce_of(world, address)))
            .map(|(_, pooled)| *pooled.tx.tx_hash())
            .collect();
        for hash in used {
            if let Some(pooled) = self.take(&hash, DropReason::NonceUsed)
                && pooled.own
                && let Some(aside) = &mut self.aside
            {
                self.left.pop();
                aside.insert(hash, pooled);
            }
        }
    }

    /// Returns the transactions of a sender that became ready to be mined since the last call, in order.
    pub(super) fn newly_ready(&mut self, address: &Address, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let Some(sender) = self.senders.get_mut(address) else { return Vec::new() };
        // There is no gap below `announced`, so only transactions from there on can be new.
        let from = nonce_of(world, address).max(sender.announced);
        let ready: Vec<_> = sender.ready(from).cloned().collect();
        sender.announced = ready.last().map_or(from, |last| last.next);
        ready.iter().map(|pooled| pooled.tx.clone()).collect()
    }

    /// Returns the hashes of the transactions that `is_wanted` selects.
    pub(super) fn select(&self, is_wanted: impl Fn(&Recovered<TxEnvelope>) -> bool) -> Vec<B256> {
        self.by_hash.iter().filter(|(_, pooled)| is_wanted(&pooled.tx)).map(|(hash, _)| *hash).collect()
    }

    pub(super) fn senders(&self) -> Vec<Address> {
        self.senders.keys().copied().collect()
    }

    /// Evicts transactions until there is room for `tx`, either replacing `replaced` or added. As in geth, a
    /// transaction that cannot be mined yet evicts nothing. One that can evicts first the transactions that cannot,
    /// then the ones that pay less. Only a sender's last transaction is evicted, so that no gap arises.
    fn make_room(
        &mut self,
        tx: &Recovered<TxEnvelope>,
        size: usize,
        replaced: Option<&Pooled>,
        world: &World,
        limits: &Settings,
    ) -> Result<(), PoolError> {
        let (mut count, mut bytes) = match replaced {
            Some(replaced) => (self.len(), self.bytes - replaced.size + size),
            None => (self.len() + 1, self.bytes + size),
        };
        let fits = |count, bytes| count <= limits.transactions && bytes <= limits.bytes;
        if fits(count, bytes) {
            return Ok(());
        }
        let (address, nonce) = (tx.signer(), tx.nonce());
        if self.next_nonces(&address, nonce_of(world, &address), 1) < nonce {
            return Err(PoolError::Full);
        }
        let pays_of = |tx: &TxEnvelope| (tx.priority_fee_or_price(), tx.max_fee_per_gas());
        let offered = pays_of(tx);
        let mut last: Vec<_> = self
            .senders
            .iter()
            .filter_map(|(other, sender)| {
                let (last, pooled) = sender.by_nonce.last_key_value().filter(|(_, pooled)| !pooled.own)?;
                // Of the same sender, only a transaction with a higher nonce may be evicted.
                if *other == address && *last <= nonce {
                    return None;
                }
                let ready = *last < sender.first_gap(nonce_of(world, other));
                let pays = pays_of(&pooled.tx);
                (!ready || pays < offered).then(|| (ready, pays, *pooled.tx.tx_hash(), pooled.size))
            })
            .collect();
        last.sort_unstable();
        let mut driven_out = Vec::new();
        for (_, _, hash, size) in last {
            if fits(count, bytes) {
                break;
            }
            (count, bytes) = (count.saturating_sub(1), bytes.saturating_sub(size));
            driven_out.push(hash);
        }
        if !fits(count, bytes) {
            // No price helps if all transactions in the pool are the node's own.
            let may_give_way = self.by_hash.values().any(|pooled| !pooled.own);
            return Err(if may_give_way { PoolError::Underpriced } else { PoolError::Full });
        }
        for hash in driven_out {
            self.remove(&hash, DropReason::Evicted);
        }
        Ok(())
    }
}

impl Sender {
    /// Returns the transactions from `nonce` on without a gap. Skips those whose nonce an earlier authorization uses.
    fn run(&self, nonce: u64) -> impl Iterator<Item = &Arc<Pooled>> {
        std::iter::successors(self.by_nonce.get(&nonce), |pooled| self.by_nonce.get(&pooled.next))
    }

    /// Returns the part of [`run`](Self::run) that may be mined now: the transactions before the first held one.
    fn ready(&self, nonce: u64) -> impl Iterator<Item = &Arc<Pooled>> {
        self.run(nonce).take_while(|pooled| !pooled.is_held())
    }

    /// Returns the transactions from `nonce` on that are not held, each with whether it is [`ready`](Self::ready).
    fn visible(&self, nonce: u64) -> impl Iterator<Item = (bool, &Arc<Pooled>)> {
        let mut next = nonce;
        let visible = self.by_nonce.range(nonce..).filter(|(_, pooled)| !pooled.is_held());
        visible.map(move |(nonce, pooled)| {
            let is_ready = *nonce == next;
            if is_ready {
                next = pooled.next;
            }
            (is_ready, pooled)
        })
    }

    /// Whether a transaction has this nonce, or an authorization of the transaction before uses it.
    fn is_taken(&self, nonce: u64) -> bool {
        self.by_nonce.range(..=nonce).next_back().is_some_and(|(_, pooled)| nonce < pooled.next)
    }

    /// Returns the first nonce from `nonce` on that neither a transaction nor an authorization of one uses.
    fn first_gap(&self, nonce: u64) -> u64 {
        // An upstream counts only transactions, so its count may be a nonce that the authorization of the last one
        // uses.
        let before = self.by_nonce.range(..=nonce).next_back();
        let nonce = before.map_or(nonce, |(_, pooled)| pooled.next.max(nonce));
        self.run(nonce).last().map_or(nonce, |last| last.next)
    }
}
