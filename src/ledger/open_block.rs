//! A block being built, with its content so far.

use std::sync::{Arc, OnceLock};

use alloy_consensus::{Header, TxReceipt, transaction::Recovered};
use alloy_eips::{Encodable2718, eip7928::BlockAccessList};
use alloy_primitives::{B256, Bloom};

use crate::chain::{AppendTrie, BlockGas, BlockTotals, ChainReceipt, ChainTx, GasRefunds, millis_part};

/// A block being built. Cheap to clone; a clone grows by the transactions of the next sub-block.
#[derive(Clone, Debug, Default)]
pub struct OpenBlock {
    /// The header. Gas, roots and bloom are not final.
    pub header: Header,
    /// The number of sub-blocks in the block, without the empty one that opened it.
    pub index: u32,
    /// Whether the block is a draft: it has the transactions that it would have if it were mined now. They are still
    /// pending, and the next draft may have others.
    pub is_draft: bool,
    /// Gas used so far.
    pub gas: BlockGas,
    /// Blob gas used so far.
    pub blob_gas_used: u64,
    /// The accesses of the system calls before the block, and of each sub-block (EIP-7928). Empty before Amsterdam.
    pub access_lists: imbl::Vector<Arc<BlockAccessList>>,
    /// The transactions so far with their senders.
    pub transactions: imbl::Vector<Recovered<ChainTx>>,
    /// Their receipts.
    pub receipts: imbl::Vector<ChainReceipt>,
    /// The gas refunds of the transactions so far. The post-execution transaction of a pre-confirmed block, which lists
    /// them, is not among its transactions.
    pub refunds: GasRefunds,
    /// The index of each transaction in the block, by its hash.
    pub positions: imbl::HashMap<B256, usize>,
    /// The index in the block of each transaction's first log.
    first_logs: imbl::Vector<u64>,
    /// The root of the transactions.
    transactions_root: Grown<TransactionsRoot>,
    /// The root of the receipts, and their bloom.
    receipts_root: Grown<ReceiptsRoot>,
}

impl OpenBlock {
    /// Creates a block with nothing in it.
    pub fn new(header: Header) -> Self {
        Self { header, ..Self::default() }
    }

    /// Appends an executed transaction with its receipt.
    pub fn push(&mut self, tx: Recovered<ChainTx>, receipt: ChainReceipt) {
        let first_log = match (self.first_logs.last(), self.receipts.last()) {
            (Some(first), Some(receipt)) => first + receipt.logs().len() as u64,
            _ => 0,
        };
        self.transactions_root.grow();
        self.receipts_root.grow();
        self.positions.insert(*tx.tx_hash(), self.transactions.len());
        self.transactions.push_back(tx);
        self.receipts.push_back(receipt);
        self.first_logs.push_back(first_log);
    }

    /// Makes the block a draft. Its transactions are not found by their hashes, because they are in no block yet.
    pub fn make_draft(&mut self) {
        self.is_draft = true;
        self.positions.clear();
    }

    /// Returns whether transactions have run in the block, and stay in it.
    pub fn has_begun(&self) -> bool {
        !self.is_draft && !self.transactions.is_empty()
    }

    /// Records the gas that the block has used so far.
    pub const fn set_gas(&mut self, gas: BlockGas) {
        self.gas = gas;
        self.header.gas_used = gas.used();
    }

    /// Returns the gas that the transactions so far have used by their receipts.
    pub fn cumulative_gas(&self) -> u64 {
        self.receipts.last().map_or(0, TxReceipt::cumulative_gas_used)
    }

    /// Returns the milliseconds that the block adds to its timestamp, or `None` if the block does not contain them.
    pub fn millis(&self) -> Option<u64> {
        self.transactions.get(1).and_then(millis_part)
    }

    /// Returns the index in the block of the first log of the transaction at `index`.
    pub fn first_log(&self, index: usize) -> Option<u64> {
        self.first_logs.get(index).copied()
    }

    /// Returns the root of the transaction trie. Computed on first use, continuing from the value before the block
    /// grew, so it costs only the transactions added since then.
    pub fn transactions_root(&self) -> B256 {
        let grown = self.transactions_root.get(|before| {
            let mut trie = before.trie;
            for index in trie.len()..self.transactions.len() {
                trie.push(self.transactions[index].inner().encoded_2718().into());
            }
            TransactionsRoot { root: trie.root(), trie }
        });
        grown.root
    }

    /// Returns the root of the receipt trie, and the union of the receipts' blooms. Computed on first use, continuing
    /// from the value before the block grew, so it costs only the receipts added since then.
    pub fn receipts_root_and_bloom(&self) -> (B256, Bloom) {
        let grown = self.receipts_root.get(|before| {
            let ReceiptsRoot { mut trie, mut bloom, .. } = before;
            for index in trie.len()..self.receipts.len() {
                let receipt = &self.receipts[index];
                bloom |= receipt.bloom();
                trie.push(receipt.encoded_2718().into());
            }
            ReceiptsRoot { root: trie.root(), trie, bloom }
        });
        (grown.root, grown.bloom)
    }

    /// Returns the receipt that the post-execution transaction of a pre-confirmed block will have, if it has one so far.
    pub fn post_exec_receipt(&self) -> Option<ChainReceipt> {
        let cumulative_gas_used = self.cumulative_gas();
        self.refunds.transaction().map(|_| ChainReceipt::PostExec { cumulative_gas_used })
    }

    /// Returns the root of the receipt trie that a pre-confirmed block will have when it is canonical as it is now: with the receipt
    /// of its post-execution transaction, if it has one.
    pub fn canonical_receipts_root(&self) -> B256 {
        let (root, _) = self.receipts_root_and_bloom();
        let Some(last) = self.post_exec_receipt() else { return root };
        let mut trie = self.receipts_root.get(|before| before).trie.clone();
        trie.push(last.encoded_2718().into());
        trie.root()
    }

    /// Returns the header fields that follow from the transactions so far.
    pub fn totals(&self) -> BlockTotals {
        let (receipts_root, logs_bloom) = self.receipts_root_and_bloom();
        BlockTotals {
            gas_used: self.header.gas_used,
            blob_gas_used: self.blob_gas_used,
            transactions_root: self.transactions_root(),
            receipts_root,
            logs_bloom,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct TransactionsRoot {
    trie: AppendTrie,
    root: B256,
}

#[derive(Clone, Debug, Default)]
struct ReceiptsRoot {
    trie: AppendTrie,
    root: B256,
    bloom: Bloom,
}

/// A value that is computed on demand from a block's content. It continues from the value computed before the block, or
/// the one it was cloned from, grew.
#[derive(Clone, Debug, Default)]
struct Grown<T> {
    /// The value of an earlier state of the block. A clone shares it.
    before: Arc<T>,
    /// The current value. Unset until it is requested.
    now: OnceLock<Arc<T>>,
}

impl<T: Clone> Grown<T> {
    /// Returns the value. If it is not computed yet, `grow` computes it from an earlier one.
    fn get(&self, grow: impl FnOnce(T) -> T) -> &T {
        self.now.get_or_init(|| Arc::new(grow(T::clone(&self.before))))
    }

    /// Keeps the computed value, if any, as the earlier one, because the block grows.
    fn grow(&mut self) {
        if let Some(now) = self.now.take() {
            self.before = now;
        }
    }
}
