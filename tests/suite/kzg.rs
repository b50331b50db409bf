//! The KZG settings, whose load takes a second: no request begins it, and only those that need them wait for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{process::Presim, support::request};

/// The flags of a devnet in which nothing happens by itself.
const QUIET: [&str; 4] = ["--traffic", "0", "--sub-block-ms", "60000"];
/// The bytes of the tables with which proofs are made; an idle node without them has half of it.
const TABLES: u64 = 96 << 20;
/// More than the load takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Returns the memory of a process that is not a file's, in bytes.
fn anonymous_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the system shows it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Returns whether a process has a thread of this name.
fn has_thread(process: u32, name: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.into_iter().any(|found| found.trim_end() == name)
}

#[test]
fn a_node_loads_the_kzg_settings_without_the_tables_for_making_proofs() {
    let presim = Presim::start(&QUIET);
    let deadline = Instant::now() + PATIENCE;
    // The thread ends with the load.
    while has_thread(presim.child.id(), "presim-kzg") {
        assert!(Instant::now() < deadline, "the settings are not loaded after {PATIENCE:?}");
        std::thread::yield_now();
    }
    let memory = anonymous_memory(presim.child.id());
    assert!(memory < TABLES, "{memory} bytes of memory");
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
