//! A bound on the number of items in decoded data, because an item of one byte can become 32 bytes of memory.

use alloy_rlp::{Decodable, Header};

use crate::store::{corrupted, decode};

/// A message may have one item for this many bytes of its bound. Messages that presim writes have more bytes per item.
const BYTES_OF_ITEM: usize = 16;

/// The number of items (lists, strings and numbers) that an RLP message may still have.
#[derive(Debug)]
pub struct ItemBudget {
    most: usize,
    left: usize,
}

impl ItemBudget {
    /// Returns the items of a message of at most `most` bytes.
    pub const fn of(most: usize) -> Self {
        let most = most / BYTES_OF_ITEM;
        Self { most, left: most }
    }

    /// Decodes a value, and takes its items from the budget.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the value has more items than are left, or the bytes are not exactly one value.
    pub fn decode<T: Decodable>(&mut self, rlp: &[u8]) -> Result<T, redb::Error> {
        self.take(rlp)?;
        decode(rlp)
    }

    /// Takes the items of a value from the budget. Nothing is decoded yet.
    ///
    /// # Errors
    ///
    /// Returns an error as [`decode`](Self::decode) does.
    pub fn take(&mut self, mut rlp: &[u8]) -> Result<(), redb::Error> {
        while !rlp.is_empty() {
            let item = Header::decode(&mut rlp).map_err(|error| corrupted(error.to_string()))?;
            let most = self.most;
            let left = self.left.checked_sub(1);
            self.left = left.ok_or_else(|| corrupted(format!("it has too many items: expected at most {most}")))?;
            // The items of a list follow its header.
            if !item.list {
                rlp = rlp.get(item.payload_length..).ok_or_else(|| corrupted("an item is cut short"))?;
            }
        }
        Ok(())
    }
}
