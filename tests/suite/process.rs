//! The program itself: its output, its settings, and how it ends.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use alloy_primitives::{Bytes, U256};
use clap::CommandFactory;
use presim::testing::Config;
use serde_json::{Value, json};
use tokio::{net::TcpSocket, task::JoinHandle};

use crate::{
    support::{BOUND, http, request, shared, signal},
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
    let child = command.spawn().expect("the program runs");
    let Output { status, stderr, .. } = until_it_ends(child.id(), || child.wait_with_output()).unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Runs what waits for the end of a process. Kills the process and panics if it does not end.
pub fn until_it_ends<T>(process: u32, wait: impl FnOnce() -> T) -> T {
    let (ended, end) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let hangs = end.recv_timeout(BOUND) == Err(RecvTimeoutError::Timeout);
        if hangs {
            signal(process, "KILL");
        }
        hangs
    });
    let outcome = wait();
    drop(ended);
    assert!(!watch.join().unwrap(), "it runs, and should have ended");
    outcome
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
        let mut answer = self.post(request(1, method, params).to_string()).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    /// Returns the metrics, which `--metrics` serves on any port.
    pub async fn scrape(&self) -> String {
        let (_, rest) = self.banner.split_once("metrics at ").expect("metrics are served");
        let response = self.http.get(rest.lines().next().unwrap()).send().await.expect("metrics are served");
        assert_eq!(response.status(), 200);
        response.text().await.unwrap()
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

/// Asks until there is an answer. For what no event tells.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {BOUND:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
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

/// Returns a socket whose port refuses connections for as long as the socket is held, and the port's address.
pub fn refusing_port() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().expect("there are sockets");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = socket.local_addr().expect("an address").to_string();
    (socket, address)
}

// The banner.

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
    let flags = ["--metrics", "127.0.0.1:0", "--gas-cap", "1000000000000", "--deadline-ms", "60000", "--traffic", "0"];
    let presim = Presim::start(&flags);
    let code = format!("0x63{count}5b600190038060055700");
    let to = "0x00000000000000000000000000000000000abcde";
    let request = request(77, "eth_call", json!([{"to": to}, "pending", {to: {"code": code}}]));
    let slow = tokio::spawn(presim.http.post(&presim.url).json(&request).send());
    eventually("the call runs", async || {
        presim.scrape().await.lines().any(|line| line == "presim_jobs_running{lane=\"short\"} 1").then_some(())
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

/// Two signals come at once from a shell that signals its group.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_is_answered_before_the_end() {
    for signals in [&["TERM"][..], &["STOP", "INT", "TERM", "CONT"]] {
        // Counts down from 20 million, or from a million in an unoptimised build.
        let (mut presim, slow) = busy(if cfg!(debug_assertions) { "000f4240" } else { "01312d00" }).await;
        for signal in signals {
            presim.signal(signal);
        }
        let answer: Value = slow.await.unwrap().expect("it is answered").json().await.unwrap();
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 77, "result": "0x"}));
        let (status, told) = presim.ended().await;
        assert_eq!(status.code(), Some(0), "{status}: {told}");
    }
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
fn a_chain_needs_its_genesis() {
    let config = file("chain = \"chain.rlp\"\n");
    for flags in [["--config", text(config.path())], ["--chain", "chain.rlp"]] {
        let (code, told) = refusal(&[&["--listen", "127.0.0.1:0"], &flags[..]].concat(), &[]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--genesis"), "{told}");
    }
}

// Metrics and health.

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_method_and_outcome() {
    let presim = Presim::start(&["--metrics", "127.0.0.1:0"]);
    for _ in 0..3 {
        presim.result("eth_chainId", json!([])).await;
    }
    presim.post(request(1, "eth_mine", json!([])).to_string()).await;
    let text = presim.scrape().await;
    for line in [
        r#"presim_requests_total{method="eth_chainId",outcome="ok"} 3"#,
        r#"presim_requests_total{method="unknown",outcome="invalid"} 1"#,
        r#"presim_request_seconds_count{method="eth_chainId",outcome="ok"} 3"#,
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in: {text}");
    }
}

/// Every sub-block has more transactions than can be executed in a millisecond.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_is_late_is_unhealthy_with_the_reason_and_usable() {
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
    let (status, text) = presim.get("/ready").await;
    assert_eq!(status, 200, "what is late can be used: {text}");
}
