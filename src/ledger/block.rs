//! A block to read, whether it is sealed or still being built.

use std::{ops::Deref, sync::Arc};

use alloy_consensus::{Header, TxReceipt, Typed2718, proofs::calculate_ommers_root, transaction::Recovered};
use alloy_eips::{Encodable2718, eip4895::Withdrawal, eip7928::BlockAccessList};
use alloy_primitives::{Sealed, keccak256};

use super::{OpenBlock, Snapshot, UnknownBlock};
use crate::chain::{
    BlockBody, ChainReceipt, ChainTx, GasRefunds, SealedBlock, block_rlp, block_size, millis_part, timestamp_ms,
};

/// A block of which at least the header is known: sealed (pruned or not), or being built by a snapshot.
///
/// Cheap to create and to clone, because only [`header`](Self::header) computes the hash of a block being built.
#[derive(Clone, Debug)]
pub enum KnownBlock {
    /// A sealed block.
    Sealed(Arc<SealedBlock>),
    /// The block that the snapshot is building, or the snapshot's head if it builds none.
    Newest(Arc<Snapshot>),
}

impl KnownBlock {
    /// Returns the header and its hash. A block being built has a provisional header ([`Snapshot::open_block`]).
    pub fn header(&self) -> &Sealed<Header> {
        match self {
            Self::Sealed(block) => &block.header,
            Self::Newest(snapshot) => snapshot.open_block().map_or(&snapshot.head.header, |(_, header)| header),
        }
    }

    /// Returns the header fields that transactions see: number, time, producer, fees and limits. Unlike the others,
    /// they are final while the block is being built, and reading them hashes nothing.
    pub fn context(&self) -> &Header {
        match self {
            Self::Sealed(block) => block.header.inner(),
            Self::Newest(snapshot) => snapshot.header(),
        }
    }

    /// Returns whether the block is still being built.
    pub fn is_open(&self) -> bool {
        self.open().is_some()
    }

    /// Returns whether the block is a draft of transactions that wait.
    pub fn is_draft(&self) -> bool {
        self.open().is_some_and(|open| open.is_draft)
    }

    /// Returns the block number.
    pub fn number(&self) -> u64 {
        self.context().number
    }

    /// Returns the RLP of the header.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownBlock::Partial`] if the header does not hash to the block's hash. An upstream's header may have
    /// fields that presim does not know, and a pre-confirmed block's header may lack its state root.
    pub fn header_rlp(&self) -> Result<Vec<u8>, UnknownBlock> {
        let header = self.header();
        let rlp = alloy_rlp::encode(header.inner());
        if keccak256(&rlp) == header.hash() { Ok(rlp) } else { Err(UnknownBlock::Partial { number: self.number() }) }
    }

    fn open(&self) -> Option<&OpenBlock> {
        match self {
            Self::Sealed(_) => None,
            Self::Newest(snapshot) => snapshot.open.as_ref(),
        }
    }
}

/// A block with its whole body: sealed, or being built as one snapshot has it.
#[derive(Clone, Debug)]
pub struct Block {
    known: KnownBlock,
    /// The body of a sealed block; empty for a block being built.
    body: Arc<BlockBody>,
}

/// A transaction in its block, with its receipt and the values that depend on the transactions before it.
#[derive(Clone, Copy, Debug)]
pub struct Included<'a> {
    /// The transaction's index in the block.
    pub index: usize,
    /// The transaction and its sender.
    pub tx: &'a Recovered<ChainTx>,
    /// The transaction's receipt.
    pub receipt: &'a ChainReceipt,
    /// Gas used by this transaction alone, less its refund.
    pub gas_used: u64,
    /// The gas that the block's sequencer refunds to the transaction: zero before Lagoon, and for most transactions.
    pub refund: u64,
    /// The index in the block of the transaction's first log.
    pub first_log: u64,
}

impl Included<'_> {
    /// Returns the gas that the EVM has reported, before the refund.
    pub const fn evm_gas_used(&self) -> u64 {
        self.gas_used.saturating_add(self.refund)
    }
}

impl Deref for Block {
    type Target = KnownBlock;

    fn deref(&self) -> &KnownBlock {
        &self.known
    }
}

impl Block {
    /// Returns the time of the block in milliseconds, or `None` if its transactions do not contain it.
    pub fn timestamp_ms(&self) -> Option<u64> {
        let millis = match self.open() {
            Some(open) => open.millis(),
            None => self.body.transactions.get(1).and_then(millis_part),
        };
        millis.map(|millis| timestamp_ms(self.context().timestamp, millis))
    }

