//! The types agree with the document of `rpc.discover`: the methods, the examples, and every field of every shape.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{B256, U64};
use eyre::{OptionExt, Result};
use presim_client::{
    Approvals, Begun, BlockSelector, Changes, Divergence, Found, NewestSnapshot, NodeStatus, Outcome, Search,
    Simulated, Simulation, WatchId, WatchedBundle,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use support::TestNode;

const ADDRESS: &str = "0x1111111111111111111111111111111111111111";
const WORD: &str = "0x2222222222222222222222222222222222222222222222222222222222222222";

/// Fields that the types leave out: other names of fields that they have, and times in milliseconds, which alloy's types of headers and
/// logs lack.
const LEFT_OUT: [&str; 9] = [
    "BlockOverrides.baseFee",
    "BlockOverrides.coinbase",
    "BlockOverrides.parentBeaconBlockRoot",
    "BlockOverrides.random",
    "BlockOverrides.timestamp",
    "AccountOverride.movePrecompileTo",
    "Call.data",
    "Log.blockTimestampMs",
    "SimulatedBlock.timestampMs",
];

/// Reads a value as the type and writes it again.
fn round_trip<T: DeserializeOwned + Serialize>(value: &Value) -> Result<Value> {
    // As a text, because a provider reads texts.
    Ok(serde_json::to_value(serde_json::from_str::<T>(&value.to_string())?)?)
}

type RoundTrip = fn(&Value) -> Result<Value>;

/// The types of the parameters and the result of each method.
fn methods() -> BTreeMap<&'static str, (RoundTrip, RoundTrip)> {
    type Nothing = [(); 0];
    BTreeMap::from([
        ("presim_approvals", (round_trip::<Nothing> as RoundTrip, round_trip::<Approvals> as RoundTrip)),
        ("presim_divergences", (round_trip::<Nothing>, round_trip::<Vec<Divergence>>)),
        ("presim_outcome", (round_trip::<(B256,)>, round_trip::<Option<Outcome>>)),
        ("presim_results", (round_trip::<(WatchId, U64, u64)>, round_trip::<Changes>)),
        ("presim_rewatch", (round_trip::<(WatchId, U64)>, round_trip::<Changes>)),
        ("presim_search", (round_trip::<(Search, BlockSelector)>, round_trip::<Found>)),
        ("presim_simulate", (round_trip::<(Simulation, BlockSelector)>, round_trip::<Simulated>)),
        ("presim_snapshot", (round_trip::<Nothing>, round_trip::<NewestSnapshot>)),
        ("presim_status", (round_trip::<Nothing>, round_trip::<NodeStatus>)),
        ("presim_unwatch", (round_trip::<(WatchId,)>, round_trip::<bool>)),
        ("presim_watch", (round_trip::<(Vec<WatchedBundle>, BlockSelector)>, round_trip::<Begun>)),
    ])
}

/// The types of the shapes from which the methods' parameters and results are built.
fn shapes() -> BTreeMap<&'static str, RoundTrip> {
    BTreeMap::from([
        ("Begun", round_trip::<Begun> as RoundTrip),
        ("BlockSelector", round_trip::<BlockSelector>),
        ("Changes", round_trip::<Changes>),
        ("Found", round_trip::<Found>),
        ("Hash", round_trip::<B256>),
        ("NewestSnapshot", round_trip::<NewestSnapshot>),
        ("NodeStatus", round_trip::<NodeStatus>),
        ("Number", round_trip::<U64>),
        ("Payload", round_trip::<Simulation>),
        ("Quantity", round_trip::<U64>),
        ("SearchPayload", round_trip::<Search>),
        ("SentOutcome", round_trip::<Outcome>),
        ("ShownDivergence", round_trip::<Divergence>),
        ("SimulatedBlocks", round_trip::<Simulated>),
        ("WaitingList", round_trip::<Approvals>),
        ("WatchId", round_trip::<WatchId>),
        ("WatchedBundle", round_trip::<WatchedBundle>),
    ])
}

