//! The batch of `wallet_sendCalls`, and the id of a batch (EIP-5792).

use std::{borrow::Cow, fmt};

use alloy_primitives::{Address, U256};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    objects,
    rpc::{
        json::hex::{Data, Fixed, Quantity},
        params::parse,
        protocol::{dialect::Dialect, error::RpcError},
    },
    shown,
    wallet::{BatchCall, BatchId, BatchRequest, Requested, WalletError},
};

/// The supported version of `wallet_sendCalls` requests.
const VERSION: &str = "2.0.0";
/// The name of the call capability that sets the call's gas limit.
const GAS_LIMIT: &str = "gasLimitOverride";

/// Signs and sends a batch of calls (EIP-5792): as one EIP-7702 transaction if it must be atomic, else as one
/// transaction per call. Errors in the order in which they are checked: -32000 version, -32602 form, 5710 chain (5760
/// on /standard if a batch cannot be atomic on it), 4100 account, 4001 rejected, 5700 capability, 5720 id, 5740 size,
/// 5750 upgrade; data describes the problem.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the batch")]
pub struct SendCalls {
    batch: BatchParam,
}

/// A batch of calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Batch")]
struct BatchParam {
    #[serde(rename = "version")]
    #[schemars(with = "String", extend("const" = VERSION))]
    _version: VersionParam,
    /// 32 random bytes in hex where it is absent.
    id: Option<IdParam>,
    /// Required on /. Elsewhere the wallet's first account where it is absent.
    from: Option<Fixed<20>>,
    #[schemars(with = "Quantity<u64>")]
    chain_id: ChainIdParam,
    atomic_required: bool,
    #[schemars(length(min = 1))]
    calls: Vec<CallParam>,
    /// Supported: atomic. Any other must be optional.
    capabilities: Option<CapabilitiesOf<false>>,
}

/// A call of a batch.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "BatchCall")]
struct CallParam {
    /// Required on /. Elsewhere the call creates a contract where it is absent.
    to: Option<Fixed<20>>,
    /// Wei. Required on /.
    value: Option<Quantity<U256>>,
    data: Option<Data>,
    capabilities: Option<CapabilitiesOf<true>>,
}

impl SendCalls {
    /// Parses the batch. The version is checked before anything else.
    ///
    /// # Errors
    ///
    /// Returns [`WalletError::Version`] if the request names another version, even if it has other errors. Returns
    /// [`WalletError::Shape`] with the name of the field if the request is malformed.
    pub fn parse(params: &str, dialect: &Dialect) -> Result<BatchRequest, WalletError> {
        if let Some(version) = version(params).filter(|version| version != VERSION) {
            let shown = shown::wrong(&version);
            return Err(WalletError::Version(format!("params[0].version: {shown}: expected {VERSION:?}")));
        }
        let shape = |error: RpcError| WalletError::Shape(error.into_object().message().to_owned());
        let Self { batch } = parse(params, dialect).map_err(shape)?;
        if dialect.requires_to_and_selector && batch.from.is_none() {
            return Err(WalletError::Shape(
                "params[0].from: missing: expected an address: 0x and 40 hex digits".into(),
            ));
        }
        if batch.calls.is_empty() {
            return Err(WalletError::Shape("params[0].calls: empty: expected at least one call".into()));
        }
        let calls = batch.calls.into_iter().enumerate().map(|(index, call)| call.into_call(index, dialect));
        Ok(BatchRequest {
            id: batch.id.map(|IdParam(id)| id),
            from: batch.from.map(Address::from),
            chain_id: batch.chain_id.0,
            atomic_required: batch.atomic_required,
            calls: calls.collect::<Result<_, _>>()?,
            capabilities: batch.capabilities.unwrap_or_default().others,
            transaction: None,
        })
    }
}

/// Returns the version that a request names, even if the rest of the request is malformed.
fn version(params: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Versioned<'a> {
        #[serde(borrow)]
        version: &'a RawValue,
    }

    /// A string, borrowed unless it contains escapes.
    #[derive(Deserialize)]
    struct CowText<'a>(#[serde(borrow)] Cow<'a, str>);

    let params: Vec<&RawValue> = objects::from_str(params).ok()?;
    let Versioned { version } = objects::from_str(params.first()?.get()).ok()?;
    objects::from_str(version.get()).ok().map(|CowText(text)| text)
}

impl CallParam {
    fn into_call(self, index: usize, dialect: &Dialect) -> Result<BatchCall, WalletError> {
        let missing = |field: &str, expected: &str| {
            Err(WalletError::Shape(format!("params[0].calls[{index}].{field}: missing: expected {expected}")))
        };
        if dialect.requires_to_and_selector && self.to.is_none() {
            return missing("to", "an address: 0x and 40 hex digits");
        }
        if dialect.requires_to_and_selector && self.value.is_none() {
            return missing("value", "a quantity, like \"0x1f\"");
        }
        let CapabilitiesOf { gas_limit, others } = self.capabilities.unwrap_or_default();
        Ok(BatchCall {
            to: self.to.map(Address::from),
            value: self.value.map(|value| value.0).unwrap_or_default(),
            data: self.data.map(|data| data.0).unwrap_or_default(),
            gas_limit,
            capabilities: others,
        })
    }
}

