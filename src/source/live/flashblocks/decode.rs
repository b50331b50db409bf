//! Decoding the messages of the stream: JSON as text or binary, or compressed with brotli.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Receipt, transaction::Recovered};
use alloy_eips::{Decodable2718, eip4895::Withdrawal};
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, Sealable, Sealed, U256};
use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use op_alloy::{
    consensus::{OpDepositReceipt, OpReceipt, post_exec::TxPostExec},
    rpc_types_engine::{OpFlashblockPayload, OpFlashblockPayloadBase, OpFlashblockPayloadDelta},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::value::RawValue;

use crate::{chain::ChainTx, upstream::recover};

/// One sub-block: [`OpFlashblockPayload`] with optional metadata, because its fields vary between builders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flashblock {
    /// The id of the block being built, the same in all of its sub-blocks.
    pub payload_id: PayloadId,
    /// The sub-block's index in the block, from 0.
    pub index: u64,
    /// The fields that are the same in the whole block. Present at index 0.
    pub base: Option<OpFlashblockPayloadBase>,
    /// The added transactions, and gas, roots and bloom of the block so far. A root that the builder leaves out is zero.
    pub diff: OpFlashblockPayloadDelta,
    /// The transactions of `diff` with their senders, or the first that cannot be read.
    pub transactions: Result<Arc<[Recovered<ChainTx>]>, UnreadTx>,
    /// The post-execution transaction of the block so far, with the refunds of its transactions (`diff.post_exec_tx`).
    /// `None` if the block has no refunds so far.
    pub post_exec: Result<Option<Sealed<TxPostExec>>, UnreadPostExec>,
    /// The builder's metadata.
    pub metadata: Metadata,
    /// The length of the JSON in bytes.
    pub size: usize,
}

/// An unreadable transaction of a sub-block. Neither it nor later transactions of the block can be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("diff.transactions[{index}]: {problem}")]
pub struct UnreadTx {
    /// The transaction's index in the sub-block, from 0.
    pub index: usize,
    /// The problem of the transaction.
    pub problem: String,
}

/// A post-execution transaction of a sub-block that cannot be read, or whose payload presim does not know. The block
/// cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("diff.post_exec_tx: {0}")]
pub struct UnreadPostExec(pub String);

/// The id that an execution engine gives to a block it builds.
pub type PayloadId = B64;

/// A builder's metadata of a sub-block. Every field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The block's number.
    pub block_number: Option<u64>,
    /// Balances in wei of changed accounts, after the sub-block.
    pub new_account_balances: Option<BTreeMap<Address, U256>>,
    /// The receipts of the transactions, by transaction hash.
    pub receipts: Option<BTreeMap<B256, OpReceipt>>,
    /// Fields in a spelling that is not known, each with the problem. They count as absent.
    pub unread: Vec<String>,
}

/// The reason why a message is not a sub-block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is neither JSON nor brotli.
    #[error("binary message of {len} bytes: neither JSON nor a brotli stream")]
    Compression { len: usize },
    /// The brotli stream ends too early.
    #[error("binary message of {len} bytes: the brotli stream ends too early")]
    Truncated { len: usize },
    /// The decompressed message exceeds the limit.
    #[error("the message has more than {limit} bytes of JSON")]
    TooLarge { limit: usize },
    /// The message says that all sub-blocks of a block were sent.
    #[error("the message ends the block {payload_id}")]
    End { payload_id: PayloadId },
    /// The JSON is not a sub-block.
    #[error("{field}: {problem}")]
    Field { field: String, problem: String },
}

impl Flashblock {
    /// Returns the number of the sub-block's block, if the message holds it.
    pub fn block_number(&self) -> Option<u64> {
        self.base.as_ref().map(|base| base.block_number).or(self.metadata.block_number)
    }

    /// Decodes a text message of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// Returns a [`DecodeError`] with the field if the message is not a sub-block.
    pub fn from_text(text: &[u8], limit: usize) -> Result<Self, DecodeError> {
        if text.len() > limit {
            return Err(DecodeError::TooLarge { limit });
        }
        let wire: Wire<'_> = parse(text, "")?;
        let base: Option<OpFlashblockPayloadBase> =
            wire.base.map(|raw| parse(raw.get().as_bytes(), "base")).transpose()?;
        if wire.diff.is_none() && wire.end.is_some() {
            return Err(DecodeError::End { payload_id: wire.payload_id });
        }
        let missing = |name: &str| field("message", format!("missing field `{name}`"));
        let JsonNumber(index) = wire.index.ok_or_else(|| missing("index"))?;
        let diff = wire.diff.ok_or_else(|| missing("diff"))?;
        let mut diff = parse::<WireDiff>(diff.get().as_bytes(), "diff")?;
        let post_exec = read_post_exec(diff.post_exec_tx.take());
        let diff = OpFlashblockPayloadDelta::from(diff);
        let metadata = wire.metadata.map(Metadata::read).unwrap_or_default();
        if index == 0 && base.is_none() {
            return Err(field("base", "missing: index 0 has it"));
        }
        if let (Some(base), Some(number)) = (&base, metadata.block_number)
            && base.block_number != number
        {
            let problem = format!("{number}, and base.block_number is {}", base.block_number);
            return Err(field("metadata.block_number", problem));
        }
        let transactions = read_transactions(&diff.transactions);
        let payload_id = wire.payload_id;
        Ok(Self { payload_id, index, base, diff, transactions, post_exec, metadata, size: text.len() })
    }

