//! From recorded entries to snapshots: after a restart from the journal, and on a replica from the stream.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_eips::eip7928::BlockAccessList;
use alloy_primitives::B256;

use super::record::{StoredChange, StoredSubBlock};
use crate::{
    chain::{BlockGas, SealedBlock},
    feed::apply::stand_on,
    state::{AccountChange, Code, OpenBlock, Snapshot, World},
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
    after(on, open, changes, codes)
}

/// Returns the snapshot after the next sub-block of the block that `on` is building.
///
/// # Errors
///
/// Returns [`redb::Error::Corrupted`] if no block is being built, a transaction or a receipt cannot be read, or a code is
/// unknown.
pub fn extend(on: &Snapshot, sub_block: StoredSubBlock, codes: &impl KnownCodes) -> Result<Snapshot, redb::Error> {
    let open = on.open.as_ref().ok_or_else(|| corrupted("a sub-block has no open block"))?;
    grow(on, open.clone(), sub_block, codes)
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
    grow(on, OpenBlock::new(header), content, codes)
}

fn grow(
    on: &Snapshot,
    mut open: OpenBlock,
    sub_block: StoredSubBlock,
    codes: &impl KnownCodes,
) -> Result<Snapshot, redb::Error> {
    open.index = sub_block.index;
    let (regular, state) = (sub_block.regular_gas_used, sub_block.state_gas_used.unwrap_or_default());
    open.set_gas(BlockGas { regular, state });
    open.blob_gas_used = sub_block.blob_gas_used;
    open.access_lists.extend(sub_block.access_list.map(Arc::new));
    for (tx, receipt) in sub_block.transactions.into_iter().zip(sub_block.receipts) {
        open.push(tx.read()?, receipt.read()?);
    }
    after(on, open, sub_block.changes, codes)
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
    let mut hashes = on.hashes.clone();
    hashes.push(block.number(), block.hash());
    let (world, changes) = changed(&on.world, changes, codes)?;
    Ok(stand_on(world, block, hashes).after(on, Arc::new(changes)))
}

fn after(
    on: &Snapshot,
    open: OpenBlock,
    changes: Vec<StoredChange>,
    codes: &impl KnownCodes,
) -> Result<Snapshot, redb::Error> {
    let (world, changes) = changed(&on.world, changes, codes)?;
    Ok(Snapshot::new(world, on.head.clone(), Some(open), on.hashes.clone()).after(on, Arc::new(changes)))
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

fn changed(
    world: &World,
    stored: Vec<StoredChange>,
    codes: &impl KnownCodes,
) -> Result<(World, Vec<AccountChange>), redb::Error> {
    let changes = changes(world, stored, codes)?;
    let mut world = world.clone();
    world.apply_many(&changes);
    Ok((world, changes))
}
