//! A load of batches, each stored on the disk before it is answered.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use alloy_primitives::bytes;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{NOBODY, account, batch, call, settled};
use crate::{
    process::text,
    support::{TestNode, request},
};

/// Batches sent in a second, whether or not earlier ones have been answered.
const RATE: u64 = 500;

/// `PRESIM_LOAD_SECONDS` sets how long it runs, 2 seconds by default.
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_batches_a_second_are_taken_to_the_disk_and_mined() {
    let seconds =
        std::env::var("PRESIM_LOAD_SECONDS").map_or(2, |text| text.parse::<u64>().expect("a number of seconds"));
    let data = TempDir::new().unwrap();
    let node = TestNode::start(&["--data-dir", text(data.path()), "--traffic", "0", "--max-connections", "4000"]);
    // The bodies are built beforehand, so that only the node is measured.
    let bodies: Vec<String> = (0..10)
        .map(|index| {
            request(1, "wallet_sendCalls", batch(account(index), false, &[call(NOBODY, 1, bytes!())])).to_string()
        })
        .collect();
    // Connections are opened before the clock runs.
    let warm = (0..64).map(|_| node.post("/", request(1, "eth_chainId", serde_json::json!([])).to_string()));
    futures::future::join_all(warm).await;

    let (began, latencies) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let (mut tasks, mut ids) = (JoinSet::new(), Vec::new());
    for number in 0..RATE * seconds {
        let due = ticks.tick().await;
        let post = node.client.post(node.url("/")).header("content-type", "application/json");
        let post = post.body(bodies[number as usize % bodies.len()].clone());
        let latencies = latencies.clone();
        tasks.spawn(async move {
            let response = post.send().await.unwrap_or_else(|error| panic!("{number}: {error}"));
            let answer: Value = response.json().await.unwrap_or_else(|error| panic!("{number}: {error}"));
            latencies.lock().unwrap().push((number / RATE, due.elapsed()));
            answer["result"]["id"].as_str().unwrap_or_else(|| panic!("{number}: {answer}")).to_owned()
        });
        while let Some(id) = tasks.try_join_next() {
            ids.push(id.unwrap());
        }
    }
    ids.extend(tasks.join_all().await);
    let took = began.elapsed();
    let latencies = std::mem::take(&mut *latencies.lock().unwrap());
    let all = sorted(latencies.iter().map(|(_, latency)| *latency));
    // Takes the median of the p99 of each second, so that another process using the disk or a core has little effect.
    let in_second = |second| latencies.iter().filter(move |(at, _)| *at == second).map(|(_, latency)| *latency);
    let p99 = at(&sorted((0..seconds).map(|second| at(&sorted(in_second(second)), 990))), 500);
    println!(
        "WALLET LOAD: {} batches taken in {took:.1?}: {:.0} a second, p50 {:.2?}, p99 {:.2?}, of a second {p99:.2?}, the slowest {:.2?}",
        ids.len(),
        ids.len() as f64 / took.as_secs_f64(),
        at(&all, 500),
        at(&all, 990),
        at(&all, 1000),
    );
    assert_eq!(ids.len() as u64, RATE * seconds);
    for id in &ids {
        let status = settled(&node, id).await;
        assert_eq!(status["status"], 200, "{status}");
    }
    if !cfg!(debug_assertions) {
        assert!(p99 < Duration::from_millis(20), "p99 of a second {p99:?}");
    }
}

fn sorted(latencies: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut latencies: Vec<Duration> = latencies.collect();
    latencies.sort();
    latencies
}

/// Returns the value at this many per mille of the sorted durations.
fn at(sorted: &[Duration], per_mille: usize) -> Duration {
    sorted[(sorted.len() - 1) * per_mille / 1000]
}
