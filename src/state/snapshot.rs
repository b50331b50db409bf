//! A moment of the chain: state, block and history together, never changed.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{B256, Sealable, Sealed};

use super::{LocalWorld, World};
use crate::chain::{BlockHashes, BlockTotals, ChainReceipt, ChainTx, SealedBlock};

/// The number of a snapshot: rises by one with each that is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

/// The chain at one moment. A request takes one and sees nothing else, so that state and block context always agree.
#[derive(Debug)]
pub struct Snapshot {
    /// Which snapshot of this node it is: given by [`Snapshots`](super::Snapshots) when it is published.
    pub id: SnapshotId,
    /// When it was published.
    pub published: Instant,
    /// The state after the last transaction in it.
    pub world: World,
    /// The newest sealed block.
    pub head: Arc<SealedBlock>,
    /// The block being built on the head; none on a chain that stands still.
    pub open: Option<OpenBlock>,
    /// The hashes of the head and of the blocks before it.
    pub hashes: BlockHashes,
    /// The header of the open block as far as it goes: worked out when somebody first wants to see it.
    provisional: OnceLock<Sealed<Header>>,
}

/// A block being built: what is known of it so far.
#[derive(Clone, Debug)]
pub struct OpenBlock {
    /// Its header; gas, roots and bloom are not final.
    pub header: Header,
    /// How many sub-blocks are in it, the empty one that opened it not counted.
    pub index: u32,
    /// Blob gas used so far.
    pub blob_gas_used: u64,
    /// The transactions so far with their senders.
    pub transactions: imbl::Vector<Recovered<ChainTx>>,
    /// Their receipts.
    pub receipts: imbl::Vector<ChainReceipt>,
    /// Where in the block each transaction is, by its hash.
    pub positions: imbl::HashMap<B256, usize>,
}

impl OpenBlock {
    /// A block with nothing in it.
    pub fn new(header: Header) -> Self {
        Self {
            header,
            index: 0,
            blob_gas_used: 0,
            transactions: imbl::Vector::new(),
            receipts: imbl::Vector::new(),
            positions: imbl::HashMap::new(),
        }
    }

    /// What its transactions so far make of its header.
    pub fn totals(&self) -> BlockTotals {
        BlockTotals::of(&self.transactions, &self.receipts, self.header.gas_used, self.blob_gas_used)
    }

    /// Appends a transaction that was executed. Its receipt is the caller's to add.
    pub fn push(&mut self, tx: Recovered<ChainTx>) {
        self.positions.insert(*tx.tx_hash(), self.transactions.len());
        self.transactions.push_back(tx);
    }
}

impl Snapshot {
    /// A snapshot that is not published yet: its id is given when it is.
    pub fn new(world: impl Into<World>, head: Arc<SealedBlock>, open: Option<OpenBlock>, hashes: BlockHashes) -> Self {
        Self {
            id: SnapshotId::default(),
            published: Instant::now(),
            world: world.into(),
            head,
            open,
            hashes,
            provisional: OnceLock::new(),
        }
    }

    /// The same moment as another snapshot, as old as this one.
    pub fn copy(&self) -> Self {
        Self {
            id: self.id,
            published: self.published,
            world: self.world.clone(),
            head: self.head.clone(),
            open: self.open.clone(),
            hashes: self.hashes.clone(),
            provisional: OnceLock::new(),
        }
    }

    /// The open block and its header as it would be if nothing more came: roots, bloom, gas and hash of what is in it so far.
    ///
    /// What sealing adds (withdrawals, the post-block system calls) is not in it, so the hash is never the one that the sealed block will
    /// have. It names this moment of the block, and strictly typed clients get a hash where they must have one.
    pub fn open_block(&self) -> Option<(&OpenBlock, &Sealed<Header>)> {
        let open = self.open.as_ref()?;
        let header = self.provisional.get_or_init(|| {
            let mut header = open.header.clone();
            open.totals().close(&mut header);
            // Of an upstream's state no root is known before its block is.
            header.state_root = self.world.local().map_or(B256::ZERO, LocalWorld::state_root);
            header.seal_slow()
        });
        Some((open, header))
    }

