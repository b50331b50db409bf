//! The KZG settings, whose load takes seconds: no request begins it, and only those that need them wait for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{process::Presim, support::request};

/// The flags of a devnet in which nothing happens by itself.
const QUIET: [&str; 4] = ["--traffic", "0", "--sub-block-ms", "60000"];
/// The tables in memory; an idle node without them has half of it.
const TABLES: u64 = 96 << 20;
/// More than the load takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Returns the memory of a process that is not a file's, in bytes.
fn anonymous_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the system shows it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn a_node_loads_the_kzg_settings_without_a_request() {
    let presim = Presim::start(&QUIET);
    let deadline = Instant::now() + PATIENCE;
    while anonymous_memory(presim.child.id()) < TABLES {
        assert!(Instant::now() < deadline, "the tables are not loaded after {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// A point evaluation that comes while the settings load waits on a worker, not on the thread of the connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_point_evaluation_that_waits_for_the_settings_holds_no_other_request() {
    let presim = Presim::start(&[&QUIET[..], &["--io-threads", "1"]].concat());
    let client = reqwest::Client::new();
    let send = |method: &str, params| {
        let body = request(1, method, params).to_string();
        let sent = client.post(&presim.url).header("content-type", "application/json").body(body).send();
        async move {
            let began = Instant::now();
            sent.await.expect("it answers").bytes().await.expect("the answer comes");
            began.elapsed()
        }
    };
    let hash = "010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014";
    let infinity = format!("c0{}", "00".repeat(47));
    let input = format!("0x{hash}{}{infinity}{infinity}", "00".repeat(64));
    let call = json!({"to": "0x000000000000000000000000000000000000000a", "input": input});
    let evaluation = tokio::spawn(send("eth_call", json!([call, "latest"])));
    let mut longest = Duration::ZERO;
    while !evaluation.is_finished() {
        longest = longest.max(send("eth_chainId", json!([])).await);
    }
    let waited = evaluation.await.unwrap();
    // If the settings were there already, nothing has waited.
    assert!(waited < Duration::from_millis(500) || longest < waited / 2, "{longest:?} of {waited:?}");
}
