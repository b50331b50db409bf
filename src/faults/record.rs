//! The acknowledgements of a node, and the invariants that follow from them.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use crate::{
    ledger::{Chain, Selector, Snapshot, SnapshotId},
    state::Overlay,
    store::StoreError,
    wallet::{BatchId, CallsState, WalletError},
};
use alloy_primitives::{Address, B256, U256, keccak256};

use super::life::Life;

/// A broken invariant and how it was broken.
pub type Broken = (&'static str, String);

const KEPT: &str = "an acknowledged thing is not lost";
const ONCE: &str = "nothing is done twice";
const STORED: &str = "nothing is shown or done before it is stored";
const TAKEN: &str = "nothing is done that was rejected";
const BRANCH: &str = "an answer is of one branch";
const IDS: &str = "an id names one state";
const LATEST: &str = "latest never goes back";
/// The invariant of the time after the faults.
pub const ALIVE: &str = "after the faults everything acknowledged is done";

/// A payment of a unique sum to a unique address.
struct Payment {
    to: Address,
    value: u64,
    /// Whether the node may have taken it.
    taken: bool,
}

/// The transactions of one nonce, of which at most one is mined.
#[derive(Default)]
struct Slot {
    /// Each with its payment.
    transactions: Vec<(B256, usize)>,
    acknowledged: bool,
}

/// A batch id, with the batches that were sent under it. At most one is taken.
struct Batch {
    id: BatchId,
    acknowledged: bool,
    /// The payments of each try.
    tries: Vec<Vec<usize>>,
    /// Whether nobody else has the key of the account.
    exclusive: bool,
}

/// A nonce of an account.
pub type Place = (Address, u64);

/// The answers of a node and its successors.
#[derive(Default)]
pub struct Record {
    payments: Vec<Payment>,
    slots: BTreeMap<Place, Slot>,
    batches: Vec<Batch>,
    /// The hashes of sealed blocks, by number.
    blocks: Vec<B256>,
    /// A hash of the state that was shown under each id.
    ids: BTreeMap<u64, B256>,
    /// The accounts whose keys the wallet shares with clients. Either may use the nonce that the other has chosen.
    shared: Vec<Address>,
}

impl Record {
    pub fn new(shared: Vec<Address>) -> Self {
        Self { shared, ..Self::default() }
    }

    /// Returns a new payment: its index, the payee and the sum in wei.
    pub fn pay(&mut self) -> (usize, Address, u64) {
        let (index, value) = (self.payments.len(), 1_000 + self.payments.len() as u64);
        let to = Address::from_word(keccak256(value.to_be_bytes()));
        self.payments.push(Payment { to, value, taken: false });
        (index, to, value)
    }

    /// Records that a transaction was taken, and whether it waits for an answer.
    pub fn take(&mut self, place: Place, hash: B256, payment: usize) {
        self.payments[payment].taken = true;
        let slot = self.slots.entry(place).or_default();
        if !slot.transactions.contains(&(hash, payment)) {
            slot.transactions.push((hash, payment));
        }
    }

    pub fn acknowledge(&mut self, place: Place) {
        self.slots.entry(place).or_default().acknowledged = true;
    }

    /// Returns the nonce after the last that was taken of an account.
    pub fn end(&self, address: Address) -> u64 {
        let taken = self.slots.range((address, 0)..=(address, u64::MAX));
        taken.last().map_or(0, |((_, nonce), _)| nonce + 1)
    }

    /// Returns the index of a batch id: a new one, or that of an earlier batch.
    pub fn batch(&mut self, earlier: Option<usize>, exclusive: bool) -> (usize, BatchId) {
        let count = self.batches.len();
        match earlier.filter(|_| count > 0) {
            Some(index) => (index % count, self.batches[index % count].id.clone()),
            None => {
                let id = BatchId::new(format!("batch {count}")).unwrap();
                self.batches.push(Batch { id: id.clone(), acknowledged: false, tries: Vec::new(), exclusive });
                (count, id)
            }
        }
    }

    /// Checks that a batch with this id may be admitted.
    pub fn admit(&self, batch: usize) -> Result<(), Broken> {
        match self.batches[batch].acknowledged {
            true => Err((ONCE, format!("{:?} was admitted again", self.batches[batch].id))),
            false => Ok(()),
        }
    }

    pub fn take_batch(&mut self, batch: usize, payments: Vec<usize>, exclusive: bool) {
        payments.iter().for_each(|payment| self.payments[*payment].taken = true);
        self.batches[batch].tries.push(payments);
        self.batches[batch].exclusive &= exclusive;
    }

    pub fn acknowledge_batch(&mut self, batch: usize) {
        self.batches[batch].acknowledged = true;
    }

    /// Forgets what a reorg may undo.
    pub fn forget_branch(&mut self) {
        self.slots.clear();
        self.blocks.clear();
    }

    /// Checks that a transaction that is not on the disk yet is neither visible nor mined.
    pub fn check_unstored(&self, life: &Life, hash: &B256, payment: usize) -> Result<(), Broken> {
        let landed = self.landed(&life.snapshots.newest(), payment);
        match landed || life.pool.get(hash).is_some() {
            true => Err((STORED, format!("transaction {hash}, mined: {landed}"))),
            false => Ok(()),
        }
    }

    /// Checks everything that a node shows, and records it.
    pub fn check(&mut self, life: &Life) -> Result<(), Broken> {
        let published = life.snapshots.load();
        // A store that has failed gives out no old blocks, and nothing is published on it.
        if life.store.failure().is_none() {
            check_branch(&published)?;
            self.check_blocks(&published)?;
        }
        self.check_ids(&published)?;
        self.check_payments(&published.newest)?;
        for (place, slot) in self.slots.iter().filter(|(_, slot)| slot.acknowledged) {
            let kept =
                |(hash, payment): &(B256, usize)| life.pool.holds(hash) || self.landed(&published.newest, *payment);
            if !self.shared.contains(&place.0) && !slot.transactions.iter().any(kept) {
                return Err((KEPT, format!("the transaction of {} with nonce {}", place.0, place.1)));
            }
        }
        self.batches
            .iter()
            .filter(|batch| batch.acknowledged)
            .try_for_each(|batch| self.check_batch(life, batch, false))
    }

    /// Checks that everything acknowledged is done.
    pub fn check_done(&self, life: &Life) -> Result<(), Broken> {
        let newest = life.snapshots.newest();
        for (place, slot) in
            self.slots.iter().filter(|(place, slot)| slot.acknowledged && !self.shared.contains(&place.0))
        {
            if !slot.transactions.iter().any(|(_, payment)| self.landed(&newest, *payment)) {
                return Err((ALIVE, format!("the transaction of {} with nonce {} still waits", place.0, place.1)));
            }
        }
        self.batches.iter().filter(|batch| batch.acknowledged).try_for_each(|batch| self.check_batch(life, batch, true))
    }

    fn check_batch(&self, life: &Life, batch: &Batch, done: bool) -> Result<(), Broken> {
        let newest = life.snapshots.newest();
        let overlay = Overlay::new(newest.world.clone(), newest.hashes.clone());
        let landed = |payments: &Vec<usize>| payments.iter().all(|payment| self.landed(&newest, *payment));
        // A job that cannot read a block unwinds with the store's failure, as `BlockKeeper` promises.
        let status = catch_unwind(AssertUnwindSafe(|| life.wallet.status(batch.id.clone(), &overlay)));
        let status = status.unwrap_or_else(|unwound| match unwound.downcast::<StoreError>() {
            Ok(failure) => Err(WalletError::Store(*failure)),
            Err(panic) => resume_unwind(panic),
        });
        let state = match status {
            Ok(status) => status.state,
            Err(WalletError::Pruned(_)) => CallsState::Confirmed,
            Err(WalletError::Store(_)) if life.store.failure().is_some() => return Ok(()),
            Err(error) => return Err((KEPT, format!("{:?}: {error}", batch.id))),
        };
        match state {
            _ if !batch.exclusive => Ok(()),
            CallsState::Pending if !done => Ok(()),
            CallsState::Confirmed if batch.tries.iter().any(landed) => Ok(()),
            _ => Err((if done { ALIVE } else { KEPT }, format!("{:?} is in state {state:?}", batch.id))),
        }
    }

    fn check_blocks(&mut self, published: &Chain) -> Result<(), Broken> {
        let latest = published.head().number();
        if let Some(last) = self.blocks.len().checked_sub(1).filter(|last| *last as u64 > latest) {
            return Err((LATEST, format!("from {last} to {latest}")));
        }
        for number in 0..=latest {
            let hash = published.sealed_block(number).map(|block| block.hash());
            let Some(hash) = hash else { return Err((KEPT, format!("block {number}"))) };
            match self.blocks.get(number as usize) {
                None => self.blocks.push(hash),
                Some(known) if *known != hash => return Err((BRANCH, format!("block {number} is another"))),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn check_ids(&mut self, published: &Chain) -> Result<(), Broken> {
        let newest = published.newest.id.0;
        if let Some((last, _)) = self.ids.last_key_value().filter(|(last, _)| **last > newest) {
            return Err((IDS, format!("the newest went from {last} to {newest}")));
        }
        for id in self.ids.keys().copied().chain([newest]).collect::<Vec<_>>() {
            let Ok(snapshot) = published.select(Selector::Snapshot(SnapshotId(id))) else { continue };
            let shown = fingerprint(&snapshot);
            if *self.ids.entry(id).or_insert(shown) != shown {
                return Err((IDS, format!("{id:#x} names another")));
            }
        }
        Ok(())
    }

    fn check_payments(&self, newest: &Snapshot) -> Result<(), Broken> {
        for (index, Payment { to, value, taken }) in self.payments.iter().enumerate() {
            let balance = balance(newest, *to);
            if balance > U256::from(*value) {
                return Err((ONCE, format!("payment {index} of {value} brought {balance}")));
            }
            if !taken && !balance.is_zero() {
                return Err((TAKEN, format!("payment {index}")));
            }
        }
        for Slot { transactions, .. } in self.slots.values() {
            if transactions.iter().filter(|(_, payment)| self.landed(newest, *payment)).count() > 1 {
                return Err((ONCE, "two transactions of one nonce".to_owned()));
            }
        }
        for Batch { id, tries, .. } in &self.batches {
            let landed = |payments: &&Vec<usize>| payments.iter().any(|payment| self.landed(newest, *payment));
            if tries.iter().filter(landed).count() > 1 {
                return Err((ONCE, format!("{id:?} was signed twice")));
            }
        }
        Ok(())
    }

    fn landed(&self, newest: &Snapshot, payment: usize) -> bool {
        let Payment { to, value, .. } = self.payments[payment];
        balance(newest, to) == U256::from(value)
    }
}

fn balance(at: &Snapshot, address: Address) -> U256 {
    at.world.account(&address).map_or(U256::ZERO, |account| account.balance)
}

/// Checks that what is published together belongs together.
fn check_branch(published: &Chain) -> Result<(), Broken> {
    let (newest, latest) = (&published.newest, published.latest());
    let head = published.head();
    let wrong = |what: &str| Err((BRANCH, format!("{what} at block {}", head.number())));
    if newest.head_hash() != head.hash() || latest.head_hash() != head.hash() {
        return wrong("pending and latest");
    }
    if newest.open.as_ref().is_some_and(|open| open.header.parent_hash != head.hash()) {
        return wrong("the block being built");
    }
    let mut child = head.clone();
    while let Some(parent) = child.number().checked_sub(1).and_then(|number| published.sealed_block(number)) {
        if child.header.parent_hash != parent.hash() {
            return wrong("an ancestor");
        }
        child = parent;
    }
    Ok(())
}

/// Returns a hash of all that a snapshot says.
pub fn fingerprint(snapshot: &Snapshot) -> B256 {
    let open = snapshot.open.as_ref();
    let transactions = open.into_iter().flat_map(|open| open.transactions.iter().map(|tx| *tx.tx_hash()));
    let header = open.map_or(B256::ZERO, |open| open.header.hash_slow());
    let root = snapshot.world.local().map_or(B256::ZERO, |world| world.state_root());
    let index = B256::from(U256::from(snapshot.index()));
    let parts: Vec<B256> = [snapshot.head_hash(), header, root, index].into_iter().chain(transactions).collect();
    keccak256(parts.concat())
}
