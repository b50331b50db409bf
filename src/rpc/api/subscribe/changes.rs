//! `presim_snapshots` and `presim_stateChanges`: the changes with each snapshot, as a difference from the last one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_consensus::{TxReceipt, transaction::Recovered};
use alloy_primitives::{Address, B256, Log, U256, map::HashSet};
use revm::{Database, state::AccountInfo};

use super::round::Round;
use crate::{
    chain::{BlockBody, ChainReceipt, ChainTx},
    engine::{AccountDiff, ValueChange},
    ledger::{Chain, OpenBlock, Selector, Snapshot, SnapshotId},
    rpc::{
        json::{
            AccountDifference, OrNull, Shape,
            hex::{Data, Fixed, Quantity},
            shapes,
        },
        run::subscriptions::{ChangeFilter, Subject, Subscription},
    },
    state::Overlay,
    watch::{KnownStep, StateHistory},
};

/// The number of steps between states that are remembered.
const STEPS: usize = 512;

/// The snapshot that was announced last, and the steps to the next.
pub struct ChangeAnnouncer {
    history: StateHistory,
    last: Arc<Snapshot>,
    /// The subscriptions that began at an earlier snapshot and were notified of the changes since.
    started: HashSet<u64>,
}

/// A transaction that is new with a snapshot, and its logs.
struct FreshTx<'a> {
    hash: B256,
    /// The number of its block.
    block: u64,
    logs: &'a [Log],
}

/// The changes between two snapshots.
type Changes = BTreeMap<Address, AccountDiff>;

impl ChangeAnnouncer {
    pub fn at(published: &Chain) -> Self {
        let history = StateHistory::new(STEPS);
        Self { history, last: published.newest.clone(), started: HashSet::default() }
    }

    /// Learns the steps to the published snapshots, or forgets them if there is no subscriber.
    pub fn learn(&mut self, published: &Chain, list: &[Subscription]) {
        if !list.iter().any(is_about_changes) {
            self.history = StateHistory::new(STEPS);
            return;
        }
        let known = if self.history.is_empty() { SnapshotId::default() } else { self.last.id };
        published.snapshots_after(known).for_each(|snapshot| self.history.learn(snapshot));
        self.history.learn(published.latest());
    }

    /// Announces a snapshot.
    pub fn announce(&mut self, snapshot: &Arc<Snapshot>, published: &Chain, round: &mut Round<'_>) {
        let last = std::mem::replace(&mut self.last, snapshot.clone());
        let list = round.list();
        self.started.retain(|id| list.iter().any(|one| one.id == *id));
        if !list.iter().any(is_about_changes) {
            return;
        }
        let sealed = sealed_between(&last, snapshot, published);
        let fresh = fresh_between(&last, snapshot, &sealed);
        let since_last = self.since(&last, snapshot);
        let text = round.encoded(|out| NewSnapshot::write(out, (&**snapshot, &*fresh, since_last.as_ref())));
        for one in list {
            match &one.subject {
                Subject::Snapshots => round.send(one, text.clone()),
                Subject::StateChanges(filter) => match filter.from {
                    // The first notification has all that is new since the snapshot that the client names.
                    Some(from) if one.has_begun && self.started.insert(one.id) => {
                        let start = published.select(Selector::Snapshot(from)).ok();
                        let start = start.filter(|start| is_in_chain(start, published));
                        let sealed = start.as_ref().map(|start| sealed_between(start, snapshot, published));
                        let news = start.as_ref().zip(sealed.as_ref()).and_then(|(start, sealed)| {
                            let blocks = snapshot.head.number().checked_sub(start.head.number())?;
                            let is_known = sealed.len() as u64 == blocks;
                            let changes = self.since(start, snapshot).filter(|_| is_known)?;
                            Some((changes, fresh_between(start, snapshot, sealed)))
                        });
                        let (changes, fresh): (_, Option<Vec<_>>) = news.unzip();
                        notify_changes(one, filter, snapshot, changes, &fresh.unwrap_or_default(), round);
                    }
                    _ => notify_changes(one, filter, snapshot, since_last.clone(), &fresh, round),
                },
                _ => {}
            }
        }
    }

    /// Returns the changes from one snapshot to another, or `None` if they are not known.
    fn since(&self, last: &Snapshot, snapshot: &Snapshot) -> Option<Changes> {
        let steps = self.history.between(last.state, snapshot.state)?;
        Some(changes(last, snapshot, &steps))
    }
}

