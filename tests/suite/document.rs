//! `rpc.discover` agrees with the methods: number of parameters, required parameters, and fields of each object.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::support::{PATHS, Socket, TestNode};

const ADDRESS: &str = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
const HASH: &str = "0x0000000000000000000000000000000000000000000000000000000000000001";

/// Returns all parameters of each method, with an object wherever the method takes one: the document's example, or one with more
/// where that leaves something out.
fn examples(document: &Value) -> Vec<(String, Value)> {
    let methods = document["methods"].as_array().unwrap().iter().map(|entry| {
        let given = entry["examples"][0]["params"].as_array().unwrap().iter().map(|param| param["value"].clone());
        (entry["name"].as_str().unwrap().to_owned(), given.collect::<Value>())
    });
    let mut methods: Vec<_> = methods.collect();
    let given = |method: &str| methods.iter().find(|(name, _)| name == method).expect("it is documented").1.clone();
    let signed = given("eth_sendRawTransaction")[0].take();
    let (call, accounts) = (json!({"to": ADDRESS}), json!({ADDRESS: {}}));
    let of_call = json!([call, "latest", accounts, {}]);
    let bundles = json!([{"transactions": [call], "blockOverride": {}}]);
    let calls =
        json!([{"calls": [{"to": ADDRESS, "gas": "0x5208"}], "stateOverrides": accounts, "blockOverrides": {}}]);
    let options = json!({"stateOverrides": accounts, "blockOverrides": {}});
    let search = json!({
        "blockStateCalls": calls,
        "vary": [{"path": "blocks[0].calls[0].value", "values": ["0x0"]}],
        "objective": {"account": ADDRESS},
        "require": {},
    });
    let mut batch = given("wallet_sendCalls");
    batch[0]["capabilities"] = json!({"other": {"optional": true}});
    batch[0]["calls"][0]["capabilities"] = json!({"gasLimitOverride": {"value": "0xffff"}});
    let mut shared = given("mev_simBundle");
    shared[0]["inclusion"]["block"] = "0x1".into();
    shared[0]["validity"] = json!({
        "refund": [{"bodyIdx": 0, "percent": 1}], "refundConfig": [{"address": ADDRESS, "percent": 1}],
    });
    shared[1]["parentBlock"] = "latest".into();
    let mut built = given("testing_buildBlockV1");
    built[1]["withdrawals"] = json!([{"index": "0x0", "validatorIndex": "0x0", "address": ADDRESS, "amount": "0x1"}]);
    let more = [
        ("eth_call", of_call.clone()),
        ("eth_estimateGas", of_call.clone()),
        ("eth_createAccessList", of_call),
        ("eth_simulateV1", json!([{"blockStateCalls": calls}, "latest"])),
        (
            "presim_simulate",
            json!([{"blockStateCalls": calls, "outputs": ["status"], "when": [], "errors": []}, "latest"]),
        ),
        ("presim_search", json!([search, "latest"])),
        ("presim_watch", json!([[{"name": "one", "search": search, "only": {"above": "0"}}], "latest"])),
        ("eth_callBundle", json!([{"txs": [signed], "blockNumber": "0x1", "stateBlockNumber": "latest"}])),
        ("mev_simBundle", shared),
        ("eth_callMany", json!([bundles, {"blockNumber": "latest"}, accounts, 1000])),
        ("debug_traceCall", json!([call, "latest", options])),
        ("debug_traceCallMany", json!([bundles, {"blockNumber": "latest"}, options])),
        ("debug_traceBlockByNumber", json!(["latest", options])),
        ("debug_traceBlockByHash", json!([HASH, options])),
        ("debug_traceTransaction", json!([HASH, options])),
        ("trace_call", json!([call, ["trace"], "latest", accounts, {}])),
        ("trace_filter", json!([{"fromBlock": "latest"}])),
        ("eth_sendRawTransactionSync", json!([signed, 1])),
        ("wallet_sendCalls", batch),
        ("personal_sign", json!(["0x68690a", ADDRESS, "secret"])),
        ("testing_buildBlockV1", built),
        ("eth_getLogs", json!([{"fromBlock": "latest"}])),
        ("setAutomine", json!([false])),
        ("setIntervalMining", json!([0])),
        ("reset", json!([{"forking": {"blockNumber": null}}])),
        ("dumpState", json!([false])),
    ];
    for (name, params) in &mut methods {
        let is_of = |other: &str| name.as_str() == other || name.ends_with(&format!("_{other}"));
        if let Some((_, more)) = more.iter().find(|(other, _)| is_of(other)) {
            *params = more.clone();
        }
    }
    methods
}

