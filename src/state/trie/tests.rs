//! The trie compared with that of `alloy-trie`, which is built again for each root.

use super::*;
use alloy_primitives::{b256, keccak256};
use alloy_trie::{HashBuilder, proof::verify_proof};
use proptest::{collection::vec, prelude::*};
use std::{collections::BTreeMap, thread};

/// A value that is its own encoding, as in the vectors of ethereum/tests.
#[derive(Clone, Debug, PartialEq)]
struct Raw(&'static str);

impl TrieValue for Raw {
    fn encode_value(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.as_bytes());
    }
}

type Model = BTreeMap<B256, U256>;

fn value(value: u64) -> U256 {
    U256::from(value)
}

/// Returns a key of zeros but for its first nibble and its last byte.
fn key(first: u8, last: u8) -> B256 {
    let mut key = B256::ZERO;
    key[0] = first << 4;
    key[31] = last;
    key
}

fn hashed_key(index: u64) -> B256 {
    keccak256(index.to_be_bytes())
}

fn trie_of(entries: impl IntoIterator<Item = (B256, U256)>) -> Trie<U256> {
    let mut trie = Trie::new();
    for (key, value) in entries {
        trie.insert(key, value);
    }
    trie
}

/// Returns the root by another implementation, from scratch.
fn root_of(model: &Model) -> B256 {
    let mut builder = HashBuilder::default();
    for (key, value) in model {
        builder.add_leaf(Nibbles::unpack(key), &alloy_rlp::encode(value));
    }
    builder.root()
}

fn root_pointer<V>(trie: &Trie<V>) -> Option<*const TrieNode<V>> {
    trie.root.as_ref().map(Arc::as_ptr)
}

fn assert_proves(trie: &Trie<U256>, key: B256) {
    let expected = trie.get(key).map(alloy_rlp::encode);
    let proof = trie.proof(key);
    verify_proof(trie.root_hash(), Nibbles::unpack(key), expected, &proof).unwrap();
}

#[test]
fn an_empty_trie_has_the_empty_root_and_an_empty_proof() {
    let trie = Trie::<U256>::new();
    assert!(trie.is_empty());
    assert_eq!(trie.root_hash(), EMPTY_ROOT_HASH);
    assert_eq!(trie.get(key(0, 0)), None);
    assert_eq!(trie.iter().count(), 0);
    assert!(trie.proof(key(0, 0)).is_empty());
    assert_proves(&trie, key(0, 0));
}

