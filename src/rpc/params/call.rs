//! Parameters of calls and simulations: the call object, state and block overrides.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Display},
};

use alloy_eips::{eip2930::AccessList, eip4895::Withdrawals, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, TxKind, U256};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Unexpected, Visitor},
};

use super::schema::add_aliases;
use crate::{
    engine::{AccountOverride, BlockOverrides, Call, CallFees, StateOverrides, StorageOverride},
    rpc::{
        json::{
            AccessListItem, Authorization, Withdrawal,
            form::{Forms, from_text, text},
            hex::{Data, Fixed, Number, Quantity, Word},
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

/// Limits on the shape of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct ShapeLimits {
    /// Maximum number of blocks in a request.
    pub max_blocks: usize,
    /// Maximum number of calls in one block.
    pub max_block_calls: usize,
    /// Maximum number of calls in a request.
    pub max_calls: usize,
    /// Maximum number of variants in a search.
    pub max_search_runs: usize,
}

/// A call. Fields that are absent have the values that a call without them has.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Call")]
pub struct CallObject {
    from: Option<Fixed<20>>,
    /// The account that is called. Null creates a contract.
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
    /// Has no effect, because the type follows from the other fields.
    #[serde(rename = "type")]
    kind: Option<TypeParam>,
    #[schemars(with = "Option<Vec<AccessListItem>>")]
    access_list: Option<AccessList>,
    blob_versioned_hashes: Option<Vec<Fixed<32>>>,
    #[schemars(with = "Option<Vec<Authorization>>")]
    authorization_list: Option<Vec<SignedAuthorization>>,
}

/// The type of a transaction in a call object.
#[derive(Debug)]
enum TypeParam {
    Quantity,
    /// A JSON number, as web3.py sends it.
    Number(u64),
}

impl JsonSchema for TypeParam {
    fn schema_name() -> Cow<'static, str> {
        "TransactionType".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Number::<u64>::json_schema(generator)
    }
}

const EXPECTED_TYPE: &str = "a quantity, like \"0x1f\"";

impl<'de> Deserialize<'de> for TypeParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms::<Self> {
            expected: EXPECTED_TYPE,
            scalar: |given| match given {
                Unexpected::Unsigned(number) => Some(Ok(Self::Number(number))),
                given => text(given).map(|text| from_text::<Quantity<u64>>(text).map(|_| Self::Quantity)),
            },
            object: None,
        })
    }
}

pub type StateOverridesParam = BTreeMap<AddressKey, AccountOverrideParam>;

/// An address as the key of a JSON object.
#[derive(Debug, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct AddressKey(pub Fixed<20>);

/// The values of an account that differ from its state.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AccountOverride", transform = add_aliases(&[("movePrecompileToAddress", "movePrecompileTo")]))]
pub struct AccountOverrideParam {
    balance: Option<Quantity<U256>>,
    nonce: Option<Quantity<u64>>,
    code: Option<Data>,
    state: Option<OverriddenSlots>,
    state_diff: Option<OverriddenSlots>,
    #[serde(alias = "movePrecompileTo")]
    move_precompile_to_address: Option<Fixed<20>>,
}

/// The slots of an override with their values, in the order of the slots. If a slot is named twice, its last value counts.
#[derive(Debug)]
struct OverriddenSlots(Vec<(U256, U256)>);

impl JsonSchema for OverriddenSlots {
    fn schema_name() -> Cow<'static, str> {
        "Slots".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let word = generator.subschema_for::<Word>();
        json_schema!({
            "type": "object",
            "description": "Values of storage slots, by slot.",
            "additionalProperties": word,
        })
    }
}

impl<'de> Deserialize<'de> for OverriddenSlots {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SlotsVisitor;

        impl<'de> Visitor<'de> for SlotsVisitor {
            type Value = OverriddenSlots;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OverriddenSlots, A::Error> {
                let mut slots = Vec::new();
                while let Some((Word(slot), Word(value))) = map.next_entry()? {
                    slots.push((slot, value));
                }
                // Most clients send slots in order, and then a map would only cost.
                if !slots.is_sorted_by(|(slot, _), (next, _)| slot < next) {
                    slots.reverse();
                    slots.sort_by_key(|(slot, _)| *slot);
                    slots.dedup_by_key(|(slot, _)| *slot);
                }
                Ok(OverriddenSlots(slots))
            }
        }

        deserializer.deserialize_map(SlotsVisitor)
    }
}

/// The block's values that differ from its default ones.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BlockOverrides", transform = add_aliases(BLOCK_ALIASES))]
pub struct BlockOverridesParam {
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
    #[schemars(with = "Option<Vec<Withdrawal>>")]
    withdrawals: Option<Withdrawals>,
    difficulty: Option<Quantity<U256>>,
    slot_number: Option<Quantity<u64>>,
    /// The name of the fork whose rules the block has: one of the chain's, which may be older or newer than the fork
    /// at the block's time.
    fork: Option<Box<str>>,
}

/// The other names of fields of a block.
pub const BLOCK_ALIASES: &[(&str, &str)] = &[
    ("time", "timestamp"),
    ("feeRecipient", "coinbase"),
    ("prevRandao", "random"),
    ("baseFeePerGas", "baseFee"),
    ("beaconRoot", "parentBeaconBlockRoot"),
];

