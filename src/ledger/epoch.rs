//! Epochs of snapshot ids: each start of a node that produces snapshots takes a new one.

use std::time::Duration;

use redb::TableDefinition;

use crate::store::{Store, StoreError, open_if_there};

/// The last epoch of the node.
const FEED: TableDefinition<'_, &str, u64> = TableDefinition::new("feed");
const EPOCH: &str = "epoch";

/// Returns the epoch after `last` at a time since 1970: the Unix time in seconds, unless that was taken already. Clocks that
/// go back, and two starts in a second, therefore never give an epoch twice.
pub fn after(last: u64, unix: Duration) -> u64 {
    // An id has 32 bits for the epoch, enough for the Unix time until the year 2106.
    unix.as_secs().min(u64::from(u32::MAX)).max(last + 1)
}

/// Takes the next epoch in the node's store, at a Unix time. `least` is the last epoch known from elsewhere.
///
/// # Errors
///
/// Returns [`StoreError`] if the store cannot be read or written.
pub fn take(store: &Store, least: u64, unix: Duration) -> Result<u64, StoreError> {
    if !store.is_durable() {
        return Ok(after(least, unix));
    }
    let last = store.read(|transaction| {
        let Some(table) = open_if_there(transaction, FEED)? else { return Ok(0) };
        Ok(table.get(EPOCH)?.map_or(0, |epoch| epoch.value()))
    })?;
    let epoch = after(last.max(least), unix);
    record(store, epoch)?;
    Ok(epoch)
}

/// Writes an epoch that was taken elsewhere.
///
/// # Errors
///
/// Returns [`StoreError`] if the store cannot be written.
pub fn record(store: &Store, epoch: u64) -> Result<(), StoreError> {
    if !store.is_durable() {
        return Ok(());
    }
    store.write_now(move |transaction| {
        transaction.open_table(FEED)?.insert(EPOCH, epoch)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_the_time_and_never_one_that_was_taken() {
        let at = Duration::from_secs;
        assert_eq!(after(0, at(1_700_000_000)), 1_700_000_000);
        assert_eq!(after(1_700_000_000, at(1_700_000_000)), 1_700_000_001, "two starts in a second");
        assert_eq!(after(1_700_000_009, at(3)), 1_700_000_010, "the clock went back");
    }
}
