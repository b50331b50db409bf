//! The base: the block after which the store has the complete state. It follows the head at a distance.

use redb::{ReadableTable, Table, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::tables::{ABOUT, ACCOUNTS, BASE, RECORDS, SLOTS, read_about, write_about, write_stored};
use crate::{
    ledger::codec::{Block, Entry, StoredBody, StoredChange, StoredHeader, StoredReceipt, StoredSubBlock},
    store::{StoredTx, corrupted, encode},
};

/// The block whose state is the base.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Base {
    /// The number of the block.
    pub number: u64,
    /// The id of the snapshot that sealed the block.
    pub id: u64,
}

/// Applies the oldest records to the base, until it is the state after block `number`, and moves their blocks to the tables of
/// blocks.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if the records end before.
pub fn follow(transaction: &WriteTransaction, number: u64) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(ABOUT)?;
    let mut base = read_base(&table)?;
    if base.number >= number {
        return Ok(());
    }
    let mut records = transaction.open_table(RECORDS)?;
    let mut state = BaseState::open(transaction)?;
    let mut begun = BegunBody::default();
    while base.number < number {
        let Some((id, entry)) = records.pop_first()?.map(|(id, entry)| (id.value(), Entry::decode(entry.value())))
        else {
            return Err(corrupted("the records of the newest blocks are missing"));
        };
        match entry? {
            Entry::SubBlock(sub_block) => state.apply(begun.add(sub_block.content))?,
            Entry::Seal(seal) => {
                base = Base { number: seal.block.header.number, id };
                state.apply(seal.changes)?;
                let hash = seal.block.hash;
                let (header, body) = begun.seal(seal.block)?;
                write_stored(transaction, hash, &header, Some(&body))?;
                let Some(next) = seal.next.0 else { continue };
                if base.number < number {
                    state.apply(begun.add(next.content))?;
                } else {
                    // The rest of the record opens the next block.
                    records.insert(id, Entry::SubBlock(Box::new(next)).write().as_ref())?;
                }
            }
            _ => return Err(corrupted("a record is none of a chain that is built here")),
        }
    }
    write_about(&mut table, BASE, &base)
}

/// The content so far of a block whose records are applied one at a time.
#[derive(Default)]
struct BegunBody {
    transactions: Vec<StoredTx>,
    receipts: Vec<StoredReceipt>,
}

impl BegunBody {
    /// Adds a sub-block, and returns its changes.
    fn add(&mut self, content: StoredSubBlock) -> Vec<StoredChange> {
        self.transactions.extend(content.transactions);
        self.receipts.extend(content.receipts);
        content.changes
    }

    /// Returns the block, which leaves out the transactions that the earlier records have. The next one begins empty.
    fn seal(&mut self, block: Block) -> Result<(StoredHeader, StoredBody), redb::Error> {
        let (mut transactions, mut receipts) =
            (std::mem::take(&mut self.transactions), std::mem::take(&mut self.receipts));
        let number = block.header.number;
        let body = block.body.0.filter(|_| block.known == transactions.len() as u64);
        let body = body.ok_or_else(|| corrupted(format!("the body of block {number} is missing")))?;
        transactions.extend(body.transactions);
        receipts.extend(body.receipts);
        let header = StoredHeader { header: block.header, hashes: transactions.iter().map(StoredTx::hash).collect() };
        Ok((header, StoredBody { transactions, receipts, ..body }))
    }
}

/// The tables of the base's state.
pub struct BaseState<'a> {
    accounts: Table<'a, [u8; 20], &'static [u8]>,
    slots: Table<'a, ([u8; 20], [u8; 32]), [u8; 32]>,
}

impl<'a> BaseState<'a> {
    /// Opens the tables.
    pub fn open(transaction: &'a WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self { accounts: transaction.open_table(ACCOUNTS)?, slots: transaction.open_table(SLOTS)? })
    }

    /// Applies changes of the state.
    pub fn apply(&mut self, changes: Vec<StoredChange>) -> Result<(), redb::Error> {
        for change in changes {
            let StoredChange { address, account, storage_cleared, slots: written } = change;
            if storage_cleared {
                self.slots.retain_in((address.0.0, [0; 32])..=(address.0.0, [0xff; 32]), |_, _| false)?;
            }
            let Some(account) = account.0 else {
                self.accounts.remove(address.0.0)?;
                continue;
            };
            self.accounts.insert(address.0.0, encode(&account).as_slice())?;
            for slot in written {
                let key = (address.0.0, slot.key.to_be_bytes());
                if slot.value.is_zero() {
                    self.slots.remove(key)?;
                } else {
                    self.slots.insert(key, slot.value.to_be_bytes())?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the block whose state is the base.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if the row is missing or malformed.
pub fn read_base(table: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Base, redb::Error> {
    read_about(table, BASE)?.ok_or_else(|| corrupted("the row about.base is missing"))
}
