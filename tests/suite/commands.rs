//! The commands that ask a node: their output, their exit codes, and what they say of bad input.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    process::{Variables, command, eventually, file, refusing_port, text},
    support::{TestNode, request, shared, signal, token, token_file},
    terminal::Terminal,
};

/// The first account of the test mnemonic, and contracts of the devnet's trading world.
const ALICE: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
const BOB: &str = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";
const ALPHA: &str = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0";
const WETH: &str = "0x5FbDB2315678afecb367f032d93F642f64180aa3";
const ROUTER: &str = "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9";
const MADE: &str = "0x00000000000000000000000000000000000abcde";

/// The end of a command.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    told: String,
}

/// Runs a command to its end, with this text as its standard input.
fn fed(input: &str, args: &[&str], env: Variables<'_>) -> Ended {
    let mut child = command(args, env).stdin(Stdio::piped()).spawn().expect("the program runs");
    // A command that refuses its flags does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [out, told] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
    Ended { code: status.code(), out, told }
}

/// Runs a command on a node.
fn ask(node: &TestNode, name: &str, args: &[&str]) -> Ended {
    fed("", &[&[name, "--url", &node.url("/")], args].concat(), &[])
}

impl Ended {
    fn expect(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let all = format!("{}{}", self.out, self.told);
        for part in parts {
            assert!(all.contains(part), "{part:?} is not in:\n{all}");
        }
    }
}

const TRANSFER: [&str; 9] = ["--from", ALICE, "--to", ALPHA, "--sig", "transfer", "--args", BOB, "1.5ether"];

/// A bundle with a contract that reverts with `Expired(uint256)`, without its argument if `cut`.
fn failing() -> Value {
    // Stores the selector and the number 7, and reverts with both.
    let selector = &alloy_primitives::hex::encode(alloy_primitives::keccak256("Expired(uint256)"))[..8];
    let code = format!("0x63{selector}60e01b600052600760045260246000fd");
    json!({"blockStateCalls": [{
        "stateOverrides": {MADE: {"code": code}},
        "calls": [{"from": ALICE, "to": BOB, "value": "0x1"}, {"from": ALICE, "to": MADE}],
    }]})
}

#[test]
fn a_call_by_flags_is_shown_with_what_it_does() {
    let node = TestNode::quiet();
    ask(&node, "simulate", &TRANSFER).expect(
        0,
        &[
            "on snapshot 0x",
            "transfer(to: 0x70997970C51812dc3A010C7d01b50e0d17dc79C8, value: 1500000000000000000 [1.5 ALPHA])",
            "success",
            " true",
            &format!("Transfer(from: {ALICE}, to: {BOB}, value: 1500000000000000000 [1.5 ALPHA])"),
            &format!("{ALICE}  -1.5 ALPHA"),
            &format!("{BOB}  +1.5 ALPHA"),
            &format!("profit of {ALICE}: -1.5 ALPHA; gas "),
            " ether at the base fee of ",
        ],
    );
}

/// The names that the banner prints stand for the addresses, whatever their case, in lists too.
#[test]
fn contracts_are_called_by_the_names_that_the_node_prints() {
    let node = TestNode::quiet();
    let quote = ["--to", "Router", "--sig", "getAmountsOut", "--args", "1ether", "[WETH, alpha]", "--trace"];
    ask(&node, "simulate", &quote)
        .expect(0, &[&format!("router {ROUTER}"), "factory::getPair", "WETH/ALPHA::getReserves"]);
    let approve = ["--from", ALICE, "--to", "ALPHA", "--sig", "approve", "--args", "router", "2.5ether"];
    ask(&node, "simulate", &approve).expect(0, &[&format!("ALPHA {ALPHA}"), &format!("approve(spender: {ROUTER}, ")]);
    let path = ["--from", ALICE, "--to", "router", "--value", "1", "--sig", "swapExactETHForTokens"];
    let args = ["--args", "0", "[WETH,ALPHA]", ALICE, "99999999999", "--vary", "value=1ether,2ether"];
    ask(&node, "search", &[&path[..], &args[..], &["--objective", "ALPHA"]].concat()).expect(0, &[" ALPHA"]);
    ask(&node, "simulate", &["--to", "ruoter"])
        .expect(2, &["--to: \"ruoter\": no contract has this name: did you mean router?"]);
    ask(&node, "simulate", &["--to", "nobody"])
        .expect(2, &["no contract has this name: expected 0x and 40 hex digits, or one of WETH, "]);
    ask(&node, "simulate", &["--to", "ALPHA", "--sig", "balanceOf", "--args", "somebody"])
        .expect(2, &["--args: value 0: \"somebody\": no contract has this name"]);
    // A word in a text stays a text.
    ask(&node, "simulate", &["--to", BOB, "--sig", "f(string)", "--args", "router"]).expect(0, &["f(\"router\")"]);
}

