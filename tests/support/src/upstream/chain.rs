//! The blocks and states that a test upstream serves.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header, proofs::calculate_transaction_root, transaction::SignerRecoverable,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rpc_types_eth::TransactionInfo;
use op_alloy::{
    consensus::{OpTxEnvelope, transaction::OpTransactionInfo},
    rpc_types::Transaction,
};
use serde_json::{Value, json};

use crate::{number, shared};

/// Accounts, in the form of a genesis file.
pub type State = BTreeMap<Address, GenesisAccount>;

/// A block and the state after it.
#[derive(Clone, Debug)]
pub struct UpstreamBlock {
    pub number: u64,
    pub hash: B256,
    pub parent_hash: B256,
    /// The block's fields in JSON-RPC form, without `transactions`.
    pub fields: Value,
    /// The transactions in JSON-RPC form, complete.
    pub transactions: Vec<Value>,
    /// The receipts in JSON-RPC form; `None` if they are not known.
    pub receipts: Option<Vec<Value>>,
    pub state: Arc<State>,
}

impl UpstreamBlock {
    /// Creates a block from what any node answers to `eth_getBlockByNumber` with full transactions.
    pub fn from_json(block: &Value, state: Arc<State>) -> Self {
        let mut fields = block.clone();
        let transactions = match fields.as_object_mut().expect("a block").remove("transactions") {
            Some(Value::Array(transactions)) => transactions,
            _ => Vec::new(),
        };
        let hash = |field: &str| serde_json::from_value(block[field].clone()).expect(field);
        let (number, own, parent) = (number(&block["number"]), hash("hash"), hash("parentHash"));
        Self { number, hash: own, parent_hash: parent, fields, transactions, receipts: None, state }
    }

    /// Builds an empty block with this header.
    pub fn with_header(header: Header, state: Arc<State>) -> Self {
        let mut fields = serde_json::to_value(&header).expect("a header is JSON");
        let hash = header.hash_slow();
        fields["hash"] = json!(hash);
        fields["uncles"] = json!([]);
        fields["withdrawals"] = json!([]);
        fields["size"] = json!("0x200");
        let mut block = Self::from_json(&fields, state);
        block.receipts = Some(Vec::new());
        block
    }

    pub fn with_receipts(mut self, receipts: Vec<Value>) -> Self {
        self.receipts = Some(receipts);
        self
    }

    /// Returns the block in JSON-RPC form, with full transactions or with their hashes.
    pub fn json(&self, full: bool) -> Value {
        let mut block = self.fields.clone();
        let transactions = self.transactions.iter().map(|tx| if full { tx.clone() } else { tx["hash"].clone() });
        block["transactions"] = transactions.collect();
        block
    }
}

/// The canonical chain of an upstream, and the blocks that were reorganised away.
#[derive(Clone, Debug)]
pub struct UpstreamChain {
    /// Oldest first, with consecutive numbers.
    pub canonical: Vec<UpstreamBlock>,
    /// Blocks of abandoned branches, which are still served by hash.
    pub left: Vec<UpstreamBlock>,
    /// The newest finalized block and the newest safe block; `None` means the oldest block.
    pub finalized: Option<u64>,
    pub safe: Option<u64>,
}

impl UpstreamChain {
    /// Creates a chain of these blocks. There must be at least one.
    pub fn new(canonical: Vec<UpstreamBlock>) -> Self {
        assert!(!canonical.is_empty(), "an upstream has a block");
        Self { canonical, left: Vec::new(), finalized: None, safe: None }
    }

    pub fn head(&self) -> &UpstreamBlock {
        self.canonical.last().expect("an upstream has a block")
    }

    pub fn by_number(&self, number: u64) -> Option<&UpstreamBlock> {
        let first = self.canonical[0].number;
        self.canonical.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    pub fn by_hash(&self, hash: B256) -> Option<&UpstreamBlock> {
        self.canonical.iter().chain(&self.left).rev().find(|block| block.hash == hash)
    }

    /// Appends a block to its parent. The blocks of the branch that it replaces are no longer canonical.
    pub fn put(&mut self, block: UpstreamBlock) {
        let kept = self.canonical.iter().take_while(|known| known.number < block.number).count();
        let left = self.canonical.split_off(kept);
        let parent = self.canonical.last().expect("the oldest block cannot be replaced");
        assert_eq!((parent.number + 1, parent.hash), (block.number, block.parent_hash), "it is put on its parent");
        self.left.extend(left);
        self.canonical.push(block);
    }
}

/// A recorded block: its header, its raw transactions, and the state that it was executed on.
#[derive(Clone, Debug)]
pub struct Fixture {
    pub chain_id: u64,
    /// The header's fields in JSON-RPC form.
    pub block: Value,
    pub raw: Vec<Bytes>,
    /// The state before the block, limited to what the block reads.
    pub state: Arc<State>,
}

impl Fixture {
    /// Reads the recorded block of `../shared/fixtures`. Returns `None` if the file does not exist.
    pub fn rise() -> Option<Self> {
        Some(Self::read(&shared("fixtures/rise-8138510.json")?))
    }

