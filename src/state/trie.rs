//! A Merkle-Patricia trie whose versions share structure and whose hashes are computed on demand.

use alloy_primitives::{B256, Bytes, U256, keccak256};
use alloy_rlp::Encodable;
use alloy_trie::{
    EMPTY_ROOT_HASH, Nibbles, TrieMask,
    nodes::{BranchNodeRef, ExtensionNodeRef, LeafNodeRef, RlpNode},
};
use std::{
    iter, mem,
    sync::{Arc, OnceLock},
};

mod draft;
mod parallel;

pub use draft::{Draft, DraftValue};

/// The value of a leaf.
pub trait TrieValue: Clone + PartialEq + Send + Sync {
    /// Appends the bytes the trie commits to: the RLP of the value.
    ///
    /// Equal values must append equal bytes, because their hash is cached for as long as the leaf.
    fn encode_value(&self, out: &mut Vec<u8>);

    /// Computes on several threads, and caches, the same hashes that [`encode_value`](Self::encode_value) would compute
    /// on one.
    fn hash_in_parallel(&self) {}
}

/// A storage slot, as the RLP of the integer. Callers [remove](Trie::remove) a zero slot and never insert it.
impl TrieValue for U256 {
    fn encode_value(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

/// The hexary Merkle-Patricia trie of the [specification], over keys of 32 bytes that are hashes
/// already (of an address, or of a slot).
///
/// **Versions.** A trie is a pointer to an immutable graph: a clone is one more pointer, and a
/// change copies the nodes between the root and the leaf, once each, and shares all others. A node
/// that only this trie can reach is changed in place, so a batch of changes copies a node at its
/// first change only. A change that changes nothing (an equal value, an absent key) is seen before
/// the walk down, and leaves the trie the very same pointer.
///
/// **Nodes.** There are two kinds, for an extension is nothing but the way to the one branch below
/// it: the branch holds that way. Each node holds its *absolute* path: a leaf its key, a branch all
/// nibbles from the root to where its children part. Which part of this path is the node's own
/// follows from the depth it hangs at, one more than the length of its parent's path. So nothing is
/// joined or cut when a branch appears above a node, or when a branch falls away because one child
/// is left; and a lookup compares nothing before the leaf, whose full key decides.
/// The shape is canonical: a branch has at least two children, whose paths begin with its own and
/// part right after it. Hence equal contents have equal graphs, and equal roots, in whatever order
/// they came about.
///
/// **Hashes.** A node caches how its parent refers to it: its RLP if that is shorter than 32 bytes,
/// else its hash. The cache depends on the depth, the path, and what is below, so it is dropped in
/// exactly two places: on the way down a change (the nodes above the leaf, which are those copied
/// or owned), and at a node that moves to another depth. The invariant: under a node that has a
/// cache, all nodes have one. So hashing looks at the changed nodes and their children, and no
/// further. Two threads that hash the same nodes, each through its own clone, may both do the work,
/// and the first result stays; neither waits.
///
/// [specification]: https://ethereum.github.io/yellowpaper/paper.pdf#appendix.D
#[derive(Clone, Debug)]
pub struct Trie<V> {
    /// The top node; `None` if the trie is empty.
    root: Child<V>,
}

/// A node, and the hash of the subtrie below it.
#[derive(Clone, Debug)]
struct TrieNode<V> {
    /// The reference by which the parent refers to this node; unset if anything below changed since it was last hashed.
    rlp: OnceLock<RlpNode>,
    kind: NodeKind<V>,
}

#[derive(Clone, Debug)]
enum NodeKind<V> {
    Leaf {
        /// The full key.
        key: B256,
        value: V,
    },
    Branch(Branch<V>),
}

type Child<V> = Option<Arc<TrieNode<V>>>;

/// A branch node, together with the extension node above it, if the specification has one.
#[derive(Clone, Debug)]
struct Branch<V> {
    /// The nibbles from the root to where the children part, at most 63.
    path: Nibbles,
    /// The children by the nibble after the path, at least two. Storing only those that exist took 15 % less memory in
    /// a storage trie of a million slots and 4 % less in an account trie, but made a look-up half as slow again.
    children: Box<[Child<V>; 16]>,
}

impl<V> Trie<V> {
    /// Returns the empty trie.
    pub const fn new() -> Self {
        Self { root: None }
    }

    /// Returns whether the trie has no entries.
    pub const fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns all entries, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (B256, &V)> {
        let mut pending: Vec<&TrieNode<V>> = self.root.as_deref().into_iter().collect();
        iter::from_fn(move || {
            loop {
                match &pending.pop()?.kind {
                    NodeKind::Leaf { key, value } => return Some((*key, value)),
                    NodeKind::Branch(branch) => {
                        pending.extend(branch.children.iter().rev().flatten().map(Arc::as_ref));
                    }
                }
            }
        })
    }

    /// Returns the value of `key`, if there is one.
    pub fn get(&self, key: B256) -> Option<&V> {
        let path = Nibbles::unpack_array(&key.0);
        let mut node = self.root.as_deref()?;
        loop {
            match &node.kind {
                NodeKind::Leaf { key: found, value } => return (*found == key).then_some(value),
                NodeKind::Branch(branch) => node = branch.child(&path).as_deref()?,
            }
        }
    }
}

impl<V: TrieValue> Trie<V> {
    /// Sets the value of `key`.
    pub fn insert(&mut self, key: B256, value: V) {
        if self.get(key) == Some(&value) {
            return;
        }
        let leaf = Arc::new(TrieNode::new(NodeKind::Leaf { key, value }));
        match &mut self.root {
            Some(root) => TrieNode::insert(root, &Nibbles::unpack_array(&key.0), leaf),
            None => self.root = Some(leaf),
        }
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: B256) {
        if self.get(key).is_none() {
            return;
        }
        match &mut self.root {
            Some(root) if root.is_branch() => TrieNode::remove(root, &Nibbles::unpack_array(&key.0)),
            _ => self.root = None,
        }
    }

    /// Returns the root hash; [`EMPTY_ROOT_HASH`] if the trie is empty.
    ///
    /// Hashes only what changed since the last call, here or in a clone.
    pub fn root_hash(&self) -> B256 {
        let Some(root) = &self.root else { return EMPTY_ROOT_HASH };
        let rlp = root.rlp(0, &mut Scratch::default());
        // No root of keys this long encodes to less than 32 bytes. If one did, this would be its hash.
        rlp.as_hash().unwrap_or_else(|| keccak256(rlp))
    }

    /// Returns the RLP of the nodes from the root down to the leaf of `key`, or to the node that proves its absence, as
    /// `eth_getProof` returns them. A node shorter than 32 bytes is part of its parent and not listed. The proof from
    /// an empty trie is empty.
    pub fn proof(&self, key: B256) -> Vec<Bytes> {
        let path = Nibbles::unpack_array(&key.0);
        let mut proof = Vec::new();
        let mut list = |rlp: &[u8]| {
            if proof.is_empty() || rlp.len() >= B256::len_bytes() {
                proof.push(Bytes::copy_from_slice(rlp));
            }
        };

        let mut scratch = Scratch::default();
        let mut depth = 0;
        let mut next = self.root.as_deref();
        while let Some(node) = next.take() {
            match &node.kind {
                NodeKind::Leaf { key, value } => list(scratch.encode_leaf(key, depth, value)),
                NodeKind::Branch(branch) => {
                    let branch_rlp = Bytes::copy_from_slice(scratch.encode_branch(branch));
                    if branch.path.len() > depth {
                        let child = RlpNode::from_rlp(&branch_rlp);
                        list(scratch.encode_extension(&branch.path, depth, &child));
                    }
                    if path.starts_with(&branch.path) {
                        list(&branch_rlp);
                        next = branch.child(&path).as_deref();
                        depth = branch.path.len() + 1;
                    }
                }
            }
        }
        proof
    }
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Compares contents. Subtries that both tries share are skipped.
impl<V: PartialEq> PartialEq for Trie<V> {
    fn eq(&self, other: &Self) -> bool {
        TrieNode::same(&self.root, &other.root)
    }
}

impl<V> TrieNode<V> {
    const fn new(kind: NodeKind<V>) -> Self {
        Self { rlp: OnceLock::new(), kind }
    }

    const fn is_branch(&self) -> bool {
        matches!(self.kind, NodeKind::Branch(_))
    }

    /// Returns the nibbles from the root to the leaf, or to where the children of the branch part.
    const fn path(&self) -> Nibbles {
        match &self.kind {
            NodeKind::Leaf { key, .. } => Nibbles::unpack_array(&key.0),
            NodeKind::Branch(branch) => branch.path,
        }
    }
}

impl<V: PartialEq> TrieNode<V> {
    fn same(a: &Child<V>, b: &Child<V>) -> bool {
        let (Some(a), Some(b)) = (a, b) else { return a.is_none() && b.is_none() };
        if Arc::ptr_eq(a, b) {
            return true;
        }
        match (&a.kind, &b.kind) {
            (NodeKind::Leaf { key: a, value: v }, NodeKind::Leaf { key: b, value: w }) => a == b && v == w,
            (NodeKind::Branch(a), NodeKind::Branch(b)) => {
                let mut pairs = a.children.iter().zip(&*b.children);
                a.path == b.path && pairs.all(|(a, b)| Self::same(a, b))
            }
            _ => false,
        }
    }
}

impl<V: TrieValue> TrieNode<V> {
    /// Returns the node in `slot` for a change: copied if it is shared, and without its cached hash.
    fn changed(slot: &mut Arc<Self>) -> &mut Self {
        let node = Arc::make_mut(slot);
        node.rlp.take();
        node
    }

    /// Inserts `leaf` at `path`, which begins with the path of the parent of `slot`.
    fn insert(slot: &mut Arc<Self>, path: &Nibbles, leaf: Arc<Self>) {
        let slot_path = slot.path();
        let fork = path.common_prefix_length(&slot_path);
        if fork == path.len() {
            *slot = leaf;
        } else if fork < slot_path.len() {
            let mut sibling = mem::replace(slot, Arc::clone(&leaf));
            Self::changed(&mut sibling);
            let mut branch = Branch { path: path.slice(..fork), children: Box::default() };
            *branch.child_mut(&slot_path) = Some(sibling);
            *branch.child_mut(path) = Some(leaf);
            *slot = Arc::new(Self::new(NodeKind::Branch(branch)));
        } else if let NodeKind::Branch(branch) = &mut Self::changed(slot).kind {
            match branch.child_mut(path) {
                Some(child) => Self::insert(child, path, leaf),
                free => *free = Some(leaf),
            }
        }
    }

    /// Removes the leaf at `path` below the branch in `slot`.
    fn remove(slot: &mut Arc<Self>, path: &Nibbles) {
        let NodeKind::Branch(branch) = &mut Self::changed(slot).kind else { return };
        match branch.child_mut(path) {
            Some(child) if child.is_branch() => return Self::remove(child, path),
            leaf => *leaf = None,
        }
        let mut left = branch.children.iter().flatten();
        if let (Some(last), None) = (left.next(), left.next()) {
            // The only child left replaces the branch. The branch drops it first, so that it is copied only if another
            // trie has it too.
            *slot = Arc::clone(last);
            Self::changed(slot);
        }
    }

    /// Returns the reference by which a parent refers to this node at `depth` nibbles below the root.
    fn rlp(&self, depth: usize, scratch: &mut Scratch) -> &RlpNode {
        if let Some(rlp) = self.rlp.get() {
            return rlp;
        }
        let rlp = self.encode(depth, scratch);
        self.rlp.get_or_init(|| rlp)
    }

    /// Returns the reference without using the cache of this node. The nodes below it have not moved.
    fn encode(&self, depth: usize, scratch: &mut Scratch) -> RlpNode {
        match &self.kind {
            NodeKind::Leaf { key, value } => RlpNode::from_rlp(scratch.encode_leaf(key, depth, value)),
            NodeKind::Branch(branch) => {
                let rlp = RlpNode::from_rlp(scratch.encode_branch(branch));
                scratch.reach(rlp, &branch.path, depth)
            }
        }
    }
}

impl<V> Branch<V> {
    /// Returns the child on the way to `path`: a whole key, or the path of a node below.
    fn child(&self, path: &Nibbles) -> &Child<V> {
        &self.children[self.nibble(path)]
    }

    fn child_mut(&mut self, path: &Nibbles) -> &mut Child<V> {
        &mut self.children[self.nibble(path)]
    }

    fn nibble(&self, path: &Nibbles) -> usize {
        // In range, because keys part before their end, so a branch's path is shorter than any path below it.
        path.get_unchecked(self.path.len()).into()
    }
}

/// The buffers of a hashing pass, so that it allocates once and not per node.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The children of the branches being encoded, those of the deepest branch last.
    children: Vec<RlpNode>,
    /// A value before it is written into its leaf.
    value: Vec<u8>,
    /// The node that was encoded last.
    node: Vec<u8>,
}

impl Scratch {
    fn encode_leaf<V: TrieValue>(&mut self, key: &B256, depth: usize, value: &V) -> &[u8] {
        self.value.clear();
        value.encode_value(&mut self.value);
        self.node.clear();
        let path = Nibbles::unpack_array(&key.0).slice(depth..);
        LeafNodeRef::new(&path, &self.value).encode(&mut self.node);
        &self.node
    }

    /// Returns the branch alone, without the extension before it.
    fn encode_branch<V: TrieValue>(&mut self, branch: &Branch<V>) -> &[u8] {
        let above = self.children.len();
        let mut mask = TrieMask::default();
        for (nibble, child) in (0..).zip(&*branch.children) {
            let Some(child) = child else { continue };
            let rlp = child.rlp(branch.path.len() + 1, self).clone();
            self.children.push(rlp);
            mask.set_bit(nibble);
        }
        self.encode_children(above, mask)
    }

    /// Returns a branch of the last children, from index `above` on, at the nibbles in `mask`, and removes them from
    /// the buffer.
    fn encode_children(&mut self, above: usize, mask: TrieMask) -> &[u8] {
        self.node.clear();
        BranchNodeRef::new(&self.children, mask).encode(&mut self.node);
        self.children.truncate(above);
        &self.node
    }

    /// Returns the reference to `branch`, which is at `path`, for a parent at `depth`: through an extension, unless it
    /// is directly below the parent.
    fn reach(&mut self, branch: RlpNode, path: &Nibbles, depth: usize) -> RlpNode {
        if path.len() == depth {
            return branch;
        }
        RlpNode::from_rlp(self.encode_extension(path, depth, &branch))
    }

    /// Returns the extension from `depth` to the branch at `path`, which `child` refers to.
    fn encode_extension(&mut self, path: &Nibbles, depth: usize, child: &RlpNode) -> &[u8] {
        self.node.clear();
        ExtensionNodeRef::new(&path.slice(depth..), child).encode(&mut self.node);
        &self.node
    }
}

#[cfg(test)]
mod tests;
