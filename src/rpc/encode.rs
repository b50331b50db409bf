//! Results straight to JSON bytes: no tree in between, no allocation a field.

use alloy_consensus::{EthereumTypedTransaction, Header, Transaction, Typed2718};
use alloy_primitives::{B256, Log, TxKind, U256, b256};
use alloy_trie::EMPTY_ROOT_HASH;

use super::{dialect::Dialect, error::RpcError};
use crate::engine::{CallOutcome, CallResult, SimulatedBlock, SimulatedTx};

/// The hash of no requests (EIP-7685): SHA-256 of nothing.
const EMPTY_REQUESTS: B256 = b256!("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A JSON string.
pub fn string(out: &mut Vec<u8>, text: &str) {
    // Writing to memory fails for no string.
    let _ = serde_json::to_writer(out, text);
}

/// Bytes as hex data.
pub fn data(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\"0x");
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    // The room is exactly right, so this cannot fail.
    let _ = const_hex::encode_to_slice(bytes, &mut out[start..]);
    out.push(b'"');
}

/// A number as a quantity.
pub fn quantity(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(b"\"0x");
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        // Four bits are an index below sixteen.
        out.push(DIGITS[((value >> (4 * digit)) & 15) as usize]);
    }
    out.push(b'"');
}

/// A large number as a quantity.
pub fn quantity_u256(out: &mut Vec<u8>, value: U256) {
    match u64::try_from(value) {
        Ok(value) => quantity(out, value),
        Err(_) => {
            use std::io::Write;
            let _ = write!(out, "\"{value:#x}\"");
        }
    }
}

/// An object under construction: keys are given with their quotes and colon.
struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    fn data(&mut self, key: &str, bytes: &[u8]) -> &mut Self {
        data(self.key(key), bytes);
        self
    }

    fn quantity(&mut self, key: &str, value: u64) -> &mut Self {
        quantity(self.key(key), value);
        self
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// The result of `eth_simulateV1`. `limit` is how long it may become.
pub fn simulation(
    out: &mut Vec<u8>,
    blocks: &[SimulatedBlock],
    dialect: &Dialect,
    full_transactions: bool,
    limit: usize,
) -> Result<(), RpcError> {
    out.push(b'[');
    let mut first = true;
    for block in blocks.iter().filter(|block| dialect.shows_fillers || !block.filler) {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        simulated_block(out, block, dialect, full_transactions);
        if out.len() > limit {
            return Err(too_long(limit));
        }
    }
    out.push(b']');
    Ok(())
}

/// The error of an answer that is longer than `limit` bytes.
pub fn too_long(limit: usize) -> RpcError {
    RpcError::limit(format!("the answer is longer than {limit} bytes: ask for less at once"))
}

fn simulated_block(out: &mut Vec<u8>, block: &SimulatedBlock, dialect: &Dialect, full_transactions: bool) {
    let header = block.header.inner();
    let hash = block.header.hash();
    let mut object = Object::new(out);
    header_fields(&mut object, header, hash, dialect.shows_early_fields);
    object.quantity("size", block.size as u64);
    list(object.key("transactions"), block.transactions.iter().enumerate(), |out, (index, tx)| {
        if full_transactions {
            transaction(out, tx, index as u64, header, hash);
        } else {
            data(out, tx.tx.hash.as_slice());
        }
    });
    object.key("uncles").extend_from_slice(b"[]");
    if block.withdrawals.is_some() || dialect.shows_early_fields {
        list(object.key("withdrawals"), block.withdrawals.iter().flat_map(|list| list.iter()), |out, withdrawal| {
            // Four plain fields: serialising them cannot fail.
            let _ = serde_json::to_writer(out, withdrawal);
        });
    }
    let mut log_index = 0;
    list(object.key("calls"), block.calls.iter().enumerate(), |out, (index, call)| {
        let place =
            LogPlace { header, block_hash: hash, tx_hash: block.transactions[index].tx.hash, tx_index: index as u64 };
        call_result(out, call, &place, &mut log_index, dialect);
    });
    object.end();
}

/// The fields of a header, sorted as geth sorts them; those whose fork is not active only with `early`, empty.
fn header_fields(object: &mut Object<'_>, header: &Header, hash: B256, early: bool) {
    let or_early = |value: Option<u64>| value.or_else(|| early.then_some(0));
    let root_or_early = |value: Option<B256>, empty: B256| value.or_else(|| early.then_some(empty));
    if let Some(fee) = or_early(header.base_fee_per_gas) {
        object.quantity("baseFeePerGas", fee);
    }
    if let Some(gas) = or_early(header.blob_gas_used) {
        object.quantity("blobGasUsed", gas);
    }
    quantity_u256(object.key("difficulty"), header.difficulty);
    if let Some(gas) = or_early(header.excess_blob_gas) {
        object.quantity("excessBlobGas", gas);
    }
    object
        .data("extraData", &header.extra_data)
        .quantity("gasLimit", header.gas_limit)
        .quantity("gasUsed", header.gas_used)
        .data("hash", hash.as_slice())
        .data("logsBloom", header.logs_bloom.as_slice())
        .data("miner", header.beneficiary.as_slice())
        .data("mixHash", header.mix_hash.as_slice())
        .data("nonce", header.nonce.as_slice())
        .quantity("number", header.number);
    if let Some(root) = root_or_early(header.parent_beacon_block_root, B256::ZERO) {
        object.data("parentBeaconBlockRoot", root.as_slice());
    }
    object.data("parentHash", header.parent_hash.as_slice()).data("receiptsRoot", header.receipts_root.as_slice());
    if let Some(hash) = root_or_early(header.requests_hash, EMPTY_REQUESTS) {
        object.data("requestsHash", hash.as_slice());
    }
    object
        .data("sha3Uncles", header.ommers_hash.as_slice())
        .data("stateRoot", header.state_root.as_slice())
        .quantity("timestamp", header.timestamp)
        .data("transactionsRoot", header.transactions_root.as_slice());
    if let Some(root) = root_or_early(header.withdrawals_root, EMPTY_ROOT_HASH) {
        object.data("withdrawalsRoot", root.as_slice());
    }
}

/// Where a call's logs are.
struct LogPlace<'a> {
    header: &'a Header,
    block_hash: B256,
    tx_hash: B256,
    tx_index: u64,
}