    /// Returns a known block with its body, which is loaded if it is not in memory. `None` if only the header is known.
    pub fn load(known: KnownBlock) -> Option<Self> {
        let body = match &known {
            KnownBlock::Sealed(block) => block.find_body()?,
            KnownBlock::Newest(snapshot) if snapshot.open.is_none() => snapshot.head.find_body()?,
            KnownBlock::Newest(_) => Arc::default(),
        };
        Some(Self { known, body })
    }

    /// Returns the block that `snapshot` is building, or its head if it builds none.
    pub fn newest(snapshot: &Arc<Snapshot>) -> Option<Self> {
        Self::load(KnownBlock::Newest(snapshot.clone()))
    }

    /// Returns a sealed block; `None` if only its header is known.
    pub fn sealed(block: &Arc<SealedBlock>) -> Option<Self> {
        Self::load(KnownBlock::Sealed(block.clone()))
    }

    /// Returns the number of transactions.
    pub fn len(&self) -> usize {
        self.open().map_or(self.body.transactions.len(), |open| open.transactions.len())
    }

    /// Returns whether the block has no transactions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the headers of the uncles.
    pub fn ommers(&self) -> &[Header] {
        &self.body.ommers
    }

    /// Returns the access list (EIP-7928) of a sealed block. `None` before Amsterdam, and if it is not known.
    pub fn access_list(&self) -> Option<&BlockAccessList> {
        self.body.access_list.as_ref()
    }

    /// Returns the refunds of gas of the transactions.
    pub fn refunds(&self) -> GasRefunds {
        match &self.known {
            KnownBlock::Sealed(block) => block.refunds(&self.body),
            KnownBlock::Newest(snapshot) => match &snapshot.open {
                Some(open) => open.refunds.clone(),
                None => snapshot.head.refunds(&self.body),
            },
        }
    }

    /// Returns the withdrawals; `None` before Shanghai.
    pub fn withdrawals(&self) -> Option<&[Withdrawal]> {
        match self.open() {
            Some(open) => open.header.withdrawals_root.map(|_| [].as_slice()),
            None => self.body.withdrawals.as_ref().map(|list| list.as_slice()),
        }
    }

    /// Returns the transactions in order.
    pub fn transactions(&self) -> impl Iterator<Item = Included<'_>> {
        self.transactions_from(0)
    }

    /// Returns the transactions from the index `start` on, in order. For a block being built, skipping the earlier ones
    /// is free.
    pub fn transactions_from(&self, start: usize) -> impl Iterator<Item = Included<'_>> {
        let logs_of = |receipt: &ChainReceipt| receipt.logs().len() as u64;
        let (last, mut logs) = match self.open() {
            Some(open) => (start.checked_sub(1).and_then(|last| open.receipts.get(last)), open.first_log(start)),
            None => {
                let before = self.body.receipts.get(..start).unwrap_or_default();
                (before.last(), Some(before.iter().map(logs_of).sum()))
            }
        };
        let mut used = last.map_or(0, TxReceipt::cumulative_gas_used);
        let refunds = self.refunds();
        (start..self.len()).map_while(move |index| {
            let (tx, receipt) = self.at(index)?;
            let cumulative = receipt.cumulative_gas_used();
            let (gas_used, refund) = (cumulative - used, refunds.of(index));
            let included = Included { index, tx, receipt, gas_used, refund, first_log: logs? };
            used = cumulative;
            logs = logs.map(|first| first + logs_of(receipt));
            Some(included)
        })
    }

    fn at(&self, index: usize) -> Option<(&Recovered<ChainTx>, &ChainReceipt)> {
        match self.open() {
            Some(open) => open.transactions.get(index).zip(open.receipts.get(index)),
            None => self.body.transactions.get(index).zip(self.body.receipts.get(index)),
        }
    }

    /// Returns the transaction at `index`.
    pub fn transaction(&self, index: usize) -> Option<Included<'_>> {
        self.transactions_from(index).next()
    }

    /// Returns the block's RLP.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownBlock::Partial`] if not all fields of the header are known, as for
    /// [`header_rlp`](KnownBlock::header_rlp), or if the uncles are not: an upstream names only their hashes.
    pub fn rlp(&self) -> Result<Vec<u8>, UnknownBlock> {
        self.header_rlp()?;
        let header = self.header();
        if calculate_ommers_root(self.ommers()) != header.ommers_hash {
            return Err(UnknownBlock::Partial { number: self.number() });
        }
        let transactions = self.transactions().map(|included| included.tx.inner());
        Ok(block_rlp(header, transactions, self.ommers(), self.withdrawals()))
    }

    /// Returns the length of the block's RLP in bytes.
    pub fn size(&self) -> usize {
        let transactions = self.transactions().map(|included| (included.tx.encode_2718_len(), included.tx.is_legacy()));
        block_size(self.header(), transactions, self.ommers(), self.withdrawals())
    }
}
