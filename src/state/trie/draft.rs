//! The root of a trie after changes that are not kept.

use alloy_primitives::{B256, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, TrieMask, nodes::RlpNode};

use super::{NodeKind, Scratch, Trie, TrieNode, TrieValue};
use crate::chain::keccak256_each;

/// A value that can replace a trie's own.
pub trait DraftValue<V>: TrieValue {
    /// Returns whether the trie has this value already, that is, one that encodes to the same bytes.
    fn is(&self, known: &V) -> bool;
}

impl DraftValue<Self> for alloy_primitives::U256 {
    fn is(&self, known: &Self) -> bool {
        self == known
    }
}

/// A borrowed [`Trie`] with changes.
///
/// The changed nodes and the branches above them are copied once into the draft's own memory, where further changes
/// find them. All other nodes stay in the trie, with their hashes, and are borrowed without reference counts, so a
/// draft costs little more than the hashing of what changed. It has the shape and the root that the trie would have
/// after the same changes.
///
/// `V` is the type of the trie's values, `W` that of the changes.
#[derive(Debug)]
pub struct Draft<'a, V, W> {
    root: DraftChild<'a, V>,
    /// The draft's own leaves. A leaf that a later change replaced stays until the draft is dropped.
    leaves: Vec<DraftLeaf<W>>,
    branches: Vec<DraftBranch<'a, V>>,
}

/// The root, or a child of a branch.
#[derive(Debug)]
enum DraftChild<'a, V> {
    None,
    /// A node of the trie, at the same depth as in the trie.
    Kept(&'a TrieNode<V>),
    /// A node of the trie at another depth, so that its cached reference cannot be used.
    Moved(&'a TrieNode<V>),
    /// A leaf or a branch of the draft, by its index.
    Leaf(usize),
    Branch(usize),
}

#[derive(Debug)]
struct DraftLeaf<W> {
    key: B256,
    value: W,
    /// The reference by which the parent refers to it, once hashed.
    rlp: Option<RlpNode>,
}

#[derive(Debug)]
struct DraftBranch<'a, V> {
    /// The nibbles from the root to where the children part.
    path: Nibbles,
    children: [DraftChild<'a, V>; 16],
    rlp: Option<RlpNode>,
}

/// A node of a draft that is not hashed yet.
struct Unhashed<'a, V> {
    /// The index of the draft.
    draft: usize,
    child: DraftChild<'a, V>,
    /// The nibbles from the root to where the node hangs.
    depth: usize,
}

impl<V> Clone for DraftChild<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for DraftChild<'_, V> {}

impl<'a, V: TrieValue, W: DraftValue<V>> Draft<'a, V, W> {
    /// Creates a draft of the empty trie.
    pub const fn empty() -> Self {
        Self { root: DraftChild::None, leaves: Vec::new(), branches: Vec::new() }
    }

    /// Creates a draft of `trie` without changes.
    pub fn of(trie: &'a Trie<V>) -> Self {
        Self { root: trie.root.as_deref().map_or(DraftChild::None, DraftChild::Kept), ..Self::empty() }
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: B256, value: W) {
        let path = Nibbles::unpack_array(&key.0);
        let known = match self.leaf(key, &path) {
            DraftChild::Kept(node) | DraftChild::Moved(node) => {
                matches!(&node.kind, NodeKind::Leaf { value: known, .. } if value.is(known))
            }
            DraftChild::Leaf(index) => self.leaves[index].value == value,
            DraftChild::None | DraftChild::Branch(_) => false,
        };
        if !known {
            self.root = self.insert_below(self.root, &path, DraftLeaf { key, value, rlp: None });
        }
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: B256) {
        let path = Nibbles::unpack_array(&key.0);
        if !matches!(self.leaf(key, &path), DraftChild::None) {
            self.root = self.remove_below(self.root, &path);
        }
    }

    /// Returns the root hash. Hashes only what changed since the last call.
    pub fn root_hash(&mut self, scratch: &mut Scratch) -> B256 {
        if matches!(self.root, DraftChild::None) {
            return EMPTY_ROOT_HASH;
        }
        let rlp = self.rlp(self.root, 0, scratch);
        rlp.as_hash().unwrap_or_else(|| keccak256(rlp))
    }