    /// Whether this is the hash that was given out for the block being built here. Nothing is hashed for the question.
    pub fn has_given_out(&self, hash: B256) -> bool {
        self.provisional.get().is_some_and(|header| header.hash() == hash)
    }

    /// The header that a call at this snapshot runs under: the open block's where there is one, else the head's.
    pub fn header(&self) -> &Header {
        self.open.as_ref().map_or_else(|| self.head.header.inner(), |open| &open.header)
    }

    /// The hash of the head.
    pub fn head_hash(&self) -> B256 {
        self.head.hash()
    }

    /// The index of the newest sub-block in the block being built.
    pub fn index(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.index)
    }
}

/// Whether the source of sub-blocks does what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedState {
    /// Sub-blocks come, each with its distance to the next in milliseconds.
    Live {
        /// Milliseconds between sub-blocks.
        every_ms: u64,
    },
    /// The chain stands still, and should.
    Static,
    /// The feed is broken: `pending` is the canonical head.
    Degraded(FeedProblem),
}

/// Why a feed is degraded. The names are for programs, and do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeedProblem {
    /// Nothing has come since the start.
    Connecting,
    /// The connection was lost, and nothing has been taken from a new one yet.
    Disconnected,
    /// A sub-block is missing.
    Gap,
    /// A sub-block is another one than was due: an index again with other content, or another builder's in the middle of a block.
    OutOfOrder,
    /// A block was begun on a parent that is neither canonical nor pre-confirmed.
    UnknownParent,
    /// The canonical chain has taken another branch than the pre-confirmed blocks are on.
    Reorg,
    /// A canonical block, or the execution of a sub-block, differs from what was pre-confirmed.
    Mismatch,
    /// A transaction or a block cannot be executed.
    Execution,
    /// The upstream node does not answer, or the pre-confirmed blocks are too far ahead of it.
    Upstream,
    /// Sub-blocks come later than they should, or faster than they are applied.
    Lagging,
    /// What is published cannot be stored.
    Store,
}

impl FeedProblem {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Connecting,
        Self::Disconnected,
        Self::Gap,
        Self::OutOfOrder,
        Self::UnknownParent,
        Self::Reorg,
        Self::Mismatch,
        Self::Execution,
        Self::Upstream,
        Self::Lagging,
        Self::Store,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Disconnected => "disconnected",
            Self::Gap => "gap",
            Self::OutOfOrder => "out_of_order",
            Self::UnknownParent => "unknown_parent",
            Self::Reorg => "reorg",
            Self::Mismatch => "mismatch",
            Self::Execution => "execution",
            Self::Upstream => "upstream",
            Self::Lagging => "lagging",
            Self::Store => "store",
        }
    }

    /// What it means, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Connecting => "nothing has come from it yet",
            Self::Disconnected => "the connection was lost",
            Self::Gap => "a sub-block is missing",
            Self::OutOfOrder => "another sub-block came than was due",
            Self::UnknownParent => "a block was begun on an unknown parent",
            Self::Reorg => "the canonical chain took another branch",
            Self::Mismatch => "what was pre-confirmed differs from what was executed or became canonical",
            Self::Execution => "a block cannot be executed",
            Self::Upstream => "the upstream node does not answer or is too far behind",
            Self::Lagging => "sub-blocks come late or faster than they are applied",
            Self::Store => "the store fails",
        }
    }
}

impl FeedState {
    /// The word for it: `live`, `static` or `degraded`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live { .. } => "live",
            Self::Static => "static",
            Self::Degraded(_) => "degraded",
        }
    }

    /// Why it is degraded; none where it is not.
    pub const fn problem(self) -> Option<FeedProblem> {
        match self {
            Self::Live { .. } | Self::Static => None,
            Self::Degraded(problem) => Some(problem),
        }
    }

    /// Whether the feed is broken, so that `pending` is the canonical head.
    pub const fn is_degraded(self) -> bool {
        self.problem().is_some()
    }
}
