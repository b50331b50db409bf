//! The additions of one change of the published state.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{B256, KECCAK256_EMPTY, map::B256Set};

use super::record::{JournalEntry, StoredChange, StoredSubBlock};
use crate::{
    chain::{SealedBlock, merged_access_list},
    ledger::{Chain, OpenBlock, Record, Snapshot, StateStep},
    state::{Code, World},
};

/// The additions of one change of the published state, for a chain that is built here.
pub struct ChangeRecord {
    /// The entries, in order: one, or a seal and the opening of the next block under the same id.
    pub entries: Vec<JournalEntry>,
    /// The sealed block, if a block was sealed.
    pub sealed: Option<Arc<SealedBlock>>,
    /// The number of the sealed block's transactions that were in the block being built already.
    pub known: usize,
    /// The number of its access lists that are known already.
    known_lists: usize,
    /// The codes that accounts have got, each once.
    pub codes: Vec<Code>,
    /// The hashes of the transactions that were included.
    pub included: Vec<B256>,
}

impl ChangeRecord {
    /// Returns what `change` adds to `on`; `None` if it is no change of a chain that is built here.
    pub fn of(on: &Chain, change: &Record) -> Option<Self> {
        let open = on.newest.open.as_ref();
        let known = open.map_or(0, |open| open.transactions.len());
        let known_lists = open.map_or(0, |open| open.access_lists.len());
        let mut record = Self {
            entries: Vec::with_capacity(2),
            sealed: None,
            known,
            known_lists,
            codes: Vec::new(),
            included: Vec::new(),
        };
        match change {
            Record::SubBlock(next) if open.is_none() => record.open(next, &next.path),
            Record::SubBlock(next) => record.extend(next),
            Record::Seal { sealed, next } => {
                record.seal(sealed);
                if let Some(next) = next {
                    record.open(next, &next.path);
                }
            }
            _ => return None,
        }
        let mut seen = B256Set::default();
        record.codes.retain(|code| seen.insert(code.hash));
        Some(record)
    }

    /// Returns the whole content of the block that `newest` is building on `latest`, and the block's header; `None` if it
    /// builds none. `newest` has the steps from `latest` on.
    pub fn of_open(latest: &Snapshot, newest: &Snapshot) -> Option<(Self, Header)> {
        let open = newest.open.as_ref()?;
        let first = newest.path.iter().position(|step| step.from == latest.state)?;
        Some((Self::of_content(open, &newest.path[first..]), open.header.clone()))
    }

    /// Returns the whole content of a block being built, as one sub-block: `path` has the steps since it was sealed on.
    pub fn of_content(open: &OpenBlock, path: &[Arc<StateStep>]) -> Self {
        let mut record = Self {
            entries: Vec::new(),
            sealed: None,
            known: 0,
            known_lists: 0,
            codes: Vec::new(),
            included: Vec::new(),
        };
        record.content(open, path);
        record
    }

    /// Adds the opening of a block.
    fn open(&mut self, next: &Snapshot, path: &[Arc<StateStep>]) {
        let changes = self.changes(path);
        if let Some(open) = &next.open {
            let (header, access_list) = (Box::new(open.header.clone()), merged_access_list(&open.access_lists, 0));
            self.entries.push(JournalEntry::Open { header, changes, access_list });
        }
    }

    /// Adds a sub-block.
    fn extend(&mut self, next: &Snapshot) {
        if let Some(open) = &next.open {
            self.content(open, &next.path);
        }
    }

    /// Adds the transactions of a block that are not known yet, and the changes of steps.
    fn content(&mut self, open: &OpenBlock, path: &[Arc<StateStep>]) {
        let changes = self.changes(path);
        let new = self.known..open.transactions.len();
        self.included.extend(new.map(|at| *open.transactions[at].tx_hash()));
        let content = StoredSubBlock::of(open, self.known, self.known_lists, changes);
        self.entries.push(JournalEntry::SubBlock(content));
    }

    /// Adds the sealing of the block being built, with its last sub-block.
    fn seal(&mut self, sealed: &Snapshot) {
        let changes = self.changes(&sealed.path);
        let head = sealed.head.clone();
        let body = head.body();
        self.known = self.known.min(body.transactions.len());
        self.included.extend(body.transactions[self.known..].iter().map(|tx| *tx.tx_hash()));
        self.entries.push(JournalEntry::Seal { number: head.number(), changes });
        self.sealed = Some(head);
    }

    /// Returns the changes of steps, each account once, and adds the codes that they bring.
    fn changes(&mut self, path: &[Arc<StateStep>]) -> Vec<StoredChange> {
        for step in path {
            self.codes.extend(new_codes(step.before(), step));
        }
        if let [step] = path {
            return step.changes().iter().map(StoredChange::from).collect();
        }
        // A later step may change an account again.
        StateStep::merged(path).iter().map(StoredChange::from).collect()
    }
}

/// Returns the codes that a step gives to accounts of the state before it.
fn new_codes<'a>(before: &'a World, step: &'a StateStep) -> impl Iterator<Item = Code> + 'a {
    step.changes().iter().filter_map(|change| {
        let info = change.info.as_ref()?;
        let known = before.account(&change.address).map_or(KECCAK256_EMPTY, |account| account.code.hash);
        (info.code_hash != known && info.code_hash != KECCAK256_EMPTY).then(|| Code::of(info))
    })
}