/// Returns why a method's parameters are refused, or `None` if they are accepted, whatever the request's result.
async fn refusal(node: &TestNode, path: &str, method: &str, params: Value) -> Option<String> {
    let error = node.call(path, method, params).await["error"].take();
    // The wallet has one message for all errors and gives the reason in `data`.
    (error["code"] == -32602).then(|| format!("{} {}", error["message"], error["data"]))
}

async fn discovered(node: &TestNode, path: &str) -> Value {
    node.result(path, "rpc.discover", json!([])).await
}

/// Returns the parameters of a method.
fn params_of(document: &Value, method: &str) -> Vec<Value> {
    let entry = document["methods"].as_array().unwrap().iter().find(|entry| entry["name"] == method);
    let entry = entry.unwrap_or_else(|| panic!("{method} is not in the document"));
    spelt_out(&entry["params"], document, &[]).as_array().unwrap().clone()
}

/// Returns a part of the document with the schemas in place of their names. `within` names those around the part, which stay names.
fn spelt_out(part: &Value, document: &Value, within: &[&str]) -> Value {
    match part {
        Value::Object(fields) => match fields.get("$ref").and_then(Value::as_str) {
            Some(name) if within.contains(&name) => part.clone(),
            Some(name) => {
                let named = document.pointer(name.strip_prefix('#').unwrap());
                let named = named.unwrap_or_else(|| panic!("{name} is not in the document"));
                spelt_out(named, document, &[within, &[name]].concat())
            }
            None => fields.iter().map(|(name, value)| (name.clone(), spelt_out(value, document, within))).collect(),
        },
        Value::Array(items) => items.iter().map(|item| spelt_out(item, document, within)).collect(),
        other => other.clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_takes_as_many_parameters_as_the_document_has() {
    for path in PATHS {
        let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
        let document = discovered(&node, path).await;
        // Over HTTP these two methods are always refused.
        for (method, params) in examples(&document).iter().filter(|(name, _)| !name.ends_with("subscribe")) {
            let (documented, all) = (params_of(&document, method), params.as_array().unwrap().clone());
            assert_eq!(all.len(), documented.len(), "{method}: the example has all the parameters of the document");
            let needed = documented.iter().take_while(|param| param["required"] == true).count();
            assert!(
                documented[needed..].iter().all(|param| param["required"] != true),
                "{method}: required after optional"
            );
            for count in 0..=all.len() {
                let refused = refusal(&node, path, method, json!(all[..count])).await;
                // Of the options of traces, `/` refuses those that a method ignores. A lowest price is of before London. There is no
                // block to roll back.
                let known = [
                    "only calls take this field",
                    "not supported when EIP-1559 is active",
                    "the blocks before which the state is retained",
                ];
                let refused = refused.filter(|text| !known.iter().any(|known| text.contains(known)));
                assert_eq!(refused.is_some(), count < needed, "{path} {method} with {count} parameters: {refused:?}");
            }
            let more = [all, vec![Value::Null]].concat();
            let refused = refusal(&node, path, method, json!(more)).await;
            assert!(refused.is_some(), "{path} {method} takes more parameters than the document has");
        }
    }
}

/// Objects by their JSON pointers, and the names of the fields that each may have.
type Objects = Vec<(String, BTreeSet<String>)>;

/// Returns the schema of an object that `schema` is, or that it has among its choices.
fn object_of(schema: &Value) -> Option<&Value> {
    let choices = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    match schema.get("type") {
        Some(kind) if kind == "object" => Some(schema),
        _ => choices.filter_map(object_of).next(),
    }
}

/// Returns the schema of the items of a list that `schema` is, or that it has among its choices.
fn items_of(schema: &Value) -> Option<&Value> {
    let choices = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    schema.get("items").or_else(|| choices.filter_map(items_of).next())
}

/// Collects the objects in `value` whose fields `schema` names: their JSON pointers, and the names of those fields.
fn objects(schema: &Value, value: &Value, at: &str, found: &mut Objects) {
    match value {
        Value::Object(fields) => {
            let schema = object_of(schema).unwrap_or(schema);
            let named = schema["properties"].as_object();
            if let Some(named) = named.filter(|_| schema.get("additionalProperties").is_none()) {
                found.push((at.to_owned(), named.keys().cloned().collect()));
            }
            for (name, value) in fields {
                let of_name = named.and_then(|named| named.get(name)).unwrap_or(&schema["additionalProperties"]);
                objects(of_name, value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                objects(items_of(schema).unwrap_or(&Value::Null), item, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Collects the JSON pointers of the objects in `value`, those whose keys are data too.
fn all_objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, value)| all_objects(value, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| all_objects(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// serde takes an array for a struct, in the order in which its fields are declared, which means nothing to a client.
#[tokio::test(flavor = "multi_thread")]
async fn an_array_in_the_place_of_any_object_is_refused() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    let mut socket = Socket::open(&node, "/").await;
    let mut objects = 0;
    let subscriptions = [
        json!(["presim_stateChanges", {"address": ADDRESS}]),
        json!(["presim_watch", [{"name": "one", "simulate": {"blockStateCalls": [{"calls": []}]}}]]),
    ];
    let subscriptions = subscriptions.map(|params| ("eth_subscribe".to_owned(), params));
    for (method, params) in examples(&discovered(&node, "/").await).into_iter().chain(subscriptions) {
        let mut found = Vec::new();
        all_objects(&params, "", &mut found);
        for at in found {
            // The fields of an object of this kind are the caller's own, which may be arrays, or are ignored.
            if at.contains("/message") || at.ends_with("/domain") || at.contains("/eth_accounts") {
                continue;
            }
            objects += 1;
            let values = params.pointer(&at).unwrap().as_object().unwrap().values().cloned().collect();
            for array in [Value::Array(Vec::new()), json!([null, null, null, null, null]), Value::Array(values)] {
                let mut params = params.clone();
                *params.pointer_mut(&at).unwrap() = array;
                for path in PATHS {
                    let answer = match method.ends_with("subscribe") {
                        true => socket.call(&method, params.clone()).await,
                        false => node.call(path, &method, params.clone()).await,
                    };
                    let error = &answer["error"];
                    let text = format!("{} {}", error["message"], error["data"]);
                    assert_eq!(error["code"], -32602, "{path} {method} {at} {params}: {answer}");
                    assert!(text.contains("invalid type: sequence"), "{path} {method} {at} {params}: {text}");
                }
            }
        }
    }
    assert!(objects > 60, "{objects} objects");
}

/// Returns every field name of a wire type in the sources: fields in camel case, renames and aliases.
fn fields_of_sources() -> BTreeSet<String> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rpc");
    let mut paths = vec![std::path::PathBuf::from(format!("{sources}/params")), format!("{sources}/api").into()];
    let mut names = BTreeSet::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let text = std::fs::read_to_string(path).expect("a source");
        for line in text.lines().map(str::trim) {
            let named = line.strip_prefix("#[serde(alias = \"").or(line.strip_prefix("#[serde(rename = \""));
            if let Some((name, _)) = named.and_then(|rest| rest.split_once('"')) {
                names.insert(name.to_owned());
            } else if let Some((name, _)) = line.split_once(": ")
                && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
            {
                let mut words = name.split('_');
                let first = words.next().unwrap_or_default().to_owned();
                names.insert(words.fold(first, |name, word| {
                    let (head, rest) = word.split_at(word.len().min(1));
                    name + &head.to_ascii_uppercase() + rest
                }));
            }
        }
    }
    assert!(names.contains("movePrecompileTo") && names.contains("blobVersionedHashes"), "{names:?}");
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_takes_the_fields_that_the_document_has_and_no_others() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    let document = discovered(&node, "/standard").await;
    let found: Vec<(String, Value, Objects)> = examples(&document)
        .into_iter()
        .filter(|(name, _)| name != "eth_subscribe")
        .map(|(method, params)| {
            let mut found = Objects::new();
            for (index, param) in params_of(&document, &method).iter().enumerate() {
                objects(&param["schema"], &params[index], &format!("/{index}"), &mut found);
            }
            (method, params, found)
        })
        .collect();
    let documented = found.iter().flat_map(|(.., found)| found).flat_map(|(_, names)| names.clone());
    let names: BTreeSet<String> = documented.chain(fields_of_sources()).collect();
    let mut objects = 0;
    for (method, params, found) in &found {
        for (at, documented) in found {
            objects += 1;
            for name in &names {
                let mut params = params.clone();
                let object: &mut Map<String, Value> = params.pointer_mut(at).unwrap().as_object_mut().unwrap();
                // The field is added last, with a value that no field accepts; an existing field keeps its value.
                object.entry(name.clone()).or_insert(json!({"": []}));
                let refused = refusal(&node, "/", method, params).await.unwrap_or_default();
                let unknown = refused.contains(&format!("{name}: unknown field"));
                assert_eq!(unknown, !documented.contains(name), "{method} {at} {name}: {refused}");
            }
        }
    }
    assert!(objects > 30, "{objects} objects");
}

/// The tables of flags, made from the flags themselves.
fn flags() -> String {
    let command = <presim::testing::Config as clap::CommandFactory>::command();
    let shown = |argument: &&clap::Arg| argument.get_long().is_some() && argument.get_help_heading().is_some();
    let mut headings: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_help_heading).collect();
    let mut seen = BTreeSet::new();
    headings.retain(|heading| seen.insert(*heading));
    let mut text = String::new();
    for heading in headings {
        text += &format!("### {heading}\n\n| flag | default | meaning |\n|---|---|---|\n");
        let arguments = command.get_arguments().filter(shown);
        for argument in arguments.filter(|argument| argument.get_help_heading() == Some(heading)) {
            let long = argument.get_long().expect("it was filtered");
            let takes_value = argument.get_action().takes_values();
            let value = argument.get_value_names().filter(|_| takes_value).map(|names| {
                match argument.is_require_equals_set() {
                    true => format!("[={}]", names[0]),
                    false => format!(" {}", names[0]),
                }
            });
            let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let default =
                if takes_value && !defaults.is_empty() { format!("`{}`", defaults.join(",")) } else { "–".into() };
            let help = argument.get_help().expect("every flag has a help").to_string().replace('|', "\\|");
            text += &format!("| `--{long}{}` | {default} | {help} |\n", value.unwrap_or_default());
        }
        text += "\n";
    }
    text
}

/// `PRESIM_WRITE_DOCS=1` writes the tables in the place of comparing them.
#[test]
fn the_readme_has_every_flag_with_its_default_and_its_help() {
    const BEGINNING: &str =
        "<!-- The tables of flags begin: `PRESIM_WRITE_DOCS=1 cargo test document` writes them. -->\n\n";
    const END: &str = "<!-- The tables of flags end. -->";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGINNING).expect("the mark before the tables");
    let (tables, after) = rest.split_once(END).expect("the mark after the tables");
    if std::env::var_os("PRESIM_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGINNING}{}{END}{after}", flags())).unwrap();
        return;
    }
    assert!(tables == flags(), "{} is not what the flags say: PRESIM_WRITE_DOCS=1 writes it", path.display());
}