#[test]
fn each_to_begins_a_call_and_the_flags_before_the_first_are_of_all() {
    let node = TestNode::quiet();
    let args =
        ["--from", ALICE, "--to", BOB, "--value", "1gwei", "--to", WETH, "--value", "2ether", "--sig", "deposit()"];
    let ended = ask(&node, "simulate", &args);
    ended.expect(0, &["send 0.000000001 ether", "deposit{value: 2 ether}()", "2 calls, gas "]);
    assert!(ended.out.contains(&format!("{ALICE}  -2.000000001 ether")), "{ended:?}");
}

#[test]
fn a_bundle_is_a_payload_its_params_or_a_whole_request() {
    let node = TestNode::quiet();
    let payload = json!({"blockStateCalls": [{"calls": [{"from": ALICE, "to": BOB, "value": "0x1"}]}]});
    for bundle in
        [payload.clone(), json!([payload, "latest"]), request(1, "presim_simulate", json!([payload, "pending"]))]
    {
        let kept = file(&bundle.to_string());
        ask(&node, "simulate", &[text(kept.path())]).expect(0, &["success", "21,000"]);
        let url = node.url("/standard");
        fed(&bundle.to_string(), &["simulate", "--url", &url, "-"], &[]).expect(0, &["success", "21,000"]);
    }
}

#[test]
fn a_failed_call_ends_with_1_unless_it_may_fail() {
    let node = TestNode::quiet();
    let kept = file(&failing().to_string());
    let path = text(kept.path());
    ask(&node, "simulate", &[path]).expect(1, &["failed", "error: call 1 failed (--may-fail lets calls fail)"]);
    ask(&node, "simulate", &[path, "--may-fail"]).expect(0, &["failed"]);
    let mut named = failing();
    named["when"] = json!([{"block": 0, "call": 1, "status": "failure"}]);
    let named = file(&named.to_string());
    ask(&node, "simulate", &[text(named.path())]).expect(0, &["failed"]);
    let mut atomic = failing();
    atomic["when"] = json!([]);
    let atomic = file(&atomic.to_string());
    // The reason is shown, although a dropped bundle has no results.
    let ended = ask(&node, "simulate", &[text(atomic.path()), "--abi", "tests/suite/fixtures/abi"]);
    ended.expect(1, &["reverted: Expired(7)", "dropped at call 1 of block 0", "error: the bundle is dropped"]);
    // The two dialects have the data of a revert in two places.
    for path in ["/", "/standard"] {
        let call = ["--from", ROUTER, "--to", ALPHA, "--sig", "transfer", "--args", BOB, "1"];
        let ended = fed("", &[&["simulate", "--url", &node.url(path)], &call[..]].concat(), &[]);
        ended.expect(1, &["reverted: InsufficientBalance(0, 1)"]);
    }
}

