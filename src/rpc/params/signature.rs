//! The parameters of the methods by which a page uses a browser's wallet: permissions (EIP-2255), chains (EIP-3326), and
//! signatures (EIP-191, EIP-712).

use std::fmt;

use alloy_dyn_abi::eip712::Eip712Types;
use alloy_primitives::{Address, Bytes, U256};
use alloy_sol_types::Eip712Domain;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

use super::{objects::ObjectsOnly, parse};
use crate::{
    rpc::{
        json::hex::{Fixed, Quantity, parse_fixed},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    shown,
    wallet::{MessageToSign, SignatureRequest, TypedMessage},
};

/// The parameter of `wallet_requestPermissions`.
#[derive(Debug, Deserialize)]
#[serde(expecting = "1 parameter: an object of permissions by name")]
struct PermissionsParams(#[expect(dead_code, reason = "parsing checks its form")] PermissionsParam, #[serde(skip)] ());

#[derive(Debug, Deserialize)]
struct PermissionsParam {
    #[serde(rename = "eth_accounts")]
    _eth_accounts: CaveatsParam,
}

params! {
    SwitchParams(SwitchParam) = "1 parameter: an object with the chainId";
    TypedDataParams(Fixed<20>, TypedDataParam) = "2 parameters: the account, the typed data";
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SwitchParam {
    chain_id: Quantity<U256>,
}

/// The parameters of `personal_sign`. Some clients send a password after them, which presim does not need.
#[derive(Debug, Deserialize)]
#[serde(expecting = "2 parameters: the message, the account")]
struct PersonalParams(
    String,
    String,
    #[serde(default)]
    #[expect(dead_code, reason = "presim signs without passwords")]
    Option<Value>,
);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypedDataFields {
    types: Eip712Types,
    primary_type: String,
    domain: Eip712Domain,
    /// The message. It may be missing if the domain alone is signed.
    #[serde(default)]
    message: Option<Value>,
}

/// Typed data: an object, or its JSON as a string.
#[derive(Debug)]
struct TypedDataParam(TypedDataFields);

/// The caveats of a permission: any object. presim's own caveat is in the answer.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object of caveats by name")]
struct CaveatsParam {
    #[serde(flatten)]
    _caveats: Map<String, Value>,
}

/// Checks that a request for permissions asks for `eth_accounts` (EIP-2255).
///
/// # Errors
///
/// Returns -32602 if it does not, or, on `/`, if it asks for another permission.
pub fn parse_permissions(params: &str, dialect: &Dialect) -> Result<()> {
    parse::<PermissionsParams>(params, dialect).map(drop)
}

/// Parses the id of the chain to which a page switches (EIP-3326).
///
/// # Errors
///
/// Returns -32602 with the name of the wrong field.
pub fn parse_switch(params: &str, dialect: &Dialect) -> Result<U256> {
    let SwitchParams(SwitchParam { chain_id }, ()) = parse(params, dialect)?;
    Ok(chain_id.0)
}

/// Parses the parameters of `personal_sign`: the message and the account, or the account and the message if only the
/// first has an address's form, as wallets do.
///
/// # Errors
///
/// Returns -32602 if there is no account, or if hex data of the message is malformed.
pub fn parse_personal(params: &str, dialect: &Dialect) -> Result<SignatureRequest> {
    let PersonalParams(first, second, _) = parse(params, dialect)?;
    let (account, place, message, message_place) = match (address(&first), address(&second)) {
        (_, Some(account)) => (account, "params[1]", first, "params[0]"),
        (Some(account), None) => (account, "params[0]", second, "params[1]"),
        (None, None) => {
            let shown = shown::wrong(&second);
            return Err(RpcError::params(format!("params[1]: {shown}: expected an account: 0x and 40 hex digits")));
        }
    };
    let message = MessageToSign::Personal(message_bytes(message, message_place)?);
    Ok(SignatureRequest { account, place, message })
}

/// Parses the parameters of `eth_signTypedData_v4`.
///
/// # Errors
///
/// Returns -32602 with the name of the wrong field if the types, the domain or the message do not fit each other.
pub fn parse_typed_data(params: &str, dialect: &Dialect) -> Result<SignatureRequest> {
    let TypedDataParams(account, TypedDataParam(data), ()) = parse(params, dialect)?;
    let TypedDataFields { types, primary_type, domain, message } = data;
    let wrong = |problem: String| RpcError::params(format!("params[1].{problem}"));
    let message = match message {
        Some(message) => message,
        None if primary_type == Eip712Domain::NAME => Value::Object(Map::new()),
        None => return Err(wrong("message: missing: expected an object with the fields of primaryType".to_owned())),
    };
    let message = TypedMessage::new(types, domain, primary_type, message).map_err(wrong)?;
    Ok(SignatureRequest {
        account: account.into(),
        place: "params[0]",
        message: MessageToSign::Typed(Box::new(message)),
    })
}

fn address(text: &str) -> Option<Address> {
    parse_fixed(text).ok().map(Address::new)
}

/// Returns the bytes of a message: those of its hex digits if it is `0x` and hex digits, else those of its text.
fn message_bytes(text: String, place: &str) -> Result<Bytes> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match digits.map(const_hex::decode) {
        None => Ok(text.into_bytes().into()),
        Some(Ok(bytes)) => Ok(bytes.into()),
        Some(Err(_)) => Err(RpcError::params(format!(
            "{place}: 0x and an odd count of hex digits: expected text, or hex data in whole bytes"
        ))),
    }
}

impl<'de> Deserialize<'de> for TypedDataParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TypedDataVisitor;

        impl<'de> Visitor<'de> for TypedDataVisitor {
            type Value = TypedDataParam;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "typed data: an object with types, primaryType, domain and message, or its JSON as a string",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TypedDataParam, E> {
                let mut deserializer = serde_json::Deserializer::from_str(text);
                let parsed = serde_path_to_error::deserialize(ObjectsOnly(&mut deserializer))
                    .map_err(|error| E::custom(format_args!("{}: {}", error.path(), error.inner())))?;
                deserializer.end().map_err(E::custom)?;
                Ok(TypedDataParam(parsed))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TypedDataParam, A::Error> {
                TypedDataFields::deserialize(MapAccessDeserializer::new(map)).map(TypedDataParam)
            }
        }

        deserializer.deserialize_any(TypedDataVisitor)
    }
}
