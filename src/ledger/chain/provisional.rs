//! The hashes under which blocks were returned while they were being built.

use std::ops::RangeInclusive;

use alloy_primitives::B256;

/// Provisional hashes of blocks with the numbers of these blocks. A hash stays for as long as its block. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ProvisionalHashes {
    numbers: imbl::HashMap<B256, u64>,
    /// The same entries by number, to remove those of a block.
    hashes: imbl::OrdSet<(u64, B256)>,
}

impl ProvisionalHashes {
    /// Adds a hash that was returned for block `number`.
    pub fn insert(&mut self, number: u64, hash: B256) {
        self.numbers.insert(hash, number);
        self.hashes.insert((number, hash));
    }

    /// Returns the number of the block for which a hash was returned.
    pub fn number(&self, hash: &B256) -> Option<u64> {
        self.numbers.get(hash).copied()
    }

    /// Removes the hashes of these blocks.
    pub fn remove(&mut self, blocks: RangeInclusive<u64>) {
        let removed = self.hashes.range((*blocks.start(), B256::ZERO)..=(*blocks.end(), B256::repeat_byte(0xff)));
        for one in removed.copied().collect::<Vec<_>>() {
            self.hashes.remove(&one);
            self.numbers.remove(&one.1);
        }
    }
}
