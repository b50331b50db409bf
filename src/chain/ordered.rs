//! Trie roots of ordered lists, such as the transactions and receipts of a block.

use alloy_primitives::B256;
use alloy_rlp::Encodable;
use alloy_trie::{EMPTY_ROOT_HASH, HashBuilder, Nibbles, nodes::LeafNodeRef, root::adjust_index_for_rlp};

use super::keccak::keccak256_each;

/// Returns the root of each list's trie, and the hash of each of `others`. A trie holds each item of its list under the
/// RLP of the item's index (yellow paper, section 4.3).
///
/// Leaves are most of the hashed data, and independent: the leaves of all lists and `others` are hashed in parallel.
pub fn ordered_roots<const LISTS: usize>(lists: [&[&[u8]]; LISTS], others: &[&[u8]]) -> ([B256; LISTS], Vec<B256>) {
    let mut text = Vec::with_capacity(lists.iter().flat_map(|list| *list).map(|item| item.len() + LEAF_OVERHEAD).sum());
    let leaves = lists.map(|list| ListLeaf::all_of(list, &mut text));
    let messages: Vec<&[u8]> =
        leaves.iter().flatten().map(|leaf| &text[leaf.from..leaf.to]).chain(others.iter().copied()).collect();
    let mut hashes = keccak256_each(&messages);
    let of_others = hashes.split_off(hashes.len() - others.len());
    let mut hashes = hashes.into_iter();
    let roots = leaves.map(|leaves| {
        let mut builder = HashBuilder::default();
        let count = leaves.len();
        for (leaf, hash) in leaves.into_iter().zip(&mut hashes) {
            match count {
                1 => return hash,
                // A node shorter than a hash is embedded in its parent.
                _ if leaf.to - leaf.from < B256::len_bytes() => builder.add_leaf(leaf.key, leaf.item),
                _ => builder.add_branch(leaf.key.slice(..leaf.depth), hash, false),
            }
        }
        if count == 0 { EMPTY_ROOT_HASH } else { builder.root() }
    });
    (roots, of_others)
}

/// The most bytes that a leaf adds to its item: two headers and the path.
const LEAF_OVERHEAD: usize = 24;

/// The leaf of a list's item in the trie.
struct ListLeaf<'a> {
    key: Nibbles,
    item: &'a [u8],
    /// Nibbles of the key above the leaf: the longest prefix shared with another key, and one more.
    depth: usize,
    /// The range of the leaf's RLP in the text.
    from: usize,
    to: usize,
}

impl<'a> ListLeaf<'a> {
    /// Returns the leaves of a list in the order of their keys, and appends their RLP to `text`.
    fn all_of(list: &[&'a [u8]], text: &mut Vec<u8>) -> Vec<Self> {
        let key = |position| {
            let index: usize = adjust_index_for_rlp(position, list.len());
            (Nibbles::unpack(alloy_rlp::encode_fixed_size(&index)), list[index])
        };
        let mut leaves: Vec<Self> = Vec::with_capacity(list.len());
        let mut shared_before = None;
        let mut next = (!list.is_empty()).then(|| key(0));
        for position in 1..=list.len() {
            let Some((key_here, item)) = next else { break };
            next = (position < list.len()).then(|| key(position));
            let shared_after = next.as_ref().map(|(after, _)| key_here.common_prefix_length(after));
            let depth = shared_before.max(shared_after).map_or(0, |shared| shared + 1);
            let from = text.len();
            LeafNodeRef::new(&key_here.slice(depth..), item).encode(text);
            leaves.push(Self { key: key_here, item, depth, from, to: text.len() });
            shared_before = shared_after;
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;
    use alloy_trie::root::ordered_trie_root_encoded;

    #[test]
    fn the_roots_are_those_of_the_tries_built_leaf_by_leaf() {
        // Leaves that are embedded in their parent and leaves that are not; keys of one, two and three bytes.
        for length in [1, 27, 28, 29, 30, 31, 300] {
            for count in [0, 1, 2, 3, 15, 16, 17, 127, 128, 129, 255, 256, 257, 300] {
                let items: Vec<Vec<u8>> = (0..count)
                    .map(|position| vec![position as u8; if position % 7 == 3 { 200 } else { length }])
                    .collect();
                let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
                let ([root, none, again], hashes) = ordered_roots([&items, &[], &items], &items[..count.min(3)]);
                let expected = ordered_trie_root_encoded(&items);
                assert_eq!((root, none, again), (expected, EMPTY_ROOT_HASH, expected), "{count} items of {length}");
                assert_eq!(hashes, items[..count.min(3)].iter().map(keccak256).collect::<Vec<_>>());
            }
        }
    }
}