/// Values of shapes whose fields exclude each other, or that have several forms of one value, of which the types write one.
fn chosen(name: &str) -> Option<Value> {
    let range = json!({"from": "0x1", "to": "0x2"});
    Some(match name {
        "AbiItem" => json!(["error Expired(uint256 deadline)"]),
        "BalanceDifference" => json!([range, {"change": "-5"}]),
        "BlockSelector" => json!([
            "latest", "pending", "safe", "finalized", "earliest", "0x1", WORD,
            {"snapshotId": "0x1"},
            {"blockHash": WORD, "requireCanonical": true},
            {"blockHash": WORD, "transactionIndex": 2},
            {"blockNumber": "0x1", "transactionIndex": -1},
        ]),
        // Whole transactions have alloy's type. `tests/client.rs` reads one.
        "BlockTransaction" | "Hash" => json!([WORD]),
        "Number" | "TransactionType" => json!(["0x1"]),
        "SentOutcome" => json!([
            {"status": "pending"},
            {"status": "mined", "blockNumber": "0x1"},
            {"status": "dropped", "reason": "block 42 is sealed"},
        ]),
        "Vary" => json!([
            {"path": "blocks[0].calls[0].data", "word": 1, "values": ["0x1", "0x2"]},
            {"path": "blocks[0].calls[0].value", "from": "0x1", "to": "0x9", "step": "0x2"},
            {"path": "blocks[0].calls[0].value", "from": "0x1", "to": "0x9", "points": 3, "scale": "geometric"},
            {"path": "blocks[0].calls[0].value", "maximize": {"from": "0x1", "to": "0x9", "tolerance": "0x1"}},
        ]),
        _ => return None,
    })
}

/// A text without a pattern, by the field that has it.
fn text(field: &str) -> &'static str {
    match field {
        "from" | "to" | "upgrade" => ADDRESS,
        "digest" | "hash" => WORD,
        "change" | "objective" | "transfers" => "-5",
        "dataFees" | "holdsAt" | "mostFees" | "value" => "0x1",
        "data" | "message" => "0x0102",
        _ => "text",
    }
}

/// Makes values of the document's shapes.
struct Samples<'a> {
    document: &'a Value,
}

impl Samples<'_> {
    /// Returns values that fit a schema, in all of its forms. `field` is the place of the value, and `within` the shapes around it.
    fn of(&self, schema: &Value, field: &str, within: &[&str]) -> Vec<Value> {
        if let Some(name) = schema["$ref"].as_str().map(|path| path.rsplit('/').next().unwrap()) {
            let named = &self.document["components"]["schemas"][name];
            return match chosen(name) {
                Some(values) => {
                    has_all_fields(name, named, &values);
                    values.as_array().unwrap().clone()
                }
                None if within.iter().filter(|outer| **outer == name).count() > 1 => Vec::new(),
                None => self.of(named, field, &[within, &[name]].concat()),
            };
        }
        for forms in ["anyOf", "enum"] {
            if let Some(forms_of) = schema[forms].as_array() {
                let values = forms_of.iter().filter(|form| !form.is_null() && form["type"] != "null");
                return match forms {
                    "anyOf" => values.flat_map(|form| self.of(form, field, within)).collect(),
                    _ => values.cloned().collect(),
                };
            }
        }
        if let Some(value) = schema.get("const") {
            return vec![value.clone()];
        }
        if let Some(options) = schema["oneOf"].as_array() {
            let fields = self.fields(schema, within);
            let option = |option: &Value| self.objects([fields.clone(), self.fields(option, within)].concat());
            return options.iter().flat_map(option).collect();
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if schema.get("allOf").is_some() => return self.of(&schema["allOf"][0], field, within),
            _ => return vec![json!("0x0102")],
        };
        match kinds[0] {
            "object" if schema.get("properties").is_none() => {
                let key = match (field, within.last()) {
                    ("lanes", _) => "short",
                    ("storage", _) | (_, Some(&"Slots")) => WORD,
                    _ => ADDRESS,
                };
                let by_pattern = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
                let values = self.of(by_pattern.unwrap_or(&schema["additionalProperties"]), "", within);
                values.into_iter().map(|value| json!({key: value})).collect()
            }
            // A bundle has one of two payloads.
            "object" if within.last() == Some(&"WatchedBundle") => {
                let without = |payload: &str| {
                    let mut fields = self.fields(schema, within);
                    fields.retain(|(field, _)| field != payload);
                    self.objects(fields)
                };
                [without("search"), without("simulate")].concat()
            }
            "object" => self.objects(self.fields(schema, within)),
            "array" => {
                let items = self.of(&schema["items"], field, within);
                if items.is_empty() { Vec::new() } else { vec![items.into()] }
            }
            "boolean" => vec![true.into()],
            "integer" => vec![7.into()],
            "number" => vec![json!(1.5)],
            "string" => vec![string(schema["pattern"].as_str(), field).into()],
            other => panic!("{field}: {other} is a type that the test does not know"),
        }
    }

    /// Returns the fields of an object with their values.
    fn fields(&self, schema: &Value, within: &[&str]) -> Vec<(String, Vec<Value>)> {
        let name = within.last().copied().unwrap_or_default();
        let own = schema["properties"].as_object().into_iter().flatten();
        let own = own.filter(|(field, _)| !LEFT_OUT.contains(&&*format!("{name}.{field}")));
        let own = own.map(|(field, schema)| (field.clone(), self.of(schema, field, within)));
        let around = schema["allOf"].as_array().into_iter().flatten().flat_map(|part| {
            let name = part["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
            self.fields(&self.document["components"]["schemas"][name], &[within, &[name]].concat())
        });
        own.chain(around).collect()
    }

    /// Returns objects that together have every value of every field.
    fn objects(&self, fields: Vec<(String, Vec<Value>)>) -> Vec<Value> {
        let count = fields.iter().map(|(_, values)| values.len()).max().unwrap_or_default().max(1);
        let object = |index: usize| {
            let fields = fields.iter().filter(|(_, values)| !values.is_empty());
            fields.map(|(field, values)| (field.clone(), values[index % values.len()].clone())).collect::<Map<_, _>>()
        };
        (0..count).map(|index| object(index).into()).collect()
    }
}

