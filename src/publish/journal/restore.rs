//! Restores the chain from disk: reads the base, and replays the records after it.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::{
    Journal,
    base::read_base,
    progress::bar,
    prune::oldest_body,
    tables::{ABOUT, ACCOUNTS, BODIES, CODES, HEADERS, RECORDS, SLOTS},
};
use crate::{
    chain::{BlockHashes, BlockKeeper, SealedBlock},
    ledger::{
        Chain, FeedState, Record, Retention, Snapshot, SnapshotId, Snapshots, Stamp,
        codec::{CodesByHash, Entry, EntryError, StoredAccount, StoredHeader, unless_equal},
    },
    state::{Account, CodeCache, LocalWorld},
    store::{StoreError, corrupted, decode},
};

fn read_codes(transaction: &ReadTransaction, codes: &CodeCache) -> Result<CodesByHash, redb::Error> {
    let mut analysed = CodesByHash::default();
    for row in transaction.open_table(CODES)?.iter()? {
        let (hash, bytes) = row?;
        let code = codes.chain(Bytes::copy_from_slice(bytes.value()));
        if code.hash != hash.value() {
            return Err(corrupted(format!("the code stored under hash {} has another hash", B256::from(hash.value()))));
        }
        analysed.add(&code);
    }
    Ok(analysed)
}

/// Checks that the state of the newest sealed block has the root in its header.
fn check_head(chain: &Chain) -> Result<(), redb::Error> {
    let sealed = chain.latest();
    let (root, header) = (sealed.world.local().map(LocalWorld::state_root_in_parallel), &sealed.head.header);
    let equal = unless_equal(header.number, "stateRoot", &header.state_root, &root.unwrap_or_default());
    equal.map_err(|error| corrupted(error.to_string()))
}

impl Journal {
    /// Restores the chain from the store, under progress bars. Checks the head's state root.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Damaged`] if the stored chain is inconsistent, and the other errors of [`Store::read`](crate::store::Store::read).
    pub fn restore(&self, codes: &CodeCache, feed: FeedState, kept: Retention) -> Result<Snapshots, StoreError> {
        self.store.read(|transaction| JournalReader::new(transaction, codes, self.keeper())?.read(feed, kept))
    }

    /// Restores the chain by replaying the records on `snapshots`. Its newest snapshot must be the base.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`restore`](Self::restore).
    pub fn replay_on(&self, snapshots: &Snapshots, codes: &CodeCache) -> Result<(), StoreError> {
        self.store.read(|transaction| JournalReader::new(transaction, codes, self.keeper())?.go_on(snapshots))
    }
}

/// Restores the chain from one read transaction.
struct JournalReader<'a> {
    transaction: &'a ReadTransaction,
    codes: CodesByHash,
    keeper: Arc<dyn BlockKeeper>,
}

/// A block and the hashes of its transactions.
type Listed = (Arc<SealedBlock>, Vec<B256>);

impl<'a> JournalReader<'a> {
    /// Creates a reader of the committed data. The bodies of blocks stay with `keeper`.
    pub fn new(
        transaction: &'a ReadTransaction,
        codes: &CodeCache,
        keeper: Arc<dyn BlockKeeper>,
    ) -> Result<Self, redb::Error> {
        Ok(Self { transaction, codes: read_codes(transaction, codes)?, keeper })
    }

    /// Restores the chain from its base on.
    pub fn read(self, feed: FeedState, kept: Retention) -> Result<Snapshots, redb::Error> {
        let base = read_base(&self.transaction.open_table(ABOUT)?)?;
        let blocks = self.blocks()?;
        let head = match blocks.last() {
            Some((block, _)) if block.number() == base.number => block.clone(),
            _ => return Err(corrupted(format!("block {}, whose state is stored, is missing", base.number))),
        };
        let mut first = Snapshot::at_head(self.world()?, head, self.hashes(base.number)?);
        first.id = SnapshotId(base.id);
        let mut chain = Chain::new(first, feed, kept);
        chain.set_archive(self.keeper.clone());
        chain.add_history(blocks);
        self.replay(&mut chain)?;
        check_head(&chain)?;
        Ok(chain.into())
    }

