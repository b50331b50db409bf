//! Operating a node: metrics and the files that use them, readiness, tokens that change, the service manager, the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use alloy_consensus::Header;
use alloy_primitives::{B256, U256};
use futures::{SinkExt, StreamExt, future::join_all};
use presim::testing::{
    Config,
    chain::{BlockBody, BlockKeeper, SealedBlock},
};
use serde_json::{Value, json};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::{
    live::follower,
    process::{Presim, command, eventually, file, refusal, text},
    support::{BOUND, Socket, TestNode, endless_bundle, has_program, request, signal, token, token_file},
    terminal::Terminal,
};

/// Returns a file that the program prints or a package installs.
fn printed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/print").join(name)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

// Metrics.

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_the_build_the_process_the_connections_the_store_and_the_head() {
    let folder = tempfile::tempdir().unwrap();
    let presim = Presim::start(&["--metrics", "127.0.0.1:0", "--data-dir", text(folder.path())]);
    let url = presim.url.replace("http://", "ws://");
    let _socket = connect_async(url).await.expect("it opens");
    let exported = eventually("the store and the head are measured", async || {
        let exported = presim.scrape().await;
        let stored = value(&exported, "presim_store_bytes{file=\"presim.redb\"}")?;
        (stored > 0.0 && value(&exported, "presim_head_timestamp_seconds")? > 1e9).then_some(exported)
    })
    .await;
    let of = |name: &str| value(&exported, name).unwrap_or_else(|| panic!("{name} is not in: {exported}"));
    assert!(exported.contains(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))), "{exported}");
    assert_eq!(of("presim_connections{kind=\"websocket\"}"), 1.0);
    assert!(of("process_resident_memory_bytes") > 1e6);
    assert!(of("process_open_fds") > 3.0 && of("process_open_fds") < of("process_max_fds"));
    assert!(of("process_threads") > 3.0 && of("process_start_time_seconds") > 1e9);
    assert!(of("presim_uptime_seconds") > 0.0);
    assert!(value(&exported, "process_cpu_seconds_total").is_some(), "{exported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_connections_are_counted_by_their_kind() {
    let node = TestNode::quiet();
    let count = |kind: &str| node.metric(&format!("presim_connections{{kind=\"{kind}\"}}"));
    node.result("/", "eth_chainId", json!([])).await;
    assert_eq!((count("http"), count("websocket")), (1.0, 0.0));
    let socket = Socket::open(&node, "/").await;
    assert_eq!((count("http"), count("websocket")), (1.0, 1.0));
    drop(socket);
    eventually("it is gone", async || (count("websocket") == 0.0).then_some(())).await;
}

/// Returns the value of a series in Prometheus' text format.
fn value(exported: &str, series: &str) -> Option<f64> {
    exported.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Returns the exported metrics with the names of their labels.
fn exported(text: &str, all: &mut BTreeMap<String, BTreeSet<String>>) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, _)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        all.entry(name.to_owned()).or_default().extend(labels);
    }
}

/// Returns the metrics that an expression names, with the labels that it selects them by.
fn named(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(is_name) {
        let end = rest[at..].find(|character| !is_name(character)).map_or(rest.len(), |length| at + length);
        let (word, after) = (&rest[at..end], &rest[end..]);
        rest = after;
        if !word.starts_with("presim_") && !word.starts_with("process_") {
            continue;
        }
        let mut labels = Vec::new();
        if let Some((selector, after)) = after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            let selected = selector.split(',').filter_map(|label| label.split_once(['=', '!']));
            labels.extend(selected.map(|(name, _)| name.to_owned()));
            rest = after;
        }
        found.push((word.to_owned(), labels));
    }
    found
}

