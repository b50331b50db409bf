//! The archives of the official tests, and the state tests in them.

use std::{collections::BTreeMap, fs::File, io::Read};

use alloy_eips::{
    eip2930::AccessList,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_rpc_types_eth::{TransactionInput, TransactionRequest};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value};

use super::{say_missing, shared};

/// The archive of both projects' tests, as they publish them.
pub const ARCHIVE: &str = "vectors/ethereum-tests.tar.zst";
/// The archive of tests for Amsterdam.
pub const AMSTERDAM: &str = "vectors/amsterdam-tests.tar.zst";

/// Returns the paths and contents of an archive's files whose path contains `folder`.
///
/// If there is no archive, or if it has no such files, prints that the test is skipped and returns `None`.
pub fn files(archive: &str, folder: &str) -> Option<Vec<(String, Vec<u8>)>> {
    let file = shared(archive)?;
    let mut entries = tar::Archive::new(zstd::Decoder::new(File::open(file).unwrap()).unwrap());
    let mut files = Vec::new();
    for entry in entries.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        if path.ends_with(".json") && path.contains(folder) {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.push((path, content));
        }
    }
    if files.is_empty() {
        say_missing(&format!("{archive}: {folder}"));
        return None;
    }
    Some(files)
}

#[derive(Deserialize)]
pub struct StateTest {
    pub env: Env,
    pub pre: BTreeMap<Address, PreAccount>,
    pub transaction: Template,
    pub post: BTreeMap<String, Vec<Expected>>,
    pub config: Option<TestConfig>,
}

#[derive(Deserialize)]
pub struct TestConfig {
    #[serde(default, rename = "chainid")]
    pub chain_id: Option<U256>,
    #[serde(default, rename = "blobSchedule")]
    pub blobs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Env {
    pub current_coinbase: Address,
    pub current_gas_limit: U256,
    pub current_number: U256,
    pub current_timestamp: U256,
    #[serde(default)]
    pub current_difficulty: U256,
    pub current_base_fee: Option<U256>,
    pub current_random: Option<B256>,
    pub current_excess_blob_gas: Option<U256>,
    pub slot_number: Option<U256>,
}

/// An account of a test's state.
#[derive(Deserialize)]
pub struct PreAccount {
    pub balance: U256,
    pub nonce: U256,
    pub code: Bytes,
    pub storage: BTreeMap<U256, U256>,
}

/// A transaction with alternatives for data, gas limit and value.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    sender: Address,
    to: String,
    nonce: U256,
    data: Vec<Bytes>,
    gas_limit: Vec<Text>,
    value: Vec<Text>,
    gas_price: Option<Text>,
    max_fee_per_gas: Option<Text>,
    max_priority_fee_per_gas: Option<Text>,
    max_fee_per_blob_gas: Option<Text>,
    blob_versioned_hashes: Option<Vec<B256>>,
    #[serde(default)]
    access_lists: Vec<Option<AccessList>>,
    authorization_list: Option<Vec<Delegation>>,
}

/// A number, which may be longer than its field allows.
struct Text(Option<U256>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_start_matches("0x:bigint ").trim_start_matches("0x");
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(D::Error::custom(format!("no number: {text}")));
        }
        Ok(Self(U256::from_str_radix(digits, 16).ok()))
    }
}

impl Text {
    fn to<T: TryFrom<U256>>(&self) -> Option<T> {
        T::try_from(self.0?).ok()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delegation {
    chain_id: U256,
    address: Address,
    nonce: Text,
    v: Text,
    r: U256,
    s: U256,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    pub hash: B256,
    pub logs: B256,
    #[serde(default)]
    pub txbytes: Bytes,
    pub indexes: Indexes,
    pub expect_exception: Option<String>,
    pub receipt: Option<ExpectedReceipt>,
}

/// The receipt of a test's transaction.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedReceipt {
    /// A boolean, or 0 or 1.
    pub status: Value,
    #[serde(alias = "cumulativeGasUsed")]
    pub gas_used: U256,
    /// Gas of what the block may use, in both dimensions (EIP-8037).
    pub block_execution_gas_used: Option<U256>,
    pub block_state_gas_used: Option<U256>,
}

impl ExpectedReceipt {
    pub fn succeeds(&self) -> bool {
        self.status == true || self.status == 1
    }
}

#[derive(Deserialize)]
pub struct Indexes {
    data: usize,
    gas: usize,
    value: usize,
}

impl Template {
    /// Returns a call with these alternatives; `None` if a number does not fit into its field.
    pub fn call(&self, indexes: &Indexes) -> Option<TransactionRequest> {
        let number = |text: &Option<Text>| text.as_ref().map(|text| text.to().ok_or(())).transpose().ok();
        let authorizations = self.authorization_list.as_ref().map(|list| {
            list.iter()
                .map(|one| {
                    let inner = Authorization { chain_id: one.chain_id, address: one.address, nonce: one.nonce.to()? };
                    Some(SignedAuthorization::new_unchecked(inner, one.v.to()?, one.r, one.s))
                })
                .collect::<Option<Vec<_>>>()
                .ok_or(())
        });
        Some(TransactionRequest {
            from: Some(self.sender),
            to: if self.to.is_empty() { None } else { Some(TxKind::Call(self.to.parse().ok()?)) },
            gas: Some(self.gas_limit[indexes.gas].to()?),
            gas_price: number(&self.gas_price)?,
            max_fee_per_gas: number(&self.max_fee_per_gas)?,
            max_priority_fee_per_gas: number(&self.max_priority_fee_per_gas)?,
            max_fee_per_blob_gas: number(&self.max_fee_per_blob_gas)?,
            value: Some(self.value[indexes.value].to()?),
            input: TransactionInput::new(self.data[indexes.data].clone()),
            nonce: Some(u64::try_from(self.nonce).ok()?),
            access_list: self.access_lists.get(indexes.data).cloned().flatten(),
            blob_versioned_hashes: self.blob_versioned_hashes.clone(),
            authorization_list: authorizations.transpose().ok()?,
            ..TransactionRequest::default()
        })
    }
}

/// Returns whether the address may be that of a precompile.
pub(super) fn is_precompile(address: &Address) -> bool {
    address.as_slice()[..18].iter().all(|byte| *byte == 0)
}
