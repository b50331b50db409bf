//! The digest of a request that waits for approval. An approver who names it agrees to exactly this request.

use std::{fmt, str::FromStr};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_rlp::RlpEncodable;
use serde::{Deserialize, Serialize};

use super::{Asked, AskedCall, RequestedAction};

/// The part of a batch that an approver decides on. Its encoding is canonical: batches with one digest are the same.
///
/// Gas limits that the client leaves open, fees and nonces are not in it: they are chosen when the batch is signed.
#[derive(Debug, RlpEncodable)]
#[rlp(trailing)]
struct Preimage {
    chain_id: u64,
    from: Address,
    atomic: bool,
    /// Number of transactions: one more than the calls need if the batch executor is deployed first.
    transactions: u64,
    calls: Vec<PreimageCall>,
    /// The code that the account is to be delegated to. The list ends before it if there is none.
    upgrade: Option<Address>,
}

#[derive(Debug, RlpEncodable)]
#[rlp(trailing)]
struct PreimageCall {
    to: TxKind,
    value: U256,
    data: Bytes,
    /// `gasLimitOverride`. The list ends before it if there is none.
    gas_limit: Option<u64>,
}

/// The part of a request for a signature that an approver decides on. Its encoding is shorter than any batch's.
#[derive(Debug, RlpEncodable)]
struct SignaturePreimage {
    chain_id: u64,
    from: Address,
    /// The hash that is signed, which tells messages, typed data and transactions apart (EIP-191, EIP-712, EIP-2718).
    hash: B256,
}

impl Asked {
    /// Returns the keccak256 hash of an RLP list: of a batch
    /// `[chain id, account, atomic, transactions, [[to, value, data, gas limit?], …], delegation?]`, and of a message
    /// `[chain id, account, hash]`.
    pub fn digest(&self) -> B256 {
        let signature = |hash| SignaturePreimage { chain_id: self.chain_id, from: self.from, hash };
        let batch = match &self.act {
            RequestedAction::Batch(batch) => batch,
            RequestedAction::Message(message) => return keccak256(alloy_rlp::encode(signature(message.hash))),
            RequestedAction::TypedData(data) => return keccak256(alloy_rlp::encode(signature(data.hash))),
            RequestedAction::Transaction(tx) => return keccak256(alloy_rlp::encode(signature(tx.hash))),
        };
        let call = |call: &AskedCall| PreimageCall {
            to: call.to.into(),
            value: call.value,
            data: call.data.clone(),
            gas_limit: call.gas_limit,
        };
        let preimage = Preimage {
            chain_id: self.chain_id,
            from: self.from,
            atomic: batch.atomic,
            transactions: batch.transactions as u64,
            calls: batch.calls.iter().map(call).collect(),
            upgrade: batch.upgrade,
        };
        keccak256(alloy_rlp::encode(preimage))
    }
}

/// The first digits of a digest, or all of them, as an approver gives them: `0x` and hex digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct DigestPrefix(String);

/// The error for a text that is not the beginning of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a batch's digest or its first digits, {SHORTEST} to {MAX_LENGTH} in hex: `presim wallet list` shows it"
)]
pub struct NoDigest;

/// Minimum number of hex digits that name a batch.
const SHORTEST: usize = 8;
/// Number of hex digits of a whole digest.
const MAX_LENGTH: usize = 64;

impl DigestPrefix {
    /// Whether `digest` begins with these digits.
    pub fn begins(&self, digest: &B256) -> bool {
        const_hex::encode_prefixed(digest).starts_with(&self.0)
    }
}

impl From<B256> for DigestPrefix {
    fn from(digest: B256) -> Self {
        Self(const_hex::encode_prefixed(digest))
    }
}

impl FromStr for DigestPrefix {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_digest =
            (SHORTEST..=MAX_LENGTH).contains(&digits.len()) && digits.bytes().all(|one| one.is_ascii_hexdigit());
        if is_digest { Ok(Self(format!("0x{}", digits.to_ascii_lowercase()))) } else { Err(NoDigest) }
    }
}

impl TryFrom<String> for DigestPrefix {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, NoDigest> {
        text.parse()
    }
}

impl fmt::Display for DigestPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