    /// Decodes a binary message: JSON, or JSON compressed with brotli. Never allocates more than `limit` bytes for it.
    ///
    /// # Errors
    ///
    /// Returns a [`DecodeError`] if the message is neither, or not a sub-block.
    pub fn from_binary(bytes: &[u8], limit: usize) -> Result<Self, DecodeError> {
        // No brotli stream with content starts with `{`, because that byte would be an empty last block.
        if bytes.trim_ascii_start().first() == Some(&b'{') && (bytes[0] == b'{' || std::str::from_utf8(bytes).is_ok()) {
            return Self::from_text(bytes, limit);
        }
        Self::from_text(&decompress(bytes, limit)?, limit)
    }
}

/// Decodes transactions, and recovers their senders in parallel.
fn read_transactions(raw: &[Bytes]) -> Result<Arc<[Recovered<ChainTx>]>, UnreadTx> {
    let decode = |(index, bytes): (usize, &Bytes)| {
        let unread = |problem: String| UnreadTx { index, problem };
        ChainTx::decode_2718_exact(bytes).map_err(|error| unread(error.to_string()))
    };
    let transactions = raw.iter().enumerate().map(decode).collect::<Result<Vec<_>, _>>()?;
    let recovered =
        recover(transactions).map_err(|index| UnreadTx { index, problem: "the signature is not valid".to_owned() })?;
    Ok(recovered.into())
}

/// Decodes the post-execution transaction of the block so far.
fn read_post_exec(raw: Option<Bytes>) -> Result<Option<Sealed<TxPostExec>>, UnreadPostExec> {
    let decode = |raw: Bytes| TxPostExec::decode_2718_exact(&raw).map_err(|error| UnreadPostExec(error.to_string()));
    Ok(raw.map(decode).transpose()?.map(Sealable::seal_slow))
}

impl From<OpFlashblockPayload> for Flashblock {
    fn from(payload: OpFlashblockPayload) -> Self {
        let OpFlashblockPayload { payload_id, index, base, diff, metadata } = payload;
        let metadata = Metadata {
            block_number: Some(metadata.block_number),
            new_account_balances: Some(metadata.new_account_balances),
            receipts: Some(metadata.receipts),
            unread: Vec::new(),
        };
        let transactions = read_transactions(&diff.transactions);
        Self { payload_id: payload_id.0, index, base, diff, transactions, post_exec: Ok(None), metadata, size: 0 }
    }
}

impl Metadata {
    /// Reads the fields in a known spelling.
    fn read(raw: &RawValue) -> Self {
        let mut metadata = Self::default();
        let fields: BTreeMap<String, &RawValue> = match serde_json::from_str(raw.get()) {
            Ok(fields) => fields,
            Err(_) if raw.get() == "null" => return metadata,
            Err(error) => {
                metadata.unread.push(format!("metadata: expected an object: {error}"));
                return metadata;
            }
        };
        let unread = &mut metadata.unread;
        metadata.block_number = optional::<JsonNumber>(&fields, "block_number", unread).map(|quantity| quantity.0);
        metadata.new_account_balances = optional(&fields, "new_account_balances", unread);
        metadata.receipts = optional::<BTreeMap<B256, AnyReceipt>>(&fields, "receipts", unread)
            .map(|receipts| receipts.into_iter().map(|(hash, receipt)| (hash, receipt.0)).collect());
        metadata
    }
}

