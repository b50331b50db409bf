//! Reads the transactions of an upstream's block, and names the field that cannot be read.

use alloy_consensus::{
    TxEnvelope,
    constants::{EIP4844_TX_TYPE_ID, EIP7702_TX_TYPE_ID},
};
use alloy_eips::{eip2930::AccessList, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, TxKind, U8, U64, U128, U256};
use alloy_rpc_types_eth::Transaction;
use op_alloy::consensus::{
    DEPOSIT_TX_TYPE_ID, TxDeposit,
    post_exec::{POST_EXEC_TX_TYPE_ID, PostExecPayload, TxPostExec},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::block_error::BlockError;
use crate::chain::{ChainTx, Family};

/// The transactions of a block, if presim does not know the type or the payload of one.
#[derive(Clone, Debug)]
pub struct ForeignTransactions {
    /// The hashes of all transactions, in order.
    pub hashes: Vec<B256>,
    /// The index of the first unknown transaction.
    pub index: usize,
    /// The type of that transaction (EIP-2718).
    pub kind: u8,
}

/// Reads the transaction that is at `index` in its block.
///
/// # Errors
///
/// Returns [`BlockError::Field`] with the field that is malformed, or [`BlockError::Hashes`] for a hash.
pub fn read(json: &RawValue, index: usize, family: Family) -> Result<ChainTx, BlockError> {
    let text = json.get();
    if text.starts_with('"') {
        return Err(BlockError::Hashes);
    }
    let at = format!("transactions[{index}].");
    match family {
        Family::Ethereum => {
            let tx: Transaction<TxEnvelope> = signed(text, &at)?;
            Ok(tx.inner.into_inner().into())
        }
        Family::OpStack => {
            let WireKind { kind } = parse(text, &at)?;
            if kind.is_some_and(|kind| kind == U8::from(DEPOSIT_TX_TYPE_ID)) {
                let deposit: WireDeposit = parse(text, &at)?;
                return Ok(TxDeposit::from(deposit).into());
            }
            if kind.is_some_and(|kind| kind == U8::from(POST_EXEC_TX_TYPE_ID)) {
                return Ok(post_exec(text, &at)?.into());
            }
            let tx: op_alloy::rpc_types::Transaction = signed(text, &at)?;
            Ok(tx.inner.inner.into_inner().into())
        }
    }
}

/// Reads a post-execution transaction. Its input is its payload.
fn post_exec(text: &str, at: &str) -> Result<TxPostExec, BlockError> {
    let WireInput { input } = parse(text, at)?;
    let field = || format!("{at}input");
    let payload = PostExecPayload::from_rlp_bytes(&input);
    payload.map(TxPostExec::new).map_err(|error| BlockError::Field { field: field(), problem: error.to_string() })
}

/// Reads the hashes of a block's transactions if presim does not know the type or the payload of one. `None` if all are
/// known, so that the transactions have another problem.
pub fn foreign(transactions: &[&RawValue], family: Family) -> Option<ForeignTransactions> {
    let named: Vec<WireName> =
        transactions.iter().map(|json| serde_json::from_str(json.get()).ok()).collect::<Option<_>>()?;
    let is_known = |(json, tx): (&&RawValue, &WireName)| match (family, tx.kind.to::<u8>()) {
        (Family::OpStack, DEPOSIT_TX_TYPE_ID) => true,
        (Family::OpStack, POST_EXEC_TX_TYPE_ID) => post_exec(json.get(), "").is_ok(),
        (Family::OpStack, EIP4844_TX_TYPE_ID) => false,
        (_, kind) => kind <= EIP7702_TX_TYPE_ID,
    };
    let index = transactions.iter().zip(&named).position(|one| !is_known(one))?;
    let kind = named.get(index)?.kind.to();
    Some(ForeignTransactions { hashes: named.iter().map(|tx| tx.hash).collect(), index, kind })
}

/// Parses an object of a block.
///
/// # Errors
///
/// Returns [`BlockError::Field`] with the path of the malformed field: `at`, followed by its path in the object.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a str, at: &str) -> Result<T, BlockError> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = match error.path().to_string() {
            path if path == "." => at.trim_end_matches('.').to_owned(),
            path => format!("{at}{path}"),
        };
        BlockError::Field { field, problem: error.into_inner().to_string() }
    })
}

