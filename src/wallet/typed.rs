//! Structured data to sign (EIP-712): checked, hashed, and shown field by field.

use std::collections::BTreeMap;

use alloy_dyn_abi::{
    DynSolValue,
    eip712::{Eip712Types, PropertyDef, Resolver, TypedData},
};
use alloy_primitives::{B256, U256};
use alloy_sol_types::Eip712Domain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::cut;
use crate::{
    abi::value_text,
    shown::{self, quoted},
};

/// Maximum numbers of types, of fields of all types, and of dimensions of an array. Real messages have fewer, and the
/// work to hash a message is bounded by their product with the message's values.
const MAX_TYPES: usize = 32;
const MAX_FIELDS: usize = 256;
const MAX_DIMENSIONS: usize = 4;
/// Maximum number of values in a message, and of fields in its primary type with all types in it written out.
const MAX_VALUES: usize = 4096;
/// Maximum nesting of types.
const DEEPEST: usize = 32;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 128;

/// A message of EIP-712 that can be signed: its types are closed and finite, and its domain and its values fit them.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedMessage {
    /// The domain, with the fields that `EIP712Domain` lists and no others.
    pub domain: Eip712Domain,
    /// Name of the message's type.
    pub primary_type: String,
    /// The definition of the message's type with all types in it (`encodeType`). It is part of the signed data.
    pub encoded_type: String,
    /// The message. `None` if the domain alone is signed.
    pub value: Option<DynSolValue>,
    /// Length of the message in bytes, as JSON.
    pub length: usize,
    /// The hash that is signed.
    pub hash: B256,
}

/// A field of a message, as it is shown to an approver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShownField {
    /// The field's name after the names of the fields around it, such as `order.items[0].token`.
    pub name: String,
    /// The value. Texts are quoted and escaped.
    pub value: String,
}

impl TypedMessage {
    /// Checks the parts of a request for a signature, and hashes the message.
    ///
    /// # Errors
    /// Returns a text that names the field, its problem, and the expected value.
    pub fn new(types: Eip712Types, domain: Eip712Domain, primary_type: String, message: Value) -> Result<Self, String> {
        check_types(&types, &primary_type)?;
        let domain = listed_domain(&types, domain)?;
        let values = count(&message);
        if values > MAX_VALUES {
            return Err(format!("message: {values} values: expected at most {MAX_VALUES}"));
        }
        let length = message.to_string().len();
        let data = TypedData { domain, resolver: Resolver::from(&types), primary_type, message };
        let wrong = |error: alloy_dyn_abi::Error| format!("message: {}", shown::cut(&error.to_string(), 300));
        let is_domain = data.primary_type == Eip712Domain::NAME;
        let value = if is_domain { None } else { Some(data.coerce().map_err(wrong)?) };
        let encoded_type = data.encode_type().map_err(wrong)?;
        let hash = data.eip712_signing_hash().map_err(wrong)?;
        Ok(Self { domain: data.domain, primary_type: data.primary_type, encoded_type, value, length, hash })
    }

