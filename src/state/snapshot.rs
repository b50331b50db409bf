//! A moment of the chain: state, block and history together, never changed.

use std::{sync::Arc, time::Instant};

use alloy_consensus::{Header, ReceiptEnvelope, TxEnvelope, transaction::Recovered};
use alloy_primitives::B256;

use super::World;
use crate::chain::{BlockHashes, SealedBlock};

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
    pub transactions: imbl::Vector<Recovered<TxEnvelope>>,
    /// Their receipts.
    pub receipts: imbl::Vector<ReceiptEnvelope>,
}

impl Snapshot {
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
    Degraded,
}

impl FeedState {
    /// The word for it: `live`, `static` or `degraded`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live { .. } => "live",
            Self::Static => "static",
            Self::Degraded => "degraded",
        }
    }
}
