//! A block to read, whether it is sealed or still being built.

use std::{ops::Deref, sync::Arc};

use alloy_consensus::{Header, TxReceipt, Typed2718, transaction::Recovered};
use alloy_eips::{Encodable2718, eip4895::Withdrawal};
use alloy_primitives::Sealed;

use super::{OpenBlock, Snapshot};
use crate::chain::{BlockBody, ChainReceipt, ChainTx, SealedBlock, block_size};

/// A block that is known by its header at least: a sealed one, pruned or not, or the one that a snapshot is building.
///
/// Costs nothing to make or to clone: the hash of a block being built is only worked out for who asks for its [`header`](Self::header).
#[derive(Clone, Debug)]
pub enum KnownBlock {
    /// A sealed one.
    Sealed(Arc<SealedBlock>),
    /// The block that a snapshot is building, or its head where none is.
    Newest(Arc<Snapshot>),
}

impl KnownBlock {
    /// Its header and hash; of a block being built, as far as they go ([`Snapshot::open_block`]).
    pub fn header(&self) -> &Sealed<Header> {
        match self {
            Self::Sealed(block) => &block.header,
            Self::Newest(snapshot) => snapshot.open_block().map_or(&snapshot.head.header, |(_, header)| header),
        }
    }

    /// What its transactions see of its header: number, time, producer, fees and limits. Unlike the rest they are final in a block being
    /// built, and nothing is hashed for them.
    pub fn context(&self) -> &Header {
        match self {
            Self::Sealed(block) => block.header.inner(),
            Self::Newest(snapshot) => snapshot.header(),
        }
    }

    /// Whether it is still being built.
    pub fn is_open(&self) -> bool {
        self.open().is_some()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.context().number
    }

    fn open(&self) -> Option<&OpenBlock> {
        match self {
            Self::Sealed(_) => None,
            Self::Newest(snapshot) => snapshot.open.as_ref(),
        }
    }
}

/// A block with all that is in it: a sealed one, or the one being built as one snapshot has it.
#[derive(Clone, Debug)]
pub struct Block {
    known: KnownBlock,
    /// Of a sealed block. Empty in one that is being built.
    body: Arc<BlockBody>,
}

/// A transaction where it is in its block, with its receipt and what follows from those before it.
#[derive(Clone, Copy, Debug)]
pub struct Included<'a> {
    /// Its index in the block.
    pub index: usize,
    /// The transaction and its sender.
    pub tx: &'a Recovered<ChainTx>,
    /// Its receipt.
    pub receipt: &'a ChainReceipt,
    /// Gas that it used alone.
    pub gas_used: u64,
    /// The index of its first log in the block.
    pub first_log: u64,
}

impl Deref for Block {
    type Target = KnownBlock;

    fn deref(&self) -> &KnownBlock {
        &self.known
    }
}

impl Block {
    /// A known block with its body, which is fetched where it is not at hand; `None` if only its header is known.
    pub fn load(known: KnownBlock) -> Option<Self> {
        let body = match &known {
            KnownBlock::Sealed(block) => block.find_body()?,
            KnownBlock::Newest(snapshot) if snapshot.open.is_none() => snapshot.head.find_body()?,
            KnownBlock::Newest(_) => Arc::default(),
        };
        Some(Self { known, body })
    }

    /// The block that `snapshot` is building, or its head where none is.
    pub fn newest(snapshot: &Arc<Snapshot>) -> Option<Self> {
        Self::load(KnownBlock::Newest(snapshot.clone()))
    }

    /// A sealed block; `None` if only its header is known.
    pub fn sealed(block: &Arc<SealedBlock>) -> Option<Self> {
        Self::load(KnownBlock::Sealed(block.clone()))
    }

    /// How many transactions are in it.
    pub fn len(&self) -> usize {
        self.open().map_or(self.body.transactions.len(), |open| open.transactions.len())
    }

    /// Whether no transaction is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The headers of its uncles.
    pub fn ommers(&self) -> &[Header] {
        &self.body.ommers
    }

    /// Its withdrawals: none before Shanghai.
    pub fn withdrawals(&self) -> Option<&[Withdrawal]> {
        match self.open() {
            Some(open) => open.header.withdrawals_root.map(|_| [].as_slice()),
            None => self.body.withdrawals.as_ref().map(|list| list.as_slice()),
        }
    }

    /// Its transactions in order.
    pub fn transactions(&self) -> impl Iterator<Item = Included<'_>> {
        let (mut used, mut logs) = (0, 0);
        let receipts: Box<dyn Iterator<Item = (&Recovered<ChainTx>, &ChainReceipt)>> = match self.open() {
            Some(open) => Box::new(open.transactions.iter().zip(&open.receipts)),
            None => Box::new(self.body.transactions.iter().zip(&self.body.receipts)),
        };
        receipts.enumerate().map(move |(index, (tx, receipt))| {
            let cumulative = receipt.cumulative_gas_used();
            let included = Included { index, tx, receipt, gas_used: cumulative - used, first_log: logs };
            used = cumulative;
            logs += receipt.logs().len() as u64;
            included
        })
    }

    /// The transaction at `index`.
    pub fn transaction(&self, index: usize) -> Option<Included<'_>> {
        self.transactions().nth(index)
    }

    /// Bytes of its RLP.
    pub fn size(&self) -> usize {
        let transactions = self.transactions().map(|included| (included.tx.encode_2718_len(), included.tx.is_legacy()));
        block_size(self.header(), transactions, self.ommers(), self.withdrawals())
    }
}
