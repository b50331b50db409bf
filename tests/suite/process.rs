//! The program itself: its output, its settings, and how it ends.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Instant,
};

use alloy_consensus::{Block, TxEnvelope};
use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::{Decodable, Encodable};
use clap::CommandFactory;
use presim::config::Config;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    support::{BOUND, http, shared, signal},
    terminal::Terminal,
};

pub type Variables<'a> = &'a [(&'a str, &'a str)];

/// Returns a command that runs the program without the environment's settings.
pub fn command(flags: &[&str], env: &[(&str, &str)]) -> Command {
    command_by(Command::new(env!("CARGO_BIN_EXE_presim")), flags, env)
}

/// Completes a command to one that runs the program without the environment's settings.
pub fn command_by(mut command: Command, flags: &[&str], env: &[(&str, &str)]) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRESIM_")) {
        command.env_remove(name);
    }
    command.args(flags).envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program until it ends by itself. Returns the exit code and its errors.
pub fn refusal(flags: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    refusal_of(command(flags, env))
}

/// Runs a command of the program until it ends by itself. Returns the exit code and its errors.
pub fn refusal_of(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("the program runs");
    let deadline = Instant::now() + BOUND;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it runs, and should have refused: {command:?}");
        }
        std::thread::yield_now();
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// A running program, which is ended when dropped.
pub struct Presim {
    pub child: Child,
    pub banner: String,
    pub url: String,
    pub http: reqwest::Client,
}

impl Presim {
    /// Starts the program on a free port and waits for its banner.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_with(&[&["--listen", "127.0.0.1:0"], flags].concat(), &[])
    }

    /// Starts the program with these flags and variables alone, and waits for its banner.
    pub fn start_with(flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = command(flags, env).spawn().expect("the program runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("curl ") {
            let read = lines.read_line(&mut banner).unwrap();
            if read == 0 {
                let mut told = String::new();
                child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
                panic!("it ended with {:?}: {banner}{told}", child.wait());
            }
        }
        let url = banner.split_whitespace().find(|word| word.starts_with("http://")).expect("the banner has a URL");
        let url = url.to_owned();
        Self { child, banner, url, http: http() }
    }

    async fn post(&self, body: String) -> Value {
        self.try_post(body).await.expect("it answers")
    }

    /// # Errors
    ///
    /// Returns an error if the program ends before it answers.
    pub async fn try_post(&self, body: String) -> reqwest::Result<Value> {
        let request = self.http.post(&self.url).header("content-type", "application/json").body(body);
        request.send().await?.json().await
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut answer = self.post(request.to_string()).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.expect("it answers");
        (response.status().as_u16(), response.text().await.unwrap())
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for the program's end. Returns the status and the rest of its stderr.
    pub async fn ended(&mut self) -> (ExitStatus, String) {
        let status = eventually("it ends", async || self.child.try_wait().unwrap()).await;
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (status, told)
    }
}

impl Drop for Presim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until there is an answer.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {BOUND:?}");
        tokio::task::yield_now().await;
    }
}