/// The vectors are `TrieTests/trietest_secureTrie.json` of <https://github.com/ethereum/tests>.
#[test]
fn roots_are_those_of_the_ethereum_test_vectors() {
    let cases: [(&[(&str, &str)], B256); 3] = [
        (
            &[("A", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")],
            b256!("e9e2935138352776cad724d31c9fa5266a5c593bb97726dd2a908fe6d53284df"),
        ),
        (
            &[("doe", "reindeer"), ("dog", "puppy"), ("dogglesworth", "cat")],
            b256!("d4cd937e4a4368d7931a9cf51686b7e10abb3dce38a39000fd7902a092b64585"),
        ),
        (
            &[("foo", "bar"), ("food", "bass")],
            b256!("1385f23a33021025d9e87cca5c66c00de06178807b96a9acc92b7d651ccde842"),
        ),
    ];
    for (entries, root) in cases {
        let mut trie = Trie::new();
        for &(key, value) in entries {
            trie.insert(keccak256(key), Raw(value));
        }
        assert_eq!(trie.root_hash(), root, "{entries:?}");
    }
}

#[test]
fn nodes_shorter_than_a_hash_are_part_of_their_parent() {
    // Leaves, then a branch, then an extension with its branch, of less than 32 bytes each.
    let cases: [&[B256]; 4] = [
        &[key(0, 0x01), key(0, 0x02)],
        &[key(0, 0x01), key(0, 0x02), key(0, 0x31)],
        &[key(0, 0x01), key(0, 0x02), key(1, 0x11), key(1, 0x12)],
        &[key(0, 0x01), key(0, 0x02), key(0, 0x11), key(0, 0x12), key(1, 0x21), key(2, 0)],
    ];
    for keys in cases {
        let model: Model = keys.iter().map(|&key| (key, value(1))).collect();
        let trie = trie_of(model.clone());
        assert_eq!(trie.root_hash(), root_of(&model), "{keys:?}");
        for first in 0..4 {
            for last in 0..0x40 {
                assert_proves(&trie, key(first, last));
            }
        }
    }
}

#[test]
fn a_proof_lists_no_embedded_node() {
    // The extension embeds the branch, and the branch both leaves.
    let mut trie = trie_of([(key(0, 1), value(1)), (key(0, 2), value(2))]);
    assert_eq!(trie.proof(key(0, 1)).len(), 1);
    // Now the branch is long enough to be a node of its own. The other leaf is not.
    trie.insert(key(0, 1), U256::MAX);
    assert_eq!(trie.proof(key(0, 1)).len(), 3, "extension, branch, leaf");
    assert_eq!(trie.proof(key(0, 2)).len(), 2, "extension, branch with the leaf");
}

#[test]
fn a_proof_of_absence_ends_where_the_paths_part() {
    let trie = trie_of([(key(1, 1), U256::MAX), (key(1, 2), U256::MAX)]);
    assert_eq!(trie.proof(key(1, 1)).len(), 3, "extension, branch, leaf");
    assert_eq!(trie.proof(key(1, 3)).len(), 2, "extension, branch without the nibble");
    assert_eq!(trie.proof(key(2, 1)).len(), 1, "extension of another path");
}

#[test]
fn an_equal_value_keeps_the_node_and_its_hash() {
    let trie = trie_of((0..100).map(|index| (hashed_key(index), value(index + 1))));
    trie.root_hash();
    let mut next = trie.clone();
    next.insert(hashed_key(42), value(43));
    assert_eq!(root_pointer(&trie), root_pointer(&next));
    assert!(next.root.as_ref().is_some_and(|root| root.rlp.get().is_some()));
}

#[test]
fn removal_of_an_absent_key_keeps_the_node_and_its_hash() {
    let trie = trie_of((0..100).map(|index| (hashed_key(index), value(index + 1))));
    trie.root_hash();
    let mut next = trie.clone();
    next.remove(hashed_key(100));
    assert_eq!(root_pointer(&trie), root_pointer(&next));
    assert!(next.root.as_ref().is_some_and(|root| root.rlp.get().is_some()));
}

#[test]
fn a_sole_owner_changes_nodes_in_place() {
    let mut trie = trie_of((0..100).map(|index| (hashed_key(index), value(index + 1))));
    let before = root_pointer(&trie);
    trie.insert(hashed_key(42), value(7));
    trie.insert(hashed_key(100), value(7));
    trie.remove(hashed_key(41));
    assert_eq!(root_pointer(&trie), before);
}

#[test]
fn a_change_leaves_all_other_subtrees_shared() {
    let trie = trie_of((0..1000).map(|index| (hashed_key(index), value(index + 1))));
    let mut next = trie.clone();
    next.insert(hashed_key(42), value(7));
    let children = |trie: &Trie<U256>| match &trie.root.as_ref().unwrap().kind {
        NodeKind::Branch(branch) => branch.children.clone(),
        NodeKind::Leaf { .. } => panic!("a thousand entries have a branch on top"),
    };
    let copied = iter::zip(*children(&trie), *children(&next))
        .filter(|(a, b)| a.as_ref().map(Arc::as_ptr) != b.as_ref().map(Arc::as_ptr))
        .count();
    assert_eq!(copied, 1);
}

#[test]
fn removal_restores_the_earlier_root() {
    let mut trie = trie_of([(key(0, 0x12), value(1))]);
    let mut roots = vec![trie.root_hash()];
    // Each key forks elsewhere: beside a leaf, in a branch, in an extension, at the top.
    let keys = [key(0, 0x13), key(0, 0x14), key(0, 0x22), key(3, 0), key(3, 1), key(4, 0)];
    for key in keys {
        trie.insert(key, value(2));
        roots.push(trie.root_hash());
    }
    for key in keys.into_iter().rev() {
        roots.pop();
        trie.remove(key);
        assert_eq!(Some(&trie.root_hash()), roots.last(), "without {key}");
    }
    trie.remove(key(0, 0x12));
    assert_eq!(trie.root_hash(), EMPTY_ROOT_HASH);
    assert!(trie.is_empty());
}

#[test]
fn clones_hashed_at_once_by_many_threads_agree() {
    let model: Model = (0..5000).map(|i| (hashed_key(i), value(i + 1))).collect();
    let trie = trie_of(model.clone());
    let expected = root_of(&model);
    thread::scope(|scope| {
        for _ in 0..4 {
            let clone = trie.clone();
            scope.spawn(move || assert_eq!(clone.root_hash(), expected));
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Insert(B256, U256),
    Remove(B256),
    Hash,
    Clone,
}

/// Returns keys of a small set that share prefixes of all lengths, so that operations collide.
fn keys() -> impl Strategy<Value = B256> {
    let nibbles = [0x00_u8, 0x01, 0x10, 0x11, 0xff];
    let byte = move || (0..nibbles.len()).prop_map(move |index| nibbles[index]);
    (byte(), prop_oneof![4 => Just(0_u8), 1 => byte()], byte(), 0..=255_u8, any::<bool>()).prop_map(
        |(first, middle, late, last, near)| {
            let mut key = B256::ZERO;
            key[0] = first;
            key[15] = middle;
            key[30] = late;
            key[31] = if near { last & 0x13 } else { last };
            key
        },
    )
}

/// Returns a value that is never zero and mostly so small that its leaf may be embedded.
fn values() -> impl Strategy<Value = U256> {
    prop_oneof![
        3 => (1_u64..4).prop_map(U256::from),
        1 => any::<u64>().prop_map(|value| U256::from(value) + U256::ONE),
        1 => Just(U256::MAX),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (keys(), values()).prop_map(|(key, value)| Op::Insert(key, value)),
        5 => keys().prop_map(Op::Remove),
        2 => Just(Op::Hash),
        1 => Just(Op::Clone),
    ];
    vec(op, 0..120)
}

proptest! {
    #[test]
    fn any_history_gives_the_root_values_and_proofs_of_its_outcome(
        ops in ops(),
        probes in vec(keys(), 8),
    ) {
        let mut trie = Trie::new();
        let mut model = Model::new();
        let mut earlier = Vec::new();
        for op in ops {
            match op {
                Op::Insert(key, value) => {
                    trie.insert(key, value);
                    model.insert(key, value);
                }
                Op::Remove(key) => {
                    trie.remove(key);
                    model.remove(&key);
                }
                Op::Hash => prop_assert_eq!(trie.root_hash(), root_of(&model)),
                Op::Clone => earlier.push((trie.clone(), model.clone())),
            }
        }
        earlier.push((trie, model));
        for (trie, model) in earlier {
            prop_assert_eq!(trie.root_hash(), root_of(&model));
            prop_assert!(trie == trie_of(model.clone()));
            prop_assert_eq!(trie.is_empty(), model.is_empty());
            prop_assert!(trie.iter().eq(model.iter().map(|(key, value)| (*key, value))));
            for &key in probes.iter().chain(model.keys()) {
                prop_assert_eq!(trie.get(key), model.get(&key));
                assert_proves(&trie, key);
            }
        }
    }

    #[test]
    fn a_draft_has_the_root_of_the_trie_with_its_changes(
        known in vec((keys(), values()), 0..60),
        hashed in any::<bool>(),
        ops in ops(),
    ) {
        let trie = trie_of(known.clone());
        let mut model: Model = known.into_iter().collect();
        if hashed {
            trie.root_hash();
        }
        let before = model.clone();
        let (mut draft, mut scratch) = (Draft::of(&trie), Scratch::default());
        for op in ops {
            match op {
                Op::Insert(key, value) => {
                    draft.insert(key, value);
                    model.insert(key, value);
                }
                Op::Remove(key) => {
                    draft.remove(key);
                    model.remove(&key);
                }
                Op::Hash | Op::Clone => prop_assert_eq!(draft.root_hash(&mut scratch), root_of(&model)),
            }
        }
        prop_assert_eq!(draft.root_hash(&mut scratch), root_of(&model));
        for key in model.keys() {
            draft.remove(*key);
        }
        prop_assert_eq!(draft.root_hash(&mut scratch), EMPTY_ROOT_HASH);
        prop_assert_eq!(trie.root_hash(), root_of(&before));
    }

    #[test]
    fn hashed_keys_give_the_root_of_the_hash_builder(
        entries in vec((0_u64..3000, values()), 0..400),
        removed in vec(0_u64..3000, 0..200),
    ) {
        let mut model: Model =
            entries.into_iter().map(|(index, value)| (hashed_key(index), value)).collect();
        let mut trie = trie_of(model.clone());
        prop_assert_eq!(trie.root_hash(), root_of(&model));
        for index in removed {
            trie.remove(hashed_key(index));
            model.remove(&hashed_key(index));
        }
        prop_assert_eq!(trie.root_hash(), root_of(&model));
    }

    #[test]
    fn tries_are_equal_if_and_only_if_their_entries_are(
        entries in vec((keys(), values()), 1..30),
        other in (keys(), values()),
    ) {
        let trie = trie_of(entries.clone());
        let reversed: Model = entries.into_iter().collect();
        prop_assert!(trie == trie_of(reversed.clone().into_iter().rev()));
        let mut changed = trie.clone();
        changed.insert(other.0, other.1);
        prop_assert_eq!(trie == changed, reversed.get(&other.0) == Some(&other.1));
    }
}

/// A value with a trie of its own, like an account with its storage.
#[derive(Clone, Debug, PartialEq)]
struct Nested(Trie<U256>);

impl TrieValue for Nested {
    fn encode_value(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0.root_hash().as_slice());
    }

    fn hash_in_parallel(&self) {
        self.0.root_hash_in_parallel();
    }
}

proptest! {
    #[test]
    fn hashed_in_parallel_it_has_the_same_root(changes in vec((0..2_000_u64, 0..3_u64), 0..600), first in 0..600_usize) {
        let mut trie = Trie::new();
        let mut model = Model::new();
        for (index, (key, new)) in changes.into_iter().enumerate() {
            if index == first {
                // From here on, parts of the trie are hashed already.
                trie.root_hash_in_parallel();
            }
            let key = hashed_key(key);
            if new == 0 {
                trie.remove(key);
                model.remove(&key);
            } else {
                trie.insert(key, value(new));
                model.insert(key, value(new));
            }
        }
        prop_assert_eq!(trie.root_hash_in_parallel(), root_of(&model));
    }
}

#[test]
fn tries_in_a_trie_are_hashed_in_parallel_too() {
    let storage = |seed: u64| trie_of((0..500).map(|slot| (hashed_key(slot), value(slot + seed))));
    let mut outer = Trie::new();
    (1..=300).for_each(|seed| outer.insert(hashed_key(seed), Nested(storage(seed))));
    outer.insert(hashed_key(7), Nested(storage(9)));
    let mut again = Trie::new();
    (1..=300).for_each(|seed| again.insert(hashed_key(seed), Nested(storage(if seed == 7 { 9 } else { seed }))));
    assert_eq!(outer.root_hash_in_parallel(), again.root_hash());
    // The storage of a single leaf has changed.
    let mut changed = outer.clone();
    changed.insert(hashed_key(3), Nested(storage(1_000)));
    let mut again = Trie::new();
    outer.iter().for_each(|(key, value)| again.insert(key, value.clone()));
    again.insert(hashed_key(3), Nested(storage(1_000)));
    assert_eq!(changed.root_hash_in_parallel(), again.root_hash());
    assert_ne!(changed.root_hash(), outer.root_hash());
}