/// Returns whether a subscription is about snapshots or their changes.
const fn is_about_changes(one: &Subscription) -> bool {
    matches!(one.subject, Subject::Snapshots | Subject::StateChanges(_))
}

/// Sends a subscription the changes that it asks for.
fn notify_changes(
    one: &Subscription,
    filter: &ChangeFilter,
    snapshot: &Snapshot,
    changes: Option<Changes>,
    fresh: &[FreshTx<'_>],
    round: &mut Round<'_>,
) {
    let Some(mut changes) = changes else {
        let text = round.encoded(|out| Reset::write(out, snapshot.id));
        return round.send(one, text);
    };
    changes.retain(|address, change| filter.keeps(address, change));
    let logs: Vec<(&B256, &Log)> = fresh
        .iter()
        .flat_map(|tx| tx.logs.iter().map(|log| (&tx.hash, log)))
        .filter(|(_, log)| filter.matches(&log.address))
        // With slots, only logs of accounts with changes are sent, not all calls' logs.
        .filter(|(_, log)| filter.slots.is_empty() || changes.contains_key(&log.address))
        .collect();
    if changes.is_empty() && logs.is_empty() {
        return;
    }
    let text = round.encoded(|out| StateChanges::write(out, (snapshot.id, &changes, logs)));
    round.send(one, text);
}

impl ChangeFilter {
    /// Returns whether the subscription includes an account.
    fn matches(&self, address: &Address) -> bool {
        self.addresses.is_empty() || self.addresses.contains(address)
    }

    /// Returns whether the subscription includes a part of an account's change, after removing the other parts.
    fn keeps(&self, address: &Address, change: &mut AccountDiff) -> bool {
        if !self.slots.is_empty() {
            change.info = ValueChange::default();
            change.slots.retain(|slot, _| self.slots.contains(slot));
        }
        self.matches(address) && (change.info.from != change.info.to || !change.slots.is_empty())
    }
}

/// Returns whether the block before a snapshot is still in the chain, if that is known.
fn is_in_chain(snapshot: &Snapshot, published: &Chain) -> bool {
    let number = snapshot.head.number();
    published.blocks(number, number).all(|block| block.hash() == snapshot.head_hash())
}

/// Returns the known blocks that were sealed between two snapshots.
fn sealed_between(last: &Snapshot, snapshot: &Snapshot, published: &Chain) -> Vec<(u64, Arc<BlockBody>)> {
    let (old, new) = (last.head.number(), snapshot.head.number());
    let first = if old == new && last.head_hash() != snapshot.head_hash() { new } else { old + 1 };
    let blocks = published.blocks(first, new.max(first - 1));
    blocks.filter_map(|block| Some((block.number(), block.find_body()?))).collect()
}

/// Returns the transactions that are in `snapshot` or in the blocks sealed before it, and were not in the `last` one.
fn fresh_between<'a>(last: &Snapshot, snapshot: &'a Snapshot, sealed: &'a [(u64, Arc<BlockBody>)]) -> Vec<FreshTx<'a>> {
    let of = |block: u64| {
        move |(tx, receipt): (&Recovered<ChainTx>, &'a ChainReceipt)| FreshTx {
            hash: *tx.tx_hash(),
            block,
            logs: receipt.logs(),
        }
    };
    // The transactions that the last snapshot had of a block.
    let known = |number: u64, hashes: &mut dyn Iterator<Item = &B256>| {
        let open = built(last).filter(|open| open.header.number == number);
        let old = open.into_iter().flat_map(|open| &open.transactions);
        old.zip(hashes).take_while(|(old, new)| old.tx_hash() == *new).count()
    };
    let mut fresh = Vec::new();
    for (number, body) in sealed {
        let known = known(*number, &mut body.transactions.iter().map(|tx| tx.tx_hash()));
        fresh.extend(body.transactions.iter().zip(&body.receipts).skip(known).map(of(*number)));
    }
    if let Some(open) = built(snapshot) {
        let continued = built(last).filter(|before| {
            // The steps from the last snapshot to this one begin there if this one continues the same block.
            let begins_there = snapshot.path.first().is_some_and(|step| step.from == last.state);
            begins_there && before.header.number == open.header.number && before.index < open.index
        });
        let known = continued.map_or_else(
            || known(open.header.number, &mut open.transactions.iter().map(|tx| tx.tx_hash())),
            |before| before.transactions.len(),
        );
        let new = known..open.transactions.len();
        let new = new.filter_map(|index| open.transactions.get(index).zip(open.receipts.get(index)));
        fresh.extend(new.map(of(open.header.number)));
    }
    fresh
}

/// Returns the block being built, unless it is a draft. A draft's transactions are new only when it is sealed.
fn built(snapshot: &Snapshot) -> Option<&OpenBlock> {
    snapshot.open.as_ref().filter(|open| !open.is_draft)
}

/// Returns the changes between two snapshots that are the steps apart.
fn changes(before: &Snapshot, after: &Snapshot, steps: &[&KnownStep]) -> Changes {
    let mut one = Overlay::new(before.world.clone(), before.hashes.clone());
    let mut other = Overlay::new(after.world.clone(), after.hashes.clone());
    let mut touched: BTreeMap<Address, BTreeSet<U256>> = BTreeMap::new();
    for (address, account) in steps.iter().flat_map(|step| step.touched.accounts()) {
        let slots = touched.entry(*address).or_default();
        slots.extend(&account.slots);
        if account.all_slots {
            let worlds = [&before.world, &after.world].into_iter().filter_map(|world| world.account(address));
            slots.extend(worlds.flat_map(|account| account.slots().map(|(slot, _)| *slot)));
        }
    }
    let mut changes = Changes::new();
    for (address, slots) in touched {
        let mut diff = AccountDiff {
            info: ValueChange { from: info(&mut one, address), to: info(&mut other, address) },
            ..AccountDiff::default()
        };
        for slot in slots {
            let (Ok(from), Ok(to)) = (one.storage(address, slot), other.storage(address, slot));
            if from != to {
                diff.slots.insert(slot, ValueChange { from, to });
            }
        }
        if diff.info.from != diff.info.to || !diff.slots.is_empty() {
            changes.insert(address, diff);
        }
    }
    changes
}

/// Returns an account in a snapshot's state.
fn info(overlay: &mut Overlay, address: Address) -> Option<AccountInfo> {
    let Ok(info) = overlay.basic(address);
    info
}

fn hashes<'a>(fresh: &'a [FreshTx<'a>], block: u64) -> impl Iterator<Item = B256> {
    fresh.iter().filter(move |tx| tx.block == block).map(|tx| tx.hash)
}

shapes! {
    /// A snapshot.
    NewSnapshot: (&Snapshot, &[FreshTx<'_>], Option<&Changes>) => |(snapshot, fresh, changes)| let {
        let header = snapshot.header();
        let sealed: BTreeSet<u64> = fresh.iter().map(|tx| tx.block).filter(|block| *block != header.number).collect();
        let sealed = (!sealed.is_empty()).then(|| sealed.into_iter().map(|block| (block, fresh)));
    } {
        id: Quantity<u64> = snapshot.id.0,
        blockNumber: Quantity<u64> = header.number,
        index: Quantity<u64> = u64::from(snapshot.index()),
        timestamp: Quantity<u64> = header.timestamp,
        gasUsed: Quantity<u64> = header.gas_used,
        baseFeePerGas: Option<Quantity<u64>> = header.base_fee_per_gas,
        transactions: Vec<Fixed<32>> = hashes(fresh, header.number),
        sealed: Option<Vec<NewInSealed>> = sealed,
        /// The accounts that changed, or null if they are not known.
        touched: Option<Vec<Fixed<20>>> = Some(OrNull(changes.map(BTreeMap::keys))),
    }

    /// The new transactions of a sealed block.
    NewInSealed: (u64, &[FreshTx<'_>]) => |(block, fresh)| {
        blockNumber: Quantity<u64> = block,
        transactions: Vec<Fixed<32>> = hashes(fresh, block),
    }

    /// The start of a subscription to changes whose changes so far are not known.
    Reset: SnapshotId => |id| {
        reset: bool = true,
        id: Quantity<u64> = id.0,
    }

    /// Changes that a subscription asks for.
    StateChanges: (SnapshotId, &Changes, Vec<(&B256, &Log)>) => |(id, changes, logs)| {
        id: Quantity<u64> = id.0,
        changes: BTreeMap<String, AccountDifference> = changes,
        logs: Vec<NewLog> = logs,
    }

    /// A log of a new transaction.
    NewLog: (&B256, &Log) => |(hash, log)| {
        address: Fixed<20> = log.address,
        topics: Vec<Fixed<32>> = log.topics(),
        data: Data = &log.data.data,
        transactionHash: Fixed<32> = hash,
    }
}
