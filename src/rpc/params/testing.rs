//! Parameters of the methods of `--testing`.

use std::fmt;

use alloy_consensus::{
    TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::{
    eip4895::{Withdrawal, Withdrawals},
    eip7594::BlobTransactionSidecarVariant,
};
use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{ShapeLimits, parse};
use crate::{
    pool::SentTransaction,
    rpc::{
        json::hex::{Data, Fixed, Number, Quantity, Word},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    source::testing::{AccountEdit, ChainChange},
};

/// The longest `extraData` of a block (Yellow Paper, section 4.4.4).
const MAX_EXTRA_DATA: usize = 32;

params! {
    One<T>(T) = "1 parameter";
    MineParams(; Number<u64>, Number<u64>) = "at most 2 parameters: number of blocks, seconds between them";
    EvmMineParams(; EvmMine) = "at most 1 parameter: a timestamp, or an object of timestamp and blocks";
    BalanceParams(Fixed<20>, Number<U256>) = "2 parameters: address, balance";
    NonceParams(Fixed<20>, Number<u64>) = "2 parameters: address, nonce";
    CodeParams(Fixed<20>, Data) = "2 parameters: address, code";
    StorageParams(Fixed<20>, Word, Word) = "3 parameters: address, storage slot, value";
    BuildBlockParams(Fixed<32>, AttributesObject, Option<Vec<Data>>; Data)
        = "3 or 4 parameters: parent's hash, payload attributes, transactions or null, extra data";
}

#[derive(Debug, Default, Deserialize)]
#[serde(remote = "Self")]
struct EvmMine {
    timestamp: Option<Number<u64>>,
    blocks: Option<Number<u64>>,
}

impl<'de> Deserialize<'de> for EvmMine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EvmMineVisitor;

        impl EvmMineVisitor {
            fn at<E>(timestamp: Result<Number<u64>, E>) -> Result<EvmMine, E> {
                Ok(EvmMine { timestamp: Some(timestamp?), blocks: None })
            }
        }

        impl<'de> Visitor<'de> for EvmMineVisitor {
            type Value = EvmMine;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a timestamp, or an object of timestamp and blocks")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<EvmMine, E> {
                Self::at(Number::deserialize(value.into_deserializer()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<EvmMine, E> {
                Self::at(Number::deserialize(text.into_deserializer()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EvmMine, A::Error> {
                EvmMine::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(EvmMineVisitor)
    }
}

fn one<T: DeserializeOwned>(params: &str, dialect: &Dialect) -> Result<T> {
    parse::<One<T>>(params, dialect).map(|One(value, ())| value)
}

/// Parses the parameters of `anvil_mine`.
pub fn parse_mine(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let MineParams(blocks, interval, ()) = parse(params, dialect)?;
    let blocks = blocks.map_or(1, |blocks| blocks.0);
    Ok(ChainChange::Mine { blocks, interval: interval.map(|seconds| seconds.0), timestamp: None })
}

/// Parses the parameter of `evm_mine`.
pub fn parse_evm_mine(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let EvmMineParams(asked, ()) = parse(params, dialect)?;
    let EvmMine { timestamp, blocks } = asked.unwrap_or_default();
    let blocks = blocks.map_or(1, |blocks| blocks.0);
    Ok(ChainChange::Mine { blocks, interval: None, timestamp: timestamp.map(|time| time.0) })
}

/// Parses an account and its new balance.
pub fn parse_balance(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let BalanceParams(address, balance, ()) = parse(params, dialect)?;
    Ok(ChainChange::Edit(AccountEdit { balance: Some(balance.0), ..edit(address) }))
}

/// Parses an account and its new nonce.
pub fn parse_nonce(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let NonceParams(address, nonce, ()) = parse(params, dialect)?;
    Ok(ChainChange::Edit(AccountEdit { nonce: Some(nonce.0), ..edit(address) }))
}

/// Parses an account and its new code.
pub fn parse_set_code(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let CodeParams(address, Data(code), ()) = parse(params, dialect)?;
    Ok(ChainChange::Edit(AccountEdit { code: Some(code), ..edit(address) }))
}

/// Parses an account, a storage slot and its new value.
pub fn parse_set_storage(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    let StorageParams(address, slot, value, ()) = parse(params, dialect)?;
    Ok(ChainChange::Edit(AccountEdit { slot: Some((slot.0, value.0)), ..edit(address) }))
}

fn edit(address: Fixed<20>) -> AccountEdit {
    AccountEdit { address: address.into(), ..AccountEdit::default() }
}

/// Parses the lack of parameters of `evm_snapshot`.
pub fn parse_save(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    super::parse_none(params, dialect)?;
    Ok(ChainChange::Save)
}

/// Parses the id of a saved state.
pub fn parse_return(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    one::<Number<u64>>(params, dialect).map(|id| ChainChange::Return(id.0))
}

/// Parses seconds.
pub fn parse_seconds(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    one::<Number<u64>>(params, dialect).map(|seconds| ChainChange::MoveClock(seconds.0))
}

/// Parses a timestamp.
pub fn parse_timestamp(params: &str, dialect: &Dialect) -> Result<ChainChange> {
    one::<Number<u64>>(params, dialect).map(|timestamp| ChainChange::SetClock(timestamp.0))
}

/// The parsed parameters of `testing_buildBlockV1`.
#[derive(Debug)]
pub struct BuildBlockRequest {
    /// The hash of the block to build on.
    pub parent: B256,
    /// The fields that the consensus layer chooses.
    pub attributes: PayloadAttributes,
    /// The transactions of the block, or `None` for those of the pool.
    pub transactions: Option<Vec<BuildTransaction>>,
    /// The block's `extraData`, or `None` for the chain's usual one.
    pub extra_data: Option<Bytes>,
}

/// The fields of a block that the consensus layer chooses: `PayloadAttributesV4` of the engine API.
#[derive(Debug)]
pub struct PayloadAttributes {
    /// Unix time, in seconds.
    pub timestamp: u64,
    /// The beacon chain's randomness (EIP-4399).
    pub prev_randao: B256,
    /// The account that receives the block's fees.
    pub fee_recipient: Address,
    /// Withdrawals (EIP-4895), or `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// The root of the parent beacon block (EIP-4788), or `None` before Cancun.
    pub beacon_root: Option<B256>,
    /// The slot (EIP-7843). `None` for the slot after the parent's.
    pub slot_number: Option<u64>,
}

/// A transaction of a block to build.
#[derive(Debug)]
pub struct BuildTransaction {
    /// The transaction with its sender.
    pub tx: Recovered<TxEnvelope>,
    /// The blobs of a transaction in network form.
    pub sidecar: Option<BlobTransactionSidecarVariant>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttributesObject {
    timestamp: Quantity<u64>,
    prev_randao: Fixed<32>,
    suggested_fee_recipient: Fixed<20>,
    withdrawals: Option<Vec<WithdrawalObject>>,
    parent_beacon_block_root: Option<Fixed<32>>,
    slot_number: Option<Quantity<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WithdrawalObject {
    index: Quantity<u64>,
    validator_index: Quantity<u64>,
    address: Fixed<20>,
    amount: Quantity<u64>,
}

/// Parses a block to build, decodes its transactions and recovers their senders.
pub fn parse_build_block(params: &str, dialect: &Dialect, limits: &ShapeLimits) -> Result<BuildBlockRequest> {
    let BuildBlockParams(parent, attributes, transactions, extra_data, ()) = parse(params, dialect)?;
    let (count, most) = (transactions.as_ref().map_or(0, Vec::len), limits.max_block_calls);
    if count > most {
        return Err(RpcError::limit(format!("params[2]: too many transactions: {count}, at most {most}")));
    }
    if let Some(data) = extra_data.as_ref().filter(|data| data.0.len() > MAX_EXTRA_DATA) {
        let length = data.0.len();
        return Err(RpcError::params(format!("params[3]: {length} bytes: expected at most {MAX_EXTRA_DATA}")));
    }
    let decoded = |list: Vec<Data>| list.iter().enumerate().map(|(index, raw)| transaction(raw, index)).collect();
    Ok(BuildBlockRequest {
        parent: parent.into(),
        attributes: attributes.into(),
        transactions: transactions.map(decoded).transpose()?,
        extra_data: extra_data.map(|data| data.0),
    })
}

fn transaction(raw: &Data, index: usize) -> Result<BuildTransaction> {
    let refused = |problem: String| RpcError::params(format!("params[2][{index}]: {problem}"));
    let SentTransaction { tx, sidecar, .. } = SentTransaction::decode(&raw.0)
        .map_err(|error| refused(format!("not a signed transaction (EIP-2718): {error}")))?;
    let tx = tx.try_into_recovered().map_err(|error| refused(format!("no recoverable sender: {error}")))?;
    Ok(BuildTransaction { tx, sidecar })
}

impl From<AttributesObject> for PayloadAttributes {
    fn from(object: AttributesObject) -> Self {
        let withdrawal = |one: WithdrawalObject| Withdrawal {
            index: one.index.0,
            validator_index: one.validator_index.0,
            address: one.address.into(),
            amount: one.amount.0,
        };
        Self {
            timestamp: object.timestamp.0,
            prev_randao: object.prev_randao.into(),
            fee_recipient: object.suggested_fee_recipient.into(),
            withdrawals: object.withdrawals.map(|list| list.into_iter().map(withdrawal).collect::<Vec<_>>().into()),
            beacon_root: object.parent_beacon_block_root.map(B256::from),
            slot_number: object.slot_number.map(|slot| slot.0),
        }
    }
}
