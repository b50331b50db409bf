//! The power fails, or the disk is full: what was answered stands.

use std::{ffi::OsString, path::Path, sync::Arc, time::Duration};

use presim::{config::Config, node::Node, store::Store, telemetry::Metrics};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::{
    disk::{Disk, Leaves},
    support::{BOUND, TestNode, say},
    witness::{Rpc, Witness, seed},
};

/// Power cuts: each kind of them as often as the others.
const CUTS: usize = 25;

/// A node on a disk.
fn start(disk: &Disk, flags: &[&str]) -> TestNode {
    let own = ["presim", "--listen", "127.0.0.1:0", "--sub-block-ms", "25", "--sub-blocks", "4", "--traffic", "1"];
    let config = Config::load(own.iter().chain(flags).map(OsString::from)).unwrap();
    let metrics = Metrics::default();
    let store = Store::open_on(disk.clone(), Path::new("the test's disk"), &metrics)
        .unwrap_or_else(|error| panic!("the store is not opened: {error}"));
    let node =
        Node::start_on(store, config, metrics).unwrap_or_else(|error| panic!("the node did not start: {error:#}"));
    TestNode { node, client: reqwest::Client::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_power_cuts() {
    let seed = seed();
    let mut rng = SmallRng::seed_from_u64(seed);
    say(&format!("power cuts at random moments: PRESIM_TEST_SEED={seed}"));
    let witness = Arc::new(Witness::default());
    let mut disk = Disk::default();
    let mut dirty = 0;
    for cut in 0..CUTS {
        // A small window of states, so that cuts meet the base as it is moved.
        let node = start(&disk, &["--keep-blocks", "3"]);
        let rpc = Rpc::new(node.url("/"));
        witness.check(&rpc).await;
        let clients = witness.clients(&rpc, rng.random());
        // A moment that nothing in the node has a part in.
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..400))).await;
        let (frozen, leaves) = (witness.clone(), Leaves::ALL[cut % Leaves::ALL.len()]);
        let (after, random) = (rng.random_range(0..100), SmallRng::from_rng(&mut rng));
        let (left, unsynced) = disk.cut(after, leaves, random, move || frozen.freeze()).await;
        dirty += usize::from(unsynced);
        node.node.stop();
        clients.join_all().await;
        witness.thaw();
        disk = left;
    }
    let node = start(&disk, &[]);
    let rpc = Rpc::new(node.url("/"));
    witness.check(&rpc).await;
    let counts = witness.finish(&rpc).await;
    say(&format!("{CUTS} power cuts, {dirty} of them with something unsynced: {counts:?}"));
    assert!(dirty > 0 && counts.answered > CUTS && counts.atomic > 0 && counts.raw > CUTS, "{counts:?}");
}
