//! Blocks, sealed, and the roots that seal them.

use std::sync::{Arc, OnceLock};

use alloy_consensus::{Header, TxReceipt, transaction::Recovered};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4895::{Withdrawal, Withdrawals},
};
use alloy_primitives::{B256, Bloom, Sealable, Sealed};
use alloy_rlp::{Encodable, Header as Rlp};

use super::{ChainReceipt, ChainTx, ordered_roots};

/// A block whose header is final: hash, body and receipts.
///
/// The body may be with a keeper outside of memory, from which it is fetched on use. Pruning drops the body and keeps
/// the header.
#[derive(Clone, Debug)]
pub struct SealedBlock {
    /// The header and its hash.
    pub header: Sealed<Header>,
    body: Option<Arc<BlockBody>>,
    /// The keeper of the body, if there is one.
    keeper: OnceLock<Arc<dyn BlockKeeper>>,
}

/// The content of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockBody {
    /// The transactions with their senders, in order.
    pub transactions: Vec<Recovered<ChainTx>>,
    /// The receipts, one per transaction.
    pub receipts: Vec<ChainReceipt>,
    /// Headers of the uncles (before the merge).
    pub ommers: Vec<Header>,
    /// Withdrawals (EIP-4895), from Shanghai on.
    pub withdrawals: Option<Withdrawals>,
}

/// Keeps blocks outside of memory.
///
/// # Panics
///
/// Methods panic if a block cannot be read any more, because no answer would be right. A request whose worker panics is
/// answered with an internal error.
pub trait BlockKeeper: std::fmt::Debug + Send + Sync {
    /// Returns the body of block `number`; `None` if it has been pruned.
    fn body(&self, number: u64) -> Option<BlockBody>;

    /// Returns the hashes of the transactions of block `number`, in order, which are kept with its body. Returns `None`
    /// and does not panic if they cannot be read, because the one writer of snapshots asks for them.
    fn transactions(&self, number: u64) -> Option<Vec<B256>>;

    /// Returns the header of block `number`, which pruning leaves.
    fn header(&self, number: u64) -> Option<Header>;

    /// Returns the number of the block with this hash, which pruning leaves.
    fn number(&self, hash: B256) -> Option<u64>;
}

impl SealedBlock {
    /// Seals `header` by hashing it. The caller guarantees its roots.
    pub fn new(header: Header, body: BlockBody) -> Self {
        Self::named(header.seal_slow(), body)
    }

    /// Creates a block under a given hash, for a header without the fields that only its producer knows.
    pub fn named(header: Sealed<Header>, body: BlockBody) -> Self {
        Self { header, body: Some(body.into()), keeper: OnceLock::new() }
    }

    /// Creates a block of which only the header is known.
    pub fn bare(header: Sealed<Header>) -> Self {
        Self { header, body: None, keeper: OnceLock::new() }
    }

    /// Returns whether only its header is known.
    pub fn is_bare(&self) -> bool {
        self.body.is_none() && self.keeper.get().is_none()
    }

    /// Creates a block whose body is with `keeper`.
    pub fn kept(header: Header, keeper: Arc<dyn BlockKeeper>) -> Self {
        Self { header: header.seal_slow(), body: None, keeper: keeper.into() }
    }

    /// Sets the keeper that has the body from now on.
    pub fn keep(&self, keeper: Arc<dyn BlockKeeper>) {
        let _first = self.keeper.set(keeper);
    }

    /// Returns whether a keeper has it.
    pub fn is_kept(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Returns the block without its body in memory; `None` if no keeper has the body.
    pub fn without_body(&self) -> Option<Self> {
        let keeper = self.keeper.get()?.clone();
        Some(Self { header: self.header.clone(), body: None, keeper: keeper.into() })
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> B256 {
        self.header.hash()
    }

    /// Returns the block's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Returns the block with its body in memory; `None` if the body is gone.
    pub fn with_body(&self) -> Option<Self> {
        Some(Self { body: Some(self.find_body()?), ..self.clone() })
    }

    /// Returns the body, fetched if it is not in memory. Empty if only the header is known: use
    /// [`find_body`](Self::find_body) where that can be.
    pub fn body(&self) -> Arc<BlockBody> {
        self.find_body().unwrap_or_default()
    }

    /// Returns the body, fetched if it is not in memory; `None` if only the header is known, because the body was
    /// pruned or never known.
    pub fn find_body(&self) -> Option<Arc<BlockBody>> {
        match &self.body {
            Some(body) => Some(body.clone()),
            None => self.keeper.get()?.body(self.number()).map(Arc::new),
        }
    }

    /// Returns the hashes of the transactions, in order; empty if only the header is known, and `None` if the keeper
    /// cannot read them.
    pub fn transaction_hashes(&self) -> Option<Vec<B256>> {
        match (&self.body, self.keeper.get()) {
            (Some(body), _) => Some(body.transactions.iter().map(|tx| *tx.tx_hash()).collect()),
            (None, Some(keeper)) => keeper.transactions(self.number()),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// The hashes that the `BLOCKHASH` opcode can read, by number: the last 256 blocks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct BlockHashes(imbl::OrdMap<u64, B256>);

impl BlockHashes {
    /// The number of blocks that the opcode can read.
    pub const DEPTH: usize = 256;

    /// Returns the hash of block `number`, if it is one of those kept.
    pub fn get(&self, number: u64) -> Option<B256> {
        self.0.get(&number).copied()
    }

    /// Adds the next block, and drops the oldest beyond [`DEPTH`](Self::DEPTH).
    pub fn push(&mut self, number: u64, hash: B256) {
        self.0.insert(number, hash);
        while self.0.len() > Self::DEPTH {
            self.0 = self.0.without_min().1;
        }
    }
}

/// Returns the root of the receipts' trie and the union of their blooms.
pub fn receipts_root_and_bloom<'a>(receipts: impl IntoIterator<Item = &'a ChainReceipt>) -> (B256, Bloom) {
    let receipts: Vec<_> = receipts.into_iter().collect();
    let root = root(receipts.iter().map(|receipt| receipt.encoded_2718()));
    let bloom = receipts.iter().fold(Bloom::ZERO, |all, receipt| all | receipt.bloom());
    (root, bloom)
}

/// Returns the root of the transactions' trie.
pub fn transactions_root<'a>(transactions: impl IntoIterator<Item = &'a Recovered<ChainTx>>) -> B256 {
    root(transactions.into_iter().map(|tx| tx.inner().encoded_2718()))
}

fn root(items: impl Iterator<Item = Vec<u8>>) -> B256 {
    let items: Vec<_> = items.collect();
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    let ([root], _) = ordered_roots([&items], &[]);
    root
}

/// Returns the length of a block's RLP in bytes, from the length of each transaction's encoding (EIP-2718) and whether
/// it is a legacy one.
pub fn block_size(
    header: &Header,
    transactions: impl Iterator<Item = (usize, bool)>,
    ommers: &[Header],
    withdrawals: Option<&[Withdrawal]>,
) -> usize {
    let whole = |list: bool, payload_length: usize| Rlp { list, payload_length }.length_with_payload();
    // In the list, a typed transaction is a string and a legacy one is a list.
    let transactions = transactions.map(|(bytes, legacy)| if legacy { bytes } else { whole(false, bytes) }).sum();
    let withdrawals = withdrawals.map_or(0, alloy_rlp::list_length::<Withdrawal, Withdrawal>);
    let ommers = alloy_rlp::list_length::<Header, Header>(ommers);
    whole(true, header.length() + whole(true, transactions) + ommers + withdrawals)
}