/// Parses a signed transaction. Its type reads the fields through a buffer that loses their positions, so after a
/// failure each field is read once more individually.
fn signed<T: DeserializeOwned>(text: &str, at: &str) -> Result<T, BlockError> {
    parse(text, at).map_err(|error| parse::<WireFields>(text, at).err().unwrap_or(error))
}

#[derive(Deserialize)]
struct WireKind {
    #[serde(rename = "type")]
    kind: Option<U8>,
}

#[derive(Deserialize)]
struct WireInput {
    input: Bytes,
}

/// The fields of a transaction that every type has.
#[derive(Deserialize)]
struct WireName {
    hash: B256,
    #[serde(default, rename = "type")]
    kind: U8,
}

/// A deposit as nodes write it. op-geth has `isSystemTx: false` and `mint: null` where op-reth leaves the fields out
/// (<https://specs.optimism.io/protocol/deposits.html#the-deposited-transaction-type>).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireDeposit {
    source_hash: B256,
    from: Address,
    to: Option<Address>,
    mint: Option<U128>,
    value: U256,
    gas: U64,
    is_system_tx: Option<WireFlag>,
    input: Bytes,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a boolean, 0x0 or 0x1")]
enum WireFlag {
    Boolean(bool),
    Quantity(Bit),
}

#[derive(Clone, Copy, Deserialize)]
enum Bit {
    #[serde(rename = "0x0")]
    Zero,
    #[serde(rename = "0x1")]
    One,
}

impl From<WireDeposit> for TxDeposit {
    fn from(wire: WireDeposit) -> Self {
        Self {
            source_hash: wire.source_hash,
            from: wire.from,
            to: wire.to.map_or(TxKind::Create, TxKind::Call),
            mint: wire.mint.unwrap_or_default().to(),
            value: wire.value,
            gas_limit: wire.gas.to(),
            is_system_transaction: match wire.is_system_tx {
                None | Some(WireFlag::Quantity(Bit::Zero)) => false,
                Some(WireFlag::Quantity(Bit::One)) => true,
                Some(WireFlag::Boolean(is_system)) => is_system,
            },
            input: wire.input,
        }
    }
}

/// The fields of a signed transaction, any of which may be missing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only whether the fields can be read is of interest")]
struct WireFields {
    #[serde(rename = "type")]
    kind: Option<U8>,
    chain_id: Option<U64>,
    nonce: Option<U64>,
    gas: Option<U64>,
    gas_price: Option<U128>,
    max_fee_per_gas: Option<U128>,
    max_priority_fee_per_gas: Option<U128>,
    max_fee_per_blob_gas: Option<U128>,
    from: Option<Address>,
    to: Option<Address>,
    value: Option<U256>,
    input: Option<Bytes>,
    access_list: Option<AccessList>,
    blob_versioned_hashes: Option<Vec<B256>>,
    authorization_list: Option<Vec<SignedAuthorization>>,
    hash: Option<B256>,
    v: Option<U64>,
    y_parity: Option<U64>,
    r: Option<U256>,
    s: Option<U256>,
    block_hash: Option<B256>,
    block_number: Option<U64>,
    block_timestamp: Option<U64>,
    transaction_index: Option<U64>,
    deposit_receipt_version: Option<U64>,
}

#[cfg(test)]
mod tests {
    use super::super::UpstreamBlock;
    use super::*;
    use serde_json::{Value, json};

    /// The deposit of a block's L1 attributes, as both nodes write it.
    fn deposit() -> Value {
        json!({
            "blockHash": format!("0x{:064x}", 1), "blockNumber": "0x1", "transactionIndex": "0x0",
            "from": "0xdeaddeaddeaddeaddeaddeaddeaddeaddead0001", "to": "0x4200000000000000000000000000000000000015",
            "hash": format!("0x{:064x}", 2), "sourceHash": format!("0x{:064x}", 3), "type": "0x7e", "input": "0x440a5e20",
            "gas": "0xf4240", "gasPrice": "0x0", "value": "0x0", "nonce": "0x5", "v": "0x0", "r": "0x0", "s": "0x0",
            "depositReceiptVersion": "0x1",
        })
    }

