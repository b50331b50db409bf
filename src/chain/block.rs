//! Sealed blocks, their bodies, and the roots of their transactions and receipts.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use alloy_consensus::{Header, Transaction, TxReceipt, transaction::Recovered};
use alloy_eips::{
    BlockNumHash,
    eip2718::Encodable2718,
    eip2930::AccessListItem,
    eip4895::{Withdrawal, Withdrawals},
    eip7928::BlockAccessList,
};
use alloy_primitives::{B256, Bloom, Log, Sealable, Sealed};
use alloy_rlp::{Encodable, Header as Rlp, RlpDecodable, RlpEncodable};

use super::{ChainReceipt, ChainTx, GasRefunds, block_instant, millis_part, ordered_roots};

/// A block whose header is final. Its body is in memory, with a [`BlockKeeper`], or unknown.
///
/// Pruning removes the body; the header stays.
#[derive(Clone, Debug)]
pub struct SealedBlock {
    /// The header and its hash.
    pub header: Sealed<Header>,
    body: Option<Arc<BlockBody>>,
    /// The logs of the block. Set only if they are known although the body is not.
    logs: Option<Arc<[TransactionLogs]>>,
    /// The gas refunds of a pre-confirmed block, whose post-execution transaction is not in the list.
    refunds: GasRefunds,
    /// Reads the body from storage. Unset if no storage has the block.
    keeper: OnceLock<Arc<dyn BlockKeeper>>,
}

/// The logs of a transaction whose type presim does not know, and of which nothing else is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct TransactionLogs {
    /// The hash of the transaction.
    pub hash: B256,
    /// The logs, in order.
    pub logs: Vec<Log>,
}

/// The transactions, receipts, uncles and withdrawals of a block.
#[derive(Clone, Debug, Default)]
pub struct BlockBody {
    /// The transactions with their senders, in order.
    pub transactions: Vec<Recovered<ChainTx>>,
    /// The receipts, one per transaction, in the same order.
    pub receipts: Vec<ChainReceipt>,
    /// The headers of the uncles; empty after the merge.
    pub ommers: Vec<Header>,
    /// The withdrawals (EIP-4895); `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// The access list (EIP-7928). `None` before Amsterdam, and for blocks of an upstream, which sends none.
    pub access_list: Option<BlockAccessList>,
}

/// Storage that holds blocks outside memory.
///
/// # Panics
///
/// Methods panic if a block can no longer be read, because no answer would be right. Requests get an internal error. If the
/// storage has failed as a whole, methods unwind with its error as the payload, without a panic's message, and requests
/// get that error.
pub trait BlockKeeper: std::fmt::Debug + Send + Sync {
    /// Returns the body of block `number`, or `None` if it has been pruned.
    fn body(&self, number: u64) -> Option<BlockBody>;

    /// Returns the hashes of the transactions of block `number`, in order. They are pruned with the body.
    /// Returns `None` instead of panicking if they cannot be read, because the only writer of snapshots calls this.
    fn transactions(&self, number: u64) -> Option<Vec<B256>>;

    /// Returns the header of block `number`. Pruning does not remove headers.
    fn header(&self, number: u64) -> Option<Header>;

    /// Returns the number of the block with this hash. Pruning does not remove it.
    fn number(&self, hash: B256) -> Option<u64>;
}

impl SealedBlock {
    /// Seals `header` by hashing it. The caller guarantees that its roots match `body`.
    pub fn new(header: Header, body: BlockBody) -> Self {
        Self::named(header.seal_slow(), body)
    }

    /// Creates a block under an unchecked hash: the header may lack fields that only its producer knows.
    pub fn named(header: Sealed<Header>, body: BlockBody) -> Self {
        let (logs, refunds, keeper) = Default::default();
        Self { header, body: Some(body.into()), logs, refunds, keeper }
    }

    /// Creates a block of which only the header is known.
    pub fn bare(header: Sealed<Header>) -> Self {
        let (body, logs, refunds, keeper) = Default::default();
        Self { header, body, logs, refunds, keeper }
    }

    /// Sets the gas refunds of a pre-confirmed block, whose post-execution transaction is not in the list.
    #[must_use]
    pub fn with_refunds(self, refunds: GasRefunds) -> Self {
        Self { refunds, ..self }
    }

