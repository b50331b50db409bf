//! The trie of an ordered list that grows at its end, such as the receipts of a block being built.

use alloy_primitives::{B256, Bytes};
use alloy_trie::{HashBuilder, Nibbles};

/// An append-only trie that stores each item of a list under the RLP of the item's index (yellow paper, section 4.3),
/// like [`ordered_roots`](super::ordered_roots).
///
/// The keys form groups that differ only in their last nibble. Once a group is complete, no later key changes the
/// branch above it, so the hash of that branch is final, and the items below it are dropped. The same holds for a group
/// of such branches. A branch with at least eight children is never embedded in its parent, so it always has a hash.
/// The trie retains only a few branches per level and the items of the newest group: the cost of appending and of
/// computing the root does not depend on the length of the list, and a clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct AppendTrie {
    len: usize,
    /// The item with index 0. Its key 0x80 belongs to no group.
    first: Option<Bytes>,
    /// The paths and hashes of the finished branches, in the order of the indices below them.
    finished: Vec<(Nibbles, B256)>,
    /// The keys and items of the newest group.
    recent: Vec<(Nibbles, Bytes)>,
}

impl AppendTrie {
    /// The number of keys that a group has: one for each value of a nibble.
    const GROUP: usize = 16;

    /// Returns the number of items.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Appends an item.
    pub fn push(&mut self, item: Bytes) {
        if self.len == 0 {
            self.first = Some(item);
        } else {
            self.recent.push((Nibbles::unpack(alloy_rlp::encode_fixed_size(&self.len)), item));
        }
        self.len += 1;
        if self.len.is_multiple_of(Self::GROUP) {
            self.finish_items();
            while self.finish_branches() {}
        }
    }

    /// Returns the root.
    pub fn root(&self) -> B256 {
        // Keys are not ordered like indices: the key of index 0 follows the keys of indices 1 to 127.
        let low = self.finished.partition_point(|(path, _)| path.first() < Some(8));
        let (low, high) = self.finished.split_at(low);
        let (before, after): (&[_], &[_]) = match self.recent.first() {
            Some((key, _)) if key.first() < Some(8) => (&self.recent, &[]),
            _ => (&[], &self.recent),
        };
        let mut builder = HashBuilder::default();
        low.iter().for_each(|(path, hash)| builder.add_branch(*path, *hash, false));
        before.iter().for_each(|(key, item)| builder.add_leaf(*key, item));
        if let Some(first) = &self.first {
            builder.add_leaf(Nibbles::unpack([0x80]), first);
        }
        high.iter().for_each(|(path, hash)| builder.add_branch(*path, *hash, false));
        after.iter().for_each(|(key, item)| builder.add_leaf(*key, item));
        builder.root()
    }

    /// Replaces the items of the newest group by the branch above them.
    fn finish_items(&mut self) {
        let Some((key, _)) = self.recent.last() else { return };
        let depth = key.len() - 1;
        let path = key.slice(..depth);
        let mut builder = HashBuilder::default();
        for (key, item) in self.recent.drain(..) {
            builder.add_leaf(key.slice(depth..), &item);
        }
        self.finished.push((path, builder.root()));
    }

    /// Replaces the newest finished branches by the branch above them if no later branch will be below it. Returns
    /// whether it did. The branches right below the root stay, because the root has other children too.
    fn finish_branches(&mut self) -> bool {
        let Some((path, _)) = self.finished.last() else { return false };
        let depth = path.len() - 1;
        if depth == 0 || path.last() != Some(0xf) {
            return false;
        }
        let parent = path.slice(..depth);
        let is_other = |(path, _): &(Nibbles, B256)| path.len() != depth + 1 || !path.starts_with(&parent);
        let from = self.finished.iter().rposition(is_other).map_or(0, |other| other + 1);
        let mut builder = HashBuilder::default();
        for (path, hash) in self.finished.drain(from..) {
            builder.add_branch(path.slice(depth..), hash, false);
        }
        self.finished.push((parent, builder.root()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_trie::root::ordered_trie_root_encoded;
    use proptest::prelude::*;

    fn item(index: usize, length: usize) -> Bytes {
        (0..length).map(|at| (index * 31 + at) as u8).collect()
    }

    #[test]
    fn the_root_is_that_of_the_trie_built_at_once() {
        for length in [0, 1, 27, 28, 29, 31, 32, 200] {
            let items: Vec<Bytes> = (0..300).map(|index| item(index, length)).collect();
            let mut trie = AppendTrie::default();
            for count in 0..=items.len() {
                assert_eq!(trie.root(), ordered_trie_root_encoded(&items[..count]), "{count} items of {length}");
                assert_eq!(trie.len(), count);
                items.get(count).into_iter().for_each(|item| trie.push(item.clone()));
            }
        }
    }

    #[test]
    fn the_root_of_a_long_list_is_that_of_the_trie_built_at_once() {
        let items: Vec<Bytes> = (0..66_000).map(|index| item(index, 1 + index % 40)).collect();
        let mut trie = AppendTrie::default();
        for (index, one) in items.iter().enumerate() {
            trie.push(one.clone());
            let count = index + 1;
            if [4_095, 4_096, 4_097, 10_000, 65_535, 65_536, 65_537, 66_000].contains(&count) {
                assert_eq!(trie.root(), ordered_trie_root_encoded(&items[..count]), "{count} items");
                assert!(trie.finished.len() < 80, "{} branches are kept of {count}", trie.finished.len());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_clone_continues_from_where_it_was_made(
            lengths in proptest::collection::vec(0usize..80, 0..600),
            cut in 0usize..600,
        ) {
            let items: Vec<Bytes> = lengths.iter().enumerate().map(|(index, length)| item(index, *length)).collect();
            let cut = cut.min(items.len());
            let mut one = AppendTrie::default();
            items[..cut].iter().for_each(|item| one.push(item.clone()));
            let mut other = one.clone();
            items[cut..].iter().for_each(|item| other.push(item.clone()));
            prop_assert_eq!(one.root(), ordered_trie_root_encoded(&items[..cut]));
            prop_assert_eq!(other.root(), ordered_trie_root_encoded(&items));
        }
    }
}