fn call_result(out: &mut Vec<u8>, call: &CallResult, place: &LogPlace<'_>, log_index: &mut u64, dialect: &Dialect) {
    let mut object = Object::new(out);
    let shows_data = call.outcome == CallOutcome::Success || dialect.shows_revert_data;
    object.data("returnData", if shows_data { &call.return_data } else { &[] });
    list(object.key("logs"), &call.logs, |out, one| {
        let index = if dialect.counts_reverted_logs { one.number } else { *log_index };
        log(out, &one.log, place, index);
        *log_index += 1;
    });
    object
        .quantity("gasUsed", call.gas_used)
        .quantity("maxUsedGas", call.max_used_gas)
        .quantity("status", u64::from(call.outcome == CallOutcome::Success));
    if call.outcome != CallOutcome::Success {
        (dialect.call_error)(object.key("error"), &call.outcome, &call.return_data);
    }
    object.end();
}

fn log(out: &mut Vec<u8>, log: &Log, place: &LogPlace<'_>, index: u64) {
    let mut object = Object::new(out);
    object.data("address", log.address.as_slice());
    list(object.key("topics"), log.topics(), |out, topic| data(out, topic.as_slice()));
    object
        .data("data", &log.data.data)
        .quantity("blockNumber", place.header.number)
        .data("transactionHash", place.tx_hash.as_slice())
        .quantity("transactionIndex", place.tx_index)
        .data("blockHash", place.block_hash.as_slice())
        .quantity("blockTimestamp", place.header.timestamp)
        .quantity("logIndex", index);
    object.key("removed").extend_from_slice(b"false");
    object.end();
}

/// A simulated transaction in full, as geth shows it: its signature is zeros.
fn transaction(out: &mut Vec<u8>, tx: &SimulatedTx, index: u64, header: &Header, block_hash: B256) {
    let inner = &tx.tx.tx;
    let mut object = Object::new(out);
    object
        .data("blockHash", block_hash.as_slice())
        .quantity("blockNumber", header.number)
        .quantity("blockTimestamp", header.timestamp)
        .data("from", tx.from.as_slice())
        .quantity("gas", inner.gas_limit());
    quantity_u256(object.key("gasPrice"), U256::from(inner.effective_gas_price(header.base_fee_per_gas)));
    if !inner.is_legacy() {
        quantity_u256(object.key("maxFeePerGas"), U256::from(inner.max_fee_per_gas()));
        quantity_u256(
            object.key("maxPriorityFeePerGas"),
            U256::from(inner.max_priority_fee_per_gas().unwrap_or_default()),
        );
    }
    if let Some(fee) = inner.max_fee_per_blob_gas() {
        quantity_u256(object.key("maxFeePerBlobGas"), U256::from(fee));
    }
    object.data("hash", tx.tx.hash.as_slice()).data("input", inner.input()).quantity("nonce", inner.nonce());
    match inner.kind() {
        TxKind::Call(to) => {
            object.data("to", to.as_slice());
        }
        TxKind::Create => object.key("to").extend_from_slice(b"null"),
    }
    object.quantity("transactionIndex", index);
    quantity_u256(object.key("value"), inner.value());
    object.quantity("type", u64::from(u8::from(inner.tx_type())));
    if let Some(access_list) = inner.access_list() {
        // Addresses and words: serialising them cannot fail.
        let _ = serde_json::to_writer(object.key("accessList"), access_list);
        quantity_u256(object.key("chainId"), U256::from(inner.chain_id().unwrap_or_default()));
    }
    if let Some(hashes) = inner.blob_versioned_hashes() {
        list(object.key("blobVersionedHashes"), hashes, |out, hash| data(out, hash.as_slice()));
    }
    if let EthereumTypedTransaction::Eip7702(tx) = inner {
        let _ = serde_json::to_writer(object.key("authorizationList"), &tx.authorization_list);
    }
    object.quantity("v", 0).quantity("r", 0).quantity("s", 0);
    if !inner.is_legacy() {
        object.quantity("yParity", 0);
    }
    object.end();
}