fn string(pattern: Option<&str>, field: &str) -> String {
    match (pattern, field) {
        (None, field) => text(field).into(),
        (Some("^0x(0|[1-9a-f][0-9a-f]{0,63})$"), _) => "0x1".into(),
        (Some("^0x[0-9a-fA-F]{40}$"), _) => ADDRESS.into(),
        (Some("^0x[0-9a-fA-F]{32}$"), _) => WORD[..34].into(),
        (Some("^0x[0-9a-fA-F]{0,64}$"), _) => WORD.into(),
        (Some("^0x([0-9a-fA-F]{2})*$"), "logsBloom") => format!("0x{}", "00".repeat(256)),
        (Some("^0x([0-9a-fA-F]{2})*$"), "nonce") => format!("0x{}", "00".repeat(8)),
        (Some("^0x([0-9a-fA-F]{2})*$"), _) => "0x0102".into(),
        (Some(pattern), _) if pattern.contains("-?[0-9]+") => "-5".into(),
        (Some(pattern), _) => panic!("{field}: {pattern} is a pattern that the test does not know"),
    }
}

/// Checks that chosen values have all fields of their shape.
fn has_all_fields(name: &str, schema: &Value, values: &Value) {
    let keys = |value: &Value| value.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default();
    let given: BTreeSet<String> =
        values.as_array().unwrap().iter().flat_map(|value| -> Vec<String> { keys(value) }).collect();
    let of_forms = schema["anyOf"].as_array().into_iter().flatten().map(|form| &form["properties"]);
    let known = [&schema["properties"]].into_iter().chain(of_forms);
    let known: BTreeSet<String> = known.flat_map(|fields| -> Vec<String> { keys(fields) }).collect();
    // An item of an ABI as JSON and a call's whole transaction have other types.
    if !["AbiItem", "BlockTransaction"].contains(&name) {
        assert_eq!(given, known, "{name}");
    }
}