/// Returns a field that may be absent, null or in a spelling that is not known.
fn optional<T: DeserializeOwned>(
    fields: &BTreeMap<String, &RawValue>,
    name: &str,
    unread: &mut Vec<String>,
) -> Option<T> {
    match serde_json::from_str::<Option<T>>(fields.get(name)?.get()) {
        Ok(value) => value,
        Err(error) => {
            unread.push(format!("metadata.{name}: {error}"));
            None
        }
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    payload_id: PayloadId,
    index: Option<JsonNumber>,
    #[serde(borrow, default)]
    base: Option<&'a RawValue>,
    #[serde(borrow, default)]
    diff: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    end: Option<&'a RawValue>,
}

/// An [`OpFlashblockPayloadDelta`] without the fields that some builders leave out.
#[derive(Deserialize)]
struct WireDiff {
    state_root: B256,
    receipts_root: Option<B256>,
    logs_bloom: Bloom,
    gas_used: JsonNumber,
    block_hash: B256,
    transactions: Vec<Bytes>,
    withdrawals: Option<Vec<Withdrawal>>,
    withdrawals_root: Option<B256>,
    blob_gas_used: Option<JsonNumber>,
    post_exec_tx: Option<Bytes>,
}

impl From<WireDiff> for OpFlashblockPayloadDelta {
    fn from(wire: WireDiff) -> Self {
        Self {
            state_root: wire.state_root,
            receipts_root: wire.receipts_root.unwrap_or_default(),
            logs_bloom: wire.logs_bloom,
            gas_used: wire.gas_used.0,
            block_hash: wire.block_hash,
            transactions: wire.transactions,
            withdrawals: wire.withdrawals.unwrap_or_default(),
            withdrawals_root: wire.withdrawals_root.unwrap_or_default(),
            blob_gas_used: wire.blob_gas_used.map(|gas| gas.0),
        }
    }
}

/// A number as plain JSON, or as a quantity of Ethereum's JSON.
struct JsonNumber(u64);

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = U256::deserialize(deserializer)?;
        number.try_into().map(Self).map_err(|_| D::Error::custom("expected a number of at most 64 bits"))
    }
}

/// A receipt with its type in a field (`"type": "0x2"`), or in the one key around it (`"Eip1559": {…}`).
struct AnyReceipt(OpReceipt);

impl<'de> Deserialize<'de> for AnyReceipt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(remote = "OpReceipt")]
        enum Keyed {
            Legacy(Receipt),
            Eip2930(Receipt),
            Eip1559(Receipt),
            Eip7702(Receipt),
            PostExec(Receipt),
            Deposit(OpDepositReceipt),
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Keyed(#[serde(with = "Keyed")] OpReceipt),
            Typed(OpReceipt),
        }
        let (Either::Keyed(receipt) | Either::Typed(receipt)) = Either::deserialize(deserializer)?;
        Ok(Self(receipt))
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8], inside: &str) -> Result<T, DecodeError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // In the path, a dot means the whole message, and a question mark a value that has not begun.
        let path = match (inside, path.trim_end_matches(['.', '?'])) {
            ("", "") => "message".to_owned(),
            ("", path) => path.to_owned(),
            (inside, "") => inside.to_owned(),
            (inside, path) => format!("{inside}.{path}"),
        };
        field(path, error.inner().to_string())
    })?;
    json.end().map_err(|error| field("message", error.to_string()))?;
    Ok(value)
}

fn field(field: impl Into<String>, problem: impl Into<String>) -> DecodeError {
    DecodeError::Field { field: field.into(), problem: problem.into() }
}

/// Decompresses to at most `limit` bytes. Windows are limited to RFC 7932's 16 MiB: with larger ones, a few bytes could
/// request 1 GiB.
fn decompress(bytes: &[u8], limit: usize) -> Result<Vec<u8>, DecodeError> {
    let mut state =
        BrotliState::new_strict(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
    let (mut in_left, mut in_at, mut total) = (bytes.len(), 0, 0);
    let mut out = vec![0; bytes.len().saturating_mul(4).clamp(4096, limit.max(4096))];
    let mut out_at = 0;
    loop {
        let mut out_left = out.len() - out_at;
        let result = BrotliDecompressStream(
            &mut in_left,
            &mut in_at,
            bytes,
            &mut out_left,
            &mut out_at,
            &mut out,
            &mut total,
            &mut state,
        );
        match result {
            BrotliResult::ResultSuccess if out_at > limit => return Err(DecodeError::TooLarge { limit }),
            BrotliResult::ResultSuccess => {
                out.truncate(out_at);
                return Ok(out);
            }
            BrotliResult::NeedsMoreOutput if out.len() > limit => return Err(DecodeError::TooLarge { limit }),
            // One byte more than the limit distinguishes a message of just that length from a longer one.
            BrotliResult::NeedsMoreOutput => {
                out.resize(out.len().saturating_mul(2).min(limit.max(4096).saturating_add(1)), 0)
            }
            BrotliResult::NeedsMoreInput => return Err(DecodeError::Truncated { len: bytes.len() }),
            BrotliResult::ResultFailure => return Err(DecodeError::Compression { len: bytes.len() }),
        }
    }
}

#[cfg(test)]
mod tests;
