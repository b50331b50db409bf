//! A load of batches, each stored on the disk before it is answered.

use alloy_primitives::bytes;
use futures::{StreamExt, stream};
use tempfile::TempDir;

use super::{NOBODY, batch, call, settled};
use crate::{process::text, support::TestNode};

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
    let pool = ["--pool-transactions", &room, "--pool-account-transactions", &room];
    let patient = ["--data-dir", text(data.path()), "--traffic=0", "--deadline-ms=120000", "--queue-wait-ms=120000"];
    let node = TestNode::start(&[&pool[..], &patient].concat());
    let send = async |number: usize| {
        super::send(&node, batch(node.account(number % 10), false, &[call(NOBODY, 1, bytes!())])).await.0
    };
    let ids: Vec<String> = stream::iter(0..count).map(send).buffer_unordered(CLIENTS).collect().await;
    for id in &ids {
        let status = settled(&node, id).await;
        assert_eq!(status["status"], 200, "{status}");
    }
}
