//! The hashes of one trie by several threads.

use std::sync::Arc;

use alloy_primitives::B256;
use rayon::prelude::*;

use super::{Node, NodeKind, Scratch, Trie, TrieValue};

impl<V: TrieValue> Trie<V> {
    /// Two forks make as many as 256 parts: enough for all cores, and none of a large change too small to be worth a thread.
    const FORKS: usize = 2;

    /// The root hash, as [`root_hash`](Self::root_hash) has it, by all threads of rayon's global pool.
    ///
    /// Not for the threads of another pool: one that waits there for the others' parts would take up whatever else is queued.
    pub fn root_hash_in_parallel(&self) -> B256 {
        if let Some(root) = &self.root {
            root.hash_in_parallel(Self::FORKS);
        }
        self.root_hash()
    }
}

impl<V: TrieValue> Node<V> {
    /// Hashes what changed below this node. Below the first `forks` branches with more than one changed child, each child's part is
    /// hashed by itself; where one child alone changed, the way goes on to the next such branch.
    fn hash_in_parallel(&self, forks: usize) {
        let branch = match &self.kind {
            NodeKind::Leaf { value, .. } => return value.hash_in_parallel(),
            NodeKind::Branch(branch) => branch,
        };
        let hash = |child: &Self, forks: usize| {
            if forks > 0 {
                child.hash_in_parallel(forks);
            }
            child.rlp(branch.path.len() + 1, &mut Scratch::default());
        };
        let is_changed = |child: &&Arc<Self>| child.rlp.get().is_none();
        let changed: Vec<&Arc<Self>> = branch.children.iter().flatten().filter(is_changed).collect();
        match changed.as_slice() {
            [only] => hash(only, forks),
            several => several.par_iter().for_each(|child| hash(child, forks.saturating_sub(1))),
        }
    }
}