    /// Returns the fields of the domain.
    pub fn domain_fields(&self) -> Vec<ShownField> {
        let Eip712Domain { name, version, chain_id, verifying_contract, salt } = &self.domain;
        [
            ("name", name.as_deref().map(quoted)),
            ("version", version.as_deref().map(quoted)),
            ("chainId", chain_id.map(|id| id.to_string())),
            ("verifyingContract", verifying_contract.map(|address| address.to_string())),
            ("salt", salt.map(|salt| salt.to_string())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(ShownField { name: name.to_owned(), value: value? }))
        .collect()
    }

    /// Returns the fields of the message. Fields of structs and arrays are listed separately.
    pub fn fields(&self) -> Vec<ShownField> {
        let mut fields = Vec::new();
        if let Some(value) = &self.value {
            flatten(String::new(), value, &mut fields);
        }
        fields
    }

    /// Returns the value of a field of the message itself.
    pub fn field(&self, name: &str) -> Option<&DynSolValue> {
        let Some(DynSolValue::CustomStruct { prop_names, tuple, .. }) = &self.value else { return None };
        prop_names.iter().zip(tuple).find_map(|(known, value)| (known == name).then_some(value))
    }
}

/// Checks that the types are few, well named and not recursive, that each field's type is there, and that a value of
/// the primary type is of bounded size.
fn check_types(types: &Eip712Types, primary_type: &str) -> Result<(), String> {
    let fields: usize = types.values().map(Vec::len).sum();
    if types.len() > MAX_TYPES || fields > MAX_FIELDS {
        let count = types.len();
        return Err(format!(
            "types: {count} types with {fields} fields: expected at most {MAX_TYPES} and {MAX_FIELDS}"
        ));
    }
    for (of, props) in types.iter() {
        check_name("types", of)?;
        let path = format!("types.{of}");
        for prop in props {
            check_name(&path, prop.name())?;
            let dimensions = prop.type_name().matches('[').count();
            if prop.type_name().len() > MAX_NAME || dimensions > MAX_DIMENSIONS {
                let name = cut(prop.type_name());
                return Err(format!(
                    "{path}: type {name:?}: expected at most {MAX_NAME} bytes and {MAX_DIMENSIONS} dimensions"
                ));
            }
        }
    }
    if !types.contains_key(primary_type) {
        return Err(format!("primaryType: {:?}: expected one of types", cut(primary_type)));
    }
    let mut sizes = BTreeMap::new();
    let size = expanded(types, primary_type, 0, &mut sizes)?;
    if size > MAX_VALUES {
        return Err(format!(
            "types: {primary_type} has more than {MAX_VALUES} fields with the types in it written out"
        ));
    }
    Ok(())
}

fn check_name(path: &str, name: &str) -> Result<(), String> {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || letter == '$';
    let is_name = name.starts_with(is_letter)
        && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
        && name.len() <= MAX_NAME;
    if is_name {
        return Ok(());
    }
    Err(format!(
        "{path}: name {:?}: expected at most {MAX_NAME} letters, digits, _ and $, not a digit first",
        cut(name)
    ))
}

/// Returns the number of fields of a type, with the types in it expanded. `sizes` holds the sizes of the types so far.
fn expanded<'a>(
    types: &'a Eip712Types,
    name: &'a str,
    depth: usize,
    sizes: &mut BTreeMap<&'a str, usize>,
) -> Result<usize, String> {
    if let Some(size) = sizes.get(name) {
        return Ok(*size);
    }
    // A type in itself is as deep as any bound.
    if depth > DEEPEST {
        return Err(format!("types: {name:?} is nested deeper than {DEEPEST} types, or in itself"));
    }
    // A type that is not among them is one of Solidity, or is reported when the message is read.
    let Some(props) = types.get(name) else { return Ok(1) };
    let mut size = 1_usize;
    for prop in props {
        size = size.saturating_add(expanded(types, prop.root_type_name(), depth + 1, sizes)?);
    }
    sizes.insert(name, size);
    Ok(size)
}

/// Returns the domain with only the fields that `EIP712Domain` lists, because only these are signed.
fn listed_domain(types: &Eip712Types, domain: Eip712Domain) -> Result<Eip712Domain, String> {
    let Some(listed) = types.get(Eip712Domain::NAME) else {
        return Err("types.EIP712Domain: missing: expected a list of the domain's fields".to_owned());
    };
    let has = |name: &str| listed.iter().any(|prop| prop.name() == name);
    let domain = Eip712Domain {
        name: domain.name.filter(|_| has("name")),
        version: domain.version.filter(|_| has("version")),
        chain_id: domain.chain_id.filter(|_| has("chainId")),
        verifying_contract: domain.verifying_contract.filter(|_| has("verifyingContract")),
        salt: domain.salt.filter(|_| has("salt")),
    };
    let fields = |props: &[PropertyDef]| {
        let fields: Vec<_> = props.iter().map(|prop| format!("{} {}", prop.type_name(), prop.name())).collect();
        format!("{}({})", Eip712Domain::NAME, fields.join(","))
    };
    let (listed, expected) = (fields(listed), domain.encode_type());
    if listed != expected {
        return Err(format!(
            "types.EIP712Domain: {}: expected {expected}, the fields that the domain has, in the order of EIP-712",
            shown::cut(&listed, 300)
        ));
    }
    Ok(domain)
}

