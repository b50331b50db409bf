//! The KZG settings, whose load takes a second: no request begins it, and only those that need them wait for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    process::Presim,
    raw::{Frames, address},
    support::{BOUND, request},
};

/// The flags of a devnet in which nothing happens by itself.
const QUIET: [&str; 4] = ["--traffic", "0", "--sub-block-ms", "60000"];
/// The bytes of the tables with which proofs are made; an idle node without them has half of it.
const TABLES: u64 = 96 << 20;
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
    let deadline = Instant::now() + BOUND;
    // The thread ends with the load.
    while has_thread(presim.child.id(), "presim-kzg") {
        assert!(Instant::now() < deadline, "the settings are not loaded after {BOUND:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let memory = anonymous_memory(presim.child.id());
    assert!(memory < TABLES, "{memory} bytes of memory");
}

/// A point evaluation that comes while the settings load waits on a worker, not on the thread of the connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_point_evaluation_that_waits_for_the_settings_holds_no_other_request() {
    let hash = "010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014";
    let infinity = format!("c0{}", "00".repeat(47));
    let input = format!("0x{hash}{}{infinity}{infinity}", "00".repeat(64));
    let call = json!({"to": "0x000000000000000000000000000000000000000a", "input": input});
    // The settings may have been loaded before the evaluation arrived, on a machine that gives the loading thread a core of its own.
    for _ in 0..3 {
        let presim = Presim::start(&[&QUIET[..], &["--io-threads", "1"]].concat());
        let mut socket = Frames::open(address(&presim.url), &[]).await.expect("it is upgraded");
        let was_loading = has_thread(presim.child.id(), "presim-kzg");
        socket.send(&request(1, "eth_call", json!([call, "latest"])).to_string()).await;
        socket.send(&request(2, "eth_chainId", json!([])).to_string()).await;
        let first = socket.read().await.expect("it is answered").json();
        let second = socket.read().await.expect("it is answered").json();
        assert!(first.get("result").is_some() && second.get("result").is_some(), "{first} {second}");
        if first["id"] == 2 || !was_loading {
            return;
        }
    }
    panic!("the evaluation was answered first three times");
}