    /// Replays the records on `snapshots`. Its newest snapshot must be the base.
    pub fn go_on(self, snapshots: &Snapshots) -> Result<(), redb::Error> {
        snapshots.try_update(|chain| {
            self.replay(chain)?;
            check_head(chain)
        })
    }

    /// Returns the hashes that `BLOCKHASH` can read in the block after block `head`.
    fn hashes(&self, head: u64) -> Result<BlockHashes, redb::Error> {
        let mut hashes = BlockHashes::default();
        let oldest = (head + 1).saturating_sub(BlockHashes::DEPTH as u64);
        for row in self.transaction.open_table(HEADERS)?.range(oldest..=head)? {
            let (number, bytes) = row?;
            hashes.push(number.value(), decode::<StoredHeader>(bytes.value())?.header.hash_slow());
        }
        Ok(hashes)
    }

    /// Returns genesis and all blocks up to the base that are not pruned, without their bodies. Each block after the oldest of them is
    /// checked to be the child of the one before it.
    fn blocks(&self) -> Result<Vec<Listed>, redb::Error> {
        let headers: ReadOnlyTable<u64, &[u8]> = self.transaction.open_table(HEADERS)?;
        let oldest = oldest_body(&headers, &self.transaction.open_table(BODIES)?)?.unwrap_or(u64::MAX);
        let last = headers.last()?.map_or(0, |(last, _)| last.value());
        let bar = bar((last + 1).saturating_sub(oldest), "reading blocks");
        let mut blocks: Vec<Listed> = Vec::new();
        let genesis = headers.iter()?.take(1);
        for row in bar.wrap_iter(genesis.chain(headers.range(oldest..)?)) {
            let StoredHeader { header, hashes } = decode(row?.1.value())?;
            let block = Arc::new(SealedBlock::kept(header, self.keeper.clone()));
            // The blocks right after genesis may be pruned.
            let parent =
                blocks.last().filter(|(genesis, _)| blocks.len() > 1 || genesis.number() + 1 == block.number());
            if let Some((parent, _)) = parent.filter(|(parent, _)| block.header.parent_hash != parent.hash()) {
                return Err(corrupted(format!("block {} is not the parent of the next", parent.number())));
            }
            blocks.push((block, hashes));
        }
        Ok(blocks)
    }

    /// Reads the state of the base.
    fn world(&self) -> Result<LocalWorld, redb::Error> {
        let (accounts, slots) = (self.transaction.open_table(ACCOUNTS)?, self.transaction.open_table(SLOTS)?);
        let mut slots = slots.iter()?;
        let mut next = slots.next().transpose()?;
        let mut world = LocalWorld::default();
        for row in bar(accounts.len()?, "reading accounts").wrap_iter(accounts.iter()?) {
            let (address, bytes) = row?;
            let address = Address::from(address.value());
            let StoredAccount { balance, nonce, code_hash } = decode(bytes.value())?;
            let mut account = Account::default();
            (account.balance, account.nonce, account.code) = (balance, nonce, self.codes.find(code_hash)?);
            // Both tables are sorted by address.
            while let Some((key, value)) = &next {
                let (owner, slot) = key.value();
                if owner != address.0.0 {
                    break;
                }
                account.set_slot(U256::from_be_bytes(slot), U256::from_be_bytes(value.value()));
                next = slots.next().transpose()?;
            }
            world.insert(address, account);
        }
        if next.is_some() {
            return Err(corrupted("a storage slot belongs to no account"));
        }
        Ok(world)
    }

    /// Replays all records on `chain`, in order.
    fn replay(&self, chain: &mut Chain) -> Result<(), redb::Error> {
        let table = self.transaction.open_table(RECORDS)?;
        let unread = |error: EntryError| corrupted(error.to_string());
        for row in bar(table.len()?, "reading snapshots").wrap_iter(table.iter()?) {
            let (id, bytes) = row?;
            let record = Entry::decode(bytes.value())?.read(chain, &self.codes).map_err(unread)?;
            if let Record::Seal { sealed, .. } = &record {
                sealed.head.keep(self.keeper.clone());
            }
            let stamp = Stamp::now(SnapshotId(id.value()));
            chain.apply(stamp, record).map_err(|unfit| unread(unfit.into()))?;
        }
        Ok(())
    }
}
