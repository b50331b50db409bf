//! The transactions that wait, by sender and nonce, and the bounds on them.

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
    PoolError, PoolLimits,
    account::{Pooled, check_account, check_replacement, cost_of, nonce_after},
};
use crate::state::World;

/// How a transaction comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coming {
    /// This node signed it.
    pub own: bool,
    /// It is on its way to the disk.
    pub held: bool,
    /// Which places it may take.
    pub place: PoolPlace,
}

/// Which places a transaction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolPlace {
    /// Another's too, where it pays more: its sender chose its nonce.
    Any,
    /// Only a free one: this node chose its nonce, and can choose another.
    Free,
    /// The one that it had before the node was started again. The bounds were asked then.
    Former,
}

/// What has left for another, or for good.
#[derive(Clone, Debug)]
pub(super) struct Left {
    pub pooled: Arc<Pooled>,
    /// [`Sender::told`] before.
    told: u64,
}

impl Left {
    pub(super) fn hash(&self) -> B256 {
        *self.pooled.tx.tx_hash()
    }
}

/// A transaction that has been checked by its form, and what is known of it by that. To be made before the pool is locked: it costs time.
#[derive(Debug)]
pub(super) struct Checked {
    pub tx: Recovered<TxEnvelope>,
    /// Bytes.
    size: usize,
    /// The sender's nonce once it is mined.
    next: u64,
}

impl From<Recovered<TxEnvelope>> for Checked {
    fn from(tx: Recovered<TxEnvelope>) -> Self {
        Self { size: tx.eip2718_encoded_length(), next: nonce_after(&tx), tx }
    }
}

/// One sender's transactions.
#[derive(Debug, Default)]
struct Sender {
    by_nonce: BTreeMap<u64, Arc<Pooled>>,
    /// The most that they can cost together, wei.
    cost: U256,
    /// The nonce before which all were ready to be mined once, and have been told of.
    told: u64,
}

/// All transactions that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    senders: AddressMap<Sender>,
    by_hash: B256Map<Arc<Pooled>>,
    bytes: usize,
    arrivals: u64,
    /// What has left since this was last taken.
    left: Vec<Left>,
}

impl Queue {
    pub(super) fn get(&self, hash: &B256) -> Option<&Arc<Pooled>> {
        self.by_hash.get(hash)
    }

    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub(super) fn has_sender(&self, sender: &Address) -> bool {
        self.senders.contains_key(sender)
    }

    /// Whether a transaction of `sender` waits that delegates its own account, to whomever (EIP-7702).
    pub(super) fn delegates(&self, sender: &Address) -> bool {
        let of_it = self.senders.get(sender).into_iter().flat_map(|sender| sender.by_nonce.values());
        of_it.into_iter().any(|pooled| pooled.next > pooled.tx.nonce() + 1)
    }

    /// The first nonce from `nonce` on that no transaction of `sender` has.
    pub(super) fn next_nonce(&self, sender: &Address, nonce: u64) -> u64 {
        self.senders.get(sender).map_or(nonce, |sender| sender.first_gap(nonce))
    }

    /// The first of `count` nonces in a row, from `nonce` on, that no transaction of `sender` has.
    pub(super) fn next_nonces(&self, sender: &Address, nonce: u64, count: u64) -> u64 {
        let Some(sender) = self.senders.get(sender) else { return nonce };
        let mut first = sender.first_gap(nonce);
        while let Some((taken, _)) = sender.by_nonce.range(first..first.saturating_add(count)).next() {
            first = sender.first_gap(*taken);
        }
        first
    }

    /// Each sender's transactions that can be mined one after another on `world`.
    pub(super) fn runs(&self, world: &World) -> impl Iterator<Item = VecDeque<Arc<Pooled>>> {
        self.senders.iter().map(|(address, sender)| {
            let nonce = nonce_of(world, address);
            sender.ready(nonce).cloned().collect()
        })
    }