impl CallObject {
    /// Sets the sender to `sender`, unless the call names one.
    pub fn or_from(mut self, sender: Option<Address>) -> Self {
        self.from = self.from.or(sender.map(|address| Fixed(address.0.0)));
        self
    }

    pub fn into_call(self, path: impl Display, dialect: &Dialect) -> Result<Call> {
        let to = match self.to {
            None if dialect.requires_to_and_selector => {
                return Err(RpcError::params(format!(
                    "{path}.to: missing: expected an address, or null to create a contract"
                )));
            }
            None | Some(None) => TxKind::Create,
            Some(Some(to)) => TxKind::Call(to.into()),
        };
        if let Some(TypeParam::Number(number)) = self.kind
            && !dialect.takes_integer_types
        {
            return Err(RpcError::params(format!(
                "{path}.type: invalid type: integer `{number}`, expected {EXPECTED_TYPE}"
            )));
        }
        let fees = match (self.gas_price, self.max_fee_per_gas, self.max_priority_fee_per_gas) {
            (Some(Quantity(price)), None, None) => CallFees::GasPrice(price),
            (None, max_fee, max_priority) => {
                CallFees::Market { max_fee: max_fee.map(|fee| fee.0), max_priority: max_priority.map(|fee| fee.0) }
            }
            _ => {
                return Err(RpcError::params(format!(
                    "{path}.gasPrice: both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified: expected one way to pay"
                )));
            }
        };
        let data = match (self.input, self.data) {
            (Some(input), Some(data)) if input != data => {
                return Err(RpcError::params(format!(
                    "{path}.data: differs from input: expected one of the two, or the same in both"
                )));
            }
            (Some(data), _) | (None, Some(data)) => data.0,
            (None, None) => Default::default(),
        };
        let needs_callee = self.blob_versioned_hashes.is_some() || self.authorization_list.is_some();
        if needs_callee && to.is_create() {
            return Err(RpcError::params(format!(
                "{path}.to: missing: blobs and authorizations need a callee, they cannot create a contract"
            )));
        }
        if matches!(&self.blob_versioned_hashes, Some(hashes) if hashes.is_empty()) {
            return Err(RpcError::params(format!("{path}.blobVersionedHashes: empty: expected at least one hash")));
        }
        if matches!(&self.authorization_list, Some(list) if list.is_empty()) {
            return Err(RpcError::params(format!(
                "{path}.authorizationList: empty: expected at least one authorization"
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

/// Converts the overrides of the state; none if the field is absent. Errors name fields of `path`.
pub fn state_overrides(overrides: Option<StateOverridesParam>, path: impl Display) -> Result<StateOverrides> {
    overrides
        .into_iter()
        .flatten()
        .map(|(AddressKey(address), account)| {
            let address = Address::from(address);
            let storage = match (account.state, account.state_diff) {
                (Some(_), Some(_)) => {
                    return Err(RpcError::params(format!(
                        "{path}.{address}: has both 'state' and 'stateDiff': expected one of them"
                    )));
                }
                (Some(state), None) => StorageOverride::Replace(state.0),
                (None, Some(diff)) => StorageOverride::Diff(diff.0),
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

/// Converts the overrides of the block that a call of `method` runs in. Overrides that act between blocks are rejected,
/// as in geth.
pub fn call_block_overrides(
    overrides: Option<BlockOverridesParam>,
    path: impl Display,
    method: &str,
) -> Result<BlockOverrides> {
    let Some(overrides) = overrides else { return Ok(BlockOverrides::default()) };
    let root = overrides.beacon_root.as_ref().map(|_| "beaconRoot");
    if let Some(name) = root.or(overrides.withdrawals.as_ref().map(|_| "withdrawals")) {
        return Err(RpcError::params(format!(
            "{path}.{name}: not supported by {method}: use eth_simulateV1 for this override"
        )));
    }
    block_overrides(Some(overrides), path)
}

/// Converts the overrides of a block; none if the field is absent. Errors name fields of `path`.
pub fn block_overrides(overrides: Option<BlockOverridesParam>, path: impl Display) -> Result<BlockOverrides> {
    let Some(overrides) = overrides else { return Ok(BlockOverrides::default()) };
    let number = overrides.number.map(|number| u64::try_from(number.0)).transpose();
    Ok(BlockOverrides {
        number: number.map_err(|_| RpcError::params(format!("{path}.number: out of range: at most 64 bits")))?,
        time: overrides.time.map(|time| time.0),
        gas_limit: overrides.gas_limit.map(|gas| gas.0),
        fee_recipient: overrides.fee_recipient.map(Address::from),
        prev_randao: overrides.prev_randao.map(B256::from),
        base_fee: overrides.base_fee_per_gas.map(|fee| fee.0),
        blob_base_fee: overrides.blob_base_fee.map(|fee| fee.0),
        beacon_root: overrides.beacon_root.map(B256::from),
        withdrawals: overrides.withdrawals,
        difficulty: overrides.difficulty.map(|difficulty| difficulty.0),
        slot_number: overrides.slot_number.map(|slot| slot.0),
        fork: overrides.fork,
    })
}

/// Deserializes a field that is null as `Some(None)`, unlike one that is absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