    fn block(transactions: &Value) -> Value {
        let mut block = serde_json::to_value(alloy_consensus::Header::default()).unwrap();
        for (field, value) in [
            ("hash", json!(format!("0x{:064x}", 1))),
            ("uncles", json!([])),
            ("size", json!("0x1")),
            ("transactions", transactions.clone()),
        ] {
            block[field] = value;
        }
        block
    }

    fn read(block: &Value) -> Result<UpstreamBlock, String> {
        let text = block.to_string();
        let read = UpstreamBlock::read(&text, Family::OpStack, |_, _| None);
        futures::executor::block_on(read).map_err(|error| error.to_string())
    }

    #[test]
    fn the_deposits_of_all_nodes_are_read() {
        let cases = [
            // op-geth, before and after Regolith.
            (json!({"mint": null, "isSystemTx": true}), 0, true),
            (json!({"mint": null, "isSystemTx": false}), 0, false),
            (
                json!({"mint": "0xde0b6b3a7640000", "isSystemTx": false, "yParity": "0x0"}),
                1_000_000_000_000_000_000,
                false,
            ),
            // op-reth.
            (json!({"mint": "0x0", "yParity": "0x0", "effectiveGasPrice": "0x0"}), 0, false),
            (json!({"mint": "0x1", "isSystemTx": "0x1"}), 1, true),
            (json!({"isSystemTx": null, "depositReceiptVersion": null, "to": null}), 0, false),
            (json!({}), 0, false),
        ];
        for (fields, mint, is_system) in cases {
            let mut tx = deposit();
            fields.as_object().unwrap().iter().for_each(|(name, value)| tx[name] = value.clone());
            let block = read(&block(&json!([tx]))).unwrap_or_else(|error| panic!("{fields}: {error}"));
            let deposit = block.transactions[0].as_deposit().expect("a deposit");
            assert_eq!((deposit.mint, deposit.is_system_transaction), (mint, is_system), "{fields}");
            assert_eq!(deposit.to.is_create(), tx["to"].is_null(), "{fields}");
            assert_eq!(deposit.gas_limit, 1_000_000);
            assert_eq!(block.transactions[0].signer(), deposit.from);
        }
    }

    #[test]
    fn the_field_that_cannot_be_read_is_named() {
        let transfer = json!({
            "type": "0x2", "chainId": "0xa", "nonce": "0x0", "gas": "0x5208", "maxFeePerGas": "0x1",
            "maxPriorityFeePerGas": "0x1", "gasPrice": "0x1", "to": format!("0x{:040x}", 1), "value": "0x0", "input": "0x",
            "accessList": [], "r": "0x1", "s": "0x1", "yParity": "0x0", "v": "0x0", "hash": format!("0x{:064x}", 2),
            "from": format!("0x{:040x}", 2),
        });
        let cases = [
            ("gasUsed", json!("lots"), "gasUsed: "),
            ("transactions", json!({}), "transactions: "),
            ("transactions/0/mint", json!("much"), "transactions[0].mint: "),
            ("transactions/0/isSystemTx", json!("0x2"), "transactions[0].isSystemTx: expected a boolean, 0x0 or 0x1"),
            ("transactions/0/type", json!("0xzz"), "transactions[0].type: "),
            ("transactions/1/value", json!("0xzz"), "transactions[1].value: "),
            ("transactions/1/accessList", json!([{"address": "0x"}]), "transactions[1].accessList[0].address: "),
            ("transactions/1", json!(format!("0x{:064x}", 2)), "transactions: expected whole transactions, got hashes"),
            ("withdrawals", json!([{"index": "0x0"}]), "withdrawals[0]: missing field"),
            ("hash", json!(null), "hash: "),
        ];
        for (path, value, expected) in cases {
            let mut block = block(&json!([deposit(), transfer]));
            let (parents, name) =
                path.rsplit_once('/').map_or((String::new(), path), |(parents, name)| (format!("/{parents}"), name));
            let parent = block.pointer_mut(&parents).unwrap();
            match name.parse::<usize>() {
                Ok(index) => parent[index] = value,
                Err(_) => parent[name] = value,
            }
            let error = read(&block).expect_err(path);
            assert!(error.starts_with(expected), "{path}: {error}");
        }
        let mut lacking = transfer;
        lacking.as_object_mut().unwrap().remove("gas");
        let error = read(&block(&json!([lacking]))).expect_err("no gas");
        assert!(error.starts_with("transactions[0]: missing field `gas`"), "{error}");
    }
}