    /// Reads a fixture from another file of the same format.
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self {
            chain_id: number(&json["chainId"]),
            block: json["block"].clone(),
            raw: serde_json::from_value(json["rawTransactions"].clone()).expect("rawTransactions"),
            state: Arc::new(serde_json::from_value(json["alloc"].clone()).expect("alloc")),
        }
    }

    pub fn header(&self) -> Header {
        serde_json::from_value(self.block.clone()).expect("a header")
    }

    /// Returns the parent, with the state before the block. Only the parent's hash is real. The other fields are the
    /// block's own, one block earlier, and do not hash to it.
    pub fn parent(&self) -> UpstreamBlock {
        let mut fields = self.parent_header();
        fields["hash"] = self.block["parentHash"].clone();
        UpstreamBlock::from_json(&fields, self.state.clone()).with_receipts(Vec::new())
    }

    /// Returns the block on [`parent`](Self::parent). `after` is the state after it, by default the parent's.
    pub fn block(&self, after: Option<Arc<State>>) -> UpstreamBlock {
        let mut fields = self.block.clone();
        fields["transactions"] = json!(self.transactions());
        UpstreamBlock::from_json(&fields, after.unwrap_or_else(|| self.state.clone()))
    }

    /// Returns the same block on a parent whose hash is that of its header, for tests that check the hash. The block's
    /// own hash changes; its gas, receipts and bloom do not.
    pub fn on_hashed_parent(&self) -> Self {
        let mut header: Header = serde_json::from_value(self.parent_header()).expect("a header");
        header.transactions_root = alloy_consensus::EMPTY_ROOT_HASH;
        let mut own = self.header();
        own.parent_hash = header.hash_slow();
        let mut block = self.block.clone();
        block["parentHash"] = json!(own.parent_hash);
        block["hash"] = json!(own.hash_slow());
        Self { block, ..self.clone() }
    }

    fn parent_header(&self) -> Value {
        let mut fields = self.block.clone();
        let before = |field: &str| json!(format!("{:#x}", number(&self.block[field]) - 1));
        fields["number"] = before("number");
        fields["timestamp"] = before("timestamp");
        fields["parentHash"] = json!(B256::ZERO);
        fields["gasUsed"] = json!("0x0");
        fields["logsBloom"] = json!(alloy_primitives::Bloom::ZERO);
        fields["transactionsRoot"] = json!(alloy_consensus::EMPTY_ROOT_HASH);
        fields["receiptsRoot"] = json!(alloy_consensus::EMPTY_ROOT_HASH);
        fields["sha3Uncles"] = json!(EMPTY_OMMER_ROOT_HASH);
        fields
    }

    pub fn decoded(&self) -> Vec<OpTxEnvelope> {
        let decode = |raw: &Bytes| OpTxEnvelope::decode_2718_exact(raw).expect("a transaction of the OP stack");
        self.raw.iter().map(decode).collect()
    }

    fn transactions(&self) -> Vec<Transaction> {
        let header = self.header();
        let decoded = self.decoded();
        assert_eq!(
            calculate_transaction_root(&decoded),
            header.transactions_root,
            "the file's transactions are another block's"
        );
        let hash = serde_json::from_value(self.block["hash"].clone()).expect("a hash");
        let transaction = |(index, tx): (usize, OpTxEnvelope)| {
            let inner = TransactionInfo {
                hash: Some(keccak256(&self.raw[index])),
                index: Some(index as u64),
                block_hash: Some(hash),
                block_number: Some(header.number),
                block_timestamp: Some(header.timestamp),
                base_fee: header.base_fee_per_gas,
            };
            let recovered = tx.try_into_recovered().expect("a signature");
            Transaction::from_transaction(recovered, OpTransactionInfo::new(inner, Default::default()))
        };
        decoded.into_iter().enumerate().map(transaction).collect()
    }
}

/// Returns the value of a storage slot.
pub fn slot(state: &State, address: &Address, slot: B256) -> U256 {
    let account = state.get(address).and_then(|account| account.storage.as_ref());
    account.and_then(|storage| storage.get(&slot)).map_or(U256::ZERO, |value| (*value).into())
}
