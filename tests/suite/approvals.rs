//! Batches that wait for approval, and `presim wallet`, which approves and rejects them.

use std::{
    io::{Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Output,
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256, Bytes, U256, address, bytes};
use futures::{FutureExt, future::BoxFuture, poll};
use presim::{
    telemetry::Metrics,
    unix_socket::SocketError,
    wallet::{
        ApprovalSocket, Approvals, Asked, AskedAct, AskedBatch, AskedCall, AskedMessage, Asker, BatchId, DigestPrefix,
        SOCKET, WalletError,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    process::{Variables, command, file, text},
    support::BOUND,
    terminal::Terminal,
};

const ACCOUNT: Address = address!("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
const CALLEE: Address = address!("0x5FbDB2315678afecb367f032d93F642f64180aa3");

/// Returns a batch with this id and two calls.
fn batch(id: &str) -> Asked {
    let call = |to, value: u64, data, outcome: &str| AskedCall {
        to,
        value: U256::from(value),
        data,
        gas_limit: None,
        outcome: outcome.to_owned(),
        words: Vec::new(),
    };
    Asked {
        id: BatchId::new(id.to_owned()).unwrap(),
        from: ACCOUNT,
        chain_id: 31_337,
        asker: Asker::default(),
        act: AskedAct::Batch(AskedBatch {
            atomic: true,
            upgrade: Some(CALLEE),
            transactions: 2,
            most_fees: U256::from(3_250_000_000_000_000_u64),
            data_fees: U256::ZERO,
            calls: vec![
                call(Some(CALLEE), 1_500_000_000_000_000_000, bytes!("a9059cbb"), "succeeds"),
                call(None, 0, Bytes::from(vec![0xab; 100]), "reverts: \u{1b}[2Jno \"funds\""),
            ],
            assets: Vec::new(),
        }),
    }
}

/// Returns the part of a request that only a batch has.
fn parts(asked: &mut Asked) -> &mut AskedBatch {
    match &mut asked.act {
        AskedAct::Batch(batch) => batch,
        other => panic!("no batch: {other:?}"),
    }
}

/// Returns the digest of such a batch, which does not depend on its id.
fn digest() -> DigestPrefix {
    batch("any").digest().into()
}

/// Returns approvals that hold this many batches, with a timeout longer than any test.
fn approvals(most: usize) -> Arc<Approvals> {
    Arc::new(Approvals::new(most, Duration::from_secs(3_600), &Metrics::default()))
}

type Question = BoxFuture<'static, Result<(), WalletError>>;

/// Asks for approval and returns once the batch waits.
async fn wait(approvals: &Arc<Approvals>, id: &str) -> Question {
    wait_for(approvals, batch(id)).await
}

/// Like [`wait`], for this request.
async fn wait_for(approvals: &Arc<Approvals>, asked: Asked) -> Question {
    let (approvals, id) = (approvals.clone(), asked.id.clone());
    let mut question = async move { approvals.ask(asked).await }.boxed();
    assert!(poll!(&mut question).is_pending(), "{id:?} does not wait");
    question
}

async fn outcome(question: impl Future<Output = Result<(), WalletError>>) -> Result<(), WalletError> {
    tokio::time::timeout(BOUND, question).await.expect("it is decided")
}

fn rejection(result: Result<(), WalletError>) -> String {
    match result {
        Err(WalletError::Rejected(detail)) => detail,
        other => panic!("not rejected: {other:?}"),
    }
}

fn ids(approvals: &Approvals) -> Vec<String> {
    approvals.waiting().iter().map(|one| one.asked.id.as_str().to_owned()).collect()
}

/// A data directory with approvals served in it.
struct Served {
    approvals: Arc<Approvals>,
    folder: TempDir,
    socket: ApprovalSocket,
}

impl Served {
    fn start() -> Self {
        let (approvals, folder) = (approvals(8), TempDir::new().unwrap());
        let socket = ApprovalSocket::serve(folder.path(), approvals.clone(), None).unwrap();
        Self { approvals, folder, socket }
    }

    /// Runs `presim wallet` with these arguments. Returns exit code, output and errors.
    fn wallet(&self, args: &[&str]) -> (Option<i32>, String, String) {
        presim(&[&["wallet", "--data-dir", text(self.folder.path())], args].concat(), &[])
    }

    /// Runs `presim wallet`, which must succeed, and returns its output.
    fn says(&self, args: &[&str]) -> String {
        let (code, said, told) = self.wallet(args);
        assert_eq!(code, Some(0), "{args:?}: {told}");
        said
    }

    /// Runs `presim wallet`, which must fail with one line of error, and returns it.
    fn fails(&self, args: &[&str]) -> String {
        let (code, said, told) = self.wallet(args);
        assert_eq!((code, said.as_str(), told.lines().count()), (Some(1), "", 1), "{args:?}: {told}");
        told
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket.path()).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream
    }
}

fn presim(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = tokio::task::block_in_place(|| command(args, env).output()).expect("the program runs");
    let Output { status, stdout, stderr } = output;
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

// Waiting.

#[tokio::test]
async fn a_batch_waits_until_it_is_approved_or_rejected() {
    let approvals = approvals(8);
    let (yes, no) = (wait(&approvals, "yes").await, wait(&approvals, "no").await);
    assert_eq!(ids(&approvals), ["yes", "no"]);
    assert_eq!(approvals.approve("yes", &digest()).unwrap().as_str(), "yes");
    assert_eq!(approvals.reject("no").unwrap().as_str(), "no");
    assert!(ids(&approvals).is_empty());
    assert_eq!(outcome(yes).await, Ok(()));
    assert_eq!(rejection(outcome(no).await), "the approver rejected the batch");
}

#[tokio::test]
async fn a_batch_that_nobody_decides_on_in_time_is_rejected() {
    let approvals = Approvals::new(8, Duration::from_millis(20), &Metrics::default());
    let detail = rejection(outcome(approvals.ask(batch("late"))).await);
    assert!(detail.contains("within 20ms"), "{detail}");
    assert!(ids(&approvals).is_empty());
    assert!(approvals.approve("late", &digest()).is_err());
}

#[tokio::test]
async fn a_batch_whose_time_was_up_or_that_was_decided_on_leaves_its_id_free() {
    let approvals = Arc::new(Approvals::new(1, Duration::from_millis(20), &Metrics::default()));
    for _ in 0..2 {
        rejection(outcome(approvals.ask(batch("late"))).await);
    }
    let approvals = self::approvals(1);
    let asked = wait(&approvals, "again").await;
    approvals.reject("again").unwrap();
    rejection(outcome(asked).await);
    let asked = wait(&approvals, "again").await;
    approvals.approve("again", &digest()).unwrap();
    assert_eq!(outcome(asked).await, Ok(()));
    let _asked = wait(&approvals, "again").await;
}

#[tokio::test]
async fn a_batch_is_approved_under_its_own_digest_alone() {
    let approvals = approvals(8);
    let asked = wait(&approvals, "payroll-7").await;
    let mut other = batch("payroll-7");
    parts(&mut other).calls[0].value += U256::from(1);
    let error = approvals.approve("payroll-7", &other.digest().into()).unwrap_err().to_string();
    let (now, given) = (batch("payroll-7").digest(), other.digest());
    let expected = format!("the waiting batch \"payroll-7\" has digest {now}, not {given}: list the batches again");
    assert_eq!(error, expected);
    assert_eq!(ids(&approvals), ["payroll-7"]);
    approvals.approve("payroll-7", &now.into()).unwrap();
    assert_eq!(outcome(asked).await, Ok(()));
}

#[test]
fn whatever_an_approver_decides_on_changes_the_digest() {
    let changes: [fn(&mut Asked); 15] = [
        |_| {},
        |asked| asked.chain_id += 1,
        |asked| asked.from = CALLEE,
        |asked| parts(asked).atomic = false,
        |asked| parts(asked).upgrade = None,
        |asked| parts(asked).upgrade = Some(ACCOUNT),
        |asked| parts(asked).transactions += 1,
        |asked| parts(asked).calls[0].to = Some(ACCOUNT),
        |asked| parts(asked).calls[0].to = None,
        |asked| parts(asked).calls[0].value += U256::from(1),
        |asked| parts(asked).calls[0].data = bytes!("a9059cbc"),
        |asked| parts(asked).calls[0].gas_limit = Some(0),
        |asked| parts(asked).calls[0].gas_limit = Some(21_000),
        |asked| parts(asked).calls.swap(0, 1),
        |asked| parts(asked).calls.truncate(1),
    ];
    let digests = changes.map(|change| {
        let mut asked = batch("any");
        change(&mut asked);
        asked.digest()
    });
    assert_eq!(digests.iter().collect::<std::collections::HashSet<_>>().len(), changes.len(), "{digests:?}");
    // Fields that are not signed or not yet known do not change the digest.
    let mut same = batch("other");
    same.asker.page = Some("https://page.example".to_owned());
    parts(&mut same).calls[0].outcome = "reverts".to_owned();
    parts(&mut same).calls[0].words = vec!["send".to_owned()];
    parts(&mut same).most_fees += U256::from(1);
    assert_eq!(same.digest(), digests[0]);
}

#[test]
fn eight_digits_of_a_digest_suffice_and_fewer_do_not() {
    let digest = batch("any").digest();
    let text = digest.to_string();
    let (bare, upper) = (text.trim_start_matches("0x"), text[2..].to_uppercase());
    for given in [&text, &text[..10], bare, &bare[..8], &upper, &upper[..9]] {
        assert!(given.parse::<DigestPrefix>().unwrap().begins(&digest), "{given}");
    }
    for given in ["", "0x", &text[..9], &bare[..7], &format!("{text}0"), "0xabcdefgh", "0x0xabcdef", "abcdef0☃"] {
        let error = given.parse::<DigestPrefix>().unwrap_err().to_string();
        assert!(error.contains("8 to 64 in hex") && error.contains("presim wallet list"), "{given}: {error}");
    }
    // The digest of another batch, or a part that is not its beginning.
    for given in [&bare[1..], "00000000"] {
        assert!(!given.parse::<DigestPrefix>().unwrap().begins(&digest), "{given}");
    }
}

#[tokio::test]
async fn a_withdrawn_id_stays_taken_until_its_time_is_up() {
    let approvals = Arc::new(Approvals::new(8, Duration::from_secs(2), &Metrics::default()));
    drop(wait(&approvals, "gone").await);
    assert!(ids(&approvals).is_empty());
    assert!(approvals.approve("gone", &digest()).unwrap_err().to_string().contains("\"gone\""));
    let error = outcome(approvals.ask(batch("gone"))).await.unwrap_err();
    assert_eq!(error.code(), 5720, "{error}");
    let detail = error.detail().unwrap();
    assert!(detail.contains("params[0].id: gone") && detail.contains("was withdrawn"), "{detail}");
    // A batch that came later has timed out, so the first id's time is over as well.
    rejection(outcome(approvals.ask(batch("later"))).await);
    let again = wait(&approvals, "gone").await;
    approvals.approve("gone", &digest()).unwrap();
    assert_eq!(outcome(again).await, Ok(()));
}

#[tokio::test]
async fn withdrawn_ids_are_bounded_with_those_that_wait() {
    let approvals = Approvals::new(8, Duration::from_secs(2), &Metrics::default());
    let approvals = Arc::new(approvals.with_withdrawn(3, Arc::default()));
    for id in ["a", "b"] {
        drop(wait(&approvals, id).await);
    }
    let last = wait(&approvals, "c").await;
    let error = outcome(approvals.ask(batch("d"))).await.unwrap_err();
    assert_eq!(error.code(), -32005, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("wait for approval: 1; ")
            && text.contains("taken: 2: ")
            && text.contains("(--wallet-max-withdrawn)"),
        "{text}"
    );
    // All three ids are still remembered.
    for id in ["a", "b", "c"] {
        assert_eq!(outcome(approvals.ask(batch(id))).await.unwrap_err().code(), 5720, "{id}");
    }
    rejection(outcome(last).await);
    let _waiting = [wait(&approvals, "a").await, wait(&approvals, "b").await, wait(&approvals, "d").await];
}

#[tokio::test]
async fn one_more_than_may_wait_is_refused_at_once() {
    let approvals = approvals(2);
    let _waiting = [wait(&approvals, "a").await, wait(&approvals, "b").await];
    let error = outcome(approvals.ask(batch("c"))).await.unwrap_err();
    assert_eq!(error.code(), -32005, "{error}");
    assert!(error.to_string().contains("--wallet-max-waiting"), "{error}");
    approvals.reject("a").unwrap();
    let _third = wait(&approvals, "c").await;
    assert_eq!(ids(&approvals), ["b", "c"]);
}

#[tokio::test]
async fn an_id_that_waits_is_a_duplicate() {
    let approvals = approvals(8);
    let _waiting = wait(&approvals, "a").await;
    assert_eq!(outcome(approvals.ask(batch("a"))).await.unwrap_err().code(), 5720);
}

#[tokio::test]
async fn a_node_that_stops_rejects_all_that_wait_and_all_that_come() {
    let approvals = approvals(8);
    let waiting = [wait(&approvals, "a").await, wait(&approvals, "b").await];
    approvals.stop();
    for question in waiting {
        assert!(rejection(outcome(question).await).contains("the node stops"));
    }
    assert!(rejection(outcome(approvals.ask(batch("c"))).await).contains("the node stops"));
}

#[tokio::test]
async fn a_gauge_counts_those_that_wait() {
    let metrics = Metrics::default();
    let approvals = Arc::new(Approvals::new(8, BOUND, &metrics));
    let shows = |count: &str| {
        let text = metrics.render();
        assert!(text.contains(&format!("\npresim_wallet_waiting {count}\n")), "{count}: {text}");
    };
    let (one, _other) = (wait(&approvals, "a").await, wait(&approvals, "b").await);
    shows("2");
    drop(one);
    shows("1");
    approvals.approve("b", &digest()).unwrap();
    shows("0");
}

// `presim wallet`.

#[tokio::test(flavor = "multi_thread")]
async fn approve_and_reject_end_the_wait() {
    let served = Served::start();
    let (yes, no) = (wait(&served.approvals, "0xaa11").await, wait(&served.approvals, "0xbb22").await);
    assert_eq!(served.says(&["approve", "0xaa11", &digest().to_string()]), "approved 0xaa11\n");
    assert_eq!(outcome(yes).await, Ok(()));
    assert_eq!(served.says(&["reject", "0xbb22"]), "rejected 0xbb22\n");
    assert_eq!(rejection(outcome(no).await), "the approver rejected the batch");
    assert_eq!(served.says(&["list"]), "no batch waits for approval\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn list_shows_who_sends_what_to_whom() {
    let served = Served::start();
    let _waiting = [wait(&served.approvals, "0xaa11").await, wait(&served.approvals, &"long".repeat(1_000)).await];
    let said = served.says(&["list"]);
    assert!(said.starts_with("2 batches wait for approval\n\n0xaa11\n"), "{said}");
    assert!(said.contains("long…longlonglonglong (4000 characters)\n"), "{said}");
    let row = |index: &str| said.lines().find(|line| line.starts_with(index)).unwrap_or_else(|| panic!("{said}"));
    let cells = |index: &str| row(index).split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
    assert_eq!(cells("  1  "), ["1", &CALLEE.to_string(), "1.5", "0xa9059cbb (4 bytes)", "-", "succeeds"], "{said}");
    let data = format!("0x{}… (100 bytes)", "ab".repeat(36));
    // Terminal control characters are escaped.
    assert_eq!(
        cells("  2  "),
        ["2", "(creates a contract)", "0", &data, "-", "reverts: \\u{1b}[2Jno \"funds\""],
        "{said}"
    );
    let digest = format!("  digest   {}\n", digest());
    let signs = "  signs    2 transactions, for at most 0.00325 ether of gas fees\n";
    for part in [&ACCOUNT.to_string(), "chain 31337", "rejected in", "all calls or none", "EIP-7702", signs, &digest] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_as_json_has_all_of_the_data() {
    let served = Served::start();
    let _waiting = wait(&served.approvals, "0xaa11").await;
    let said: Value = serde_json::from_str(&served.says(&["list", "--json"])).unwrap();
    let batch = &said["batches"][0];
    assert_eq!(
        (&said["more"], &batch["id"], &batch["chainId"]),
        (&json!(0), &json!("0xaa11"), &json!(31_337)),
        "{said}"
    );
    assert_eq!((&batch["from"], &batch["digest"]), (&json!(ACCOUNT), &json!(digest())), "{said}");
    assert_eq!((&batch["atomic"], &batch["upgrade"]), (&json!(true), &json!(CALLEE)), "{said}");
    assert_eq!((&batch["transactions"], &batch["mostFees"]), (&json!(2), &json!("0xb8bdb97852000")), "{said}");
    let call = json!({"to": CALLEE, "value": "0x14d1120d7b160000", "data": "0xa9059cbb", "gasLimit": null, "outcome": "succeeds", "words": []});
    assert_eq!(batch["calls"][0], call, "{said}");
    assert_eq!(batch["calls"][1]["data"].as_str().unwrap().len(), 202, "{said}");
    assert!(batch["waitedMs"].is_u64() && batch["leftMs"].as_u64().unwrap() > 3_000_000, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_of_an_id_will_do_where_no_other_has_it() {
    let served = Served::start();
    let mut waiting = Vec::new();
    for id in ["0xabab", "0xababcd", "0xababce"] {
        waiting.push(wait(&served.approvals, id).await);
    }
    let digest = &digest().to_string()[..10];
    let told = served.fails(&["approve", "0xababc", digest]);
    assert!(told.contains("2 waiting batches are or begin with \"0xababc\""), "{told}");
    // A prefix needs at least six characters.
    for unknown in ["0xffff", "", "0x", "0xaba", "0xababcd0"] {
        let told = served.fails(&["reject", unknown]);
        assert!(told.contains(&format!("{unknown:?}")) && told.contains("presim wallet list"), "{told}");
    }
    let told = served.fails(&["reject", &"0".repeat(100_000)]);
    assert!(told.contains("100000 bytes"), "{told}");
    assert_eq!(ids(&served.approvals), ["0xabab", "0xababcd", "0xababce"]);
    // An id that other ids begin with is refused, because another batch may be meant.
    let told = served.fails(&["approve", "0xabab", digest]);
    assert!(told.contains("3 waiting batches"), "{told}");
    assert_eq!(served.says(&["approve", "0xababcd", digest]), "approved 0xababcd\n");
    assert_eq!(served.says(&["approve", "0xababc", digest]), "approved 0xababce\n");
    assert_eq!(served.says(&["approve", "0xabab", digest]), "approved 0xabab\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_digest_the_batch_is_shown_and_the_terminal_asked() {
    let served = Served::start();
    let folder = text(served.folder.path());
    let asked = wait(&served.approvals, "payroll-7").await;
    for (typed, is_approved) in [("\n", false), ("n\n", false), ("yesterday\n", false), ("\u{4}", false), ("Y\n", true)]
    {
        let mut terminal = Terminal::start(&["wallet", "approve", "payroll", "--data-dir", folder]);
        let shown = tokio::task::block_in_place(|| terminal.shows("approve it? [y/N] "));
        for part in ["payroll-7\n", &format!("  digest   {}\n", digest()), "1.5    0xa9059cbb (4 bytes)"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        terminal.types(typed);
        let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
        assert_eq!(
            (status.success(), ids(&served.approvals).is_empty()),
            (is_approved, is_approved),
            "{typed:?} {shown}"
        );
        let said = if is_approved { "approved payroll-7\n" } else { "error: not approved: payroll-7 still waits" };
        assert!(shown.contains(said), "{typed:?} {shown}");
    }
    assert_eq!(outcome(asked).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_batch_than_the_terminal_showed_is_not_approved() {
    let served = Served::start();
    let shown = wait(&served.approvals, "payroll-7").await;
    let mut terminal = Terminal::start(&["wallet", "approve", "payroll-7", "--data-dir", text(served.folder.path())]);
    tokio::task::block_in_place(|| terminal.shows("[y/N] "));
    drop(shown);
    // The id of the other batch begins with the one that was shown, which is free now.
    let (approvals, mut other) = (served.approvals.clone(), batch("payroll-70"));
    parts(&mut other).calls[0].value = U256::MAX;
    let digest = other.digest();
    let mut question = async move { approvals.ask(other).await }.boxed();
    assert!(poll!(&mut question).is_pending());
    terminal.types("y\n");
    let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(shown.contains(&format!("error: the waiting batch \"payroll-70\" has digest {digest}")), "{shown}");
    assert_eq!(ids(&served.approvals), ["payroll-70"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_digest_and_a_terminal_nothing_is_approved() {
    let served = Served::start();
    let _waiting = wait(&served.approvals, "payroll-7").await;
    let told = served.fails(&["approve", "payroll-7"]);
    assert!(told.contains("DIGEST") && told.contains("terminal") && told.contains("presim wallet list"), "{told}");
    let told = served.fails(&["approve", "payroll-7", "0x1234567"]);
    assert!(told.contains("DIGEST: \"0x1234567\": expected") && told.contains("8 to 64 in hex"), "{told}");
    let told = served.fails(&["approve", "payroll-7", "0x12345678"]);
    let expected = format!(
        "error: the waiting batch \"payroll-7\" has digest {}, not 0x12345678: list the batches again\n",
        digest()
    );
    assert_eq!(told, expected);
    assert_eq!(ids(&served.approvals), ["payroll-7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_directory_may_stand_anywhere_a_setting_may() {
    let served = Served::start();
    let folder = text(served.folder.path());
    let config = file(&format!("data-dir = {folder:?}\nwallet-approval = \"ask\"\n"));
    let config = text(config.path());
    let cases: [(&[&str], Variables<'_>); 7] = [
        (&["--data-dir", folder, "wallet", "list"], &[]),
        (&["wallet", "--data-dir", folder, "list"], &[]),
        (&["wallet", "list", "--data-dir", folder], &[]),
        (&["wallet", "list"], &[("PRESIM_DATA_DIR", folder)]),
        (&["--config", config, "wallet", "list"], &[]),
        (&["wallet", "list", "--config", config], &[("PRESIM_DATA_DIR", folder)]),
        (&["wallet", "list", "--data-dir", folder], &[("PRESIM_DATA_DIR", "/nowhere")]),
    ];
    for (args, env) in cases {
        let (code, said, told) = presim(args, env);
        assert_eq!((code, said.as_str()), (Some(0), "no batch waits for approval\n"), "{args:?} {env:?}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_node_listens_it_says_what_to_do() {
    let folder = TempDir::new().unwrap();
    let left = TempDir::new().unwrap();
    drop(UnixListener::bind(left.path().join(SOCKET)).unwrap());
    for data_dir in [folder.path(), left.path(), Path::new("/nowhere")] {
        let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(data_dir)], &[]);
        assert_eq!((code, told.lines().count()), (Some(1), 1), "{told}");
        assert!(told.contains("--wallet-approval ask") && told.contains(text(&data_dir.join(SOCKET))), "{told}");
    }
    let (code, _, told) = presim(&["wallet", "list"], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("presim wallet needs --data-dir"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_tells_of_the_wallet() {
    let (_, help, _) = presim(&["wallet", "--help"], &[]);
    for part in ["list", "watch", "approve", "reject", "--data-dir", "--wallet-approval ask"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let (_, help, _) = presim(&["wallet", "approve", "--help"], &[]);
    assert!(help.contains("beginning") && help.contains("[DIGEST]") && help.contains("ask on the terminal"), "{help}");
    let (_, help, _) = presim(&["--help"], &[]);
    assert!(help.contains("Approve or reject the batches"), "{help}");
}

// `presim wallet watch`.

#[tokio::test(flavor = "multi_thread")]
async fn watch_asks_for_each_as_it_comes_and_sends_the_answer() {
    let served = Served::start();
    let first = wait(&served.approvals, "first").await;
    let mut terminal = Terminal::start(&["wallet", "watch", "--data-dir", text(served.folder.path())]);
    let shown = tokio::task::block_in_place(|| terminal.shows("approve it? [y/n] "));
    for part in ["\nfirst\n", &format!("  digest   {}\n", digest()), "1.5    0xa9059cbb (4 bytes)", "\\u{1b}[2Jno"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // An answer that is none is asked for again.
    terminal.types("perhaps\n");
    tokio::task::block_in_place(|| terminal.shows("perhaps\n\napprove it? [y/n] "));
    terminal.types("y\n");
    tokio::task::block_in_place(|| terminal.shows("approved first\n"));
    assert_eq!(outcome(first).await, Ok(()));

    // The next comes while nothing waits.
    let second = wait(&served.approvals, "second").await;
    tokio::task::block_in_place(|| terminal.shows_after("\nsecond\n  digest", "[y/n] "));
    terminal.types("N\n");
    tokio::task::block_in_place(|| terminal.shows("rejected second\n"));
    assert_eq!(rejection(outcome(second).await), "the approver rejected the batch");

    // One that is withdrawn while the terminal asks is not decided on, and the watch goes on.
    let third = wait(&served.approvals, "third").await;
    tokio::task::block_in_place(|| terminal.shows_after("\nthird\n  digest", "[y/n] "));
    drop(third);
    terminal.types("y\n");
    let shown = tokio::task::block_in_place(|| terminal.shows("not decided: "));
    assert!(!shown.contains("approved third"), "{shown}");
    let fourth = wait(&served.approvals, "fourth").await;
    tokio::task::block_in_place(|| terminal.shows_after("\nfourth\n  digest", "[y/n] "));
    // The end of the input ends the watch, and decides on nothing.
    terminal.types("\u{4}");
    let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
    assert!(!status.success() && shown.contains("not approved: fourth still waits"), "{shown}");
    assert_eq!(ids(&served.approvals), ["fourth"]);
    drop(fourth);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_the_question_is_no_answer() {
    let served = Served::start();
    let _first = wait(&served.approvals, "first").await;
    let mut terminal = Terminal::start(&["wallet", "watch", "--data-dir", text(served.folder.path())]);
    tokio::task::block_in_place(|| terminal.shows("approve it? [y/n] "));
    let _second = wait(&served.approvals, "second").await;
    // The second line is there before the second question.
    terminal.types("y\ny\n");
    tokio::task::block_in_place(|| terminal.shows_after("\nsecond\n  digest", "[y/n] "));
    assert_eq!(ids(&served.approvals), ["second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_needs_a_terminal() {
    let served = Served::start();
    let _waiting = wait(&served.approvals, "first").await;
    let told = served.fails(&["watch"]);
    assert!(told.contains("no terminal") && told.contains("presim wallet list --json"), "{told}");
    assert_eq!(ids(&served.approvals), ["first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_cannot_look_like_a_line_of_the_list() {
    let served = Served::start();
    let text = "Sign in\n\u{1b}[1A\u{202e}  digest   0xdead\n\r";
    let message = AskedMessage { message: text.as_bytes().to_vec().into(), hash: B256::repeat_byte(7) };
    let mut asked = batch("0xaa11");
    asked.asker = Asker { client: Some("desk\u{7}".to_owned()), page: Some("https://page.example".to_owned()) };
    asked.act = AskedAct::Message(message);
    let digest = asked.digest();
    let approvals = served.approvals.clone();
    let mut question = async move { approvals.ask(asked).await }.boxed();
    assert!(poll!(&mut question).is_pending());
    let said = served.says(&["list"]);
    let waiting = said.lines().find(|line| line.contains("waiting")).unwrap();
    let expected = [
        "1 message waits for approval",
        "",
        "0xaa11",
        &format!("  digest   {digest}"),
        &format!("  account  {ACCOUNT} on chain 31337"),
        "  client   \"desk\\u{7}\"",
        "  page     https://page.example",
        waiting,
        &format!("  signs    a message of {} bytes, as {} (EIP-191)", text.len(), B256::repeat_byte(7)),
        "  message  | Sign in",
        "           | \\u{1b}[1A\\u{202e}  digest   0xdead",
        "           | \\r",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
    assert_eq!(served.says(&["approve", "0xaa11", &digest.to_string()]), "approved 0xaa11\n");
    assert_eq!(outcome(question).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_characters_of_ids_names_messages_and_reverts_are_escaped_and_others_are_shown() {
    let served = Served::start();
    let hidden = "\u{61c}\u{ad}\u{180e}\u{115f}\u{3164}\u{e0041}\u{202e}\u{200b}\u{9b}";
    let escaped = r"\u{61c}\u{ad}\u{180e}\u{115f}\u{3164}\u{e0041}\u{202e}\u{200b}\u{9b}";
    let mut asked = batch(&format!("é{hidden}"));
    asked.asker = Asker { client: Some(format!("désk{hidden}")), page: Some(format!("https://é.example{hidden}")) };
    parts(&mut asked).calls[0].outcome = format!("fails: ü{hidden}");
    let mut message = batch("message");
    let text = format!("grün {hidden} \\");
    message.act = AskedAct::Message(AskedMessage { message: text.into_bytes().into(), hash: B256::repeat_byte(7) });
    let _waiting = [wait_for(&served.approvals, asked).await, wait_for(&served.approvals, message).await];
    let said = served.says(&["list"]);
    for part in [
        format!("\n\"é{escaped}\"\n"),
        format!("  client   \"désk{escaped}\"\n"),
        format!("  page     \"https://é.example{escaped}\"\n"),
        format!("fails: ü{escaped}\n"),
        format!("  message  | grün {escaped} \\\\\n"),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    let json = served.says(&["list", "--json"]);
    for said in [&said, &json] {
        assert!(!said.contains(|letter: char| hidden.contains(letter)), "{said:?}");
    }
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["batches"][0]["id"], json!(format!("é{hidden}")), "a parser reads the texts as they are");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_id_no_shell_takes_is_named_by_its_digest() {
    let served = Served::start();
    let (id, name) = ("'\u{3}; touch owned #", digest().to_string());
    let asked = wait(&served.approvals, id).await;
    // Another client's batch has this digest as its id.
    let mut other = batch(&name);
    other.chain_id += 1;
    let other = wait_for(&served.approvals, other).await;
    assert_eq!(served.says(&["approve", &name, &name]), "approved \"'\\u{3}; touch owned #\"\n");
    assert_eq!(outcome(asked).await, Ok(()));
    assert_eq!(ids(&served.approvals), [name.as_str()]);
    // Once no batch has the digest, the text is an id, and its batch has another digest.
    let told = served.fails(&["approve", &name, &name]);
    assert!(told.contains("has digest"), "{told}");
    let asked = wait(&served.approvals, id).await;
    assert_eq!(served.says(&["reject", &name]), "rejected \"'\\u{3}; touch owned #\"\n");
    rejection(outcome(asked).await);
    drop(other);
}

// The socket.

#[tokio::test]
async fn only_its_user_may_open_the_socket_and_it_goes_with_the_node() {
    let served = Served::start();
    let path = served.folder.path().join(SOCKET);
    assert_eq!(served.socket.path(), path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let names =
        || std::fs::read_dir(served.folder.path()).unwrap().map(|one| one.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), [SOCKET]);
    drop(served.socket);
    assert!(names().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(SOCKET);
    drop(UnixListener::bind(&path).unwrap());
    let socket = ApprovalSocket::serve(folder.path(), approvals(8), None).unwrap();
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(folder.path())], &[]);
    assert_eq!(code, Some(0), "{told}");

    let second = ApprovalSocket::serve(folder.path(), approvals(8), None).unwrap_err();
    assert!(matches!(second, SocketError::InUse { .. }), "{second}");
    drop(socket);

    std::fs::write(&path, "mine").unwrap();
    let taken = ApprovalSocket::serve(folder.path(), approvals(8), None).unwrap_err();
    assert!(matches!(taken, SocketError::Taken { .. }), "{taken}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_too_long_for_a_socket_is_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let room = 107 - SOCKET.len() - 1 - text(folder.path()).len() - 1;
    let (fits, long) = (folder.path().join("d".repeat(room)), folder.path().join("d".repeat(room + 1)));
    for path in [&fits, &long] {
        std::fs::create_dir(path).unwrap();
    }
    let error = ApprovalSocket::serve(&long, approvals(8), None).unwrap_err().to_string();
    assert!(error.contains("108 bytes") && error.contains("--data-dir"), "{error}");
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(&long)], &[]);
    assert_eq!((code, told.trim_end()), (Some(1), format!("error: {error}").as_str()));

    let _socket = ApprovalSocket::serve(&fits, approvals(8), None).unwrap();
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(&fits)], &[]);
    assert_eq!(code, Some(0), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_garbage_gets_an_error_and_hurts_nobody() {
    let served = Served::start();
    let _waiting = wait(&served.approvals, "0xaa").await;
    let cases: [(&[u8], &str); 11] = [
        (b"\n", "expected"),
        (b"hello\n", "expected"),
        (b"\xff\xfe\n", "expected"),
        (b"{\"burn\":{}}\n", "`burn`"),
        (b"{\"approve\":{}}\n", "`id`"),
        (b"{\"approve\":{\"id\":\"0xaa\",\"all\":true}}\n", "`all`"),
        (b"{\"approve\":{\"id\":\"0xaa\"}}\n", "`digest`"),
        (b"{\"approve\":{\"id\":\"0xaa\",\"digest\":\"0x1234567\"}}\n", "8 to 64 in hex"),
        (b"{\"approve\":{\"id\":7}}\n", "string"),
        (b"{\"approve\":[\"0xaa\",\"0x12345678\"]}\n", "expected an object"),
        // A request without a line end may be cut off.
        (b"{\"approve\":{\"id\":\"0xaa\"}}", "end with a newline"),
    ];
    for (sent, expected) in cases {
        let mut stream = served.connect();
        stream.write_all(sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        tokio::task::block_in_place(|| stream.read_to_string(&mut text)).unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(expected), "{expected}: {answer}");
    }
    // A line without end is cut off.
    let mut stream = served.connect();
    let sent = tokio::task::block_in_place(|| {
        std::iter::repeat_n([b'x'; 4096], 10_000).try_for_each(|part| stream.write_all(&part))
    });
    assert!(sent.is_err(), "40 MB of a line are taken");
    assert_eq!(ids(&served.approvals), ["0xaa"]);
    assert_eq!(served.says(&["approve", "0xaa", &digest().to_string()]), "approved 0xaa\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_stall_do_not_keep_others_out() {
    let served = Served::start();
    let _waiting = wait(&served.approvals, "0xaa").await;
    let stalled: Vec<UnixStream> = (0..20).map(|_| served.connect()).collect();
    assert_eq!(served.says(&["approve", "0xaa", &digest().to_string()]), "approved 0xaa\n");
    drop(stalled);
}
