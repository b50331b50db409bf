//! A data directory that a node cannot use is refused with advice and left unchanged.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use alloy_primitives::{Address, B256};
use presim::testing::source::devnet::world::{dev_genesis, dev_signers};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    disk::Disk,
    power_loss::start_on,
    process::{Presim, command, command_by, eventually, refusal, refusal_of, text},
    support::{TestNode, has_program, hex, number, say, shared},
    witness::{Rpc, seed, transfer},
};

const FILE: &str = "presim.redb";
/// The number of bits that are flipped, one at a time: in the header, in used pages, and anywhere.
const FLIPS: usize = 60;

/// A data directory with a chain, and answers of a node on it.
struct Kept {
    dir: TempDir,
    content: Vec<u8>,
    /// Methods, parameters and results.
    said: Vec<(&'static str, Value, Value)>,
}

const STILL: &[&str] = &["--traffic", "0", "--sub-block-ms", "60000", "--log", "off"];

fn start(dir: &Path, flags: &[&str]) -> TestNode {
    TestNode::start(&[STILL, &["--data-dir", text(dir)], flags].concat())
}

fn try_start(dir: &Path, flags: &[&str]) -> Result<TestNode, String> {
    TestNode::try_start(&[STILL, &["--data-dir", text(dir)], flags].concat()).map_err(|error| format!("{error:#}"))
}

/// Like [`try_start`], for a directory that no other node uses.
fn try_start_alone(dir: &Path) -> Result<TestNode, String> {
    let flags = [STILL, &["--data-dir", text(dir)]].concat();
    TestNode::start_unlocked(&flags).map_err(|error| format!("{error:#}"))
}

impl Kept {
    /// Creates a store with some blocks, a batch and a transaction behind a gap, and stops its node.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let quick =
            ["--sub-block-ms", "20", "--sub-blocks", "2", "--traffic", "2", "--keep-blocks", "3", "--log", "off"];
        let node = TestNode::start(&[&quick[..], &["--data-dir", text(dir.path())]].concat());
        let rpc = Rpc::new(node.url("/"));
        let from = dev_signers().unwrap()[1].address();
        let batch = json!([{"version": "2.0.0", "id": "a batch", "from": from, "chainId": "0x7a69", "atomicRequired": true,
            "calls": [{"to": Address::repeat_byte(0xab), "value": "0x7"}]}]);
        rpc.result("wallet_sendCalls", batch).await;
        node.sealed(6).await;
        let raw = transfer(&dev_signers().unwrap()[2], 5, Address::repeat_byte(0xcd), 1, 1_000_000_000);
        let raw = alloy_primitives::Bytes::from(alloy_eips::Encodable2718::encoded_2718(&raw));
        let hash = rpc.result("eth_sendRawTransaction", json!([raw])).await;
        node.node.stop();

        // The answers of a static node on a copy of this file are recorded.
        let content = fs::read(dir.path().join(FILE)).unwrap();
        let node = start(dir.path(), &[]);
        let rpc = Rpc::new(node.url("/"));
        let head = number(&rpc.result("eth_blockNumber", json!([])).await);
        let mut asked = vec![
            ("wallet_getCallsStatus", json!(["a batch"])),
            ("eth_getTransactionByHash", json!([hash])),
            ("eth_getBalance", json!([Address::repeat_byte(0xab), "pending"])),
            ("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "latest"}])),
            ("eth_getBlockByNumber", json!(["pending", true])),
        ];
        for block in 0..=head {
            asked.push(("eth_getBlockByNumber", json!([hex(block), true])));
            asked.push(("eth_getBlockReceipts", json!([hex(block)])));
        }
        let mut said = Vec::new();
        for (method, params) in asked {
            said.push((method, params.clone(), rpc.result(method, params).await));
        }
        node.node.stop();
        fs::write(dir.path().join(FILE), &content).unwrap();
        Self { dir, content, said }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join(FILE)
    }