/// Returns the number of values in a JSON value.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

fn flatten(name: String, value: &DynSolValue, out: &mut Vec<ShownField>) {
    let shown = match value {
        DynSolValue::CustomStruct { prop_names, tuple, .. } if !tuple.is_empty() => {
            for (of, value) in prop_names.iter().zip(tuple) {
                let name = if name.is_empty() { of.clone() } else { format!("{name}.{of}") };
                flatten(name, value, out);
            }
            return;
        }
        DynSolValue::Array(items) | DynSolValue::FixedArray(items) | DynSolValue::Tuple(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                flatten(format!("{name}[{index}]"), value, out);
            }
            return;
        }
        DynSolValue::CustomStruct { .. } => "{}".to_owned(),
        DynSolValue::Array(_) | DynSolValue::FixedArray(_) | DynSolValue::Tuple(_) => "[]".to_owned(),
        DynSolValue::Uint(U256::MAX, _) => format!("{} (the largest number)", U256::MAX),
        DynSolValue::String(text) => quoted(text),
        plain => value_text(plain),
    };
    out.push(ShownField { name, value: shown });
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no user writes what tests read")]
mod tests {
    use alloy_primitives::b256;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_example_of_eip_712_has_its_hash() {
        let person = json!([{"name": "name", "type": "string"}, {"name": "wallet", "type": "address"}]);
        let data = json!({
            "types": {
                "EIP712Domain": [
                    {"name": "name", "type": "string"}, {"name": "version", "type": "string"},
                    {"name": "chainId", "type": "uint256"}, {"name": "verifyingContract", "type": "address"},
                ],
                "Person": person,
                "Mail": [{"name": "from", "type": "Person"}, {"name": "to", "type": "Person"}, {"name": "contents", "type": "string"}],
            },
            "primaryType": "Mail",
            "domain": {"name": "Ether Mail", "version": "1", "chainId": 1, "verifyingContract": "0xCcCCccccCCCCcCCCCCCcCcCccCcCCCcCcccccccC"},
            "message": {
                "from": {"name": "Cow", "wallet": "0xCD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"},
                "to": {"name": "Bob", "wallet": "0xbBbBBBBbbBBBbbbBbbBbbbbBBbBbbbbBbBbbBBbB"},
                "contents": "Hello, Bob!",
            },
        });
        let TypedData { domain, primary_type, message, .. } = serde_json::from_value(data.clone()).unwrap();
        let types = serde_json::from_value(data["types"].clone()).unwrap();
        let message = TypedMessage::new(types, domain, primary_type, message).unwrap();
        // <https://github.com/ethereum/EIPs/blob/master/assets/eip-712/Example.js>
        assert_eq!(message.hash, b256!("0xbe609aee343fb3c4b28e1df9e632fca64fcfaede20f02e86244efddf30957bd2"));
        let fields: Vec<_> = message.fields().into_iter().map(|field| (field.name, field.value)).collect();
        let expected = [
            ("from.name", "\"Cow\""),
            ("from.wallet", "0xCD2a3d9F938E13CD947Ec05AbC7FE734Df8DD826"),
            ("to.name", "\"Bob\""),
            ("to.wallet", "0xbBbBBBBbbBBBbbbBbbBbbbbBBbBbbbbBbBbbBBbB"),
            ("contents", "\"Hello, Bob!\""),
        ];
        assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