#[test]
fn json_is_the_answer_of_the_node() {
    let node = TestNode::quiet();
    let mut bundle = failing();
    bundle["outputs"] = json!(["status"]);
    let kept = file(&bundle.to_string());
    let ended = ask(&node, "simulate", &[text(kept.path()), "--json", "--may-fail"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let answer: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(answer, json!([{"fork": "osaka", "calls": [{"status": "0x1"}, {"status": "0x0"}]}]));
    let ended = ask(&node, "simulate", &[&TRANSFER[..], &["--json"]].concat());
    let answer: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(answer[0]["calls"][0]["logs"].as_array().unwrap().len(), 1, "{answer}");
}

#[test]
fn abis_of_files_and_folders_name_what_they_declare() {
    let node = TestNode::quiet();
    let kept = file(&failing().to_string());
    let folder = "tests/suite/fixtures/abi";
    for path in [folder, &format!("{folder}/Artifact.sol/Artifact.json"), &format!("{folder}/plain.json")] {
        let ended = ask(&node, "simulate", &[text(kept.path()), "--abi", path]);
        ended.expect(1, &["reverted: Expired(7)"]);
    }
    let ended = ask(&node, "simulate", &["--abi", folder, "--to", MADE, "--sig", "ripen", "--args", "3"]);
    ended.expect(0, &["ripen(days: 3)"]);
}

#[test]
fn a_trace_is_a_tree_with_logs_and_results() {
    let node = TestNode::quiet();
    let path = format!("[{WETH},{ALPHA}]");
    let swap = ["--value", "1ether", "--sig", "swapExactETHForTokens", "--args", "0", &path, ALICE, "99999999999"];
    let ended = ask(&node, "simulate", &[&["--from", ALICE, "--to", ROUTER], &swap[..], &["--trace"]].concat());
    ended.expect(
        0,
        &[
            &format!("router::swapExactETHForTokens{{value: 1000000000000000000}}(0, [{WETH}, {ALPHA}]"),
            "    ├─ [",
            "WETH::deposit{value: 1000000000000000000}()",
            "    │   ├─ emit Deposit(account: ",
            "::getReserves() [staticcall]",
            "    │   └─ ← [Return] true",
            "    └─ ← [Return] [1000000000000000000 [1e18], ",
        ],
    );
    let kept = file(&failing().to_string());
    ask(&node, "simulate", &[text(kept.path()), "--trace"]).expect(1, &["    └─ ← [Revert] 0x"]);
}

#[test]
fn a_search_shows_the_best_values_and_what_they_do() {
    let node = TestNode::quiet();
    let path = format!("[{WETH},{ALPHA}]");
    let sig = "swapExactETHForTokens";
    let call =
        ["--from", ALICE, "--to", ROUTER, "--value", "1", "--sig", sig, "--args", "0", &path, ALICE, "99999999999"];
    let search = |more: &[&str]| ask(&node, "search", &[&call[..], more].concat());
    search(&["--vary", "value=1ether,3ether,2ether", "--objective", ALPHA, "--top", "2"]).expect(
        0,
        &[
            "3 variants tried",
            "3000000000000000000 (3 at 18 decimals)",
            " ALPHA  ",
            "the best variant:",
            "{value: 3 ether}(",
        ],
    );
    search(&["--vary", "value=1ether..2ether/5", "--objective", "gas"]).expect(0, &["5 variants tried", " gas "]);
    // Argument 3 is the third word after that of the path.
    search(&["--vary", "3=1,99999999999", "--objective", ALPHA]).expect(0, &["99999999999", "success"]);
    search(&["--vary", "3=1,2", "--objective", ALPHA]).expect(1, &["error: no value meets what is required: dropped"]);
    let ended = search(&["--vary", "value=1ether..2ether", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&ended.out).unwrap()["complete"], true, "{ended:?}");
    for (more, problem) in [
        (&[][..], "--vary: missing"),
        (
            &["--vary", "1=1,2"],
            "--vary 1=1,2: argument 1 of swapExactETHForTokens(uint256,address[],address,uint256): expected one that is a single number",
        ),
        (&["--vary", "value"], "--vary value: expected PLACE=VALUES"),
        (&["--vary", "speed=1"], "\"speed\": expected the number of an argument"),
        (&["--vary", "value=1..2", "--objective", "0x12"], "--objective: \"0x12\": no address"),
    ] {
        search(more).expect(2, &[problem]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_the_chain_is_traced() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "20"]);
    let data = format!("0xa9059cbb{:0>64}{:0>64}", &BOB[2..].to_lowercase(), "5");
    let hash = node.result("/", "eth_sendTransaction", json!([{"from": ALICE, "to": ALPHA, "data": data}])).await;
    eventually("it is mined", async || {
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        (!receipt.is_null()).then_some(())
    })
    .await;
    let hash = hash.as_str().unwrap();
    let parts =
        [hash, "success", "ALPHA::transfer(0x7099", "├─ emit Transfer(from: ", "value: 5)", "└─ ← [Return] true"];
    ask(&node, "trace", &[hash]).expect(0, &parts);
    let ended = ask(&node, "trace", &[hash, "--json"]);
    let trace: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&trace["type"], trace["logs"].as_array().map(Vec::len)), (&json!("CALL"), Some(1)), "{trace}");
    ask(&node, "trace", &[&"0x12".replace("12", &"12".repeat(32))]).expect(2, &["the chain has no such transaction"]);
    ask(&node, "trace", &["0x12"]).expect(2, &["expected the hash of a transaction"]);
}