/// Returns the expressions of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| collect(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&read(&printed("grafana.json"))).expect("the dashboard is JSON");
    let mut found = Vec::new();
    collect(&dashboard, &mut found);
    assert!(found.len() > 50, "{} expressions", found.len());
    found.push(read(&printed("alerts.yml")));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_alerts_use_metrics_and_labels_that_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = BTreeMap::new();
    {
        let devnet = TestNode::quiet_with(&["--data-dir", text(folder.path())]);
        devnet.result("/", "eth_call", json!([{"to": null}, "pending"])).await;
        devnet.error("/", "eth_call", json!([])).await;
        exported(&devnet.node.metrics().render(), &mut all);
    }
    let (_upstream, live) = follower().await;
    let counts = "presim_preconfirmed_total";
    eventually("the feed begins", async || live.node.metrics().render().contains(counts).then_some(())).await;
    exported(&live.node.metrics().render(), &mut all);
    let fleet = metrics_of_fleet().await;
    fleet.iter().for_each(|metrics| exported(metrics, &mut all));
    // Prometheus adds these when it scrapes.
    let added = ["instance", "job"];
    let mut uses = 0;
    for (name, labels) in expressions().iter().flat_map(|expression| named(expression)) {
        if fleet.is_none() && name.starts_with("presim_fleet_") {
            continue;
        }
        // Descriptions name a histogram without the suffix of its series.
        let known = all.get(&name).or_else(|| all.get(&format!("{name}_bucket")));
        let known = known.unwrap_or_else(|| panic!("{name} is not exported"));
        for label in labels.iter().filter(|label| !added.contains(&label.as_str())) {
            assert!(known.contains(label), "{name} has no label {label}: {known:?}");
        }
        uses += 1;
    }
    assert!(uses > 60, "only {uses} metrics were found");
}

/// Returns the metrics of a node that leads a fleet, where there is a server for one.
async fn metrics_of_fleet() -> Option<String> {
    let server = crate::fleet::server::NatsServer::start()?;
    let chain = crate::upstream::StreamedDevnet::start(&crate::fleet::QUICK).await;
    let leader = crate::fleet::ingester(&chain, &server.url(), &[]);
    crate::fleet::advance(&leader, 2).await;
    Some(leader.node.metrics().render())
}

