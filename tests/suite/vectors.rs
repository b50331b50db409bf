//! The official test vectors of execution-apis, over HTTP on `/standard`, on the chain that they were made on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::support::{TestNode, say, shared};

#[tokio::test(flavor = "multi_thread")]
async fn the_official_vectors_pass_on_the_imported_chain() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let node = TestNode::start(&["--genesis", text(&genesis), "--chain", text(&chain), "--testing"]);
    let (mut total, mut failures) = (0, Vec::new());
    for method in listed(&folder).into_iter().filter(|path| path.is_dir()) {
        let files = listed(&method);
        total += files.len();
        let mut passed = 0;
        for file in &files {
            match run(&node, file).await {
                Ok(()) => passed += 1,
                Err(why) => failures.push(format!("{}: {why}", file.display())),
            }
        }
        say(&format!("VECTORS {}: {passed}/{}", method.file_name().unwrap_or_default().display(), files.len()));
    }
    say(&format!("VECTORS in all: {}/{total}", total - failures.len()));
    assert!(failures.is_empty(), "{} vectors failed:\n{}", failures.len(), failures.join("\n"));
}

/// The levels of an answer that count where only its shape is compared: the answer itself, and its result or error.
const LEVELS: usize = 2;

/// Returns the paths in a folder, in order.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Sends each request of a file and compares the answer with the expected one; only its shape if the file says so.
async fn run(node: &TestNode, file: &Path) -> Result<(), String> {
    let content = fs::read_to_string(file).unwrap();
    let only_well_formed = content.lines().any(|line| line.starts_with("// speconly:"));
    let mut request = None;
    for line in content.lines() {
        if let Some(body) = line.strip_prefix(">> ") {
            request = Some(body.to_owned());
        } else if let Some(expected) = line.strip_prefix("<< ") {
            let body = request.take().expect("a request stands before its response");
            let (_, text) = node.post("/standard", body).await;
            let got: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            let expected: Value = serde_json::from_str(expected).unwrap();
            let is_expected = match only_well_formed {
                true => shape(&got, LEVELS) == shape(&expected, LEVELS),
                false => without_message(got.clone()) == without_message(expected.clone()),
            };
            if !is_expected {
                return Err(format!("expected {expected}\n  got {got}"));
            }
        }
    }
    Ok(())
}

/// Returns a value with the kinds of its values in their places: the values of objects, to this depth.
fn shape(value: &Value, levels: usize) -> Value {
    match value {
        Value::Object(fields) if levels > 0 => {
            fields.iter().map(|(key, value)| (key.clone(), shape(value, levels - 1))).collect()
        }
        Value::Object(_) => "an object".into(),
        Value::Array(_) => "an array".into(),
        Value::String(_) => "a string".into(),
        Value::Number(_) => "a number".into(),
        Value::Bool(_) => "a boolean".into(),
        Value::Null => Value::Null,
    }
}

/// Removes the text of the error, which is not compared.
fn without_message(mut answer: Value) -> Value {
    if let Some(error) = answer.get_mut("error").and_then(Value::as_object_mut) {
        error.remove("message");
    }
    answer
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}
