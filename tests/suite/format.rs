//! The versions of what is kept: a store of another format is refused unchanged; and the cache of an upstream's state.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use std::io::Read;

use redb::{Database, ReadableDatabase, TableDefinition};
use serde_json::Value;

use crate::{
    live::stage::launch,
    process::text,
    support::TestNode,
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
type Answers = Vec<(String, Value, Value)>;

/// Returns the version of the store in a directory; `None` if it has none.
fn version(dir: &Path) -> Option<u32> {
    let db = Database::open(dir.join(FILE)).unwrap();
    let table = db.begin_read().unwrap().open_table(STORE).ok()?;
    Some(table.get("version").unwrap()?.value())
}

fn start(dir: &Path, flags: &[&str]) -> eyre::Result<TestNode> {
    TestNode::try_start(&[STILL, &["--data-dir", text(dir)], flags].concat())
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
async fn a_store_of_another_format_is_refused_with_what_to_do_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &[]).unwrap().node.stop();
    let newest = version(dir.path()).expect("a new store bears the newest version");
    for other in [Some(newest + 1), Some(newest - 1), None] {
        let db = Database::open(dir.path().join(FILE)).unwrap();
        let writing = db.begin_write().unwrap();
        match other {
            Some(other) => drop(writing.open_table(STORE).unwrap().insert("version", other).unwrap()),
            // The first programs recorded no version.
            None => drop(writing.delete_table(STORE).unwrap()),
        }
        writing.commit().unwrap();
        drop(db);
        let content = fs::read(dir.path().join(FILE)).unwrap();
        let error = format!("{:#}", start(dir.path(), &[]).err().expect("it is refused"));
        let expected = format!(
            "--data-dir {}: {FILE} is in format {}, but this presim knows format {newest} only: start the presim that wrote it, or give another --data-dir. It was left unchanged",
            dir.path().display(),
            other.unwrap_or_default()
        );
        assert_eq!(error, expected);
        assert!(fs::read(dir.path().join(FILE)).unwrap() == content, "the file was changed");
    }
}