/// Writes the dashboard's expressions as rules, because `promtool` checks those.
#[test]
fn promtool_accepts_the_alerts_and_the_expressions_of_the_dashboard() {
    if !has_program("promtool", "prometheus") {
        return;
    }
    let mut rules = tempfile::NamedTempFile::new().unwrap();
    writeln!(rules, "groups:\n- name: dashboard\n  rules:").unwrap();
    let mut expressions = expressions();
    expressions.pop();
    for (number, expression) in expressions.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "1m");
        writeln!(rules, "  - record: panel_{number}\n    expr: {}", json!(expression)).unwrap();
    }
    for path in [rules.path(), &printed("alerts.yml")] {
        let output = Command::new("promtool").args(["check", "rules"]).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

// Readiness, and what HTTP says.

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_ready_when_it_answers_from_a_feed_that_works() {
    let node = TestNode::quiet();
    let answer = node.client.get(node.url("/ready")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().contains_key("x-presim-snapshot"));
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({"status": "ready", "feed": "live"}));
    let answer = node.client.get(node.url("/health")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let health = answer.json::<Value>().await.unwrap();
    assert_eq!((&health["status"], &health["feed"]), (&json!("ok"), &json!("live")), "{health}");
    assert!(health["ageMs"].is_u64() && health.get("reason").is_none(), "{health}");
}

/// An archive of blocks that does not answer until it may.
#[derive(Debug, Default)]
struct SlowArchive {
    answers: Mutex<bool>,
    changed: Condvar,
}

impl SlowArchive {
    fn answer(&self) {
        *self.answers.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl BlockKeeper for SlowArchive {
    fn body(&self, _: u64) -> Option<BlockBody> {
        drop(self.changed.wait_while(self.answers.lock().unwrap(), |answers| !*answers).unwrap());
        Some(BlockBody::default())
    }

    fn transactions(&self, _: u64) -> Option<Vec<B256>> {
        Some(Vec::new())
    }

    fn header(&self, _: u64) -> Option<Header> {
        None
    }

    fn number(&self, _: B256) -> Option<u64> {
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_while_requests_wait_makes_the_node_unready_until_it_goes_on() {
    let node = TestNode::quiet_with(&["--workers", "1", "--worker-stall-ms", "50", "--deadline-ms", "120000"]);
    let archive = Arc::new(SlowArchive::default());
    node.node.snapshots().update(|chain| {
        let genesis = chain.sealed_block(0).expect("it is there").header.inner().clone();
        chain.add_history([(Arc::new(SealedBlock::kept(genesis, archive.clone())), Vec::new())]);
    });
    let get = async |path: &str| {
        let answer = node.client.get(node.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(get("/ready").await.0, 200);
    let block = async || node.result("/", "eth_getBlockByNumber", json!(["0x0", true])).await;
    let seen = async {
        let seen =
            eventually("a worker hangs", async || Some(get("/ready").await).filter(|(status, _)| *status == 503));
        let (_, ready) = seen.await;
        let (status, health) = get("/health").await;
        for (document, name) in [(&ready, "not ready"), (&health, "unhealthy")] {
            assert_eq!((&document["status"], &document["cause"]), (&json!(name), &json!("workers")), "{document}");
            let reason = document["reason"].as_str().unwrap();
            assert!(reason.contains("it has run eth_getBlockByNumber of the read lane for "), "{reason}");
        }
        assert_eq!(status, 503);
        assert!(node.metric("presim_worker_stalls_total") >= 1.0);
        let failed = node.node.vitals().check(BOUND).await.expect_err("the watchdog hears of it");
        assert_eq!(failed.to_string(), "the worker 0 has failed");
        // Requests that run inline are answered.
        assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x7a69");
        archive.answer();
    };
    let (first, second, ()) = tokio::join!(block(), block(), seen);
    assert_eq!((&first["number"], &first), (&json!("0x0"), &second));
    eventually("the worker goes on", async || (get("/ready").await.0 == 200).then_some(())).await;
    assert_eq!(get("/health").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_on_the_port_of_requests_say_where_they_are() {
    let told = async |node: &TestNode| {
        let answer = node.client.get(node.url("/metrics")).send().await.unwrap();
        assert_eq!(answer.status(), 404);
        answer.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned()
    };
    let node = TestNode::quiet_with(&["--metrics", "127.0.0.1:0"]);
    let address = node.node.info().metrics.expect("metrics are served");
    assert_eq!(told(&node).await, format!("metrics are served at http://{address}/metrics"));
    assert!(told(&TestNode::quiet()).await.contains("--metrics ADDR:PORT"));
    // A stranger is not told.
    let tokens = token_file(&[("a", 100)]);
    let node = TestNode::quiet_with(&["--metrics", "127.0.0.1:0", "--token-file", text(tokens.path())]);
    let answer = node.client.get(node.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(!answer.contains("http://"), "{answer}");
}

// The banner, and the log.

/// Runs the banner's command in a shell, and returns its answer.
fn try_it(presim: &Presim) -> Value {
    let curl = presim.banner.lines().find(|line| line.starts_with("curl ")).expect("a command");
    let output = Command::new("bash").args(["-c", curl]).output().expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{curl}: {error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_banners_command_works_as_printed_with_tokens_and_on_every_address() {
    if !has_program("curl", "curl") {
        return;
    }
    let folder = tempfile::Builder::new().prefix("it's here").tempdir().unwrap();
    let written = |name: &str, content: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let usual = written(
        "usual",
        format!("# the desk\n[[token]]\nname = \"a\"\n  token = \"{}\" # \"secret\"\nrate = 9\n", token("a")),
    );
    let none: &[&str] = &[];
    let with = |path: &Path| vec!["--token-file".to_owned(), text(path).to_owned()];
    for listen in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0", ":0", "localhost:0"] {
        let mut flags = vec!["--listen".to_owned(), listen.to_owned()];
        flags.extend(with(&usual));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let presim = Presim::start_with(&flags, &[]);
        let answer = try_it(&presim);
        let call = &answer["result"][0]["calls"][0];
        assert_eq!(call["status"], "0x1", "{listen}: {answer}");
        // 100,000 ALPHA, more or less what the traffic has traded.
        let balance: U256 = call["returnData"].as_str().unwrap().parse().unwrap();
        assert!(!balance.is_zero(), "{listen}: {answer}");
        assert!(!presim.banner.contains(&token("a")), "{}", presim.banner);
        let everywhere = listen.starts_with("0.") || listen.starts_with("[::]");
        assert_eq!(presim.banner.contains("every other address"), everywhere, "{}", presim.banner);
    }
    // The command does not rely on a form that it does not understand.
    let inline = written("inline", format!("token = [{{name = 'a', token = '{}', rate = 9}}]\n", token("a")));
    let presim = Presim::start_with(&[&["--listen", "127.0.0.1:0", "--token-file", text(&inline)], none].concat(), &[]);
    assert!(presim.banner.contains("in the place of TOKEN"), "{}", presim.banner);
}

#[test]
fn an_address_may_be_named_by_its_port_or_as_localhost() {
    let load = |text: &str| Config::load(["presim", "--listen", text].map(Into::into));
    for (text, expected) in [
        (":8546", "127.0.0.1:8546"),
        ("localhost:8546", "127.0.0.1:8546"),
        ("127.0.0.2:1", "127.0.0.2:1"),
        ("[::1]:8546", "[::1]:8546"),
    ] {
        let config = load(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(config.listen, expected.parse().unwrap(), "{text}");
    }
    for text in ["8546", "localhost", "localhost8546", "node.example:8546", ":", ":65536"] {
        let error = load(text).expect_err("it is refused").to_string();
        assert!(error.contains("--listen") && error.contains("localhost:8545"), "{text}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_the_facts_of_the_banner() {
    let folder = tempfile::tempdir().unwrap();
    let mut presim = Presim::start(&["--log-json", "--metrics", "127.0.0.1:0", "--data-dir", text(folder.path())]);
    presim.signal("TERM");
    let (_, log) = presim.ended().await;
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    let message =
        |line: &Value| line["fields"]["message"].as_str().is_some_and(|text| text.starts_with("listening on "));
    let fact = lines.into_iter().find(message).unwrap_or_else(|| panic!("no such line: {log}"));
    let fields = &fact["fields"];
    assert_eq!(format!("http://{}", fields["listen"].as_str().unwrap()), presim.url);
    assert_eq!((&fields["chain_id"], &fields["accounts"]), (&json!(31337), &json!(10)), "{fact}");
    assert_eq!(fields["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(fields["data_dir"], text(folder.path()));
    assert!(fields["source"].as_str().unwrap().starts_with("devnet"), "{fact}");
    assert!(fields["metrics"].as_str().unwrap().starts_with("127.0.0.1:"), "{fact}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let genesis = file(r#"{"config": {"chainId": 1}, "alloc": {}, "gasLimit": "0x1c9c380", "difficulty": "0x0"}"#);
    let absent = folder.path().join("absent");
    let absent = text(&absent);
    for (flag, more) in [
        ("--config", &[][..]),
        ("--genesis", &[]),
        ("--chain", &["--genesis", text(genesis.path())]),
        ("--token-file", &[]),
        ("--wallet-token-file", &[]),
        ("--wallet-key-file", &[]),
    ] {
        let (code, told) = refusal(&[&["--listen", "127.0.0.1:0", flag, absent], more].concat(), &[]);
        assert!(code.is_some_and(|code| code > 0), "{told}");
        assert!(told.contains(&format!("{flag} {absent}")), "{flag}: {told}");
        assert!(told.matches("No such file").count() < 2, "the reason is given once: {told}");
    }
    let (_, told) = refusal(&["--listen", "127.0.0.1:0", "--data-dir", "/dev/null"], &[]);
    assert!(told.contains("--data-dir /dev/null"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_for_load_are_one_warning_a_minute() {
    let endless = request(1, "eth_simulateV1", endless_bundle());
    let flags = ["--workers=1", "--queue-bundle=1", "--deadline-ms=3000", "--gas-cap=1000000000000000"];
    let mut presim = Presim::start(&flags);
    let post = || presim.http.post(&presim.url).json(&endless).send();
    let answers = join_all((0..20).map(|_| async { post().await.unwrap().json::<Value>().await.unwrap() })).await;
    let rejected = answers.iter().filter(|answer| answer["error"]["code"] == -32005).count();
    assert!(rejected > 1, "{answers:?}");
    presim.signal("TERM");
    let (_, log) = presim.ended().await;
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("requests are rejected")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("WARN"), "{log}");
}

// Tokens.

#[tokio::test(flavor = "multi_thread")]
async fn token_files_are_read_again_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    let write = |names: &[&str], more: &str| {
        let entry = |name: &&str| format!("[[token]]\nname = \"{name}\"\ntoken = \"{}\"\nrate = 1000\n", token(name));
        std::fs::write(&path, names.iter().map(entry).collect::<String>() + more).unwrap();
    };
    write(&["gone", "stays"], "");
    let mut presim = Presim::start(&["--token-file", text(&path)]);
    let mut log = BufReader::new(presim.child.stderr.take().unwrap());
    let mut until = |part: &str| {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "{part} is not logged");
        }
        line
    };
    let status = async |name: &str| {
        let post = presim.http.post(&presim.url).bearer_auth(token(name));
        post.json(&request(1, "eth_chainId", json!([]))).send().await.unwrap().status().as_u16()
    };
    let open = async |name: &str| {
        let mut upgrade = presim.url.replace("http://", "ws://").into_client_request().unwrap();
        upgrade.headers_mut().insert("authorization", format!("Bearer {}", token(name)).parse().unwrap());
        connect_async(upgrade).await.expect("it opens").0
    };
    let (mut gone, mut stays) = (open("gone").await, open("stays").await);
    assert_eq!((status("gone").await, status("stays").await, status("new").await), (200, 200, 401));

    write(&["stays", "new"], "");
    presim.signal("HUP");
    until("token files were read again");
    assert_eq!((status("gone").await, status("stays").await, status("new").await), (401, 200, 200));
    let last = async {
        while let Some(Ok(message)) = gone.next().await {
            if let Message::Close(frame) = message {
                return frame.expect("a reason").reason.to_string();
            }
        }
        panic!("it is not closed with a reason")
    };
    let reason = tokio::time::timeout(BOUND, last).await.expect("it is closed");
    assert_eq!(reason, "unauthorized: the token was withdrawn");
    stays.send(Message::text(request(7, "eth_chainId", json!([])).to_string())).await.unwrap();
    let answered = async {
        loop {
            match stays.next().await.expect("it is open").expect("a message") {
                Message::Text(text) => return serde_json::from_str::<Value>(&text).unwrap(),
                Message::Close(frame) => panic!("{frame:?}"),
                _ => {}
            }
        }
    };
    assert_eq!(tokio::time::timeout(BOUND, answered).await.unwrap()["id"], 7);

    for (names, more, problem) in [
        (&["new"][..], "[[token]]\nname = \"bad\"\nrate = 5\n", "line 5: missing field `token`"),
        (&["new"], "[[token]]\nname = \"short\"\ntoken = \"short\"\nrate = 5\n", "line 7: token of \"short\": 5 bytes"),
        (&["new", "new"], "", "line 7: \"new\" and \"new\" have the same token"),
        (&["new"], "rate = = 5\n", "line 5: "),
        (&[], "", "no [[token]] in it"),
    ] {
        write(names, more);
        presim.signal("HUP");
        let line = until("the tokens are unchanged");
        assert!(line.contains("ERROR") && line.contains(text(&path)) && line.contains(problem), "{problem}: {line}");
        assert_eq!((status("stays").await, status("new").await), (200, 200), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_changes_nothing_where_there_are_no_tokens() {
    let mut presim = Presim::start(&[]);
    presim.signal("HUP");
    let mut log = BufReader::new(presim.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("SIGHUP: there is no token file to read again") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it is not logged");
    }
    assert_eq!(presim.get("/ready").await.0, 200);
}

#[test]
fn sighup_without_tokens_ends_a_node_whose_terminal_is_closed() {
    let mut terminal = Terminal::start(&["--listen", "127.0.0.1:0"]);
    terminal.shows("curl ");
    terminal.signal("HUP");
    let (status, screen) = terminal.ended();
    assert_eq!(status.code(), Some(0), "{screen}");
}

// The service manager.

#[test]
fn the_service_manager_is_told_of_the_start_the_watchdog_and_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let hear = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let env = [("NOTIFY_SOCKET", text(&path)), ("WATCHDOG_USEC", "1000000")];
    let mut child = command(&["--listen", "127.0.0.1:0"], &env).spawn().unwrap();
    let first = hear();
    assert!(first.lines().any(|line| line == "READY=1"), "{first}");
    assert!(first.contains("STATUS=answers on 127.0.0.1:") && first.contains("chain id 31337"), "{first}");
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1\n");
    }
    signal(child.id(), "TERM");
    let last = std::iter::repeat_with(hear).find(|message| message != "WATCHDOG=1\n").unwrap();
    assert!(last.lines().any(|line| line == "STOPPING=1"), "{last}");
    assert!(child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_hears_of_every_part_and_of_none_that_has_ended() {
    let TestNode { node, .. } = TestNode::quiet();
    let vitals = node.vitals();
    assert_eq!(vitals.check(BOUND).await, Ok(()));
    tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
    let error = vitals.check(Duration::from_secs(1)).await.expect_err("nothing works any more");
    assert!(error.to_string().contains("does not answer"), "{error}");
}

// The package's files.

#[test]
fn the_example_configuration_has_settings_that_exist_and_starts_a_node() {
    let example = read(&printed("presim.toml"));
    Config::load(["presim", "--config", text(&printed("presim.toml"))].map(Into::into))
        .expect("it is right as it stands");
    // All that is commented out, but the tokens' file, which does not exist here.
    let every =
        example.lines().map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line));
    let every: Vec<&str> = every.collect();
    assert!(every.iter().filter(|line| line.contains(" = ") && !line.starts_with('#')).count() > 12, "{example}");
    let all = file(&every.join("\n"));
    Config::load(["presim", "--config", text(all.path())].map(Into::into)).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn systemd_accepts_the_unit_and_its_sandbox() {
    if !has_program("systemd-analyze", "systemd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("presim.service");
    // The program need not be installed here.
    std::fs::write(&unit, read(&printed("presim.service")).replace("/usr/bin/presim", env!("CARGO_BIN_EXE_presim")))
        .unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&unit).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
    // An exposure of at most 2.0, on a scale to 10.
    let security = ["security", "--offline=true", "--threshold=20", "--no-pager"];
    let output = Command::new("systemd-analyze").args(security).arg(&unit).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

// Texts of others, and secrets.

/// Serves HTTP with this status and body to every request, until the test ends.
fn serve(status: &'static str, body: &'static str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            // The requests are small, and arrive at once.
            let _ = std::io::Read::read(&mut stream, &mut head);
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn an_upstream_s_text_in_an_error_at_the_start_is_escaped() {
    let url = serve("400 Bad Request", "\u{1b}]0;title\u{7}\n2026-01-01T00:00:00Z INFO forged\r\u{9b}2J\u{202e}");
    for flags in [&[][..], &["--log-json"]] {
        let (code, told) = refusal(&[&["--listen", "127.0.0.1:0", "--upstream", &url], flags].concat(), &[]);
        assert_eq!(code, Some(1), "{told:?}");
        let error = told.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{told:?}"));
        assert!(
            error.contains(r"\u{1b}]0;title\u{7}\n2026-01-01T00:00:00Z INFO forged\r\u{9b}2J\u{202e}"),
            "{error:?}"
        );
        assert!(!told.contains(['\u{1b}', '\u{7}', '\r', '\u{9b}', '\u{202e}']), "{told:?}");
        assert!(!told.lines().any(|line| line.starts_with("2026-01-01")), "{told:?}");
    }
}

#[test]
fn no_error_shows_the_secret_of_a_url() {
    const KEY: &str = "k3yOfAPaidPlan";
    const NONE: (&str, &str) = ("", "");
    let bad = file(&format!("listen = \"127.0.0.1:0\"\nupstream = \"https://eth.example/v2/{KEY}\nlog = \"info\"\n"));
    let config = format!("--config {}", text(bad.path()));
    // Words of the command line, a variable with its value, and a part of the error.
    let cases = [
        ("", ("PRESIM_UPSTREAM", "htps://eth.example/v2/<key>"), "htps://eth.example: scheme htps"),
        ("", ("PRESIM_UPSTREAM", "htps:<key>"), "--upstream"),
        ("", ("PRESIM_UPSTREAM", "https://[<key>/"), "--upstream"),
        ("--upstream ftp://user:<key>@eth.example:2121/", NONE, "ftp://eth.example:2121: scheme ftp"),
        ("", ("PRESIM_FLASHBLOCKS", "https://flash.example/<key>"), "https://flash.example: scheme https"),
        ("", ("PRESIM_FLASHBLOCKS", "wss <key>"), "--flashblocks"),
        ("", ("PRESIM_PUBLISH", "http://<key>@nats.example"), "http://nats.example: scheme http"),
        ("", ("PRESIM_FOLLOW", "nats <key>"), "--follow"),
        ("https://eth.example/v2/<key>", NONE, "https://eth.example"),
        ("--upstreem=https://eth.example/v2/<key>", NONE, "--upstreem"),
        (config.as_str(), NONE, "line 2"),
        ("simulate --to <to> --url http://127.0.0.1:1/v2/<key>", NONE, "no node answers at http://127.0.0.1:1:"),
        (
            "simulate --to <to> --url http://user:<key>@127.0.0.1:1/<key>?<key>",
            NONE,
            "no node answers at http://127.0.0.1:1:",
        ),
        ("simulate --to <to> --url ws://127.0.0.1:1/v2/<key>", NONE, "no node answers at ws://127.0.0.1:1:"),
        ("simulate --to <to>", ("PRESIM_URL", "ftp://127.0.0.1/<key>"), "ftp://127.0.0.1: scheme ftp"),
        (
            "simulate --to <to> --url http://127.0.0.1:1/<key> --upstream http://127.0.0.1:1",
            NONE,
            "--url http://127.0.0.1:1 and",
        ),
        ("simulate https://eth.example/<key>", NONE, "https://eth.example"),
    ];
    for (words, (name, value), expected) in cases {
        let words = words.replace("<key>", KEY).replace("<to>", "0x00000000000000000000000000000000000000aa");
        let words: Vec<&str> = words.split_whitespace().collect();
        let value = value.replace("<key>", KEY);
        let env = [(name, value.as_str())];
        let (code, told) = refusal(&words, if name.is_empty() { &[] } else { &env });
        assert!(code.is_some_and(|code| code > 0), "{words:?} {value}: {told}");
        assert!(!told.contains(KEY), "{words:?} {value}: {told}");
        assert!(told.contains(expected), "{words:?} {value}: {expected} is not in: {told}");
    }
}

#[test]
fn a_misspelt_variable_is_refused_and_one_of_another_program_is_not() {
    let listen = ["--listen", "127.0.0.1:0"];
    let (code, told) = refusal(&listen, &[("PRESIM_UPSTREM", "http://127.0.0.1:1")]);
    assert!(code == Some(2) && told.contains("PRESIM_UPSTREM ") && told.contains("PRESIM_UPSTREAM?"), "{told}");
    // Of a service in Kubernetes.
    let service = [("PRESIM_SERVICE_HOST", "10.0.0.1"), ("PRESIM_PORT_8545_TCP", "tcp://10.0.0.1:8545")];
    assert!(Presim::start_with(&listen, &service).banner.contains("curl "));
}
