//! From recorded entries to snapshots: after a restart from the journal, and on a replica from the stream.

use std::sync::Arc;

use alloy_consensus::{Header, transaction::Recovered};
use alloy_eips::eip7928::BlockAccessList;
use alloy_primitives::B256;

use super::record::{StoredChange, StoredSubBlock};
use crate::{
    chain::{BlockGas, ChainReceipt, ChainTx, SealedBlock},
    ledger::{OpenBlock, Snapshot},
    state::{AccountChange, Code, World},
    store::corrupted,
};

/// The codes that changes refer to by their hashes.
pub trait KnownCodes {
    /// Returns the code with this hash, which an account of `world` has got or keeps.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the code is unknown.
    fn code(&self, change: &StoredChange, hash: B256, world: &World) -> Result<Code, redb::Error>;
}

/// Returns the snapshot that opens the next block on the head of `on`.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if a code is unknown.
pub fn open(
    on: &Snapshot,
    header: Header,
    changes: Vec<StoredChange>,
    access_list: Option<BlockAccessList>,
    codes: &impl KnownCodes,
) -> Result<Snapshot, redb::Error> {
    let mut open = OpenBlock::new(header);
    open.access_lists.extend(access_list.map(Arc::new));
    Ok(after(on, open, self::changes(&on.world, changes, codes)?))
}

/// Returns the snapshot after the next sub-block of the block that `on` is building.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if no block is being built, a transaction or a receipt cannot be read, or a code is
/// unknown.
pub fn extend(on: &Snapshot, sub_block: StoredSubBlock, codes: &impl KnownCodes) -> Result<Snapshot, redb::Error> {
    let open = on.open.as_ref().ok_or_else(|| corrupted("a sub-block has no open block"))?;
    Ok(sub_block.read(&on.world, codes)?.grow(on, open.clone()))
}

/// Returns the snapshot of the block with this header that is being built on the head of `on`, with all of its content.
///
/// # Errors
///
/// Returns an error as [`extend`] does.
pub fn resume(
    on: &Snapshot,
    header: Header,
    content: StoredSubBlock,
    codes: &impl KnownCodes,
) -> Result<Snapshot, redb::Error> {
    Ok(content.read(&on.world, codes)?.resume(on, header))
}

/// A sub-block that was read whole, so that applying it cannot fail.
pub struct ReadSubBlock {
    index: u32,
    gas: BlockGas,
    blob_gas_used: u64,
    transactions: Vec<(Recovered<ChainTx>, ChainReceipt)>,
    access_list: Option<BlockAccessList>,
    changes: Vec<AccountChange>,
}

impl StoredSubBlock {
    /// Reads the sub-block, whose changes are of the state `world`.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if a transaction or a receipt cannot be read, or a code is unknown.
    pub fn read(self, world: &World, codes: &impl KnownCodes) -> Result<ReadSubBlock, redb::Error> {
        let Self {
            index, regular_gas_used, blob_gas_used, transactions, receipts, state_gas_used, access_list, ..
        } = self;
        let gas = BlockGas { regular: regular_gas_used, state: state_gas_used.unwrap_or_default() };
        let transactions = transactions.into_iter().zip(receipts);
        let transactions = transactions.map(|(tx, receipt)| Ok((tx.read()?, receipt.read()?)));
        let transactions = transactions.collect::<Result<_, redb::Error>>()?;
        let changes = changes(world, self.changes, codes)?;
        Ok(ReadSubBlock { index, gas, blob_gas_used, transactions, access_list, changes })
    }
}

impl ReadSubBlock {
    /// Returns the snapshot of the block with this header that is being built on the head of `on`, with this as its content.
    pub fn resume(self, on: &Snapshot, header: Header) -> Snapshot {
        self.grow(on, OpenBlock::new(header))
    }

    fn grow(self, on: &Snapshot, mut open: OpenBlock) -> Snapshot {
        let Self { index, gas, blob_gas_used, transactions, access_list, changes } = self;
        open.index = index;
        open.set_gas(gas);
        open.blob_gas_used = blob_gas_used;
        open.access_lists.extend(access_list.map(Arc::new));
        transactions.into_iter().for_each(|(tx, receipt)| open.push(tx, receipt));
        after(on, open, changes)
    }
}

/// Returns the snapshot after `block`, which is the one that `on` is building, sealed.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if a code is unknown.
pub fn seal(
    on: &Snapshot,
    block: Arc<SealedBlock>,
    changes: Vec<StoredChange>,
    codes: &impl KnownCodes,
) -> Result<Snapshot, redb::Error> {
    let changes = self::changes(&on.world, changes, codes)?;
    let mut world = on.world.clone();
    world.apply_many(&changes);
    Ok(Snapshot::sealed(world, block, on.hashes.clone()).after(on, Arc::new(changes)))
}

fn after(on: &Snapshot, open: OpenBlock, changes: Vec<AccountChange>) -> Snapshot {
    let mut world = on.world.clone();
    world.apply_many(&changes);
    Snapshot::new(world, on.head.clone(), Some(open), on.hashes.clone()).after(on, Arc::new(changes))
}

/// Returns changes of the state `world`.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if a code is unknown.
pub fn changes(
    world: &World,
    changes: Vec<StoredChange>,
    codes: &impl KnownCodes,
) -> Result<Vec<AccountChange>, redb::Error> {
    let read = |change: StoredChange| {
        let code = change.account.first().map(|account| codes.code(&change, account.code_hash, world)).transpose()?;
        Ok(change.read(code.unwrap_or_default()))
    };
    changes.into_iter().map(read).collect()
}
