//! Pruning: deletes the bodies of the oldest blocks from disk, and keeps their headers.

use redb::{ReadableTable, WriteTransaction};

use super::{
    Journal,
    base::read_base,
    progress::bar,
    tables::{ABOUT, BODIES, HEADERS, RECORDS},
};
use crate::{
    ledger::codec::{Entry, StoredHeader},
    store::{StoreError, corrupted, decode, encode},
};

/// The most blocks that are pruned in the commit of a sealed block.
pub const MAX_PER_SEAL: usize = 16;
/// The most blocks that are pruned in one commit at startup.
const MAX_PER_COMMIT: usize = 1_000;

/// Prunes at most `most` blocks after genesis and before `oldest`. Bodies from the base on stay, because a restart
/// needs them.
pub fn prune(transaction: &WriteTransaction, oldest: u64, most: usize) -> Result<(), redb::Error> {
    let end = oldest.min(read_base(&transaction.open_table(ABOUT)?)?.number);
    let (mut headers, mut bodies) = (transaction.open_table(HEADERS)?, transaction.open_table(BODIES)?);
    for _ in 0..most {
        let Some(number) = oldest_body(&headers, &bodies)?.filter(|number| *number < end) else { break };
        let stored = headers.get(number)?.map(|bytes| decode::<StoredHeader>(bytes.value())).transpose()?;
        let stored = stored.ok_or_else(|| corrupted(format!("block {number} has no header")))?;
        headers.insert(number, encode(&StoredHeader { hashes: Vec::new(), ..stored }).as_slice())?;
        bodies.remove(number)?;
    }
    Ok(())
}

/// Returns the number of the oldest block after genesis that has a body.
pub fn oldest_body(
    headers: &impl ReadableTable<u64, &'static [u8]>,
    bodies: &impl ReadableTable<u64, &'static [u8]>,
) -> Result<Option<u64>, redb::Error> {
    let Some((genesis, _)) = headers.first()? else { return Ok(None) };
    Ok(bodies.range(genesis.value() + 1..)?.next().transpose()?.map(|(number, _)| number.value()))
}

/// Returns the number of the newest block that the records seal.
fn head(records: &impl ReadableTable<u64, &'static [u8]>) -> Result<Option<u64>, redb::Error> {
    for row in records.iter()?.rev() {
        if let Entry::Seal(seal) = Entry::decode(row?.1.value())? {
            return Ok(Some(seal.block.header.number));
        }
    }
    Ok(None)
}

impl Journal {
    /// Prunes all but the newest `kept` blocks. There may be many if the bound was lowered since the last start, so it
    /// shows a progress bar and works in steps, each of which leaves a valid store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if the store cannot be read or written.
    pub fn prune(&self, kept: u64) -> Result<(), StoreError> {
        let range = || {
            self.store.read(|transaction| {
                let (headers, bodies) = (transaction.open_table(HEADERS)?, transaction.open_table(BODIES)?);
                let base = read_base(&transaction.open_table(ABOUT)?)?.number;
                let head = head(&transaction.open_table(RECORDS)?)?.unwrap_or(base);
                let end = (head + 1).saturating_sub(kept).min(base);
                Ok(oldest_body(&headers, &bodies)?.filter(|first| *first < end).map(|first| first..end))
            })
        };
        let Some(all) = range()? else { return Ok(()) };
        let bar = bar(all.end - all.start, "pruning blocks");
        while let Some(left) = range()? {
            bar.set_position(left.start - all.start);
            self.store.write_now(move |transaction| prune(transaction, left.end, MAX_PER_COMMIT))?;
        }
        tracing::info!(blocks = all.end - all.start, "old blocks were pruned");
        Ok(())
    }
}