    /// Returns the gas refunds of the block with this `body`.
    pub fn refunds(&self, body: &BlockBody) -> GasRefunds {
        match body.transactions.last().map(|last| GasRefunds::of_last(last)) {
            Some(listed) if listed.transaction().is_some() => listed,
            _ => self.refunds.clone(),
        }
    }

    /// Sets the logs of all transactions, in order. For a block whose logs are known although its body is not.
    #[must_use]
    pub fn with_logs(self, logs: Vec<TransactionLogs>) -> Self {
        Self { logs: Some(logs.into()), ..self }
    }

    /// Returns the logs of the block if they are known although the body is not.
    pub fn logs_alone(&self) -> Option<&[TransactionLogs]> {
        self.logs.as_deref()
    }

    /// Returns about how many bytes of memory the body takes; 0 if it is not in memory.
    pub fn body_bytes(&self) -> u64 {
        let Some(body) = &self.body else { return 0 };
        let transaction = |tx: &Recovered<ChainTx>| {
            size_of::<Recovered<ChainTx>>()
                + tx.input().len()
                + tx.access_list()
                    .map_or(0, |list| list.len() * size_of::<AccessListItem>() + 32 * list.storage_keys_count())
        };
        let transactions: usize = body.transactions.iter().map(transaction).sum();
        (transactions + body.receipts.len() * size_of::<ChainReceipt>() + self.log_bytes()) as u64
    }

    /// Returns the bytes that the logs in memory take, as their addresses, topics and data.
    pub fn log_bytes(&self) -> usize {
        let bytes = |log: &Log| size_of::<Log>() + B256::len_bytes() * log.topics().len() + log.data.data.len();
        let of_body = self.body.iter().flat_map(|body| &body.receipts).flat_map(|receipt| receipt.logs());
        let alone = self.logs.iter().flat_map(|logs| logs.iter()).flat_map(|transaction| &transaction.logs);
        of_body.chain(alone).map(bytes).sum()
    }

    /// Returns whether only the header is known.
    pub fn is_bare(&self) -> bool {
        self.body.is_none() && self.keeper.get().is_none()
    }

    /// Creates a block whose body is in the storage of `keeper`.
    pub fn kept(header: Header, keeper: Arc<dyn BlockKeeper>) -> Self {
        Self { keeper: keeper.into(), ..Self::bare(header.seal_slow()) }
    }

    /// Sets the keeper that also holds the body from now on. Does nothing if the block has a keeper.
    pub fn keep(&self, keeper: Arc<dyn BlockKeeper>) {
        let _first = self.keeper.set(keeper);
    }

