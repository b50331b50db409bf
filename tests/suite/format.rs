//! The versions of what is kept: an older store is migrated, a newer one is refused unchanged; and the cache of an
//! upstream's state.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use futures::poll;
use presim::store::FORMAT;
use rand::{SeedableRng, rngs::SmallRng};
use redb::{Database, ReadableDatabase, TableDefinition};
use serde_json::{Value, json};

use crate::{
    disk::{Disk, Leaves},
    live::stage::launch,
    power_loss::start_on,
    process::text,
    support::{TestNode, items, number},
    upstream::{SmallUpstream, UpstreamBlock, UpstreamChain},
    witness::Rpc,
};

const FILE: &str = "presim.redb";
const STILL: &[&str] = &["--traffic", "0", "--sub-block-ms", "60000", "--keep-blocks", "4", "--log", "off"];
const STORE: TableDefinition<'_, &str, u32> = TableDefinition::new("store");

/// Returns the path of a recorded file.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fixtures").join(name)
}

/// Reads a recorded file that is compressed with brotli.
pub fn recorded(name: &str) -> Vec<u8> {
    let mut content = Vec::new();
    brotli::Decompressor::new(fs::File::open(fixture(name)).unwrap(), 4096).read_to_end(&mut content).unwrap();
    content
}

/// The answers of a program on the data that it wrote: methods, parameters and results.
pub type Answers = Vec<(String, Value, Value)>;

/// Returns the answers in a folder of recorded files.
pub fn answers(folder: &str) -> Answers {
    serde_json::from_slice(&recorded(&format!("{folder}/answers.json.br"))).unwrap()
}

/// Returns the first answer to a method.
fn result<'a>(answers: &'a Answers, wanted: &str) -> &'a Value {
    &answers.iter().find(|(method, ..)| method == wanted).unwrap().2
}

/// Checks that a node gives these answers.
pub async fn says_the_same(node: &TestNode, answers: &Answers, how: &str) {
    let rpc = Rpc::new(node.url("/"));
    for (method, params, result) in answers {
        assert_eq!(rpc.result(method, params.clone()).await, *result, "{how}: {method} {params}");
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
    let answers = answers("format-0");
    assert_eq!(result(&answers, "wallet_getCallsStatus")["status"], 200);
    assert_eq!(result(&answers, "eth_getTransactionByHash")["blockHash"], Value::Null);
    assert_eq!(result(&answers, "eth_blockNumber"), "0xc");

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), recorded("format-0/presim.redb.br")).unwrap();
    assert_eq!(version(dir.path()), None);
    for how in ["migrated", "again"] {
        let node = start(dir.path(), &[]).unwrap();
        says_the_same(&node, &answers, how).await;
        node.node.stop();
        assert_eq!(version(dir.path()), Some(FORMAT), "{how}");
    }
    // The chain continues, and the migrated blocks are pruned like any others, by number and by hash.
    let bounds = ["--sub-block-ms", "10", "--sub-blocks", "1", "--keep-blocks", "4", "--keep-history", "4"];
    let node = TestNode::start(&[&bounds[..], &["--log", "off", "--data-dir", text(dir.path())]].concat());
    node.sealed(20).await;
    let rpc = Rpc::new(node.url("/"));
    let block = result(&answers, "eth_getBlockByNumber")["hash"].clone();
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

/// Fields that blocks have got since are at the end of their records, where an older program has written nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_format_1_opens_and_says_the_same_and_its_chain_continues() {
    let answers = answers("format-1");
    assert_eq!(result(&answers, "wallet_getCallsStatus")["status"], 200);
    assert_eq!(result(&answers, "eth_getTransactionByHash")["blockHash"], Value::Null);
    assert_eq!(items(result(&answers, "eth_getLogs")).len(), 2);
    let head = number(result(&answers, "eth_blockNumber"));

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), recorded("format-1/presim.redb.br")).unwrap();
    assert_eq!(version(dir.path()), Some(1));
    for how in ["opened", "again"] {
        let node = start(dir.path(), &[]).unwrap();
        says_the_same(&node, &answers, how).await;
        node.node.stop();
        assert_eq!(version(dir.path()), Some(FORMAT), "{how}");
    }
    let quick = ["--sub-block-ms", "10", "--sub-blocks", "1", "--keep-blocks", "4"];
    let node = TestNode::start(&[&quick[..], &["--log", "off", "--data-dir", text(dir.path())]].concat());
    node.sealed(head + 8).await;
    let rpc = Rpc::new(node.url("/"));
    for (method, params, result) in &answers {
        // Blocks, receipts and logs that were sealed stay as they are, and the batch with them.
        let block = params[0].as_str().is_some_and(|at| at.starts_with("0x"));
        let is_sealed = block && matches!(method.as_str(), "eth_getBlockByNumber" | "eth_getBlockReceipts");
        if is_sealed || ["eth_getLogs", "eth_getTransactionReceipt", "wallet_getCallsStatus"].contains(&method.as_str())
        {
            assert_eq!(rpc.result(method, params.clone()).await, *result, "continued: {method} {params}");
        }
    }
}

/// The upstream has no account, so that what is answered is from the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_of_an_upstreams_state_of_version_1_is_read_and_one_of_another_is_ignored() {
    #[derive(serde::Deserialize)]
    struct Recorded {
        config: Value,
        block: Value,
        answers: Answers,
    }
    let Recorded { config, block, answers } =
        serde_json::from_slice(&fs::read(fixture("upstream-cache-1/recorded.json")).unwrap()).unwrap();
    let cache = fs::read(fixture("upstream-cache-1/upstream-state.bin")).unwrap();
    let chain = UpstreamChain::new(vec![UpstreamBlock::from_json(&block, Arc::default()).with_receipts(Vec::new())]);
    let upstream = SmallUpstream::start(config["chainId"].as_u64().unwrap(), chain).await;
    let dir = tempfile::tempdir().unwrap();
    for is_of_this_version in [true, false] {
        let mut content = cache.clone();
        // The version is the last of the eight bytes that say what the file is.
        content[7] += u8::from(!is_of_this_version);
        fs::write(dir.path().join("upstream-state.bin"), content).unwrap();
        let node = launch(&upstream.url(), Some(&config), &["--data-dir", text(dir.path())]).await.unwrap();
        let rpc = Rpc::new(node.url("/"));
        for (method, params, result) in &answers {
            let answer = rpc.result(method, params.clone()).await;
            assert_eq!(answer == *result, is_of_this_version, "{method} {params}: {answer}");
        }
        node.node.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_while_a_store_is_migrated_leaves_one_that_opens() {
    // The first writes open the store, the others migrate it.
    for after in (0..60).step_by(3) {
        let leaves = Leaves::ALL[after % Leaves::ALL.len()];
        let disk = Disk::with(recorded("format-0/presim.redb.br"));
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
    let content = recorded("format-0/presim.redb.br");
    fs::write(dir.path().join(FILE), &content).unwrap();
    let genesis = dir.path().join("genesis.json");
    let other =
        presim::source::devnet::world::dev_genesis(&presim::source::devnet::world::dev_signers().unwrap(), 1_000);
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
