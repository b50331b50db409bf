//! `presim wallet`, with which an approver sees, approves and rejects what waits, and the socket by which it asks the node.

use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Output,
};

use alloy_primitives::bytes;
use alloy_sol_types::{Revert, SolError};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{
    QUIET, REVERTER, WITNESS, WalletChain, account,
    approval::{ASK, Asking, answer, check_rejected, witness},
    batch, call, named,
};
use crate::{
    process::{Variables, command, file, text},
    support::{BOUND, TestNode, request, token},
    terminal::Terminal,
};

/// The name of the socket in the data directory.
const SOCKET: &str = "wallet.sock";

fn presim(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = tokio::task::block_in_place(|| command(args, env).output()).expect("the program runs");
    let Output { status, stdout, stderr } = output;
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn ids(asking: &Asking) -> Vec<Value> {
    asking.list().into_iter().map(|mut one| one["id"].take()).collect()
}

/// Waits until this text is on the screen after another, and returns the whole screen.
fn shows(terminal: &mut Terminal, first: &str, text: &str) -> String {
    tokio::task::block_in_place(|| terminal.shows_after(first, text))
}

fn watching(asking: &Asking) -> Terminal {
    Terminal::start(&["wallet", "watch", "--data-dir", text(asking.dir())])
}

/// Sends a request in the name of a token, from a page.
fn asked_by(asking: &Asking, name: &str, method: &str, params: Value) -> JoinHandle<Value> {
    let post = asking.node.client.post(asking.node.url("/")).bearer_auth(token(name));
    let post = post.header("origin", "https://page.example").json(&request(1, method, params));
    tokio::spawn(async move { post.send().await.expect("it answers").json().await.expect("JSON") })
}

/// Starts a node with a client of this name, as TOML has it, whose token is that of `a`.
fn with_client(name: &str) -> (Asking, tempfile::NamedTempFile) {
    let tokens = file(&format!("[[token]]\nname = \"{name}\"\ntoken = \"{}\"\nrate = 1000\n", token("a")));
    let flags = ["--wallet-token-file", text(tokens.path()), "--allow-origin", "https://page.example"];
    (Asking::start(&[&QUIET, &flags]), tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn list_shows_who_sends_what_to_whom() {
    let asking = Asking::start(&[&QUIET, &["--dialect", "standard"]]);
    let calls = [
        call(WITNESS, 1_500_000_000_000_000_000, bytes!("a9059cbb")),
        json!({"value": "0x0", "data": format!("0x{}", "00".repeat(100))}),
        call(REVERTER, 0, Revert { reason: "\u{1b}[2Jno \"funds\"".to_owned() }.abi_encode()),
    ];
    let _first = asking.ask(named(batch(account(1), false, &calls), "0xaa11")).await;
    let atomic = batch(account(2), true, &[call(WITNESS, 0, bytes!("01"))]);
    let _second = asking.ask(named(atomic, &"long".repeat(1_000))).await;
    let said = asking.says(&["list"]);
    assert!(said.starts_with("2 batches wait for approval\n\n0xaa11\n"), "{said}");
    assert!(said.contains("long…longlonglonglong (4000 characters)\n"), "{said}");
    let row = |index: &str| said.lines().find(|line| line.starts_with(index)).unwrap_or_else(|| panic!("{said}"));
    let cells = |index: &str| row(index).split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
    assert_eq!(cells("  1  ")[..5], ["1", &WITNESS.to_string(), "1.5", "0xa9059cbb (4 bytes)", "-"], "{said}");
    let data = format!("0x{}… (100 bytes)", "00".repeat(36));
    assert_eq!(cells("  2  ")[..5], ["2", "(creates a contract)", "0", &data, "-"], "{said}");
    assert!(cells("  2  ")[5].starts_with("succeeds, "), "{said}");
    // Terminal control characters are escaped.
    assert_eq!(cells("  3  ")[5], "fails: \\u{1b}[2Jno \"funds\"", "{said}");
    let digest = format!("  digest   {}\n", asking.digest("0xaa11"));
    let signs = "  signs    3 transactions, for at most 0.";
    let from = account(1).to_string();
    for part in [&from, "chain 31337", "rejected in", "all calls or none", "EIP-7702", signs, &digest] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let json: Value = serde_json::from_str(&asking.says(&["list", "--json"])).unwrap();
    let batch = &json["batches"][0];
    assert_eq!((&json["more"], &batch["number"]), (&json!(0), &json!(0)), "{json}");
    assert_eq!(batch["calls"][1]["data"].as_str().unwrap().len(), 202, "{json}");
    assert_eq!((&batch["calls"][1]["to"], &batch["calls"][1]["gasLimit"]), (&Value::Null, &Value::Null), "{json}");
    assert!(batch["waitedMs"].is_u64() && batch["leftMs"].is_u64(), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_of_an_id_will_do_where_no_other_has_it() {
    let asking = Asking::start(&[&QUIET]);
    let all = ["0xabab", "0xababcd", "0xababce"];
    let mut waiting = Vec::new();
    for id in all {
        waiting.push(asking.ask(witness(id)).await);
    }
    let digest = &asking.digest("0xabab")[..10];
    let told = asking.fails(&["approve", "0xababc", digest]);
    assert!(told.contains("2 waiting batches are or begin with \"0xababc\""), "{told}");
    // A prefix needs at least six characters.
    for unknown in ["0xffff", "", "0x", "0xaba", "0xababcd0"] {
        let told = asking.fails(&["reject", unknown]);
        assert!(told.contains(&format!("{unknown:?}")) && told.contains("presim wallet list"), "{told}");
    }
    let told = asking.fails(&["reject", &"0".repeat(100_000)]);
    assert!(told.contains("100000 bytes"), "{told}");
    assert_eq!(ids(&asking), all);
    // An id that other ids begin with is refused, because another batch may be meant.
    let told = asking.fails(&["approve", "0xabab", digest]);
    assert!(told.contains("3 waiting batches"), "{told}");
    assert_eq!(asking.says(&["approve", "0xababcd", digest]), "approved 0xababcd\n");
    assert_eq!(asking.says(&["approve", "0xababc", digest]), "approved 0xababce\n");
    assert_eq!(asking.says(&["approve", "0xabab", digest]), "approved 0xabab\n");
    for (asked, id) in waiting.into_iter().zip(all) {
        assert_eq!(answer(asked).await["result"]["id"], id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_digest_the_batch_is_shown_and_the_terminal_asked() {
    let asking = Asking::start(&[&QUIET]);
    let asked = asking.ask(witness("payroll-7")).await;
    let digest = format!("  digest   {}\n", asking.digest("payroll-7"));
    for (typed, is_approved) in [("\n", false), ("n\n", false), ("yesterday\n", false), ("\u{4}", false), ("Y\n", true)]
    {
        let mut terminal = Terminal::start(&["wallet", "approve", "payroll", "--data-dir", text(asking.dir())]);
        let shown = shows(&mut terminal, "", "approve it? [y/N] ");
        for part in ["payroll-7\n", &digest, "0x01 (1 bytes)"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        terminal.types(typed);
        let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
        let is_empty = ids(&asking).is_empty();
        assert_eq!((status.success(), is_empty), (is_approved, is_approved), "{typed:?} {shown}");
        let said = if is_approved { "approved payroll-7\n" } else { "error: not approved: payroll-7 still waits" };
        assert!(shown.contains(said), "{typed:?} {shown}");
    }
    assert_eq!(answer(asked).await["result"]["id"], "payroll-7");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_batch_than_the_terminal_showed_is_not_approved() {
    let asking = Asking::start(&[&QUIET]);
    let shown = asking.ask(witness("payroll-7")).await;
    let mut terminal = Terminal::start(&["wallet", "approve", "payroll-7", "--data-dir", text(asking.dir())]);
    shows(&mut terminal, "", "[y/N] ");
    shown.abort();
    asking.listed(<[Value]>::is_empty).await;
    // The id of the other batch begins with the one that was shown.
    let other = batch(account(1), false, &[call(WITNESS, u64::MAX, bytes!("01"))]);
    let _other = asking.ask(named(other, "payroll-70")).await;
    terminal.types("y\n");
    let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
    assert_eq!(status.code(), Some(1), "{shown}");
    let told = format!("error: the waiting batch \"payroll-70\" has digest {}", asking.digest("payroll-70"));
    assert!(shown.contains(&told), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_digest_and_a_terminal_nothing_is_approved() {
    let asking = Asking::start(&[&QUIET]);
    let _waiting = asking.ask(witness("payroll-7")).await;
    let told = asking.fails(&["approve", "payroll-7"]);
    assert!(told.contains("DIGEST") && told.contains("terminal") && told.contains("presim wallet list"), "{told}");
    let told = asking.fails(&["approve", "payroll-7", "0x1234567"]);
    assert!(told.contains("DIGEST: \"0x1234567\": expected") && told.contains("8 to 64 in hex"), "{told}");
    let told = asking.fails(&["approve", "payroll-7", "0x12345678"]);
    let digest = asking.digest("payroll-7");
    let expected =
        format!("error: the waiting batch \"payroll-7\" has digest {digest}, not 0x12345678: list the batches again\n");
    assert_eq!(told, expected);
    let told = asking.fails(&["watch"]);
    assert!(told.contains("no terminal") && told.contains("presim wallet list --json"), "{told}");
    assert_eq!(ids(&asking), ["payroll-7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_directory_may_stand_anywhere_a_setting_may() {
    let asking = Asking::start(&[&QUIET]);
    let folder = text(asking.dir());
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
    let cases: [(&[&str], &[&str]); 3] = [
        (&["wallet", "--help"], &["list", "watch", "approve", "reject", "--data-dir", "--wallet-approval ask"]),
        (&["wallet", "approve", "--help"], &["beginning", "[DIGEST]", "ask on the terminal"]),
        (&["--help"], &["Approve or reject batches"]),
    ];
    for (args, parts) in cases {
        let (_, help, _) = presim(args, &[]);
        for part in parts {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}

// `presim wallet watch`.

#[tokio::test(flavor = "multi_thread")]
async fn watch_asks_for_each_as_it_comes_and_sends_the_answer() {
    let asking = Asking::start(&[&QUIET]);
    let first = asking.ask(witness("first")).await;
    let mut terminal = watching(&asking);
    let shown = shows(&mut terminal, "", "approve it? [y/n] ");
    for part in ["\nfirst\n", &format!("  digest   {}\n", asking.digest("first")), "0x01 (1 bytes)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // An answer that is none is asked for again.
    terminal.types("perhaps\n");
    shows(&mut terminal, "", "perhaps\n\napprove it? [y/n] ");
    terminal.types("y\n");
    shows(&mut terminal, "", "approved first\n");
    assert_eq!(answer(first).await["result"]["id"], "first");

    // The next one arrives while none waits.
    let second = asking.ask(witness("second")).await;
    shows(&mut terminal, "\nsecond\n  digest", "[y/n] ");
    terminal.types("N\n");
    shows(&mut terminal, "", "rejected second\n");
    check_rejected(&answer(second).await, "the approver rejected the batch");

    // One that is withdrawn while the terminal asks is not decided on, and the watch goes on.
    let third = asking.ask(witness("third")).await;
    shows(&mut terminal, "\nthird\n  digest", "[y/n] ");
    third.abort();
    asking.listed(<[Value]>::is_empty).await;
    terminal.types("y\n");
    let shown = shows(&mut terminal, "", "not decided: ");
    assert!(!shown.contains("approved third"), "{shown}");
    let _fourth = asking.ask(witness("fourth")).await;
    shows(&mut terminal, "\nfourth\n  digest", "[y/n] ");
    // The end of the input ends the watch, and decides on nothing.
    terminal.types("\u{4}");
    let (status, shown) = tokio::task::block_in_place(|| terminal.ended());
    assert!(!status.success() && shown.contains("not approved: fourth still waits"), "{shown}");
    assert_eq!(ids(&asking), ["fourth"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_the_question_is_no_answer() {
    let asking = Asking::start(&[&QUIET]);
    let _first = asking.ask(witness("first")).await;
    let mut terminal = watching(&asking);
    shows(&mut terminal, "", "approve it? [y/n] ");
    let _second = asking.ask(witness("second")).await;
    // The second line is there before the second question.
    terminal.types("y\ny\n");
    shows(&mut terminal, "\nsecond\n  digest", "[y/n] ");
    assert_eq!(ids(&asking), ["second"]);
}

// Texts of strangers.

#[tokio::test(flavor = "multi_thread")]
async fn a_message_cannot_look_like_a_line_of_the_list() {
    let (asking, _tokens) = with_client("desk\\u0007");
    let message = "Sign in\n\u{1b}[1A\u{202e}  digest   0xdead\n\r";
    let asked = asked_by(&asking, "a", "personal_sign", json!([message, account(1)]));
    let one = asking.listed(|list| list.len() == 1).await.pop().unwrap();
    let [id, digest, hash] = ["id", "digest", "hash"].map(|field| one[field].as_str().unwrap());
    let said = asking.says(&["list"]);
    let waiting = said.lines().find(|line| line.contains("waiting")).unwrap();
    let expected = [
        "1 message waits for approval",
        "",
        id,
        &format!("  digest   {digest}"),
        &format!("  account  {} on chain 31337", account(1)),
        "  client   \"desk\\u{7}\"",
        "  page     https://page.example",
        waiting,
        &format!("  signs    a message of {} bytes, as {hash} (EIP-191)", message.len()),
        "  message  | Sign in",
        "           | \\u{1b}[1A\\u{202e}  digest   0xdead",
        "           | \\r",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{said}");
    assert_eq!(asking.says(&["approve", id, digest]), format!("approved {id}\n"));
    assert!(answer(asked).await["result"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_characters_of_ids_names_messages_and_reverts_are_escaped_and_others_are_shown() {
    let hidden = "\u{61c}\u{ad}\u{180e}\u{115f}\u{3164}\u{e0041}\u{202e}\u{200b}\u{9b}";
    let escaped = r"\u{61c}\u{ad}\u{180e}\u{115f}\u{3164}\u{e0041}\u{202e}\u{200b}\u{9b}";
    let (asking, _tokens) = with_client(&format!("désk{hidden}"));
    let reason = Revert { reason: format!("ü{hidden}") }.abi_encode();
    let failing = batch(account(1), false, &[call(REVERTER, 0, reason)]);
    let _batch = asked_by(&asking, "a", "wallet_sendCalls", named(failing, &format!("é{hidden}")));
    asking.listed(|list| list.len() == 1).await;
    let message = json!([format!("grün {hidden} \\"), account(1)]);
    let _message = asked_by(&asking, "a", "personal_sign", message);
    asking.listed(|list| list.len() == 2).await;
    let said = asking.says(&["list"]);
    for part in [
        format!("\n\"é{escaped}\"\n"),
        format!("  client   \"désk{escaped}\"\n"),
        format!("fails: ü{escaped}\n"),
        format!("  message  | grün {escaped} \\\\\n"),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    let json = asking.says(&["list", "--json"]);
    for said in [&said, &json] {
        assert!(!said.contains(|letter: char| hidden.contains(letter)), "{said:?}");
    }
    assert_eq!(asking.list()[0]["id"], json!(format!("é{hidden}")), "a parser reads the texts as they are");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_id_no_shell_takes_is_named_by_its_digest() {
    let asking = Asking::start(&[&QUIET]);
    let id = "'\u{3}; touch owned #";
    let asked = asking.ask(witness(id)).await;
    let name = asking.digest(id);
    // Another client's batch has this digest as its id.
    let other = batch(account(1), false, &[call(WITNESS, 1, bytes!("01"))]);
    let _other = asking.ask(named(other, &name)).await;
    assert_eq!(asking.says(&["approve", &name, &name]), "approved \"'\\u{3}; touch owned #\"\n");
    assert_eq!(answer(asked).await["result"]["id"], id);
    assert_eq!(ids(&asking), [name.as_str()]);
    // Once no batch has the digest, the text is an id, and its batch has another digest.
    let told = asking.fails(&["approve", &name, &name]);
    assert!(told.contains("has digest"), "{told}");
    let asked = asking.ask(witness("again")).await;
    assert_eq!(asking.says(&["reject", &name]), "rejected again\n");
    check_rejected(&answer(asked).await, "the approver rejected the batch");
}

// The socket.

#[tokio::test(flavor = "multi_thread")]
async fn only_its_user_may_open_the_socket_and_it_goes_with_the_node() {
    let Asking { chain, node } = Asking::start(&[&QUIET]);
    let path = chain.data.path().join(SOCKET);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    tokio::task::spawn_blocking(move || node.node.stop()).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
    let chain = WalletChain::new();
    let path = chain.data.path().join(SOCKET);
    drop(UnixListener::bind(&path).unwrap());
    let node = chain.lasting(&[&ASK, &QUIET]);
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(chain.data.path())], &[]);
    assert_eq!(code, Some(0), "{told}");
    tokio::task::spawn_blocking(move || node.node.stop()).await.unwrap();

    fs::write(&path, "mine").unwrap();
    let data = ["--genesis", text(chain.genesis.path()), "--data-dir", text(chain.data.path())];
    let flags = [&ASK[..], &QUIET, &data].concat();
    let taken = format!("{:#}", TestNode::start_unlocked(&flags).map(drop).expect_err("it is refused"));
    assert!(taken.contains("a file that is not a socket is in the place of the socket"), "{taken}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_too_long_for_a_socket_is_refused_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let room = 107 - SOCKET.len() - 1 - text(folder.path()).len() - 1;
    let (fits, long) = (folder.path().join("d".repeat(room)), folder.path().join("d".repeat(room + 1)));
    let flags = |path| [&ASK[..], &QUIET, &["--data-dir", path]].concat();
    let error = TestNode::refusal(&flags(text(&long)));
    assert!(error.contains("108 bytes") && error.contains("--data-dir"), "{error}");
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(&long)], &[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("108 bytes") && told.contains("--data-dir"), "{told}");

    let _node = TestNode::start(&flags(text(&fits)));
    let (code, _, told) = presim(&["wallet", "list", "--data-dir", text(&fits)], &[]);
    assert_eq!(code, Some(0), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_garbage_or_stall_hurt_nobody() {
    let asking = Asking::start(&[&QUIET]);
    let asked = asking.ask(witness("0xaa")).await;
    let connect = || {
        let stream = UnixStream::connect(asking.dir().join(SOCKET)).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream
    };
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
        let mut stream = connect();
        stream.write_all(sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        tokio::task::block_in_place(|| stream.read_to_string(&mut text)).unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(expected), "{expected}: {answer}");
    }
    // A line without end is cut off.
    let mut stream = connect();
    let sent = tokio::task::block_in_place(|| {
        std::iter::repeat_n([b'x'; 4096], 10_000).try_for_each(|part| stream.write_all(&part))
    });
    assert!(sent.is_err(), "40 MB of a line are taken");
    let _stalled: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    assert_eq!(ids(&asking), ["0xaa"]);
    asking.approve("0xaa");
    assert_eq!(answer(asked).await["result"]["id"], "0xaa");
}