    /// Returns whether a keeper holds the body.
    pub fn is_kept(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Returns the block without its body in memory, or `None` if no keeper holds the body.
    pub fn without_body(&self) -> Option<Self> {
        let keeper = self.keeper.get()?.clone();
        Some(Self { keeper: keeper.into(), refunds: self.refunds.clone(), ..Self::bare(self.header.clone()) })
    }

    /// Returns a copy without a keeper, with only the parts of the block that are in memory.
    #[must_use]
    pub fn without_keeper(&self) -> Self {
        Self { keeper: OnceLock::new(), ..self.clone() }
    }

    /// Returns the block's number and hash.
    pub fn id(&self) -> BlockNumHash {
        BlockNumHash::new(self.number(), self.hash())
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> B256 {
        self.header.hash()
    }

    /// Returns the block's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Returns the body, as [`find_body`](Self::find_body) does, or an empty body if it is unknown or pruned.
    pub fn body(&self) -> Arc<BlockBody> {
        self.find_body().unwrap_or_default()
    }

    /// Returns the body from memory or from the keeper, or `None` if it is unknown or pruned.
    pub fn find_body(&self) -> Option<Arc<BlockBody>> {
        match &self.body {
            Some(body) => Some(body.clone()),
            None => self.keeper.get()?.body(self.number()).map(Arc::new),
        }
    }

    /// Returns the time of the block since 1970, with milliseconds if the block contains them.
    pub fn instant(&self) -> Duration {
        let body = self.find_body();
        block_instant(self.header.timestamp, body.and_then(|body| millis_part(body.transactions.get(1)?)))
    }

    /// Returns the transactions' hashes, in order. Empty for a bare header; `None` if the keeper cannot read them.
    pub fn transaction_hashes(&self) -> Option<Vec<B256>> {
        match (&self.body, self.keeper.get()) {
            (Some(body), _) => Some(body.transactions.iter().map(|tx| *tx.tx_hash()).collect()),
            (None, Some(keeper)) => keeper.transactions(self.number()),
            (None, None) => Some(Vec::new()),
        }
    }
}

/// The hashes of the last 256 blocks by number, for the `BLOCKHASH` opcode. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct BlockHashes(imbl::OrdMap<u64, B256>);

impl BlockHashes {
    /// The number of blocks whose hashes the opcode can read.
    pub const DEPTH: usize = 256;

    /// Returns the hashes of a block and of its parent.
    pub fn of(header: &Sealed<Header>) -> Self {
        let mut hashes = Self::default();
        if let Some(parent) = header.number.checked_sub(1) {
            hashes.push(parent, header.parent_hash);
        }
        hashes.push(header.number, header.hash());
        hashes
    }

    /// Returns the hash of block `number`, or `None` if the block is not among the last 256.
    pub fn get(&self, number: u64) -> Option<B256> {
        self.0.get(&number).copied()
    }

    /// Adds the hash of the next block, and removes the oldest beyond [`DEPTH`](Self::DEPTH).
    pub fn push(&mut self, number: u64, hash: B256) {
        self.0.insert(number, hash);
        while self.0.len() > Self::DEPTH {
            self.0 = self.0.without_min().1;
        }
    }
}

/// Returns the root of the receipt trie, and the union of the receipts' blooms.
pub fn receipts_root_and_bloom<'a>(receipts: impl IntoIterator<Item = &'a ChainReceipt>) -> (B256, Bloom) {
    let receipts: Vec<_> = receipts.into_iter().collect();
    let root = root(receipts.iter().map(|receipt| receipt.encoded_2718()));
    let bloom = receipts.iter().fold(Bloom::ZERO, |all, receipt| all | receipt.bloom());
    (root, bloom)
}

/// Returns whether `gas`, the cumulative gas of a block's last receipt, agrees with the `gasUsed` in its header. From
/// Amsterdam on the header counts otherwise than receipts: without refunds (EIP-7778), and the larger of regular gas and
/// state gas (EIP-8037).
pub fn agrees_with_receipts(header: &Header, gas: u64) -> bool {
    header.gas_used == gas || header.block_access_list_hash.is_some()
}

/// Returns the root of the transaction trie.
pub fn transactions_root<'a>(transactions: impl IntoIterator<Item = &'a Recovered<ChainTx>>) -> B256 {
    root(transactions.into_iter().map(|tx| tx.inner().encoded_2718()))
}

fn root(items: impl Iterator<Item = Vec<u8>>) -> B256 {
    let items: Vec<_> = items.collect();
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    let ([root], _) = ordered_roots([&items], &[]);
    root
}

/// Returns a block's RLP.
pub fn block_rlp<'a>(
    header: &Header,
    transactions: impl Iterator<Item = &'a ChainTx>,
    ommers: &[Header],
    withdrawals: Option<&[Withdrawal]>,
) -> Vec<u8> {
    let body = alloy_consensus::BlockBody {
        transactions: transactions.collect(),
        ommers: ommers.iter().collect(),
        withdrawals: withdrawals.map(|list| list.to_vec().into()),
    };
    alloy_rlp::encode(alloy_consensus::Block { header, body })
}

/// Returns the bytes of a block's RLP, given each transaction's EIP-2718 length and whether it is a legacy one.
pub fn block_size(
    header: &Header,
    transactions: impl Iterator<Item = (usize, bool)>,
    ommers: &[Header],
    withdrawals: Option<&[Withdrawal]>,
) -> usize {
    let whole = |list: bool, payload_length: usize| Rlp { list, payload_length }.length_with_payload();
    // The list holds a typed transaction as a string, and a legacy one as a list.
    let transactions = transactions.map(|(bytes, legacy)| if legacy { bytes } else { whole(false, bytes) }).sum();
    let withdrawals = withdrawals.map_or(0, alloy_rlp::list_length::<Withdrawal, Withdrawal>);
    let ommers = alloy_rlp::list_length::<Header, Header>(ommers);
    whole(true, header.length() + whole(true, transactions) + ommers + withdrawals)
}
