//! Hashing one trie on several threads.

use alloy_primitives::B256;
use rayon::prelude::*;

use super::{NodeKind, Scratch, Trie, TrieNode, TrieValue};
use crate::state::parallel::may_divide;

/// A changed subtrie: its top node, and the depth of that node.
type Subtrie<'a, V> = (&'a TrieNode<V>, usize);

impl<V: TrieValue> Trie<V> {
    /// The levels of branches at which the work is divided. Two make up to 256 parts, enough for all cores.
    const FORKS: usize = 2;
    /// With fewer changed parts than this, waking a thread costs more than it saves.
    const MANY: usize = 32;

    /// Returns the root hash as [`root_hash`](Self::root_hash) does, on all threads of rayon's global pool if much has
    /// changed and the calling thread may divide its work.
    pub fn root_hash_in_parallel(&self) -> B256 {
        let mut parts = Vec::new();
        if let Some(root) = self.root.as_ref().filter(|_| may_divide()) {
            root.changed_parts(0, Self::FORKS, &mut parts);
        }
        if parts.len() >= Self::MANY {
            parts.par_iter().for_each_init(Scratch::default, |scratch, (node, depth)| {
                node.rlp(*depth, scratch);
            });
        }
        self.root_hash()
    }
}

impl<V: TrieValue> TrieNode<V> {
    /// Lists the changed nodes that are `forks` branches with several changed children below this one, and the changed
    /// leaves above them. The values of these leaves are hashed here.
    fn changed_parts<'a>(&'a self, depth: usize, forks: usize, parts: &mut Vec<Subtrie<'a, V>>) {
        match &self.kind {
            _ if self.rlp.get().is_some() => {}
            NodeKind::Branch(branch) if forks > 0 => {
                let changed = || branch.children.iter().flatten().filter(|child| child.rlp.get().is_none());
                let forks = if changed().nth(1).is_some() { forks - 1 } else { forks };
                changed().for_each(|child| child.changed_parts(branch.path.len() + 1, forks, parts));
            }
            NodeKind::Branch(_) => parts.push((self, depth)),
            NodeKind::Leaf { value, .. } => {
                value.hash_in_parallel();
                parts.push((self, depth));
            }
        }
    }
}