    /// Hashes what changed in several drafts since they were hashed last. Nodes of the same height do not depend on each
    /// other, so they are hashed in parallel, those of all drafts together.
    pub fn hash_together(drafts: &mut [&mut Self], scratch: &mut Scratch) {
        let mut levels = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            draft.unhashed(index, draft.root, 0, &mut levels);
        }
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for level in levels {
            text.clear();
            ends.clear();
            for Unhashed { draft, child, depth } in &level {
                text.extend_from_slice(drafts[*draft].encode(*child, *depth, scratch));
                ends.push(text.len());
            }
            let begins = std::iter::once(0).chain(ends.iter().copied());
            let nodes: Vec<&[u8]> = begins.zip(&ends).map(|(begin, end)| &text[begin..*end]).collect();
            let hashes = keccak256_each(&nodes);
            for (Unhashed { draft, child, depth }, (rlp, hash)) in level.iter().zip(nodes.iter().zip(&hashes)) {
                // A node shorter than a hash is embedded in its parent.
                let is_short = rlp.len() < B256::len_bytes();
                let rlp = if is_short { RlpNode::from_rlp(rlp) } else { RlpNode::word_rlp(hash) };
                drafts[*draft].refer(*child, *depth, rlp, scratch);
            }
        }
    }

    /// Adds the nodes of the subtrie at `child` that are not hashed yet to the levels of their heights. Returns the height
    /// of `child` above the lowest of them, or `None` if it is hashed.
    fn unhashed(
        &self,
        draft: usize,
        child: DraftChild<'a, V>,
        depth: usize,
        levels: &mut Vec<Vec<Unhashed<'a, V>>>,
    ) -> Option<usize> {
        let height = match child {
            DraftChild::Leaf(index) if self.leaves[index].rlp.is_none() => 0,
            DraftChild::Branch(index) if self.branches[index].rlp.is_none() => {
                let DraftBranch { path, children, .. } = &self.branches[index];
                let below = children.iter().filter_map(|child| self.unhashed(draft, *child, path.len() + 1, levels));
                below.max().map_or(0, |height| height + 1)
            }
            _ => return None,
        };
        if levels.len() <= height {
            levels.resize_with(height + 1, Vec::new);
        }
        levels[height].push(Unhashed { draft, child, depth });
        Some(height)
    }

    /// Returns the RLP of a leaf or a branch of the draft, of a branch without the extension above it.
    fn encode<'s>(&mut self, child: DraftChild<'a, V>, depth: usize, scratch: &'s mut Scratch) -> &'s [u8] {
        match child {
            DraftChild::Leaf(index) => {
                let DraftLeaf { key, value, .. } = &self.leaves[index];
                scratch.encode_leaf(key, depth, value)
            }
            DraftChild::Branch(index) => {
                let below = self.branches[index].path.len() + 1;
                let above = scratch.children.len();
                let mut mask = TrieMask::default();
                for nibble in 0..16_u8 {
                    let child = self.branches[index].children[usize::from(nibble)];
                    if !matches!(child, DraftChild::None) {
                        let rlp = self.rlp(child, below, scratch);
                        scratch.children.push(rlp);
                        mask.set_bit(nibble);
                    }
                }
                scratch.encode_children(above, mask)
            }
            DraftChild::None | DraftChild::Kept(_) | DraftChild::Moved(_) => &[],
        }
    }

    /// Sets the reference to a leaf or a branch of the draft, whose own reference is `rlp`. Returns it.
    fn refer(&mut self, child: DraftChild<'a, V>, depth: usize, rlp: RlpNode, scratch: &mut Scratch) -> RlpNode {
        match child {
            DraftChild::Leaf(index) => self.leaves[index].rlp.insert(rlp).clone(),
            DraftChild::Branch(index) => {
                let rlp = scratch.reach(rlp, &self.branches[index].path, depth);
                self.branches[index].rlp.insert(rlp).clone()
            }
            DraftChild::None | DraftChild::Kept(_) | DraftChild::Moved(_) => rlp,
        }
    }

    /// Returns the leaf of `key`, if there is one.
    fn leaf(&self, key: B256, path: &Nibbles) -> DraftChild<'a, V> {
        let mut child = self.root;
        loop {
            child = match child {
                DraftChild::None => return DraftChild::None,
                DraftChild::Leaf(index) if self.leaves[index].key == key => return child,
                DraftChild::Leaf(_) => return DraftChild::None,
                DraftChild::Branch(index) => {
                    let branch = &self.branches[index];
                    branch.children[nibble(path, branch.path.len())]
                }
                DraftChild::Kept(node) | DraftChild::Moved(node) => match &node.kind {
                    NodeKind::Leaf { key: found, .. } if *found == key => return child,
                    NodeKind::Leaf { .. } => return DraftChild::None,
                    NodeKind::Branch(branch) => {
                        branch.child(path).as_deref().map_or(DraftChild::None, DraftChild::Kept)
                    }
                },
            }
        }
    }

    /// Returns `child` with `leaf` inserted at `path`.
    fn insert_below(&mut self, child: DraftChild<'a, V>, path: &Nibbles, leaf: DraftLeaf<W>) -> DraftChild<'a, V> {
        let Some(child_path) = self.path(child) else { return self.push_leaf(leaf) };
        let fork = path.common_prefix_length(&child_path);
        if fork == path.len() {
            if let DraftChild::Leaf(index) = child {
                self.leaves[index] = leaf;
                return child;
            }
            self.push_leaf(leaf)
        } else if fork < child_path.len() {
            let mut children = [DraftChild::None; 16];
            children[nibble(&child_path, fork)] = self.moved(child);
            children[nibble(path, fork)] = self.push_leaf(leaf);
            self.push_branch(DraftBranch { path: path.slice(..fork), children, rlp: None })
        } else {
            let Some(index) = self.own(child) else { return child };
            let below = nibble(path, child_path.len());
            self.branches[index].children[below] = self.insert_below(self.branches[index].children[below], path, leaf);
            DraftChild::Branch(index)
        }
    }

    /// Returns `child` without the leaf at `path`, which is in it.
    fn remove_below(&mut self, child: DraftChild<'a, V>, path: &Nibbles) -> DraftChild<'a, V> {
        let Some(index) = self.own(child) else { return DraftChild::None };
        let below = nibble(path, self.branches[index].path.len());
        self.branches[index].children[below] = self.remove_below(self.branches[index].children[below], path);
        let mut left = self.branches[index].children.into_iter().filter(|child| !matches!(child, DraftChild::None));
        match (left.next(), left.next()) {
            (Some(last), None) => self.moved(last),
            _ => DraftChild::Branch(index),
        }
    }

    /// Returns the index of the branch `child` among the draft's own, for a change; `None` if it is a leaf or empty.
    fn own(&mut self, child: DraftChild<'a, V>) -> Option<usize> {
        match child {
            DraftChild::Branch(index) => {
                self.branches[index].rlp = None;
                Some(index)
            }
            DraftChild::Kept(TrieNode { kind: NodeKind::Branch(branch), .. })
            | DraftChild::Moved(TrieNode { kind: NodeKind::Branch(branch), .. }) => {
                let children = std::array::from_fn(|nibble| {
                    branch.children[nibble].as_deref().map_or(DraftChild::None, DraftChild::Kept)
                });
                self.branches.push(DraftBranch { path: branch.path, children, rlp: None });
                Some(self.branches.len() - 1)
            }
            DraftChild::Kept(_) | DraftChild::Moved(_) | DraftChild::Leaf(_) | DraftChild::None => None,
        }
    }

    /// Returns `child` at another depth.
    fn moved(&mut self, child: DraftChild<'a, V>) -> DraftChild<'a, V> {
        match child {
            DraftChild::Kept(node) => return DraftChild::Moved(node),
            DraftChild::Leaf(index) => self.leaves[index].rlp = None,
            DraftChild::Branch(index) => self.branches[index].rlp = None,
            DraftChild::None | DraftChild::Moved(_) => {}
        }
        child
    }

    fn push_leaf(&mut self, leaf: DraftLeaf<W>) -> DraftChild<'a, V> {
        self.leaves.push(leaf);
        DraftChild::Leaf(self.leaves.len() - 1)
    }

    fn push_branch(&mut self, branch: DraftBranch<'a, V>) -> DraftChild<'a, V> {
        self.branches.push(branch);
        DraftChild::Branch(self.branches.len() - 1)
    }

    fn path(&self, child: DraftChild<'a, V>) -> Option<Nibbles> {
        match child {
            DraftChild::None => None,
            DraftChild::Kept(node) | DraftChild::Moved(node) => Some(node.path()),
            DraftChild::Leaf(index) => Some(Nibbles::unpack_array(&self.leaves[index].key.0)),
            DraftChild::Branch(index) => Some(self.branches[index].path),
        }
    }

    /// Returns the reference by which a parent refers to `child` at `depth` nibbles below the root.
    fn rlp(&mut self, child: DraftChild<'a, V>, depth: usize, scratch: &mut Scratch) -> RlpNode {
        let known = match child {
            DraftChild::None => return RlpNode::default(),
            DraftChild::Kept(node) => return node.rlp(depth, scratch).clone(),
            DraftChild::Moved(node) => return node.encode(depth, scratch),
            DraftChild::Leaf(index) => &self.leaves[index].rlp,
            DraftChild::Branch(index) => &self.branches[index].rlp,
        };
        if let Some(rlp) = known {
            return rlp.clone();
        }
        let rlp = RlpNode::from_rlp(self.encode(child, depth, scratch));
        self.refer(child, depth, rlp, scratch)
    }
}

/// Returns the nibble of `path` at `depth`, at which the path has one.
fn nibble(path: &Nibbles, depth: usize) -> usize {
    path.get_unchecked(depth).into()
}