/// A visitor that parses a string. The text describes the expected form.
struct TextVisitor<F>(&'static str, F);

impl<T, F: FnOnce(&str) -> Option<T>> Visitor<'_> for TextVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let Self(expected, parse) = self;
        parse(text).ok_or_else(|| {
            let length = text.len();
            E::custom(format_args!("{}: {length} bytes: expected {expected}", shown::wrong(text)))
        })
    }
}

/// The text [`VERSION`]. [`SendCalls::parse`] has rejected any other text before.
#[derive(Debug)]
struct VersionParam;

impl<'de> Deserialize<'de> for VersionParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| (text == VERSION).then_some(Self);
        deserializer.deserialize_str(TextVisitor("a version: \"2.0.0\"", parse))
    }
}

#[derive(Debug, JsonSchema)]
#[schemars(transparent)]
pub struct IdParam(pub BatchId);

impl<'de> Deserialize<'de> for IdParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| BatchId::new(text.to_owned()).map(Self);
        deserializer.deserialize_str(TextVisitor("the id of a batch: a string of 1 to 8194 bytes", parse))
    }
}

/// A chain id: lower-case hex digits of any length, without leading zeros. `None` if it exceeds 64 bits.
#[derive(Debug)]
struct ChainIdParam(Option<u64>);

impl<'de> Deserialize<'de> for ChainIdParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a chain id: 0x and lower-case hex digits without leading zeros";
        deserializer.deserialize_str(TextVisitor(expected, |text: &str| {
            let digits = text.strip_prefix("0x")?;
            let plain = !digits.is_empty() && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let leads = digits.starts_with('0') && digits != "0";
            // Well-formed digits fail to parse only if they exceed 64 bits.
            (plain && !leads).then(|| Self(u64::from_str_radix(digits, 16).ok()))
        }))
    }
}

/// The requested capabilities. A call's capabilities (`CALL`) may include its gas limit.
#[derive(Debug, Default)]
struct CapabilitiesOf<const CALL: bool> {
    gas_limit: Option<u64>,
    others: Vec<Requested>,
}

impl<const CALL: bool> JsonSchema for CapabilitiesOf<CALL> {
    fn schema_name() -> Cow<'static, str> {
        if CALL { "CallCapabilities" } else { "BatchCapabilities" }.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let capability = generator.subschema_for::<CapabilityParam>();
        let mut schema = json_schema!({"type": "object", "additionalProperties": capability});
        if CALL {
            let gas_limit = generator.subschema_for::<GasLimitFields>();
            schema.insert("properties".to_owned(), json!({GAS_LIMIT: gas_limit}));
        }
        schema
    }
}

impl<'de, const CALL: bool> Deserialize<'de> for CapabilitiesOf<CALL> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CapabilitiesVisitor<const CALL: bool>;

        impl<'de, const CALL: bool> Visitor<'de> for CapabilitiesVisitor<CALL> {
            type Value = CapabilitiesOf<CALL>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of capabilities by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut asked = CapabilitiesOf::default();
                while let Some(name) = map.next_key::<String>()? {
                    if CALL && name == GAS_LIMIT {
                        let GasLimitParam(limit) = map.next_value()?;
                        if asked.gas_limit.replace(limit).is_some() {
                            return Err(A::Error::duplicate_field(GAS_LIMIT));
                        }
                    } else {
                        let CapabilityParam { optional, .. } = map.next_value()?;
                        asked.others.push(Requested { name, optional });
                    }
                }
                Ok(asked)
            }
        }

        deserializer.deserialize_map(CapabilitiesVisitor)
    }
}

/// A capability: whether it is optional. Its own fields are ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Capability")]
#[serde(expecting = "a capability: an object, which may have a boolean `optional`")]
struct CapabilityParam {
    #[serde(default)]
    optional: bool,
    #[serde(flatten)]
    _fields: Map<String, Value>,
}

/// The capability `gasLimitOverride`, with the gas limit in its `value`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "GasLimitOverride")]
#[serde(expecting = "an object with the gas limit as its `value`")]
struct GasLimitFields {
    /// Gas limit of this call, above zero.
    value: Quantity<u64>,
    #[serde(rename = "optional", default)]
    _optional: bool,
    #[serde(flatten)]
    _fields: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "GasLimitFields")]
struct GasLimitParam(u64);

impl TryFrom<GasLimitFields> for GasLimitParam {
    type Error = &'static str;

    fn try_from(GasLimitFields { value: Quantity(limit), .. }: GasLimitFields) -> Result<Self, Self::Error> {
        if limit == 0 { Err("value: 0x0: expected a gas limit above zero") } else { Ok(Self(limit)) }
    }
}
