//! The parameters of the methods as they come over the wire, and how they become the engine's types.
//!
//! What cannot be right is refused here, and named; behind this module nothing is checked again for its form.

use std::{collections::BTreeMap, fmt};

use alloy_eips::{eip2930::AccessList, eip4895::Withdrawals, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, TxKind, U256};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    dialect::Dialect,
    error::RpcError,
    hex::{Data, Fixed, Quantity, Word},
};
use crate::{
    engine::{
        AccountOverride, BlockOverrides, Call, CallFees, CallRequest, SimBlock, Simulation, StateOverrides,
        StorageOverride,
    },
    state::{Selector, SnapshotId},
};

/// Limits on the shape of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct ShapeLimits {
    /// Blocks asked for.
    pub max_blocks: usize,
    /// Calls in one block.
    pub max_block_calls: usize,
    /// Calls in all.
    pub max_calls: usize,
}

/// `eth_call`'s parameters: call, block, state overrides, block overrides.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 to 4 parameters: call, block, state overrides, block overrides")]
struct CallParams(
    CallObject,
    #[serde(default)] Option<SelectorParam>,
    #[serde(default)] Option<StateOverridesParam>,
    #[serde(default)] Option<BlockOverridesParam>,
);

/// `eth_simulateV1`'s parameters: payload, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: payload, block")]
struct SimulateParams(SimulatePayload, #[serde(default)] Option<SelectorParam>);

/// `eth_getCode`'s parameters: address, block.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 or 2 parameters: address, block")]
struct CodeParams(Fixed<20>, #[serde(default)] Option<SelectorParam>);

/// No parameters.
#[derive(Debug, Deserialize)]
#[serde(expecting = "no parameters")]
struct NoParams();

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallObject {
    from: Option<Fixed<20>>,
    /// Absent, null and an address are three things.
    #[serde(default, deserialize_with = "present")]
    to: Option<Option<Fixed<20>>>,
    gas: Option<Quantity<u64>>,
    gas_price: Option<Quantity<u128>>,
    max_fee_per_gas: Option<Quantity<u128>>,
    max_priority_fee_per_gas: Option<Quantity<u128>>,
    max_fee_per_blob_gas: Option<Quantity<u128>>,
    value: Option<Quantity<U256>>,
    nonce: Option<Quantity<u64>>,
    data: Option<Data>,
    input: Option<Data>,
    chain_id: Option<Quantity<U256>>,
    #[serde(rename = "type")]
    _kind: Option<Quantity<u64>>,
    access_list: Option<AccessList>,
    blob_versioned_hashes: Option<Vec<Fixed<32>>>,
    authorization_list: Option<Vec<SignedAuthorization>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SimulatePayload {
    block_state_calls: Vec<SimBlockParam>,
    trace_transfers: Option<bool>,
    validation: Option<bool>,
    return_full_transactions: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SimBlockParam {
    calls: Option<Vec<CallObject>>,
    state_overrides: Option<StateOverridesParam>,
    block_overrides: Option<BlockOverridesParam>,
}

type StateOverridesParam = BTreeMap<AddressKey, AccountOverrideParam>;

/// An address as the key of a JSON object.
#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct AddressKey(Fixed<20>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountOverrideParam {
    balance: Option<Quantity<U256>>,
    nonce: Option<Quantity<u64>>,
    code: Option<Data>,
    state: Option<BTreeMap<Word, Word>>,
    state_diff: Option<BTreeMap<Word, Word>>,
    #[serde(alias = "movePrecompileTo")]
    move_precompile_to_address: Option<Fixed<20>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockOverridesParam {
    number: Option<Quantity<U256>>,
    #[serde(alias = "timestamp")]
    time: Option<Quantity<u64>>,
    gas_limit: Option<Quantity<u64>>,
    #[serde(alias = "coinbase")]
    fee_recipient: Option<Fixed<20>>,
    #[serde(alias = "random")]
    prev_randao: Option<Fixed<32>>,
    #[serde(alias = "baseFee")]
    base_fee_per_gas: Option<Quantity<u64>>,
    blob_base_fee: Option<Quantity<u128>>,
    #[serde(alias = "parentBeaconBlockRoot")]
    beacon_root: Option<Fixed<32>>,
    withdrawals: Option<Withdrawals>,
    difficulty: Option<Quantity<U256>>,
}

/// A block selector: a tag, a number, or an object of EIP-1898 or with a `snapshotId`.
#[derive(Clone, Copy, Debug)]
struct SelectorParam(Selector);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorObject {
    block_number: Option<Quantity<u64>>,
    block_hash: Option<Fixed<32>>,
    #[serde(rename = "requireCanonical")]
    _require_canonical: Option<bool>,
    snapshot_id: Option<Quantity<u64>>,
}

/// A call and what it runs on.
pub fn parse_call(params: &str, dialect: &Dialect) -> Result<(CallRequest, Selector), RpcError> {
    let CallParams(call, selector, state, block) = parse(params, dialect)?;
    // As geth has it: these act between blocks, and a call is in the midst of one.
    if let Some(name) = block.as_ref().and_then(|block| {
        let root = block.beacon_root.as_ref().map(|_| "beaconRoot");
        root.or(block.withdrawals.as_ref().map(|_| "withdrawals"))
    }) {
        return Err(RpcError::params(format!(
            "params[3].{name}: not supported by eth_call: expected eth_simulateV1 for it"
        )));
    }
    let request = CallRequest {
        call: call.into_call("params[0]", dialect)?,
        state: state.map(|state| state_overrides(state, "params[2]")).transpose()?.unwrap_or_default(),
        block: block.map(|block| block_overrides(block, "params[3]")).transpose()?.unwrap_or_default(),
    };
    Ok((request, select(selector, dialect)?))
}

/// A simulation, what it runs on, and whether it shows transactions in full.
pub fn parse_simulation(
    params: &str,
    dialect: &Dialect,
    limits: &ShapeLimits,
) -> Result<(Simulation, Selector, bool), RpcError> {
    let SimulateParams(payload, selector) = parse(params, dialect)?;
    let blocks = &payload.block_state_calls;
    if blocks.is_empty() {
        return Err(RpcError::params("params[0].blockStateCalls: empty: expected at least one block"));
    }
    if blocks.len() > limits.max_blocks {
        let text =
            format!("params[0].blockStateCalls: too many blocks: {}, at most {}", blocks.len(), limits.max_blocks);
        return Err(RpcError::new(-38026, text));
    }
    let mut calls = 0;
    for (index, block) in blocks.iter().enumerate() {
        let count = block.calls.as_ref().map_or(0, Vec::len);
        calls += count;
        if count > limits.max_block_calls || calls > limits.max_calls {
            let text = format!(
                "params[0].blockStateCalls[{index}].calls: too many calls: at most {} in a block and {} in all",
                limits.max_block_calls, limits.max_calls
            );
            return Err(RpcError::new(-38026, text));
        }
    }
    let blocks = payload
        .block_state_calls
        .into_iter()
        .enumerate()
        .map(|(index, block)| block.into_block(&format!("params[0].blockStateCalls[{index}]"), dialect))
        .collect::<Result<_, _>>()?;
    let simulation = Simulation {
        blocks,
        trace_transfers: payload.trace_transfers.unwrap_or_default(),
        validation: payload.validation.unwrap_or_default(),
    };
    Ok((simulation, select(selector, dialect)?, payload.return_full_transactions.unwrap_or_default()))
}

/// An address and the state that it is looked up in.
pub fn parse_address(params: &str, dialect: &Dialect) -> Result<(Address, Selector), RpcError> {
    let CodeParams(address, selector) = parse(params, dialect)?;
    Ok((address.into(), select(selector, dialect)?))
}

/// Nothing.
pub fn parse_none(params: &str, dialect: &Dialect) -> Result<(), RpcError> {
    parse::<NoParams>(params, dialect).map(drop)
}

/// Parses `params`, and names the field where that fails. The way there is only walked once something is wrong.
fn parse<T: DeserializeOwned>(params: &str, dialect: &Dialect) -> Result<T, RpcError> {
    if !params.trim_start().starts_with('[') {
        return Err(RpcError::params("params: expected an array of positional parameters"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(params);
    let parsed = if dialect.refuses_unknown_fields {
        let mut unknown = None;
        let parsed = serde_ignored::deserialize(&mut deserializer, |path| {
            unknown.get_or_insert_with(|| path.to_string());
        });
        match (parsed, unknown) {
            (Ok(_), Some(path)) => return Err(RpcError::params(format!("{}: unknown field", place(&path)))),
            (parsed, _) => parsed,
        }
    } else {
        T::deserialize(&mut deserializer)
    };
    parsed.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| explain::<T>(params, &error))
}

#[cold]
fn explain<T: DeserializeOwned>(params: &str, first: &serde_json::Error) -> RpcError {
    let mut deserializer = serde_json::Deserializer::from_str(params);
    let (path, text) = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(error) => (error.path().to_string(), error.inner().to_string()),
        Ok(_) => (String::new(), first.to_string()),
    };
    // Where in the line it is helps nobody: the path says where in the request.
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let text = if text == "trailing characters" { "more parameters than the method takes" } else { text };
    RpcError::params(format!("{}: {text}", place(&path)))
}

/// `[0].a.b` or `0.a.b` as `params[0].a.b`. A name that goes on for ever is cut.
fn place(path: &str) -> String {
    const LONGEST_NAME: usize = 80;
    const LONGEST: usize = 400;
    let mut out = String::from("params");
    for part in path.split('.').filter(|part| !part.is_empty() && *part != "?") {
        if out.len() > LONGEST {
            out.push('…');
            break;
        }
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            out.push_str(&format!("[{part}]"));
            continue;
        }
        if !part.starts_with('[') {
            out.push('.');
        }
        match part.char_indices().nth(LONGEST_NAME) {
            Some((end, _)) => out.extend([&part[..end], "…"]),
            None => out.push_str(part),
        }
    }
    out
}

fn select(selector: Option<SelectorParam>, dialect: &Dialect) -> Result<Selector, RpcError> {
    match selector {
        Some(SelectorParam(selector)) => Ok(selector),
        None if dialect.requires_to_and_selector => {
            Err(RpcError::params("params[1]: missing: expected a block selector, like \"pending\" or \"latest\""))
        }
        None => Ok(Selector::Latest),
    }
}

impl CallObject {
    fn into_call(self, place: &str, dialect: &Dialect) -> Result<Call, RpcError> {
        let to = match self.to {
            None if dialect.requires_to_and_selector => {
                return Err(RpcError::params(format!(
                    "{place}.to: missing: expected an address, or null to create a contract"
                )));
            }
            None | Some(None) => TxKind::Create,
            Some(Some(to)) => TxKind::Call(to.into()),
        };
        let fees = match (self.gas_price, self.max_fee_per_gas, self.max_priority_fee_per_gas) {
            (Some(Quantity(price)), None, None) => CallFees::GasPrice(price),
            (None, max_fee, max_priority) => {
                CallFees::Market { max_fee: max_fee.map(|fee| fee.0), max_priority: max_priority.map(|fee| fee.0) }
            }
            _ => {
                return Err(RpcError::params(format!(
                    "{place}.gasPrice: both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified: expected one way to pay"
                )));
            }
        };
        let data = match (self.input, self.data) {
            (Some(input), Some(data)) if input != data => {
                return Err(RpcError::params(format!(
                    "{place}.data: differs from input: expected one of the two, or the same in both"
                )));
            }
            (Some(data), _) | (None, Some(data)) => data.0,
            (None, None) => Default::default(),
        };
        let needs_callee = self.blob_versioned_hashes.is_some() || self.authorization_list.is_some();
        if needs_callee && to.is_create() {
            return Err(RpcError::params(format!(
                "{place}.to: missing: blobs and authorizations need a callee, they cannot create a contract"
            )));
        }
        if matches!(&self.blob_versioned_hashes, Some(hashes) if hashes.is_empty()) {
            return Err(RpcError::params(format!("{place}.blobVersionedHashes: empty: expected at least one hash")));
        }
        if matches!(&self.authorization_list, Some(list) if list.is_empty()) {
            return Err(RpcError::params(format!(
                "{place}.authorizationList: empty: expected at least one authorization"
            )));
        }
        Ok(Call {
            from: self.from.map(Address::from).unwrap_or_default(),
            to,
            gas: self.gas.map(|gas| gas.0),
            fees,
            value: self.value.map(|value| value.0).unwrap_or_default(),
            data,
            nonce: self.nonce.map(|nonce| nonce.0),
            chain_id: self.chain_id.map(|id| id.0),
            access_list: self.access_list,
            blob_hashes: self.blob_versioned_hashes.map(|hashes| hashes.into_iter().map(B256::from).collect()),
            max_fee_per_blob_gas: self.max_fee_per_blob_gas.map(|fee| fee.0),
            authorization_list: self.authorization_list,
        })
    }
}

impl SimBlockParam {
    fn into_block(self, place: &str, dialect: &Dialect) -> Result<SimBlock, RpcError> {
        let calls = self.calls.unwrap_or_default().into_iter().enumerate();
        Ok(SimBlock {
            calls: calls
                .map(|(index, call)| call.into_call(&format!("{place}.calls[{index}]"), dialect))
                .collect::<Result<_, _>>()?,
            state: self
                .state_overrides
                .map(|state| state_overrides(state, &format!("{place}.stateOverrides")))
                .transpose()?
                .unwrap_or_default(),
            block: self
                .block_overrides
                .map(|block| block_overrides(block, &format!("{place}.blockOverrides")))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

fn state_overrides(overrides: StateOverridesParam, place: &str) -> Result<StateOverrides, RpcError> {
    overrides
        .into_iter()
        .map(|(AddressKey(address), account)| {
            let address = Address::from(address);
            let slots = |map: BTreeMap<Word, Word>| map.into_iter().map(|(slot, value)| (slot.0, value.0)).collect();
            let storage = match (account.state, account.state_diff) {
                (Some(_), Some(_)) => {
                    return Err(RpcError::params(format!(
                        "{place}.{address}: has both 'state' and 'stateDiff': expected one of them"
                    )));
                }
                (Some(state), None) => StorageOverride::Replace(slots(state)),
                (None, Some(diff)) => StorageOverride::Diff(slots(diff)),
                (None, None) => StorageOverride::Keep,
            };
            let overrides = AccountOverride {
                balance: account.balance.map(|balance| balance.0),
                nonce: account.nonce.map(|nonce| nonce.0),
                code: account.code.map(|code| code.0),
                storage,
                move_precompile_to: account.move_precompile_to_address.map(Address::from),
            };
            Ok((address, overrides))
        })
        .collect()
}

fn block_overrides(overrides: BlockOverridesParam, place: &str) -> Result<BlockOverrides, RpcError> {
    let number = overrides.number.map(|number| u64::try_from(number.0)).transpose();
    Ok(BlockOverrides {
        number: number.map_err(|_| RpcError::params(format!("{place}.number: out of range: at most 64 bits")))?,
        time: overrides.time.map(|time| time.0),
        gas_limit: overrides.gas_limit.map(|gas| gas.0),
        fee_recipient: overrides.fee_recipient.map(Address::from),
        prev_randao: overrides.prev_randao.map(B256::from),
        base_fee: overrides.base_fee_per_gas.map(|fee| fee.0),
        blob_base_fee: overrides.blob_base_fee.map(|fee| fee.0),
        beacon_root: overrides.beacon_root.map(B256::from),
        withdrawals: overrides.withdrawals,
        difficulty: overrides.difficulty.map(|difficulty| difficulty.0),
    })
}

/// Tells a field that is null from one that is absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for SelectorParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SelectorVisitor;

        impl<'de> Visitor<'de> for SelectorVisitor {
            type Value = SelectorParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block selector: a hex number, latest, pending, safe, finalized, earliest, or an object with blockNumber, blockHash or snapshotId")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<SelectorParam, E> {
                Ok(SelectorParam(match text {
                    "latest" => Selector::Latest,
                    "pending" => Selector::Pending,
                    "safe" => Selector::Safe,
                    "finalized" => Selector::Finalized,
                    "earliest" => Selector::Earliest,
                    number => {
                        let number: U256 = super::hex::parse_quantity(number).map_err(|reason| {
                            let shown: String = number.chars().take(80).collect();
                            E::custom(format_args!(
                                "{shown:?}: {reason}: expected a hex number, latest, pending, safe, finalized or earliest"
                            ))
                        })?;
                        Selector::Number(
                            number.try_into().map_err(|_| E::custom("block number out of range: at most 64 bits"))?,
                        )
                    }
                }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SelectorParam, A::Error> {
                let object = SelectorObject::deserialize(MapAccessDeserializer::new(map))?;
                match (object.block_number, object.block_hash, object.snapshot_id) {
                    (Some(number), None, None) => Ok(SelectorParam(Selector::Number(number.0))),
                    (None, Some(hash), None) => Ok(SelectorParam(Selector::Hash(hash.into()))),
                    (None, None, Some(id)) => Ok(SelectorParam(Selector::Snapshot(SnapshotId(id.0)))),
                    _ => Err(A::Error::custom("expected exactly one of blockNumber, blockHash and snapshotId")),
                }
            }
        }

        deserializer.deserialize_any(SelectorVisitor)
    }
}