    /// Starts a node on this file. It must either refuse the file as damaged and leave it unchanged, or give the
    /// recorded answers. Returns whether it refused.
    async fn check(&self, content: &[u8], how: &str) -> bool {
        // A new file: a thread of the node before, which holds its store, may write to the old one for a moment.
        fs::remove_file(self.file()).unwrap();
        fs::write(self.file(), content).unwrap();
        match try_start_alone(self.dir.path()) {
            Err(error) => {
                self.damaged(&error, how);
                assert!(fs::read(self.file()).unwrap() == content, "{how}: the file was changed");
                true
            }
            Ok(node) => {
                let rpc = Rpc::new(node.url("/"));
                for (method, params, said) in &self.said {
                    assert_eq!(rpc.result(method, params.clone()).await, *said, "{how}: {method} {params}");
                }
                // The node writes to the file until it has stopped.
                node.node.stop();
                false
            }
        }
    }

    fn damaged(&self, error: &str, how: &str) {
        let begins = format!("--data-dir {}: {FILE} is damaged: ", self.dir.path().display());
        assert!(error.starts_with(&begins), "{how}: {error}");
        let ends = ". It was left unchanged: restore a copy of it, or move it away to start with an empty store";
        assert!(error.ends_with(ends), "{how}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_refused_and_left_as_it_is_or_does_no_harm() {
    let kept = Kept::new().await;
    let seed = seed();
    let mut rng = SmallRng::seed_from_u64(seed);
    let len = kept.content.len();
    // The header, in which every byte matters; the pages in use; any place.
    let used: Vec<usize> = (0..len).filter(|at| kept.content[*at] != 0).collect();
    let mut places: Vec<usize> = (0..FLIPS / 3).map(|_| rng.random_range(0..320)).collect();
    places.extend((0..FLIPS / 3).map(|_| used[rng.random_range(0..used.len())]));
    places.extend((0..FLIPS / 3).map(|_| rng.random_range(0..len)));
    let mut refused = 0;
    for at in places {
        let bit = rng.random_range(0..8);
        let mut content = kept.content.clone();
        content[at] ^= 1 << bit;
        refused += usize::from(kept.check(&content, &format!("PRESIM_TEST_SEED={seed}: bit {bit} of byte {at}")).await);
    }
    say(&format!("{FLIPS} bits flipped in {len} bytes: {refused} refused"));
    assert!(refused > FLIPS / 4, "{refused}");
    for _ in 0..8 {
        let to = rng.random_range(0..len);
        kept.check(&kept.content[..to], &format!("PRESIM_TEST_SEED={seed}: cut off at {to}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_store_is_refused_and_left_as_it_is() {
    let kept = Kept::new().await;
    let half = kept.content.len() / 2;
    let mut zeros = kept.content.clone();
    zeros[half..].fill(0);
    let cases: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("a word", b"hello".to_vec()),
        ("text", "a file of somebody else's\n".repeat(1000).into_bytes()),
        ("zeros", vec![0; kept.content.len()]),
        ("half zeros", zeros),
        ("half", kept.content[..half].to_vec()),
    ];
    for (how, content) in cases {
        assert!(kept.check(&content, how).await, "{how}: it is not refused");
    }

    fs::remove_file(kept.file()).unwrap();
    fs::create_dir(kept.file()).unwrap();
    let error = try_start(kept.dir.path(), &[]).err().expect("a directory is no store");
    assert!(error.starts_with(&format!("--data-dir {}: ", kept.dir.path().display())), "{error}");
    fs::remove_dir(kept.file()).unwrap();

    let file = kept.dir.path().join("a file");
    fs::write(&file, "hello").unwrap();
    let error = try_start(&file, &[]).err().expect("a file is no directory");
    assert!(error.starts_with(&format!("--data-dir {}: ", file.display())), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_may_not_be_read_is_refused() {
    let kept = Kept::new().await;
    fs::set_permissions(kept.file(), fs::Permissions::from_mode(0o0)).unwrap();
    let flags = ["--listen", "127.0.0.1:0", "--data-dir", text(kept.dir.path())];
    let mut presim = command(&flags, &[]);
    if fs::File::open(kept.file()).is_ok() {
        // Permissions do not hold for root: the program runs without that privilege.
        if !has_program("setpriv", "util-linux") {
            return;
        }
        let mut unprivileged = Command::new("setpriv");
        unprivileged.arg("--bounding-set=-dac_override,-dac_read_search").arg(presim.get_program());
        presim = command_by(unprivileged, &flags, &[]);
    }
    let (code, told) = refusal_of(presim);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(&format!("--data-dir {}: ", kept.dir.path().display())), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_on_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let presim = Presim::start(&["--data-dir", text(dir.path())]);
    let expected = format!(
        "--data-dir {}: another node uses it: stop that node, or give this one another directory",
        dir.path().display()
    );
    let (code, told) = refusal(&["--listen", "127.0.0.1:0", "--data-dir", text(dir.path())], &[]);
    assert_eq!((code, told.trim()), (Some(1), format!("error: {expected}").as_str()));
    assert_eq!(try_start(dir.path(), &[]).err(), Some(expected));
    let rpc = Rpc::new(&presim.url);
    rpc.result("eth_blockNumber", json!([])).await;
}

/// If several nodes start on an empty directory at once, one of them opens it.
#[tokio::test(flavor = "multi_thread")]
async fn of_nodes_that_begin_on_one_directory_at_once_one_has_it() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let barrier = std::sync::Barrier::new(4);
        let began: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                try_start(dir.path(), &[])
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused: Vec<&String> = began.iter().filter_map(|node| node.as_ref().err()).collect();
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused.iter().all(|error| error.contains("another node uses it")), "{refused:?}");
        drop(began);
        start(dir.path(), &[]).node.stop();
    }
}

/// Writes a genesis with this timestamp; another timestamp makes another chain.
fn genesis(dir: &Path, timestamp: u64) -> String {
    let file = dir.join(format!("genesis-{timestamp}.json"));
    fs::write(&file, serde_json::to_vec(&dev_genesis(&dev_signers().unwrap(), timestamp)).unwrap()).unwrap();
    text(&file).to_owned()
}

/// Starts with `given` on a directory that was made with `made`. The start must fail with all of these words and leave
/// the file unchanged.
#[track_caller]
fn is_refused(made: &[&str], given: &[&str], words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), made).node.stop();
    let content = fs::read(dir.path().join(FILE)).unwrap();
    let error = try_start(dir.path(), given).err().unwrap_or_else(|| panic!("{made:?}, then {given:?}: not refused"));
    assert!(error.starts_with(&format!("--data-dir {}: it ", dir.path().display())), "{error}");
    assert!(error.ends_with(". It was left unchanged"), "{error}");
    for word in words {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
    assert!(fs::read(dir.path().join(FILE)).unwrap() == content, "{made:?}, then {given:?}: the file was changed");
    start(dir.path(), made).node.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_chain_is_refused_with_what_to_do_and_left_as_it_is() {
    let files = tempfile::tempdir().unwrap();
    let (one, other) = (genesis(files.path(), 1_000), genesis(files.path(), 2_000));
    is_refused(&[], &["--genesis", &one], &["the built-in devnet", &one, "leave it out, or give another --data-dir"]);
    is_refused(&["--genesis", &one], &[], &["without --genesis", "give its --genesis, or give another --data-dir"]);
    is_refused(&["--genesis", &one], &["--genesis", &other], &[&other, "give its own, or give another --data-dir"]);
    is_refused(
        &["--genesis", &one],
        &["--genesis", &one, "--feed", "static"],
        &["a devnet that has gone on", "leave --feed static out"],
    );
    let mut forks: Value = serde_json::from_slice(&fs::read(&one).unwrap()).unwrap();
    forks["config"]["osakaTime"] = json!(4_000_000_000_u64);
    let later = files.path().join("later.json");
    fs::write(&later, forks.to_string()).unwrap();
    is_refused(
        &["--genesis", &one],
        &["--genesis", text(&later)],
        &["other forks", "give its own, or give another --data-dir"],
    );
    let with_file: &[&str] = &["--genesis", &one];
    for (made, fork, has) in [
        (&[][..], "amsterdam=0", "amsterdam=never"),
        (&["--fork", "amsterdam=0"], "amsterdam=4000000000", "amsterdam=0"),
        (with_file, "osaka=never", "osaka=0"),
    ] {
        let given = [made, &["--fork", fork]].concat();
        is_refused(made, &given, &[has, fork, "leave it out, or give another --data-dir"]);
    }
}

/// The same genesis in another JSON layout is the same chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_genesis_that_is_laid_out_anew_is_the_same_chain() {
    let files = tempfile::tempdir().unwrap();
    let one = genesis(files.path(), 1_000);
    let value: Value = serde_json::from_slice(&fs::read(&one).unwrap()).unwrap();
    let anew = files.path().join("anew.json");
    fs::write(&anew, serde_json::to_string_pretty(&value).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &["--genesis", &one]).node.stop();
    start(dir.path(), &["--genesis", text(&anew)]).node.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_began_with_other_blocks_is_refused() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let files = tempfile::tempdir().unwrap();
    let bytes = fs::read(&chain).unwrap();
    // A chain file with only the first block, on the same genesis.
    let first = alloy_rlp::Header::decode(&mut &bytes[..]).unwrap().length_with_payload();
    let shorter = files.path().join("shorter.rlp");
    fs::write(&shorter, &bytes[..first]).unwrap();
    let (genesis, chain) = (text(&genesis), text(&chain));
    let words = ["did not begin with the blocks of --chain", "give its own, or give another --data-dir"];
    is_refused(&["--genesis", genesis, "--chain", chain], &["--genesis", genesis, "--chain", text(&shorter)], &words);
    is_refused(&["--genesis", genesis, "--feed", "static"], &["--genesis", genesis, "--chain", chain], &words);
}

// The directory.

/// Gives a file or a directory to another user. Returns false, and says so, if this user may not.
fn give_away(path: &Path, user: u32, group: u32) -> bool {
    let given = std::os::unix::fs::lchown(path, Some(user), Some(group)).is_ok();
    if !given {
        say("SKIPPED: this user may give no file to another");
    }
    given
}

/// A user and a group that no process of this machine has.
const STRANGER: u32 = 54_321;

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_others_own_or_may_write_to_is_refused_before_anything_is_opened() {
    let own = rustix::process::getegid().as_raw();
    for (owner, group, mode, words) in [
        (Some(STRANGER), own, 0o700, Some(["belongs to user 54321", "--data-dir-shared"])),
        (None, own, 0o702, Some(["every user may write to it (mode 702", "chmod o-w"])),
        (None, STRANGER, 0o770, Some(["group 54321, which is none of presim's", "chmod g-w"])),
        (None, STRANGER, 0o750, None),
        (None, own, 0o770, None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let user = owner.unwrap_or(rustix::process::geteuid().as_raw());
        if !give_away(dir.path(), user, group) {
            return;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let started = try_start(dir.path(), &[]);
        let Some(words) = words else {
            started.unwrap_or_else(|error| panic!("{mode:o} {group}: {error}")).node.stop();
            continue;
        };
        let error = started.err().unwrap_or_else(|| panic!("{mode:o}: it is accepted"));
        assert!(error.starts_with(&format!("--data-dir {}: ", dir.path().display())), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{mode:o}: something was made");
    }
    // The other owner can be accepted, and no other rule goes with that.
    let dir = tempfile::tempdir().unwrap();
    assert!(give_away(dir.path(), STRANGER, own));
    start(dir.path(), &["--data-dir-shared"]).node.stop();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o702)).unwrap();
    assert!(try_start(dir.path(), &["--data-dir-shared"]).is_err_and(|error| error.contains("every user may write")));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_link_in_the_directory_is_followed() {
    let others = tempfile::tempdir().unwrap();
    let target = others.path().join("precious");
    fs::write(&target, "precious").unwrap();
    // A link that was left in the place of the new store goes, and its target stays.
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&target, dir.path().join("presim.redb.new")).unwrap();
    start(dir.path(), &[]).node.stop();
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert!(fs::symlink_metadata(dir.path().join("presim.redb.new")).is_err());
    // A link in the place of the store is refused, whether its target is there or not.
    for target in [target.clone(), others.path().join("nothing")] {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join(FILE)).unwrap();
        let error = try_start(dir.path(), &[]).err().expect("a link is refused");
        assert!(error.contains("presim.redb is a link"), "{error}");
    }
    assert_eq!(fs::read_dir(others.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), &[]).node.stop();
    let group = rustix::process::getegid().as_raw();
    if !give_away(&dir.path().join(FILE), STRANGER, group) {
        return;
    }
    let error = try_start(dir.path(), &["--data-dir-shared"]).err().expect("it is another's");
    assert!(error.contains("presim.redb belongs to user 54321"), "{error}");
    // With the directory, the file may be its owner's.
    assert!(give_away(dir.path(), STRANGER, group));
    start(dir.path(), &["--data-dir-shared"]).node.stop();
}

// The file while a node runs.

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_deleted_or_replaced_is_noticed_at_the_next_commit() {
    for (is_deleted, word) in [(true, "presim.redb was deleted"), (false, "presim.redb was replaced")] {
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--sub-block-ms", "20", "--traffic", "0", "--log", "off", "--data-dir", text(dir.path())];
        let node = TestNode::start(&flags);
        node.sealed(1).await;
        let file = dir.path().join(FILE);
        if is_deleted {
            fs::remove_file(&file).unwrap();
        } else {
            fs::copy(&file, dir.path().join("copy")).unwrap();
            fs::rename(dir.path().join("copy"), &file).unwrap();
        }
        let health = eventually("the node is unhealthy", async || {
            let answer = node.client.get(node.url("/health")).send().await.unwrap();
            let health: Value = answer.json().await.unwrap();
            (health["cause"] == "store").then_some(health)
        })
        .await;
        assert!(health["reason"].as_str().unwrap().contains(word), "{health}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_old_blocks_get_the_failure_of_the_store_and_no_panic() {
    let disk = Disk::default();
    let node = start_on(&disk, &["--sub-block-ms", "20", "--sub-blocks", "2", "--keep-blocks", "2", "--log", "off"]);
    node.sealed(8).await;
    disk.fail_after(0);
    let error = eventually("the store fails", async || {
        let sent = json!([{"from": node.node.info().accounts[1].address(), "to": Address::ZERO}]);
        let answer = node.call("/", "eth_sendTransaction", sent).await;
        let text = answer["error"]["message"].as_str().filter(|text| text.starts_with("the store failed: "))?;
        // A transaction whose commit failed is told more than one that was not written.
        text.split(": it may still be sent").next().map(str::to_owned)
    })
    .await;
    for (method, params) in [
        ("eth_getBlockByNumber", json!(["0x2", true])),
        ("eth_getBlockReceipts", json!(["0x3"])),
        ("eth_getBlockTransactionCountByNumber", json!(["0x2"])),
        ("eth_getBlockByHash", json!([B256::repeat_byte(9), false])),
        ("eth_call", json!([{"to": Address::ZERO}, {"blockHash": B256::repeat_byte(9)}])),
        ("eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x4"}])),
    ] {
        let answer = node.error("/", method, params).await;
        assert_eq!((&answer["code"], answer["message"].as_str()), (&json!(-32603), Some(error.as_str())), "{method}");
    }
    assert_eq!(node.metric("presim_panics_total"), 0.0);
    // The newest blocks are in memory.
    node.result("/", "eth_getBlockByNumber", json!(["latest", true])).await;
}
