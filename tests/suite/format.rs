//! The version of a store's format: an older store is migrated, a newer one is refused unchanged.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    pin::pin,
};

use futures::poll;
use presim::store::FORMAT;
use rand::{SeedableRng, rngs::SmallRng};
use redb::{Database, ReadableDatabase, TableDefinition};
use serde_json::{Value, json};

use crate::{
    disk::{Disk, Leaves},
    power_loss::start_on,
    process::text,
    support::{TestNode, items},
    witness::Rpc,
};

const FILE: &str = "presim.redb";
const STILL: &[&str] = &["--traffic", "0", "--sub-block-ms", "60000", "--keep-blocks", "4", "--log", "off"];
const STORE: TableDefinition<'_, &str, u32> = TableDefinition::new("store");

/// Reads a file of the directory that was written before stores had a version.
fn old(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fixtures/format-0").join(name);
    let mut content = Vec::new();
    brotli::Decompressor::new(fs::File::open(path).unwrap(), 4096).read_to_end(&mut content).unwrap();
    content
}

/// Returns the answers of the program that wrote the store: methods, parameters and results.
fn answers() -> Vec<(String, Value, Value)> {
    serde_json::from_slice(&old("answers.json.br")).unwrap()
}

async fn says_the_same(node: &TestNode, how: &str) {
    let rpc = Rpc::new(node.url("/"));
    for (method, params, result) in answers() {
        assert_eq!(rpc.result(&method, params.clone()).await, result, "{how}: {method} {params}");
    }
}

/// Returns the version of the store in a directory; `None` if it has none.
fn version(dir: &Path) -> Option<u32> {
    let db = Database::open(dir.join(FILE)).unwrap();
    let table = db.begin_read().unwrap().open_table(STORE).ok()?;
    Some(table.get("version").unwrap()?.value())
}

fn start(dir: &Path, flags: &[&str]) -> eyre::Result<TestNode> {
    TestNode::try_start(&[STILL, &["--data-dir", text(dir)], flags].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_before_there_were_versions_opens_and_says_the_same() {
    let answers = answers();
    let result = |wanted: &str| &answers.iter().find(|(method, ..)| method == wanted).unwrap().2;
    assert_eq!(result("wallet_getCallsStatus")["status"], 200);
    assert_eq!(result("eth_getTransactionByHash")["blockHash"], Value::Null);
    assert_eq!(result("eth_blockNumber"), "0xc");

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), old("presim.redb.br")).unwrap();
    assert_eq!(version(dir.path()), None);
    for how in ["migrated", "again"] {
        let node = start(dir.path(), &[]).unwrap();
        says_the_same(&node, how).await;
        node.node.stop();
        assert_eq!(version(dir.path()), Some(FORMAT), "{how}");
    }
    // The chain continues, and the migrated blocks are pruned like any others, by number and by hash.
    let bounds = ["--sub-block-ms", "10", "--sub-blocks", "1", "--keep-blocks", "4", "--keep-history", "4"];
    let node = TestNode::start(&[&bounds[..], &["--log", "off", "--data-dir", text(dir.path())]].concat());
    node.sealed(20).await;
    let rpc = Rpc::new(node.url("/"));
    let block = result("eth_getBlockByNumber")["hash"].clone();
    let first = answers.iter().find(|(method, params, _)| method == "eth_getBlockByNumber" && params[0] == "0x1");
    for (method, params) in [
        ("eth_getBlockByNumber", json!(["0x1", false])),
        ("eth_getBlockByHash", json!([first.unwrap().2["hash"], false])),
        ("wallet_getCallsStatus", json!(["before"])),
    ] {
        let answer = rpc.call(method, params).await;
        assert_eq!(answer["error"]["code"], 4444, "{method}: {answer}");
    }
    assert_eq!(rpc.result("eth_getBlockByNumber", json!(["earliest", false])).await["hash"], block);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_while_a_store_is_migrated_leaves_one_that_opens() {
    // The first writes open the store, the others migrate it.
    for after in (0..60).step_by(3) {
        let leaves = Leaves::ALL[after % Leaves::ALL.len()];
        let disk = Disk::with(old("presim.redb.br"));
        let mut cutting = pin!(disk.cut(after, leaves, SmallRng::seed_from_u64(after as u64), || ()));
        assert!(poll!(cutting.as_mut()).is_pending());
        let quick: &[&str] = &["--sub-block-ms", "10", "--sub-blocks", "1", "--keep-blocks", "4", "--log", "off"];
        let node = start_on(&disk, quick);
        let (left, _) = cutting.await;
        node.node.stop();
        let node = start_on(&left, STILL);
        let rpc = Rpc::new(node.url("/"));
        let status = rpc.result("wallet_getCallsStatus", json!(["before"])).await;
        assert_eq!((&status["status"], items(&status["receipts"]).len()), (&json!(200), 1), "{after}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_chain_is_not_migrated() {
    let dir = tempfile::tempdir().unwrap();
    let content = old("presim.redb.br");
    fs::write(dir.path().join(FILE), &content).unwrap();
    let genesis = dir.path().join("genesis.json");
    let other = presim::feed::world::dev_genesis(&presim::feed::world::dev_signers().unwrap(), 1_000);
    fs::write(&genesis, serde_json::to_vec(&other).unwrap()).unwrap();
    let error = format!("{:#}", start(dir.path(), &["--genesis", text(&genesis)]).err().expect("it is refused"));
    assert!(error.contains("the built-in devnet") && error.ends_with("It was left unchanged"), "{error}");
    assert!(fs::read(dir.path().join(FILE)).unwrap() == content, "the file was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_a_newer_format_is_refused_with_what_to_do_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &[]).unwrap().node.stop();
    assert_eq!(version(dir.path()), Some(FORMAT), "a new store bears the newest version");
    let db = Database::open(dir.path().join(FILE)).unwrap();
    let writing = db.begin_write().unwrap();
    writing.open_table(STORE).unwrap().insert("version", FORMAT + 1).unwrap();
    writing.commit().unwrap();
    drop(db);
    let content = fs::read(dir.path().join(FILE)).unwrap();
    let error = format!("{:#}", start(dir.path(), &[]).err().expect("it is refused"));
    let expected = format!(
        "--data-dir {}: {FILE} is in format {}, but this presim knows formats up to {FORMAT} only: start the presim that wrote it, or give another --data-dir. It was left unchanged",
        dir.path().display(),
        FORMAT + 1
    );
    assert_eq!(error, expected);
    assert!(fs::read(dir.path().join(FILE)).unwrap() == content, "the file was changed");
}