#[test]
fn a_watch_prints_a_line_for_each_change_and_draws_a_table_on_a_terminal() {
    let node = TestNode::start(&["--sub-block-ms", "50"]);
    let path = format!("[{WETH},{ALPHA}]");
    let call = ["--to", ROUTER, "--sig", "getAmountsOut", "--args", "1ether", &path];
    let ended = ask(&node, "watch", &[&call[..], &["--count", "3"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out.lines().count(), 3, "{ended:?}");
    for line in ended.out.lines() {
        assert!(line.starts_with("0x") && line.contains("  bundle  success  gas "), "{line}");
        assert!(line.contains("[1000000000000000000, "), "{line}");
    }
    let ended = ask(&node, "watch", &[&call[..], &["--count", "1", "--json"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&ended.out).unwrap()["changed"][0]["name"], "bundle", "{ended:?}");
    let url = node.url("/").replace("http", "ws");
    let screen = Terminal::start(&[&["watch", "--url", &url], &call[..], &["--count", "3"]].concat());
    let (status, shown) = screen.ended();
    assert_eq!(status.code(), Some(0), "{shown}");
    // Each table is drawn over the last one: the cursor goes up.
    assert_eq!(shown.matches("Ctrl-C ends").count(), 3, "{shown}");
    assert!(shown.contains("BUNDLE") && shown.contains("CHANGES") && shown.contains("\u{1b}[2K"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_until_it_is_interrupted() {
    let node = TestNode::quiet();
    let mut child = command(&["watch", "--url", &node.url("/"), "--to", BOB], &[]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("  bundle  success  "), "{line}");
    signal(child.id(), "INT");
    let status = eventually("it ends", async || child.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_slow_answer_has_a_spinner_and_a_bound() {
    // Connections are accepted by the system, and nothing answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let screen = Terminal::start(&["simulate", "--url", &url, "--to", BOB, "--timeout-ms", "2500"]);
    let (status, shown) = screen.ended();
    assert_eq!(status.code(), Some(2), "{shown}");
    assert!(shown.contains(&format!("presim_snapshot at {url}")), "{shown}");
    assert!(shown.contains("no answer to presim_snapshot within 2.5s (--timeout-ms)"), "{shown}");
}

#[test]
fn a_list_of_bundles_is_watched_by_name() {
    let node = TestNode::quiet();
    let payload = |to: &str| json!({"blockStateCalls": [{"calls": [{"from": ALICE, "to": to, "value": "0x1"}]}]});
    let search = json!({
        "blockStateCalls": payload(BOB)["blockStateCalls"],
        "vary": [{"path": "blocks[0].calls[0].value", "values": ["0x1", "0x2"]}],
        "objective": {"account": BOB},
    });
    let list = json!([{"name": "a", "simulate": payload(BOB)}, {"name": "b", "simulate": payload(WETH)}, {"name": "c", "search": search}]);
    let kept = file(&list.to_string());
    let shown = ["  a  success  gas 21,000", "  b  ", "  c  success  gas 21,000  objective 2, values 2"];
    ask(&node, "watch", &[text(kept.path()), "--count", "3"]).expect(0, &shown);
    ask(&node, "simulate", &[text(kept.path())]).expect(2, &["a list of bundles"]);
}

#[test]
fn a_bundle_with_outputs_of_its_own_is_shown_as_others_are() {
    let node = TestNode::quiet();
    let mut bundle = failing();
    for (own, shown) in [("gasUsed", "  failed  gas "), ("status", "  failed  gas ")] {
        bundle["outputs"] = json!([own]);
        let kept = file(&bundle.to_string());
        let ended = ask(&node, "watch", &[text(kept.path()), "--count", "1", "--abi", "tests/suite/fixtures/abi"]);
        ended.expect(0, &[shown, "Expired"]);
        assert!(!ended.out.contains("gas 0"), "{ended:?}");
    }
    bundle["outputs"] = json!(["gas"]);
    let kept = file(&bundle.to_string());
    ask(&node, "simulate", &[text(kept.path())]).expect(2, &["outputs[0]"]);
}

#[test]
fn an_upstream_where_nothing_listens_is_told_at_once() {
    let (_held, gone) = refusing_port();
    let url = format!("http://{gone}");
    let refused = format!("no node answers at --upstream {url}");
    // A command that waits would take an hour.
    let flags = ["simulate", "--upstream", &url, "--to", BOB, "--timeout-ms", "3600000"];
    fed("", &flags, &[]).expect(2, &[&refused, "refused"]);
}

/// A reader that has gone, as `head` does, is no reason to panic.
#[test]
fn an_error_without_a_reader_ends_with_its_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command(&["simulate", "/nonexistent"], &[]).stderr(writer).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

/// The chain id of devnets is none that presim knows.
#[test]
fn a_command_simulates_on_a_devnet_without_its_genesis() {
    let node = TestNode::start(&[]);
    let call = ["--to", "0x0000000000000000000000000000000000000004", "--data", "0x1234"];
    fed("", &[&["simulate", "--upstream", &node.url("/standard")], &call[..]].concat(), &[]).expect(0, &["0x1234"]);
}

#[test]
fn a_command_has_a_state_of_its_own() {
    let Some((folder, node)) = shared("vectors/execution-apis").zip(TestNode::official()) else { return };
    let (genesis, upstream) = (folder.join("genesis.json"), node.url("/standard"));
    let call = ["--to", "0x0000000000000000000000000000000000000004", "--data", "0x1234"];
    let own = ["--upstream", &upstream, "--genesis", text(&genesis)];
    let followed = [&["simulate"], &own[..], &call[..]].concat();
    fed("", &followed, &[]).expect(0, &["block 54", "0x1234"]);
    // The environment has a URL, and the command line wins.
    fed("", &followed, &[("PRESIM_URL", "http://127.0.0.1:1")]).expect(0, &["0x1234"]);
    fed("", &[&followed[..], &["--url", "http://127.0.0.1:1"]].concat(), &[]).expect(2, &["leave one of them out"]);
    fed("", &[&followed[..], &["--data-dir", "/tmp/x"]].concat(), &[]).expect(2, &["--data-dir", "is not kept"]);
    fed("", &[&["simulate", "--genesis", text(&genesis)], &call[..]].concat(), &[]).expect(0, &["static", "0x1234"]);
    fed("", &[&["--genesis", text(&genesis), "simulate"], &call[..]].concat(), &[]).expect(0, &["static", "0x1234"]);
    let variable = [("PRESIM_GENESIS", text(&genesis))];
    fed("", &[&["simulate"], &call[..]].concat(), &variable).expect(0, &["static", "0x1234"]);
    fed("", &["simulate", "--upstream", "http://127.0.0.1:1", "--to", BOB], &[]).expect(2, &["--upstream"]);
    fed("", &["simulate", "--genesis", "/nowhere.json", "--to", BOB], &[]).expect(2, &["--genesis /nowhere.json"]);
}

#[test]
fn a_token_is_sent_over_http_and_websocket() {
    let tokens = token_file(&[("a", 1000)]);
    let node = TestNode::quiet_with(&["--token-file", text(tokens.path())]);
    let url = node.url("/");
    let plain = file(&format!("{}\n", token("a")));
    for url in [url.clone(), url.replace("http", "ws")] {
        let args = |more: &[&'static str]| [&["simulate", "--url", &url, "--to", BOB], more].concat().join(" ");
        let run = |args: String, env: Variables<'_>| fed("", &args.split(' ').collect::<Vec<_>>(), env);
        for path in [tokens.path(), plain.path()] {
            run(format!("{} --token-file {}", args(&[]), text(path)), &[]).expect(0, &["success"]);
        }
        run(args(&[]), &[("PRESIM_TOKEN", &token("a"))]).expect(0, &["success"]);
        run(args(&[]), &[("PRESIM_TOKEN", "another-token-of-some-length")]).expect(2, &["error: "]);
        run(args(&["--token-file", "/nowhere"]), &[]).expect(2, &["--token-file /nowhere"]);
    }
    ask(&node, "simulate", &["--to", BOB]).expect(2, &["the token is missing or unknown: give one by --token-file"]);
}

/// The node and the command line have one rule for what a token is.
#[test]
fn a_token_with_spaces_is_no_token() {
    let tokens = file("[[token]]\nname = \"a\"\ntoken = \"a token of some length\"\nrate = 1\n");
    let expected = "expected ASCII characters without spaces";
    let error = TestNode::refusal(&["--token-file", text(tokens.path())]);
    assert!(error.contains(expected), "{error}");
    let args = ["simulate", "--to", BOB, "--token-file", text(tokens.path())];
    fed("", &args, &[]).expect(2, &[expected]);
    fed("", &args[..3], &[("PRESIM_TOKEN", "a token of some length")]).expect(2, &["PRESIM_TOKEN", expected]);
}

#[test]
fn bad_input_ends_with_2_and_says_what_to_do() {
    let node = TestNode::quiet();
    let (broken, odd, empty) = (file("{"), file(r#"{"calls":[]}"#), file(""));
    let abi = file(r#"[{"type":"error","name":"Expired","inputs":[["deadline","uint256"]]}]"#);
    let bad = file(r#"{"blockStateCalls":[{"calls":[{"to":"0x12"}]}]}"#);
    let sig = |sig: &'static str, args: &'static str| vec!["--to", BOB, "--sig", sig, "--args", args];
    for (args, problem) in [
        (vec![], "the standard input: empty: expected a bundle in JSON"),
        (vec!["/nowhere.json"], "/nowhere.json: No such file"),
        (vec![text(broken.path())], "no JSON: EOF"),
        (vec![text(empty.path())], "empty: expected a bundle in JSON"),
        (vec![text(odd.path())], "expected a payload with `blockStateCalls`"),
        (vec![text(bad.path())], "blockStateCalls[0].calls[0].to"),
        (vec![text(bad.path()), "--to", BOB], "--to and FILE"),
        (vec!["--to", "0x12"], "--to: \"0x12\": no address"),
        (vec!["--from", ALICE], "--to: missing"),
        (vec!["--to", BOB, "--value", "1eth"], "--value: \"1eth\": no amount: expected a number like"),
        (vec!["--to", BOB, "--data", "0xz"], "--data: "),
        (vec!["--to", BOB, "--data", "0x", "--sig", "f()"], "expected one of them"),
        (vec!["--to", BOB, "--args", "1"], "--args: needs --sig"),
        (sig("f(uint256,bool)", "1"), "--args: 1 values: expected 2 for f(uint256,bool)"),
        (sig("f(bool)", "7"), "--args: value 0: \"7\": "),
        (sig("f(uint", "7"), "--sig: \"f(uint\": "),
        (sig("aprove", "7"), "did you mean approve?"),
        (sig("transfer", "7"), "known with other arguments: transfer(address,uint256)"),
        (sig("burn", "7"), "several functions have this name: expected one of burn(address), burn(uint256)"),
        (vec!["--to", BOB, "--block", "newest"], "expected pending, latest"),
        (vec!["--to", BOB, "--block", "snapshot:0xffffff"], "snapshot"),
        (vec!["--to", BOB, "--abi", "/nowhere"], "--abi /nowhere: "),
        (vec!["--to", BOB, "--abi", "src/abi"], "no file in it has an ABI"),
        (vec!["--to", BOB, "--abi", text(abi.path())], "no ABI"),
        (vec!["--to", BOB, "--trce"], "'--trace'"),
    ] {
        ask(&node, "simulate", &args).expect(2, &[problem]);
    }
    fed("", &["simulate", "--to", BOB, "--url", "http://127.0.0.1:1"], &[])
        .expect(2, &["no node answers at http://127.0.0.1:1", "`presim`"]);
    fed("", &["simulate", "--to", BOB, "--url", "ftp://x"], &[]).expect(2, &["expected http, https, ws or wss"]);
}

#[test]
fn short_help_has_what_people_use_and_long_help_has_all() {
    let [short, long] = ["-h", "--help"].map(|flag| fed("", &[flag], &[]).out);
    let flags = |help: &str| help.lines().filter(|line| line.starts_with("      --")).count();
    assert!((10..=14).contains(&flags(&short)), "{} flags: {short}", flags(&short));
    assert!(flags(&long) > 80, "{} flags", flags(&long));
    for word in ["simulate", "search", "watch", "trace", "wallet", "print", "--upstream", "--listen"] {
        assert!(short.contains(word), "{word}: {short}");
    }
    assert!(!short.contains("--queue-wait-ms") && long.contains("--queue-wait-ms"));
    let [short, long] = ["-h", "--help"].map(|flag| fed("", &["simulate", flag], &[]).out);
    assert!(!short.contains("--verify-proofs") && long.contains("--verify-proofs"), "{short}");
    assert!(short.contains("--sig") && long.contains("Exit codes: 0, 1 if a required call failed"), "{long}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slips_in_flags_settings_and_methods_are_told() {
    fed("", &["--upsteam", "http://x"], &[]).expect(2, &["'--upstream'"]);
    fed("", &["simulat"], &[]).expect(2, &["'simulate'"]);
    let config = file("sub-block-sm = 100\n");
    fed("", &["--config", text(config.path())], &[]).expect(2, &["did you mean `sub-block-ms`?"]);
    let node = TestNode::quiet();
    let error = node.error("/", "eth_simulatev1", json!([])).await;
    assert_eq!(error["code"], -32601);
    assert!(error["message"].as_str().unwrap().contains("did you mean eth_simulateV1?"), "{error}");
    let error = node.error("/", "quux", json!([])).await;
    assert!(!error["message"].as_str().unwrap().contains("did you mean"), "{error}");
}

#[test]
fn what_a_system_needs_is_printed() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        fed("", &["print", "completions", shell], &[]).expect(0, &["simulate", "upstream"]);
    }
    fed("", &["print", "man"], &[]).expect(0, &[".TH presim 1", "simulate"]);
    fed("", &["print", "man", "simulate"], &[]).expect(0, &["presim\\-simulate", "sig"]);
    fed("", &["print", "man", "dance"], &[]).expect(2, &["expected one of wallet, print, simulate"]);
    let dashboard = fed("", &["print", "grafana"], &[]);
    assert!(serde_json::from_str::<Value>(&dashboard.out).unwrap()["panels"].is_array());
    fed("", &["print", "alerts"], &[]).expect(0, &["groups:", "alert:"]);
    fed("", &["print", "systemd"], &[]).expect(0, &["[Service]", "ExecStart="]);
    fed("", &["print", "openrpc"], &[]).expect(0, &["eth_simulateV1", "#/components/schemas/Address"]);
}

#[test]
fn the_example_configuration_has_every_setting_and_its_defaults_are_the_defaults() {
    use clap::{CommandFactory, Parser};
    use presim::testing::Config;
    let example = fed("", &["print", "config"], &[]).out;
    assert!(example.parse::<toml::Table>().unwrap().is_empty(), "everything is commented out: {example}");
    for flag in Config::command().get_arguments().filter_map(|flag| flag.get_long()) {
        let has = example.lines().any(|line| line.starts_with(&format!("#{flag} = ")));
        assert_eq!(has, !["config", "help", "version"].contains(&flag), "{flag}");
    }
    let setting = |line: &str| line.starts_with('#') && !line.starts_with("# ") && !line.starts_with("##");
    let set = example.lines().filter(|line| setting(line) && !line.contains("# no default"));
    let set: String = set.map(|line| format!("{}\n", &line[1..])).collect();
    let config = file(&set);
    let loaded = Config::load(["presim", "--config", text(config.path())].map(Into::into)).unwrap();
    let usual = Config { config: loaded.config.clone(), ..Config::parse_from(["presim"]) };
    assert_eq!(format!("{loaded:?}"), format!("{usual:?}"));
}
