//! The logs bloom, with the hashes of what was seen lately at hand.

use std::cell::RefCell;

use alloy_primitives::{Bloom, Log, keccak256};

/// Entries of the table: addresses and topics that the logs of a busy chain name again and again fit many times over.
const ENTRIES: usize = 1 << 10;

/// Which bits of a bloom an address or a topic sets. One entry a place: what comes later takes it.
///
/// A log names its contract, an event and a few accounts, and a bundle names the same ones in each of its swaps. Their hashes are by far
/// the most of what a bloom costs, so they are kept, a table a thread. The whole key is compared, so a table is never wrong, at worst
/// useless.
struct Table(Box<[Entry]>);

#[derive(Clone, Copy)]
struct Entry {
    len: u8,
    key: [u8; 32],
    bits: [u16; 3],
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::new(Table(vec![Entry { len: 0, key: [0; 32], bits: [0; 3] }; ENTRIES].into()));
}

/// The bloom of the logs of one receipt (yellow paper, 4.3.1).
pub fn logs_bloom(logs: &[Log]) -> Bloom {
    let mut bloom = Bloom::ZERO;
    if logs.is_empty() {
        return bloom;
    }
    TABLE.with_borrow_mut(|table| {
        for log in logs {
            table.add(&mut bloom, log.address.as_slice());
            for topic in log.topics() {
                table.add(&mut bloom, topic.as_slice());
            }
        }
    });
    bloom
}

impl Table {
    fn add(&mut self, bloom: &mut Bloom, bytes: &[u8]) {
        for bit in self.bits(bytes) {
            // Bit 0 is the last of the last byte.
            let byte = bloom.len() - 1 - usize::from(bit / 8);
            bloom[byte] |= 1 << (bit % 8);
        }
    }

    /// The bits of 20 or 32 bytes.
    fn bits(&mut self, bytes: &[u8]) -> [u16; 3] {
        let mut key = [0; 32];
        key[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len().try_into().unwrap_or(u8::MAX);
        // The ends of addresses and topics differ: most are hashes or small numbers.
        let place = usize::from(u16::from_be_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]])) % ENTRIES;
        let entry = &mut self.0[place];
        if entry.len != len || entry.key != key {
            let hash = keccak256(bytes);
            let bits = [0, 2, 4].map(|at| u16::from_be_bytes([hash[at], hash[at + 1]]) & 0x7ff);
            *entry = Entry { len, key, bits };
        }
        entry.bits
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, B256, Bytes, U256};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_bloom_of_the_yellow_paper(names in prop::collection::vec((0u64..40, prop::collection::vec(0u64..40, 0..5)), 0..30)) {
            let logs: Vec<Log> = names
                .into_iter()
                .map(|(address, topics)| {
                    let topics = topics.into_iter().map(|topic| B256::from(U256::from(topic << 10))).collect();
                    Log::new_unchecked(Address::left_padding_from(&(address << 10).to_be_bytes()), topics, Bytes::new())
                })
                .collect();
            prop_assert_eq!(logs_bloom(&logs), alloy_primitives::logs_bloom(&logs));
        }
    }
}
