//! A block to read, whether it is sealed or still being built.

use std::sync::{Arc, OnceLock};

use alloy_consensus::{Header, TxReceipt, Typed2718, transaction::Recovered};
use alloy_eips::{Encodable2718, eip4895::Withdrawal};
use alloy_primitives::Sealed;

use super::{OpenBlock, Snapshot};
use crate::chain::{BlockBody, ChainReceipt, ChainTx, SealedBlock, block_size};

/// A block with all that is known of it: a sealed one, or the one being built as one snapshot has it. Costs nothing to make or to clone: the
/// hash of a block being built is only worked out for who asks for its [`header`](Self::header).
#[derive(Clone, Debug)]
pub struct Block {
    source: Source,
    /// Of a sealed block, once somebody has asked for it: where it is on the disk, it is fetched once for all who look at this.
    body: OnceLock<Arc<BlockBody>>,
}

#[derive(Clone, Debug)]
enum Source {
    Sealed(Arc<SealedBlock>),
    /// The block that it is building, or its head where none is.
    Newest(Arc<Snapshot>),
}

enum Body<'a> {
    Sealed(&'a BlockBody),
    Open(&'a OpenBlock),
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

impl Block {
    /// The block that `snapshot` is building, or its head where none is.
    pub fn newest(snapshot: &Arc<Snapshot>) -> Self {
        Self { source: Source::Newest(snapshot.clone()), body: OnceLock::new() }
    }

    /// A sealed block.
    pub fn sealed(block: &Arc<SealedBlock>) -> Self {
        Self { source: Source::Sealed(block.clone()), body: OnceLock::new() }
    }

    /// Its header and hash; of a block being built, as far as they go ([`Snapshot::open_block`]).
    pub fn header(&self) -> &Sealed<Header> {
        match &self.source {
            Source::Sealed(block) => &block.header,
            Source::Newest(snapshot) => snapshot.open_block().map_or(&snapshot.head.header, |(_, header)| header),
        }
    }

    /// What its transactions see of its header: number, time, producer, fees and limits. Unlike the rest they are final in a block being
    /// built, and nothing is hashed for them.
    pub fn context(&self) -> &Header {
        match &self.source {
            Source::Sealed(block) => block.header.inner(),
            Source::Newest(snapshot) => snapshot.header(),
        }
    }

    /// Whether only its header is known.
    pub fn is_bare(&self) -> bool {
        match &self.source {
            Source::Sealed(block) => block.is_bare(),
            Source::Newest(snapshot) => snapshot.open.is_none() && snapshot.head.is_bare(),
        }
    }

    /// Whether it is still being built.
    pub fn is_open(&self) -> bool {
        matches!(self.body(), Body::Open(_))
    }

    /// How many transactions are in it.
    pub fn len(&self) -> usize {
        match self.body() {
            Body::Sealed(block) => block.transactions.len(),
            Body::Open(open) => open.transactions.len(),
        }
    }

    /// Whether no transaction is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The headers of its uncles.
    pub fn ommers(&self) -> &[Header] {
        match self.body() {
            Body::Sealed(block) => &block.ommers,
            Body::Open(_) => &[],
        }
    }

    /// Its withdrawals: none before Shanghai.
    pub fn withdrawals(&self) -> Option<&[Withdrawal]> {
        match self.body() {
            Body::Sealed(block) => block.withdrawals.as_ref().map(|list| list.as_slice()),
            Body::Open(open) => open.header.withdrawals_root.map(|_| [].as_slice()),
        }
    }

    /// Its transactions in order.
    pub fn transactions(&self) -> impl Iterator<Item = Included<'_>> {
        let (mut used, mut logs) = (0, 0);
        let receipts: Box<dyn Iterator<Item = (&Recovered<ChainTx>, &ChainReceipt)>> = match self.body() {
            Body::Sealed(block) => Box::new(block.transactions.iter().zip(&block.receipts)),
            Body::Open(open) => Box::new(open.transactions.iter().zip(&open.receipts)),
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

    fn body(&self) -> Body<'_> {
        match &self.source {
            Source::Newest(snapshot) => match &snapshot.open {
                Some(open) => Body::Open(open),
                None => Body::Sealed(self.body.get_or_init(|| snapshot.head.body())),
            },
            Source::Sealed(block) => Body::Sealed(self.body.get_or_init(|| block.body())),
        }
    }
}