    /// Takes a transaction, checked by its form, if the accounts of `world` allow it: geth's `ValidateTransactionWithState`, the
    /// replacement rule and the bounds, in its order. Returns what has become ready to be mined by it.
    pub(super) fn insert(
        &mut self,
        checked: Checked,
        coming: Coming,
        world: &World,
        limits: &PoolLimits,
    ) -> Result<Vec<Arc<Recovered<TxEnvelope>>>, PoolError> {
        let Checked { tx, size, next } = checked;
        if self.by_hash.contains_key(tx.tx_hash()) {
            return Err(PoolError::AlreadyKnown);
        }
        let (address, nonce) = (tx.signer(), tx.nonce());
        let cost = cost_of(&tx);
        let sender = self.senders.get(&address);
        let replaced = sender.and_then(|sender| sender.by_nonce.get(&nonce)).cloned();
        let queued = sender.map_or(U256::ZERO, |sender| sender.cost);
        if coming.place == PoolPlace::Free && sender.is_some_and(|sender| sender.is_taken(nonce)) {
            return Err(PoolError::NonceTaken { nonce });
        }
        check_account(&tx, world.account(&address).map(AsRef::as_ref), cost, queued, replaced.as_deref())?;
        if let Some(replaced) = &replaced {
            check_replacement(&tx, &replaced.tx, limits.price_bump)?;
        }
        if coming.place != PoolPlace::Former {
            // It would use up the nonce of one that waits.
            if let Some((used, _)) = sender.and_then(|sender| sender.by_nonce.range(nonce + 1..next).next()) {
                return Err(PoolError::NonceUsedUp { nonce: *used });
            }
            let pooled = sender.map_or(0, |sender| sender.by_nonce.len());
            if replaced.is_none() && pooled >= limits.per_account {
                return Err(PoolError::AccountLimit { pooled });
            }
            self.make_room(&tx, size, replaced.as_deref(), world, limits)?;
        }
        self.arrivals += 1;
        let Coming { own, held, place: _ } = coming;
        let pooled =
            Pooled { tx: Arc::new(tx), arrived: self.arrivals, next, size, cost, own, held: AtomicBool::new(held) };
        let pooled = Arc::new(pooled);
        self.bytes += size;
        self.by_hash.insert(*pooled.tx.tx_hash(), pooled.clone());
        let sender = self.senders.entry(address).or_default();
        sender.cost = sender.cost.saturating_add(cost);
        sender.by_nonce.insert(nonce, pooled.clone());
        if let Some(replaced) = replaced {
            sender.cost = sender.cost.saturating_sub(replaced.cost);
            self.bytes -= replaced.size;
            self.by_hash.remove(replaced.tx.tx_hash());
            self.left.push(Left { pooled: replaced, told: sender.told });
        }
        if !held {
            return Ok(self.newly_ready_from(&pooled, world));
        }
        Ok(Vec::new())
    }

