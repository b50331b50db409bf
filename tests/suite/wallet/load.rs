//! A load of batches, each stored on the disk before it is answered.

use std::{sync::Mutex, time::Instant};

use alloy_primitives::bytes;
use futures::{StreamExt, stream};
use serde_json::Value;
use tempfile::TempDir;

use super::{NOBODY, account, batch, call, settled};
use crate::{
    process::text,
    support::{TestNode, request},
};

/// Batches under way at once.
const CLIENTS: usize = 64;

/// `PRESIM_LOAD_BATCHES` sets how many are sent, 1,000 by default.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_many_clients_are_all_taken_to_the_disk_and_mined() {
    let count =
        std::env::var("PRESIM_LOAD_BATCHES").map_or(1_000, |text| text.parse::<usize>().expect("a number of batches"));
    let data = TempDir::new().unwrap();
    // The batches come faster than blocks have room for them.
    let room = count.max(1).to_string();
    let node = TestNode::start(&[
        "--pool-transactions",
        &room,
        "--pool-account-transactions",
        &room,
        "--data-dir",
        text(data.path()),
        "--traffic",
        "0",
        "--deadline-ms",
        "120000",
        "--queue-wait-ms",
        "120000",
    ]);
    // The bodies are built beforehand, so that only the node is measured.
    let bodies: Vec<String> = (0..10)
        .map(|index| {
            request(1, "wallet_sendCalls", batch(account(index), false, &[call(NOBODY, 1, bytes!())])).to_string()
        })
        .collect();
    let (began, latencies) = (Instant::now(), Mutex::new(Vec::new()));
    let send = async |number: usize| {
        let sent = Instant::now();
        let (_, text) = node.post("/", bodies[number % bodies.len()].clone()).await;
        latencies.lock().unwrap().push(sent.elapsed());
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{number}: {error}: {text}"));
        answer["result"]["id"].as_str().unwrap_or_else(|| panic!("{number}: {answer}")).to_owned()
    };
    let ids: Vec<String> = stream::iter(0..count).map(send).buffer_unordered(CLIENTS).collect().await;
    let took = began.elapsed();
    let mut latencies = latencies.into_inner().unwrap();
    latencies.sort();
    let at = |per_mille: usize| latencies[(latencies.len() - 1) * per_mille / 1000];
    println!(
        "WALLET LOAD: {count} batches taken in {took:.1?}: {:.0} a second, p50 {:.2?}, p99 {:.2?}, the slowest {:.2?}",
        count as f64 / took.as_secs_f64(),
        at(500),
        at(990),
        at(1000),
    );
    for id in &ids {
        let status = settled(&node, id).await;
        assert_eq!(status["status"], 200, "{status}");
    }
}