/// Creates a file with this content.
pub fn file(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// Returns an address with a port on which nothing listens.
pub fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

// The banner.

#[tokio::test(flavor = "multi_thread")]
async fn the_curl_of_the_banner_simulates_a_call() {
    let presim = Presim::start(&[]);
    let curl = presim.banner.lines().find(|line| line.starts_with("curl ")).unwrap();
    assert!(curl.contains(&format!(" {} ", presim.url)), "{curl}");
    assert!(curl.contains("-H 'content-type: application/json'"), "{curl}");
    let body = curl.split_once("-d '").unwrap().1.trim_end_matches('\'');
    let answer = presim.post(body.to_owned()).await;
    let call = &answer["result"][0]["calls"][0];
    assert_eq!(call["status"], "0x1", "{answer}");
    // 100,000 ALPHA, more or less what the traffic has traded.
    assert_eq!(call["returnData"].as_str().unwrap().len(), 66, "{answer}");
    assert!(call["returnData"].as_str().unwrap()[2..].bytes().any(|digit| digit != b'0'), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_curl_of_the_banner_works_on_a_chain_without_the_trading_world() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let presim = Presim::start(&["--genesis", text(&folder.join("genesis.json")), "--feed", "static"]);
    let body = presim.banner.split_once("-d '").unwrap().1.trim_end().trim_end_matches('\'');
    let answer = presim.post(body.to_owned()).await;
    assert_eq!(answer["result"][0]["calls"][0]["returnData"], "0x1234", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_banner_names_chain_accounts_and_contracts() {
    let presim = Presim::start(&[]);
    let websocket = presim.url.replace("http://", "ws://");
    // The first account of the test mnemonic; WETH, the factory and the pairs.
    for part in [
        "chain id 31337",
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        "WETH        0x5FbDB2315678afecb367f032d93F642f64180aa3",
        "factory     0xCf7Ed3AccA5a467e9e704C703E8D87F634fB0Fc9",
        "router      0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9",
        "ALPHA/BETA  0x29E8a5C605502EDe39C69d75DEb36483dDda2C9D",
        "WETH/ALPHA  0xee48C640427246F01f96c32897AD9B6ab6964fE7",
        "WETH/BETA   0x",
        &format!("WebSocket at {websocket} "),
        "/standard",
        "in memory",
    ] {
        assert!(presim.banner.contains(part), "{part} is not in: {}", presim.banner);
    }
}

/// The private key of the first account of the test mnemonic.
const KEY: &str = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_the_devnet_are_shown_on_a_terminal_only() {
    let mut terminal = Terminal::start(&["--listen", "127.0.0.1:0"]);
    assert!(terminal.shows("curl ").contains(KEY));
    let mut presim = Presim::start(&[]);
    assert!(!presim.banner.contains(KEY), "{}", presim.banner);
    presim.signal("TERM");
    let (_, log) = presim.ended().await;
    assert!(!log.contains(KEY), "{log}");
}

// The end.

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_well_when_it_is_told_to() {
    for signal in ["TERM", "INT"] {
        let mut presim = Presim::start(&[]);
        presim.result("eth_chainId", json!([])).await;
        presim.signal(signal);
        let (status, told) = presim.ended().await;
        assert_eq!(status.code(), Some(0), "SIG{signal}: {status}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_under_test_goes_on_from_the_state_that_it_has_written_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    let flags = ["--testing", "--state", text(&file)];
    let account = "0x00000000000000000000000000000000000ba1e0";
    let mut presim = Presim::start(&flags);
    presim.result("anvil_setBalance", json!([account, "0x1234"])).await;
    presim.signal("TERM");
    let (status, told) = presim.ended().await;
    assert_eq!(status.code(), Some(0), "{status}: {told}");
    let presim = Presim::start(&flags);
    assert_eq!(presim.result("eth_getBalance", json!([account, "latest"])).await, "0x1234");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_contracts_log_by_the_console_of_test_libraries_is_printed_once() {
    let mut presim = Presim::start(&["--testing"]);
    // Passes its call data on to the console.
    let (contract, code) =
        ("0x00000000000000000000000000000000000abcde", "0x365f5f375f5f365f6a636f6e736f6c652e6c6f675afa00");
    presim.result("anvil_setCode", json!([contract, code])).await;
    let logged = |text: &str, number: u64| {
        let word = |number: u64| U256::from(number).to_be_bytes::<32>();
        let mut data =
            [&[0xb6, 0x0e, 0x72, 0xcc], [word(64), word(number), word(text.len() as u64)].concat().as_slice()].concat();
        data.extend(text.bytes().chain(std::iter::repeat_n(0, 32 - text.len())));
        json!({ "from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "to": contract, "data": Bytes::from(data), "gas": "0x30000" })
    };
    presim.result("eth_call", json!([logged("a call", 1), "latest"])).await;
    presim.result("eth_sendTransaction", json!([logged("mined: %d.", 2)])).await;
    presim.result("hardhat_setLoggingEnabled", json!([false])).await;
    presim.result("eth_call", json!([logged("not this", 3), "latest"])).await;
    presim.result("eth_sendTransaction", json!([logged("nor this", 4)])).await;
    presim.result("anvil_setLoggingEnabled", json!([true])).await;
    presim.result("anvil_setAutomine", json!([false])).await;
    presim.result("eth_sendTransaction", json!([logged("a \u{1b}[2J draft", 5)])).await;
    presim.result("evm_mine", json!([])).await;
    presim.signal("TERM");
    let (_, told) = presim.ended().await;
    let lines: Vec<_> =
        told.lines().filter_map(|line| line.split_once("console.log: ")).map(|(_, line)| line).collect();
    assert_eq!(lines, ["a call 1", "mined: 2.", "a \\u{1b}[2J draft 5"], "{told}");
}

/// Starts the program and a call that counts down from `count`, in hex, and returns nothing.
async fn busy(count: &str) -> (Presim, JoinHandle<reqwest::Result<reqwest::Response>>) {
    let metrics = free_port();
    let flags = ["--metrics", &metrics, "--gas-cap", "1000000000000", "--deadline-ms", "60000", "--traffic", "0"];
    let presim = Presim::start(&flags);
    let code = format!("0x63{count}5b600190038060055700");
    let to = "0x00000000000000000000000000000000000abcde";
    let request = json!({"jsonrpc": "2.0", "id": 77, "method": "eth_call", "params": [{"to": to}, "pending", {to: {"code": code}}]});
    let slow = tokio::spawn(presim.http.post(&presim.url).json(&request).send());
    eventually("the call runs", async || {
        let text = scrape(&presim.http, &metrics).await;
        let runs = text
            .lines()
            .any(|line| line.starts_with("presim_jobs_running{") && line.contains("short") && !line.ends_with(" 0"));
        runs.then_some(())
    })
    .await;
    assert!(!slow.is_finished(), "the call was not slow");
    (presim, slow)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_what_would_end_in_order() {
    // Counts down from two billion.
    let (mut presim, slow) = busy("7fffffff").await;
    presim.signal("TERM");
    let mut log = BufReader::new(presim.child.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("another signal ends them at once") {
        assert!(log.read_line(&mut told).unwrap() > 0, "{told}");
    }
    // Signals right after the first are taken for the same.
    let status = eventually("it ends", async || {
        let status = presim.child.try_wait().unwrap();
        if status.is_none() {
            presim.signal("INT");
        }
        status
    })
    .await;
    log.read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("error: stopped at once by a second signal"), "{told}");
    assert!(slow.await.unwrap().is_err(), "its client is cut off");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_is_answered_before_the_end() {
    // Counts down from 20 million, or from a million in an unoptimised build.
    let (mut presim, slow) = busy(if cfg!(debug_assertions) { "000f4240" } else { "01312d00" }).await;
    presim.signal("TERM");
    let answer: Value = slow.await.unwrap().expect("it is answered").json().await.unwrap();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 77, "result": "0x"}));
    let (status, told) = presim.ended().await;
    assert_eq!(status.code(), Some(0), "{status}: {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_signals_at_once_stop_it_in_order_like_one() {
    let (mut presim, slow) = busy(if cfg!(debug_assertions) { "000f4240" } else { "01312d00" }).await;
    // While it stands still, so that both are there when it goes on, as from a shell that signals its group.
    for signal in ["STOP", "INT", "TERM", "CONT"] {
        presim.signal(signal);
    }
    let answer: Value = slow.await.unwrap().expect("it is answered").json().await.unwrap();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 77, "result": "0x"}));
    let (status, told) = presim.ended().await;
    assert_eq!(status.code(), Some(0), "{status}: {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_new_is_accepted_after_the_end() {
    let mut presim = Presim::start(&[]);
    presim.signal("TERM");
    presim.ended().await;
    let address = presim.url.trim_start_matches("http://");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_bad_block_ends_it_with_1_and_says_what_is_wrong() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let bytes = std::fs::read(folder.join("chain.rlp")).unwrap();
    let (mut rest, mut bad) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let mut block = Block::<TxEnvelope>::decode(&mut rest).unwrap();
        if block.header.number == 5 {
            block.header.state_root = B256::repeat_byte(1);
        }
        block.encode(&mut bad);
    }
    let chain = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(chain.path(), bad).unwrap();
    let (genesis, listen) = (folder.join("genesis.json"), ["--listen", "127.0.0.1:0"]);
    let flags = [&listen[..], &["--genesis", text(&genesis), "--chain", text(chain.path())]].concat();
    let (code, told) = refusal(&flags, &[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(": block 5: stateRoot: expected 0x0101"), "{told}");
    assert_eq!(told.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{told}");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, told) = refusal(&["--listen", &address], &[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(&address) && told.contains("give another address with --listen"), "{told}");
}

#[test]
fn a_metrics_port_that_is_taken_is_an_error_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, told) = refusal(&["--listen", "127.0.0.1:0", "--metrics", &address], &[]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(&address) && told.contains("give another address with --metrics"), "{told}");
}

#[test]
fn an_address_that_others_reach_needs_tokens() {
    let (code, told) = refusal(&["--listen", "0.0.0.0:0"], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--token-file"), "{told}");
}

// Settings.

#[test]
fn help_names_every_flag_and_its_variable() {
    let output = command(&["--testing", "--help"], &[]).output().unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    let flags = Config::command();
    for flag in flags.get_arguments() {
        let Some(long) = flag.get_long().filter(|long| !["help", "version"].contains(long)) else { continue };
        assert!(help.contains(&format!("--{long}")), "--{long}");
        let variable = format!("PRESIM_{}", long.replace('-', "_").to_uppercase());
        assert!(help.contains(&variable), "{variable} of --{long}");
        assert!(flag.get_help().is_some(), "--{long} has no help");
    }
}

#[test]
fn it_tells_its_version() {
    let output = command(&["--version"], &[]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("presim {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let config = file("listen = \"127.0.0.1:0\"\nsub-block-ms = 30000\nsub-blocks = 7\n");
    let (config, variable) = (text(config.path()), ("PRESIM_SUB_BLOCK_MS", "40000"));
    let cases: [(&[&str], Variables<'_>, &str); 4] = [
        (&["--config", config], &[], "every 30000 ms, 7 to a block"),
        (&["--config", config], &[variable], "every 40000 ms, 7 to a block"),
        (&["--config", config, "--sub-block-ms", "50000"], &[variable], "every 50000 ms, 7 to a block"),
        (&["--sub-block-ms", "50000"], &[("PRESIM_CONFIG", config)], "every 50000 ms, 7 to a block"),
    ];
    for (flags, env, expected) in cases {
        let presim = Presim::start_with(flags, env);
        assert!(presim.banner.contains(expected), "{flags:?} {env:?}: {expected} is not in: {}", presim.banner);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_has_words_numbers_switches_and_lists() {
    let config = file(
        "listen = \"127.0.0.1:0\"\nlog-json = true\nkeep_snapshots = 9\nallow-host = [\"one.example\", \"two.example\"]\n\
         dialect = \"standard\"\n",
    );
    let mut presim = Presim::start_with(&["--config", text(config.path())], &[]);
    for (host, status) in [("one.example", 200), ("two.example", 200), ("three.example", 403)] {
        let request = presim.http.get(&presim.url).header("accept", "text/html").header("host", host);
        assert_eq!(request.send().await.unwrap().status(), status, "{host}");
    }
    // The standard dialect does not require a block.
    presim.result("eth_call", json!([{}])).await;
    presim.signal("TERM");
    let (_, told) = presim.ended().await;
    let line = told.lines().last().expect("it logs that it stops");
    assert!(serde_json::from_str::<Value>(line).is_ok(), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_may_be_set_in_the_environment() {
    let mut presim = Presim::start_with(&["--listen", "127.0.0.1:0"], &[("PRESIM_LOG_JSON", "true")]);
    presim.signal("TERM");
    let (_, told) = presim.ended().await;
    assert!(serde_json::from_str::<Value>(told.lines().last().unwrap()).is_ok(), "{told}");
}

#[test]
fn a_setting_that_does_not_exist_is_refused_and_named() {
    let config = file("sub-block-millis = 100\n");
    let (code, told) = refusal(&["--config", text(config.path())], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("`sub-block-millis`") && told.contains(text(config.path())), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_setting_is_named_in_a_warning_and_has_no_effect() {
    let config = file("listen = \"127.0.0.1:0\"\nshard-size = 20\nkeep-awake = \"load\"\n");
    let config = text(config.path());
    let cases: [(&[&str], Variables<'_>, &str); 3] = [
        (&["--config", config], &[], "`shard-size`"),
        (&["--config", config], &[], "`keep-awake`"),
        (&["--listen", "127.0.0.1:0"], &[("PRESIM_SHARD_SIZE", "20")], "PRESIM_SHARD_SIZE"),
    ];
    for (flags, env, given) in cases {
        let mut presim = Presim::start_with(flags, env);
        presim.signal("TERM");
        let (_, told) = presim.ended().await;
        let warned =
            told.lines().any(|line| line.contains("WARN") && line.contains(given) && line.contains("remove it"));
        assert!(warned, "{flags:?} {env:?}: {told}");
    }
}

#[test]
fn a_value_that_cannot_be_is_refused_and_its_setting_named() {
    let bad = file("sub-block-ms = 0\n");
    let listen = ["--listen", "127.0.0.1:0"];
    let cases: [(&[&str], Variables<'_>); 3] = [
        (&["--config", text(bad.path())], &[]),
        (&[], &[("PRESIM_SUB_BLOCK_MS", "0")]),
        (&["--sub-block-ms", "0"], &[]),
    ];
    for (flags, env) in cases {
        let (code, told) = refusal(&[&listen[..], flags].concat(), env);
        assert_eq!(code, Some(2), "{flags:?} {env:?}: {told}");
        assert!(told.contains("--sub-block-ms") && told.contains("60000"), "{flags:?} {env:?}: {told}");
    }
}

#[test]
fn a_file_that_is_missing_or_no_toml_is_refused_and_named() {
    let broken = file("listen = = 1\n");
    for path in ["/nowhere/presim.toml", text(broken.path())] {
        let (code, told) = refusal(&["--config", path], &[]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(&format!("--config {path}: ")), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_may_need_what_the_file_gives() {
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let config = file(&format!("genesis = {:?}\n", text(&genesis)));
    let presim = Presim::start(&["--config", text(config.path()), "--chain", text(&chain)]);
    assert!(presim.banner.contains("head 54"), "{}", presim.banner);
}

#[test]
fn a_chain_in_the_file_needs_its_genesis_too() {
    let config = file("chain = \"chain.rlp\"\n");
    let (code, told) = refusal(&["--listen", "127.0.0.1:0", "--config", text(config.path())], &[]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--genesis"), "{told}");
}

// Metrics and health.

pub async fn scrape(http: &reqwest::Client, address: &str) -> String {
    let response = http.get(format!("http://{address}/metrics")).send().await.expect("metrics are served");
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_method_and_outcome() {
    let metrics = free_port();
    let presim = Presim::start(&["--metrics", &metrics]);
    for _ in 0..3 {
        presim.result("eth_chainId", json!([])).await;
    }
    let unknown = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_mine", "params": []});
    presim.post(unknown.to_string()).await;
    let text = scrape(&presim.http, &metrics).await;
    for line in [
        r#"presim_requests_total{method="eth_chainId",outcome="ok"} 3"#,
        r#"presim_requests_total{method="unknown",outcome="invalid"} 1"#,
        r#"presim_request_seconds_count{method="eth_chainId",outcome="ok"} 3"#,
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_the_feed_the_queues_and_the_caches() {
    let metrics = free_port();
    let presim = Presim::start(&["--metrics", &metrics, "--sub-block-ms", "20"]);
    presim.result("eth_call", json!([{"to": null}, "pending"])).await;
    for name in [
        "presim_snapshots_total",
        "presim_snapshot_age_seconds",
        "presim_publish_seconds_bucket",
        "presim_head_number",
        "presim_queue_depth",
        "presim_jobs_running",
        "presim_queue_refused_total",
        "presim_gas_simulated_total",
        "presim_panics_total",
        "presim_code_cache_bytes",
    ] {
        eventually(name, async || scrape(&presim.http, &metrics).await.contains(&format!("\n{name}")).then_some(()))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_banner_names_the_port_that_metrics_are_served_on() {
    let presim = Presim::start(&["--metrics", "127.0.0.1:0"]);
    let address = presim.banner.split_once("metrics at http://").unwrap().1.split_once("/metrics").unwrap().0;
    assert_ne!(address, "127.0.0.1:0", "the banner names the port asked for, not the one taken");
    scrape(&presim.http, address).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_200_while_sub_blocks_come() {
    let presim = Presim::start(&["--sub-block-ms", "2000"]);
    let (status, text) = presim.get("/health").await;
    let health: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &health["status"], &health["feed"]), (200, &json!("ok"), &json!("live")), "{text}");
    assert!(health["ageMs"].is_u64(), "{text}");
    assert!(health.get("reason").is_none(), "{text}");
}

/// Every sub-block has more transactions than can be executed in a millisecond.
#[tokio::test(flavor = "multi_thread")]
async fn health_is_503_with_the_reason_while_the_feed_does_not_keep_up() {
    let presim = Presim::start(&["--sub-block-ms", "1", "--traffic", "2000", "--log", "off"]);
    let text = eventually("the feed falls behind", async || {
        let (status, text) = presim.get("/health").await;
        (status == 503).then_some(text)
    })
    .await;
    let health: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(health["status"], "unhealthy", "{text}");
    let age = health["ageMs"].as_u64().unwrap();
    let reason = format!("the newest snapshot is {age} ms old, and one should come every 1 ms");
    assert_eq!(health["reason"], reason, "{text}");
}