    /// What has become ready because `pooled` may be mined now.
    fn newly_ready_from(&mut self, pooled: &Pooled, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let (address, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
        if self.senders.get(&address).is_some_and(|sender| nonce < sender.told) {
            // It takes the place of one that was told of; those after it were too.
            return vec![pooled.tx.clone()];
        }
        self.newly_ready(&address, world)
    }

    /// Takes out a transaction that cannot be mined. Those of its sender after it wait for another in its place.
    pub(super) fn remove(&mut self, hash: &B256) {
        if let Some(pooled) = self.take(hash)
            && let Some(sender) = self.senders.get_mut(&pooled.tx.signer())
        {
            sender.told = sender.told.min(pooled.tx.nonce());
        }
    }

    fn take(&mut self, hash: &B256) -> Option<Arc<Pooled>> {
        let pooled = self.by_hash.remove(hash)?;
        self.bytes -= pooled.size;
        let address = pooled.tx.signer();
        if let Some(sender) = self.senders.get_mut(&address) {
            self.left.push(Left { pooled: pooled.clone(), told: sender.told });
            sender.by_nonce.remove(&pooled.tx.nonce());
            sender.cost = sender.cost.saturating_sub(pooled.cost);
            if sender.by_nonce.is_empty() {
                self.senders.remove(&address);
            }
        }
        Some(pooled)
    }

    /// The transaction is on the disk: it may be mined, if it has not left since. Returns what has become ready by that.
    pub(super) fn release(&mut self, pooled: &Arc<Pooled>, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        pooled.held.store(false, Relaxed);
        match self.by_hash.get(pooled.tx.tx_hash()) {
            Some(there) if Arc::ptr_eq(there, pooled) => self.newly_ready_from(pooled, world),
            _ => Vec::new(),
        }
    }

    /// Takes out again what is not to come after all, and takes in again what left for it: each in its old place, unless that is taken by one that
    /// is on the disk, or its nonce is used.
    pub(super) fn undo(&mut self, coming: &[Arc<Pooled>], left: Vec<Left>, world: &World) {
        for pooled in coming.iter().rev() {
            if self.by_hash.get(pooled.tx.tx_hash()).is_some_and(|there| Arc::ptr_eq(there, pooled)) {
                self.remove(pooled.tx.tx_hash());
            }
        }
        for Left { pooled, told } in left.into_iter().rev() {
            let (address, nonce) = (pooled.tx.signer(), pooled.tx.nonce());
            let there = self.senders.get(&address).and_then(|sender| sender.by_nonce.get(&nonce)).cloned();
            if nonce < nonce_of(world, &address) || there.as_ref().is_some_and(|there| !there.is_held()) {
                continue;
            }
            // What came meanwhile and is not on the disk will not be there either: a store that has failed once takes nothing more.
            if let Some(there) = there {
                self.take(there.tx.tx_hash());
            }
            self.bytes += pooled.size;
            self.by_hash.insert(*pooled.tx.tx_hash(), pooled.clone());
            let sender = self.senders.entry(address).or_default();
            sender.cost = sender.cost.saturating_add(pooled.cost);
            sender.told = sender.told.max(told);
            sender.by_nonce.insert(nonce, pooled);
        }
        self.left.clear();
    }

    /// What has left since [`take_left`](Self::take_left).
    pub(super) fn left(&self) -> &[Left] {
        &self.left
    }

    /// What has left since this was last asked.
    pub(super) fn take_left(&mut self) -> Vec<Left> {
        std::mem::take(&mut self.left)
    }

    /// Those that come from now on come after the `arrived`th.
    pub(super) fn arrive_after(&mut self, arrived: u64) {
        self.arrivals = self.arrivals.max(arrived);
    }

    /// Takes out what can never be mined on `world` or after it: nonces that are used.
    pub(super) fn drop_used(&mut self, world: &World) {
        let used: Vec<B256> = self
            .senders
            .iter()
            .flat_map(|(address, sender)| sender.by_nonce.range(..nonce_of(world, address)))
            .map(|(_, pooled)| *pooled.tx.tx_hash())
            .collect();
        for hash in used {
            self.take(&hash);
        }
    }

    /// The transactions of `sender` that have become ready to be mined since this was last asked, in order.
    pub(super) fn newly_ready(&mut self, address: &Address, world: &World) -> Vec<Arc<Recovered<TxEnvelope>>> {
        let Some(sender) = self.senders.get_mut(address) else { return Vec::new() };
        // None is missing before those that were told of: what follows them is all that can be new.
        let from = nonce_of(world, address).max(sender.told);
        let ready: Vec<_> = sender.ready(from).cloned().collect();
        sender.told = ready.last().map_or(from, |last| last.next);
        ready.iter().map(|pooled| pooled.tx.clone()).collect()
    }

    /// All senders that have a transaction here.
    pub(super) fn senders(&self) -> Vec<Address> {
        self.senders.keys().copied().collect()
    }

    /// Makes room for a transaction, in the place of `replaced` or for one more. As in geth, one that cannot be mined yet drives nothing
    /// out; one that can drives out first those that cannot, then those that pay less. Only a sender's last is driven out, so that none is
    /// left behind a gap.
    fn make_room(
        &mut self,
        tx: &Recovered<TxEnvelope>,
        size: usize,
        replaced: Option<&Pooled>,
        world: &World,
        limits: &PoolLimits,
    ) -> Result<(), PoolError> {
        let (transactions, bytes) = match replaced {
            Some(replaced) => (self.len(), self.bytes - replaced.size + size),
            None => (self.len() + 1, self.bytes + size),
        };
        let mut over = Over {
            transactions: transactions.saturating_sub(limits.transactions),
            bytes: bytes.saturating_sub(limits.bytes),
        };
        if over.is_none() {
            return Ok(());
        }
        let (address, nonce) = (tx.signer(), tx.nonce());
        if self.next_nonce(&address, nonce_of(world, &address)) < nonce {
            return Err(PoolError::Full);
        }
        let pays_of = |tx: &TxEnvelope| (tx.priority_fee_or_price(), tx.max_fee_per_gas());
        let offered = pays_of(tx);
        let mut last: Vec<_> = self
            .senders
            .iter()
            .filter_map(|(other, sender)| {
                let (last, pooled) = sender.by_nonce.last_key_value().filter(|(_, pooled)| !pooled.own)?;
                // Of its own sender's, one that comes after it gives way too.
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
            if over.is_none() {
                break;
            }
            over.transactions = over.transactions.saturating_sub(1);
            over.bytes = over.bytes.saturating_sub(size);
            driven_out.push(hash);
        }
        if !over.is_none() {
            // Where all that wait are the node's own, no price helps.
            let may_give_way = self.by_hash.values().any(|pooled| !pooled.own);
            return Err(if may_give_way { PoolError::Underpriced } else { PoolError::Full });
        }
        for hash in driven_out {
            self.remove(&hash);
        }
        Ok(())
    }
}

/// By how much the pool is too full.
struct Over {
    transactions: usize,
    bytes: usize,
}

impl Over {
    const fn is_none(&self) -> bool {
        self.transactions == 0 && self.bytes == 0
    }
}

impl Sender {
    /// The transactions from `nonce` on without a gap. One whose nonce an authorization before it uses is passed over.
    fn run(&self, nonce: u64) -> impl Iterator<Item = &Arc<Pooled>> {
        std::iter::successors(self.by_nonce.get(&nonce), |pooled| self.by_nonce.get(&pooled.next))
    }

    /// Those of them that may be mined now: nothing passes one that is not on the disk yet.
    fn ready(&self, nonce: u64) -> impl Iterator<Item = &Arc<Pooled>> {
        self.run(nonce).take_while(|pooled| !pooled.is_held())
    }

    /// Whether a transaction has this nonce, or an authorization of the one before it uses it.
    fn is_taken(&self, nonce: u64) -> bool {
        self.by_nonce.range(..=nonce).next_back().is_some_and(|(_, pooled)| nonce < pooled.next)
    }

    fn first_gap(&self, nonce: u64) -> u64 {
        self.run(nonce).last().map_or(nonce, |last| last.next)
    }
}

fn nonce_of(world: &World, address: &Address) -> u64 {
    world.account(address).map_or(0, |account| account.nonce)
}
