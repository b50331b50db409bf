//! Blocks, transactions, receipts and logs, as execution-apis defines them.

use alloy_consensus::{Eip658Value, Header, Transaction, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::{Encodable2718, Typed2718, eip4844::DATA_GAS_PER_BLOB, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{Address, B256, Log, Sealed, TxKind, U256, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy::consensus::post_exec::TxPostExec;

use super::{Object, data, list, or_null, quantity_u256, value};
use crate::{
    chain::{ChainSpec, ChainTx, Fork, L1BlockInfo, L1Cost, SealedBlock},
    ledger::{Block, Included, SnapshotId},
    rpc::protocol::dialect::Dialect,
};

/// Writes a block. `full` shows its transactions in full instead of as hashes.
pub fn block(out: &mut Vec<u8>, block: &Block, full: bool, dialect: &Dialect) {
    let mut object = Object::new(out);
    block_fields(&mut object, block, full, dialect);
    object.end();
}

/// Writes a block in full with the id of the snapshot after its last transaction.
pub fn flashblock(out: &mut Vec<u8>, block: &Block, id: SnapshotId, dialect: &Dialect) {
    let mut object = Object::new(out);
    block_fields(&mut object, block, true, dialect);
    object.quantity("snapshotId", id.0);
    object.end();
}

fn block_fields(object: &mut Object<'_>, block: &Block, full: bool, dialect: &Dialect) {
    header_fields(object, block.header(), block.header().hash(), dialect.shows_early_fields);
    // As the Base chains have it from Denim on (<https://docs.base.org/base-chain/specs/upgrades/denim/200ms-blocks>).
    object.optional_quantity("timestampMs", block.timestamp_ms());
    object.quantity("size", block.size() as u64);
    list(object.key("transactions"), block.transactions(), |out, included| {
        if full {
            transaction(out, block, &included);
        } else {
            data(out, included.tx.tx_hash().as_slice());
        }
    });
    list(object.key("uncles"), block.ommers(), |out, ommer| data(out, ommer.hash_slow().as_slice()));
    if block.withdrawals().is_some() || dialect.shows_early_fields {
        value(object.key("withdrawals"), &block.withdrawals().unwrap_or_default());
    }
}

/// Writes a header alone, as a `newHeads` subscription sends it. `time` is the block's time in milliseconds, if the block
/// is known and tells it.
pub fn header(out: &mut Vec<u8>, header: &Sealed<Header>, time: Option<u64>, dialect: &Dialect) {
    let mut object = Object::new(out);
    header_fields(&mut object, header, header.hash(), dialect.shows_early_fields);
    object.optional_quantity("timestampMs", time);
    object.end();
}

/// Writes a header's fields in geth's order. Fields of inactive forks are written only with `early`, as empty values.
pub fn header_fields(object: &mut Object<'_>, header: &Header, hash: B256, early: bool) {
    let or_early = |value: Option<u64>| value.or_else(|| early.then_some(0));
    let root_or_early = |value: Option<B256>, empty: B256| value.or_else(|| early.then_some(empty));
    object
        .optional_quantity("baseFeePerGas", or_early(header.base_fee_per_gas))
        .optional_quantity("blobGasUsed", or_early(header.blob_gas_used))
        // Unlike the fields of earlier forks, this one and the slot are never written as empty values.
        .optional_hash("blockAccessListHash", header.block_access_list_hash)
        .u256("difficulty", header.difficulty)
        .optional_quantity("excessBlobGas", or_early(header.excess_blob_gas))
        .data("extraData", &header.extra_data)
        .quantity("gasLimit", header.gas_limit)
        .quantity("gasUsed", header.gas_used)
        .data("hash", hash.as_slice())
        .data("logsBloom", header.logs_bloom.as_slice())
        .data("miner", header.beneficiary.as_slice())
        .data("mixHash", header.mix_hash.as_slice())
        .data("nonce", header.nonce.as_slice())
        .quantity("number", header.number)
        .optional_hash("parentBeaconBlockRoot", root_or_early(header.parent_beacon_block_root, B256::ZERO))
        .data("parentHash", header.parent_hash.as_slice())
        .data("receiptsRoot", header.receipts_root.as_slice())
        .optional_hash("requestsHash", root_or_early(header.requests_hash, EMPTY_REQUESTS_HASH))
        .data("sha3Uncles", header.ommers_hash.as_slice())
        .optional_quantity("slotNumber", header.slot_number)
        .data("stateRoot", header.state_root.as_slice())
        .quantity("timestamp", header.timestamp)
        .data("transactionsRoot", header.transactions_root.as_slice())
        .optional_hash("withdrawalsRoot", root_or_early(header.withdrawals_root, EMPTY_ROOT_HASH));
}

/// The position of a transaction in the chain, and of its logs.
#[derive(Clone, Copy, Debug)]
pub struct TxPosition<'a> {
    /// The header of the block.
    pub header: &'a Header,
    /// The hash of the block.
    pub block_hash: B256,
    /// The hash of the transaction.
    pub tx_hash: B256,
    /// The index of the transaction in the block.
    pub tx_index: u64,
    /// The time of the block in milliseconds, if the block tells it.
    pub time: Option<u64>,
}

impl<'a> TxPosition<'a> {
    /// Returns the position of a transaction of `block`.
    pub fn of(block: &'a Block, included: &Included<'_>) -> Self {
        let header = block.header();
        Self {
            header,
            block_hash: header.hash(),
            tx_hash: *included.tx.tx_hash(),
            tx_index: included.index as u64,
            time: block.timestamp_ms(),
        }
    }

    /// Writes the position as fields of the transaction.
    pub fn write(&self, object: &mut Object<'_>) {
        object
            .data("blockHash", self.block_hash.as_slice())
            .quantity("blockNumber", self.header.number)
            .quantity("blockTimestamp", self.header.timestamp)
            .quantity("transactionIndex", self.tx_index)
            .optional_quantity("blockTimestampMs", self.time);
    }

    /// Returns the logs of a block whose transactions are not known, each with its position and its index in the block.
    pub fn of_logs_alone(block: &'a SealedBlock) -> impl Iterator<Item = (Self, u64, &'a Log)> {
        let header = block.header.inner();
        let transactions = block.logs_alone().unwrap_or_default().iter().enumerate();
        let positioned = transactions.flat_map(move |(tx_index, transaction)| {
            let position = move || Self {
                header,
                block_hash: block.hash(),
                tx_hash: transaction.hash,
                tx_index: tx_index as u64,
                time: None,
            };
            transaction.logs.iter().map(move |log| (position(), log))
        });
        positioned.enumerate().map(|(index, (position, log))| (position, index as u64, log))
    }
}

/// Writes the fields of a log that do not depend on its position.
pub fn log_data(object: &mut Object<'_>, log: &Log) {
    object.data("address", log.address.as_slice());
    list(object.key("topics"), log.topics(), |out, topic| data(out, topic.as_slice()));
    object.data("data", &log.data.data);
}

/// Writes a log. `index` is its index in the block.
pub fn log(out: &mut Vec<u8>, log: &Log, position: &TxPosition<'_>, index: u64, removed: bool) {
    let mut object = Object::new(out);
    log_data(&mut object, log);
    object
        .quantity("blockNumber", position.header.number)
        .data("transactionHash", position.tx_hash.as_slice())
        .quantity("transactionIndex", position.tx_index)
        .data("blockHash", position.block_hash.as_slice())
        .quantity("blockTimestamp", position.header.timestamp)
        .optional_quantity("blockTimestampMs", position.time)
        .quantity("logIndex", index);
    object.key("removed").extend_from_slice(if removed { b"true" } else { b"false" });
    object.end();
}

/// Writes a transaction with its position in `block`.
pub fn transaction(out: &mut Vec<u8>, block: &Block, included: &Included<'_>) {
    let mut object = Object::new(out);
    included_transaction(&mut object, block, included);
    object.end();
}

fn included_transaction(object: &mut Object<'_>, block: &Block, included: &Included<'_>) {
    TxPosition::of(block, included).write(object);
    let price = included.tx.effective_gas_price(block.header().base_fee_per_gas);
    let from = included.tx.signer();
    let deposit = match included.tx.inner() {
        ChainTx::Signed(tx) => return signed_transaction(object, tx, from, price),
        ChainTx::PostExec(tx) => return post_exec_transaction(object, tx),
        ChainTx::Deposit(deposit) => deposit,
    };
    // A deposit has no nonce of its own: its receipt records the nonce that it was given.
    let receipt = included.receipt.as_deposit();
    let nonce = receipt.and_then(|receipt| receipt.deposit_nonce).unwrap_or_default();
    transaction_fields(object, deposit.inner(), nonce, deposit.hash(), from, price);
    object.quantity("v", 0).quantity("r", 0).quantity("s", 0).data("sourceHash", deposit.source_hash.as_slice());
    if deposit.mint != 0 {
        object.u256("mint", U256::from(deposit.mint));
    }
    if deposit.is_system_transaction {
        object.key("isSystemTx").extend_from_slice(b"true");
    }
    object.optional_quantity("depositReceiptVersion", receipt.and_then(|receipt| receipt.deposit_receipt_version));
}

/// Writes a post-execution transaction, of which these fields are all that it has
/// (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md#generic-transaction-interface-representation>).
fn post_exec_transaction(object: &mut Object<'_>, tx: &Sealed<TxPostExec>) {
    object
        .quantity("type", u64::from(tx.ty()))
        .data("hash", tx.hash().as_slice())
        .data("from", tx.signer_address().as_slice())
        .quantity("gas", 0)
        .quantity("value", 0)
        .data("input", &tx.input);
}

/// Writes a transaction that is not in a block yet, or whose block is not told yet.
pub fn pooled_transaction(out: &mut Vec<u8>, tx: &Recovered<TxEnvelope>) {
    let mut object = Object::new(out);
    for key in ["blockHash", "blockNumber", "blockTimestamp", "transactionIndex"] {
        object.key(key).extend_from_slice(b"null");
    }
    // The price that it will pay is not known yet: like geth, this shows the maximum.
    signed_transaction(&mut object, tx, tx.signer(), tx.max_fee_per_gas());
    object.end();
}

fn signed_transaction(object: &mut Object<'_>, tx: &TxEnvelope, from: Address, price: u128) {
    transaction_fields(object, tx, tx.nonce(), *tx.tx_hash(), from, price);
    seal_fields(object, tx);
}

/// Writes the signature of a transaction.
pub fn seal_fields(object: &mut Object<'_>, tx: &TxEnvelope) {
    let signature = tx.signature();
    let parity = u64::from(signature.v());
    let (v, y_parity) = match tx {
        // `v` follows EIP-155 if the transaction names its chain, else it is 27 or 28.
        TxEnvelope::Legacy(tx) => {
            let base = tx.tx().chain_id.map_or(27, |id| id.saturating_mul(2).saturating_add(35));
            (base.saturating_add(parity), None)
        }
        _ => (parity, Some(parity)),
    };
    object.quantity("v", v).u256("r", signature.r()).u256("s", signature.s()).optional_quantity("yParity", y_parity);
}

/// Writes the fields of a transaction that do not depend on its position or signature. `price` is in wei per gas.
pub fn transaction_fields<T: Transaction + Typed2718>(
    object: &mut Object<'_>,
    tx: &T,
    nonce: u64,
    hash: B256,
    from: Address,
    price: u128,
) {
    object.data("from", from.as_slice()).quantity("gas", tx.gas_limit()).u256("gasPrice", U256::from(price));
    if tx.is_dynamic_fee() {
        let priority = tx.max_priority_fee_per_gas().unwrap_or_default();
        object.u256("maxFeePerGas", U256::from(tx.max_fee_per_gas()));
        object.u256("maxPriorityFeePerGas", U256::from(priority));
    }
    object.optional_u256("maxFeePerBlobGas", tx.max_fee_per_blob_gas().map(U256::from));
    object.data("hash", hash.as_slice()).data("input", tx.input()).quantity("nonce", nonce);
    object.address_or_null("to", tx.to()).u256("value", tx.value()).quantity("type", u64::from(tx.ty()));
    if let Some(access_list) = tx.access_list() {
        value(object.key("accessList"), access_list);
    }
    object.optional_quantity("chainId", tx.chain_id().filter(|id| *id != 0 || tx.access_list().is_some()));
    if let Some(hashes) = tx.blob_versioned_hashes() {
        list(object.key("blobVersionedHashes"), hashes, |out, hash| data(out, hash.as_slice()));
    }
    if let Some(authorizations) = tx.authorization_list() {
        value(object.key("authorizationList"), &authorizations);
    }
}

/// Writes a transaction that is filled in or signed, with its encoding `raw`, as geth does. `signed` is the transaction with its
/// signature; without one, the signature is zeros.
pub fn prepared_transaction<T: Transaction + Typed2718>(
    out: &mut Vec<u8>,
    raw: &[u8],
    tx: &T,
    signed: Option<&TxEnvelope>,
    dialect: &Dialect,
) {
    let mut answer = Object::new(out);
    answer.data("raw", raw);
    let mut object = Object::new(answer.key("tx"));
    object.quantity("type", u64::from(tx.ty()));
    object.optional_quantity("chainId", tx.chain_id().filter(|id| *id != 0));
    object.quantity("nonce", tx.nonce()).address_or_null("to", tx.to()).quantity("gas", tx.gas_limit());
    let mut fee = |key, value: Option<u128>| or_null(object.key(key), value.map(U256::from), quantity_u256);
    fee("gasPrice", tx.gas_price().or_else(|| dialect.for_tests.then(|| tx.max_fee_per_gas())));
    fee("maxPriorityFeePerGas", tx.max_priority_fee_per_gas());
    fee("maxFeePerGas", tx.is_dynamic_fee().then(|| tx.max_fee_per_gas()));
    object.u256("value", tx.value()).data("input", tx.input());
    if let Some(access_list) = tx.access_list() {
        value(object.key("accessList"), access_list);
    }
    if let Some(authorizations) = tx.authorization_list() {
        value(object.key("authorizationList"), &authorizations);
    }
    match signed {
        Some(signed) => seal_fields(&mut object, signed),
        None => {
            object.quantity("v", 0).quantity("r", 0).quantity("s", 0);
            object.optional_quantity("yParity", (tx.ty() != 0).then_some(0));
        }
    }
    object.data("hash", keccak256(raw).as_slice());
    object.end();
    answer.end();
}

/// Writes a receipt. `spec` is the chain that the block is on.
pub fn receipt(out: &mut Vec<u8>, block: &Block, included: &Included<'_>, spec: &ChainSpec) {
    let (header, tx) = (block.header(), included.tx);
    let blobs = spec.blob_params(header.timestamp);
    let mut object = Object::new(out);
    if let Some(hashes) = tx.blob_versioned_hashes() {
        object.quantity("blobGasUsed", DATA_GAS_PER_BLOB * hashes.len() as u64);
        object.optional_u256("blobGasPrice", blobs.and_then(|blobs| header.blob_fee(blobs)).map(U256::from));
    }
    object.data("blockHash", header.hash().as_slice()).quantity("blockNumber", header.number);
    outcome(&mut object, block, included);
    let price = tx.effective_gas_price(header.base_fee_per_gas);
    object.u256("effectiveGasPrice", U256::from(price)).data("from", tx.signer().as_slice());
    let is_post_exec = tx.as_post_exec().is_some();
    if !is_post_exec {
        object.address_or_null("to", tx.to());
    }
    object
        .data("transactionHash", tx.tx_hash().as_slice())
        .quantity("transactionIndex", included.index as u64)
        .quantity("type", u64::from(tx.ty()));
    if let Some(deposit) = included.receipt.as_deposit() {
        object.optional_quantity("depositNonce", deposit.deposit_nonce);
        object.optional_quantity("depositReceiptVersion", deposit.deposit_receipt_version);
    } else if is_post_exec {
        // The post-execution transaction has no DA footprint.
        object.quantity("blobGasUsed", 0);
    } else if let Fork::OpStack(fork) = spec.fork(header)
        && let Some(info) = block.transaction(0).and_then(|first| L1BlockInfo::of_call(first.tx.input(), fork))
    {
        l1_cost(&mut object, &info.cost(&tx.encoded_2718()));
    }
    object.optional_quantity("opGasRefund", Some(included.refund).filter(|refund| *refund > 0));
    object.end();
}

/// Writes the fields of the L1 cost, as op-geth names them.
fn l1_cost(object: &mut Object<'_>, cost: &L1Cost) {
    object.u256("l1GasPrice", cost.gas_price).u256("l1GasUsed", cost.gas_used).u256("l1Fee", cost.fee);
    if let Some(scalar) = cost.fee_scalar {
        value(object.key("l1FeeScalar"), &scalar.to_string());
    }
    object
        .optional_quantity("l1BaseFeeScalar", cost.base_fee_scalar)
        .optional_u256("l1BlobBaseFee", cost.blob_base_fee)
        .optional_quantity("l1BlobBaseFeeScalar", cost.blob_base_fee_scalar);
    if let Some((scalar, constant)) = cost.operator_fee {
        object.quantity("operatorFeeScalar", scalar).quantity("operatorFeeConstant", constant);
    }
    if let Some((scalar, footprint)) = cost.da_footprint {
        object.quantity("daFootprintGasScalar", u64::from(scalar)).quantity("blobGasUsed", footprint);
    }
}

/// Writes a transaction and its outcome in one object, as the Flashblocks networks send pre-confirmations.
pub fn transaction_with_receipt(out: &mut Vec<u8>, block: &Block, included: &Included<'_>) {
    let mut object = Object::new(out);
    included_transaction(&mut object, block, included);
    outcome(&mut object, block, included);
    object.end();
}

/// Writes the fields of a receipt that the transaction itself does not have.
fn outcome(object: &mut Object<'_>, block: &Block, included: &Included<'_>) {
    let (tx, receipt) = (included.tx, included.receipt);
    let nonce = receipt.as_deposit().map_or(tx.nonce(), |deposit| deposit.deposit_nonce.unwrap_or_default());
    let created = matches!(tx.kind(), TxKind::Create).then(|| tx.signer().create(nonce));
    if tx.as_post_exec().is_none() {
        object.address_or_null("contractAddress", created);
    }
    object.quantity("cumulativeGasUsed", receipt.cumulative_gas_used()).quantity("gasUsed", included.gas_used);
    let position = TxPosition::of(block, included);
    list(object.key("logs"), receipt.logs().iter().enumerate(), |out, (index, one)| {
        log(out, one, &position, included.first_log + index as u64, false);
    });
    object.data("logsBloom", receipt.bloom().as_slice());
    // Before Byzantium, a receipt has the state root after the transaction instead of a status (EIP-658).
    match receipt.status_or_post_state() {
        Eip658Value::PostState(root) => object.data("root", root.as_slice()),
        Eip658Value::Eip658(success) => object.quantity("status", u64::from(success)),
    };
}