/// Writes alloy's name of a field of a call frame as presim does.
fn renamed(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let name = |name: String| if name == "executionGasUsed" { "regularGasUsed".into() } else { name };
            fields.into_iter().map(|(field, value)| (name(field), renamed(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(renamed).collect(),
        other => other,
    }
}

/// Returns the first place where two values differ, with the values there.
fn difference(read: &Value, given: &Value, at: &str) -> Option<String> {
    let (read_parts, given_parts): (BTreeMap<_, _>, BTreeMap<_, _>) = match (read, given) {
        (Value::Object(read), Value::Object(given)) => {
            let parts = |fields: &Map<String, Value>| fields.clone().into_iter().collect();
            (parts(read), parts(given))
        }
        (Value::Array(read), Value::Array(given)) => {
            let parts =
                |items: &[Value]| items.iter().cloned().enumerate().map(|(at, item)| (at.to_string(), item)).collect();
            (parts(read), parts(given))
        }
        _ => return (read != given).then(|| format!("{at}: {given} is read as {read}")),
    };
    let keys: BTreeSet<&String> = read_parts.keys().chain(given_parts.keys()).collect();
    let part = |parts: &BTreeMap<String, Value>, key: &String| parts.get(key).cloned().unwrap_or_default();
    keys.into_iter()
        .find_map(|key| difference(&part(&read_parts, key), &part(&given_parts, key), &format!("{at}.{key}")))
}

async fn document() -> Result<Value> {
    Ok(TestNode::quiet().result("/", "rpc.discover", json!([])).await)
}

fn presim_methods(document: &Value) -> Result<Vec<&Value>> {
    let methods = document["methods"].as_array().ok_or_eyre("the document has methods")?;
    Ok(methods
        .iter()
        .filter(|method| method["name"].as_str().is_some_and(|name| name.starts_with("presim_")))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trait_has_each_method_of_the_document_with_its_parameters() -> Result<()> {
    let source = syn::parse_file(include_str!("../src/api.rs"))?;
    let items = source.items.into_iter().find_map(|item| match item {
        syn::Item::Trait(item) => Some(item.items),
        _ => None,
    });
    let functions = items.ok_or_eyre("the file has the trait")?.into_iter().filter_map(|item| match item {
        syn::TraitItem::Fn(item) => Some((item.sig.ident.to_string(), item.sig.inputs.len() - 1)),
        _ => None,
    });
    let mut functions: BTreeMap<String, usize> = functions.collect();
    functions.retain(|name, _| name.starts_with("presim_") && !name.starts_with("presim_subscribe_"));

    let document = document().await?;
    let documented = presim_methods(&document)?
        .into_iter()
        .map(|method| (method["name"].as_str().unwrap().to_owned(), method["params"].as_array().unwrap().len()));
    assert_eq!(functions, documented.collect());
    assert_eq!(functions.keys().map(String::as_str).collect::<Vec<_>>(), methods().into_keys().collect::<Vec<_>>());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_are_the_same_after_a_round_trip() -> Result<()> {
    let document = document().await?;
    for method in presim_methods(&document)? {
        let name = method["name"].as_str().unwrap();
        let (params, result) = methods()[name];
        for example in method["examples"].as_array().ok_or_eyre("it has examples")? {
            let given: Value =
                example["params"].as_array().unwrap().iter().map(|param| param["value"].clone()).collect();
            assert_eq!(params(&given)?, given, "{name}");
            let given = &example["result"]["value"];
            assert_eq!(result(given)?, *given, "{name}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_every_shape_is_the_same_after_a_round_trip() -> Result<()> {
    fn names(part: &Value, found: &mut BTreeSet<String>) {
        match part {
            Value::Object(fields) => {
                let name = fields.get("$ref").and_then(Value::as_str).map(|path| path.rsplit('/').next().unwrap());
                found.extend(name.map(str::to_owned));
                fields.values().for_each(|part| names(part, found));
            }
            Value::Array(items) => items.iter().for_each(|part| names(part, found)),
            _ => {}
        }
    }

    let document = document().await?;
    let mut used = BTreeSet::new();
    for method in presim_methods(&document)? {
        names(&method["params"], &mut used);
        names(&method["result"], &mut used);
    }
    let shapes = shapes();
    assert_eq!(used.iter().map(String::as_str).collect::<Vec<_>>(), shapes.keys().copied().collect::<Vec<_>>());
    for (name, round_trip) in shapes {
        let samples = Samples { document: &document };
        let values = samples.of(&json!({"$ref": format!("#/components/schemas/{name}")}), "", &[]);
        assert!(!values.is_empty(), "{name}");
        for value in values {
            let read = round_trip(&value).map_err(|error| eyre::eyre!("{name}: {error}: {value}"))?;
            assert_eq!(difference(&renamed(read), &value, name), None);
        }
    }
    Ok(())
}
