//! Streams that have lost something while no node leads: the fleet mends itself.

use async_nats::HeaderMap;
use presim::ledger::SnapshotId;
use serde_json::json;

use super::{advance, agree, ingester, proxy::CutProxy, reach, reads, replica, server::NatsServer, until};
use crate::{
    process::file,
    support::{TestNode, say},
};

const QUICK: [&str; 4] = ["--sub-block-ms", "50", "--sub-blocks", "4"];

/// Waits until a node shows a snapshot of a later epoch, and returns the newest.
async fn led_anew(node: &TestNode, before: SnapshotId) -> SnapshotId {
    until("a node leads anew", async || node.node.snapshots().newest().id.epoch() > before.epoch()).await;
    node.node.snapshots().newest().id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_can_read_stops_no_fleet() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &QUICK);
    advance(&leader, 2).await;
    let (standby, follower) = (ingester(&server.url(), &QUICK), replica(&server.url(), &[]));
    let seen = advance(&leader, 4).await;
    reach(&standby, seen).await;
    drop(leader);
    // A message with the headers of the leader's next one, and no content that anyone knows.
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let last = standby.node.snapshots().load().last.max(follower.node.snapshots().load().last);
    let mut headers = HeaderMap::new();
    headers.insert("presim-id", format!("{:#x}", last.next().0).as_str());
    headers.insert("presim-part", "0/1");
    let put = jetstream.publish_with_headers("presim.test.feed", headers, "no content".into()).await;
    put.expect("it is sent").await.expect("it is stored");
    let id = led_anew(&follower, seen).await;
    reach(&standby, id).await;
    let id = advance(&standby, 3).await;
    reach(&follower, id).await;
    agree(&[&standby, &follower], &reads(&standby, id), "/").await;
    let late = replica(&server.url(), &[]);
    reach(&late, advance(&standby, 1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_behind_what_was_deleted_leads_from_what_it_has() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &QUICK);
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let dir = tempfile::tempdir().expect("a directory");
    let kept = ["--data-dir", dir.path().to_str().expect("UTF-8")];
    let standby = ingester(&way.url(), &[&QUICK[..], &kept].concat());
    let follower = replica(&server.url(), &[]);
    reach(&standby, advance(&leader, 4).await).await;
    way.cut();
    let seen = advance(&leader, 20).await;
    reach(&follower, seen).await;
    drop(leader);
    server.stream("test").await.purge().await.expect("it is purged");
    way.mend();
    led_anew(&standby, seen).await;
    // The follower begins anew with an image, and has the snapshots after that.
    led_anew(&follower, seen).await;
    let id = advance(&standby, 3).await;
    reach(&follower, id).await;
    agree(&[&standby, &follower], &reads(&standby, id), "/").await;
    // The directory has the chain that goes on.
    let hash = standby.node.snapshots().newest().head_hash();
    drop(standby);
    let again = ingester(&server.url(), &[&QUICK[..], &kept].concat());
    assert!(again.result("/", "eth_getBlockByHash", json!([hash, false])).await.is_object());
    reach(&follower, advance(&again, 2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_goes_on_after_an_image() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &[&QUICK[..], &["--image-every", "10"]].concat());
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let dir = tempfile::tempdir().expect("a directory");
    let kept = [&QUICK[..], &["--data-dir", dir.path().to_str().expect("UTF-8")]].concat();
    let standby = ingester(&way.url(), &kept);
    reach(&standby, advance(&leader, 4).await).await;
    way.cut();
    advance(&leader, 20).await;
    server.stream("test").await.purge().await.expect("it is purged");
    advance(&leader, 20).await;
    way.mend();
    let id = advance(&leader, 9).await;
    reach(&standby, id).await;
    drop(standby);
    // The directory has all that the node has read since.
    let again = ingester(&server.url(), &kept);
    assert!(again.node.snapshots().newest().id >= id);
    let id = advance(&leader, 2).await;
    reach(&again, id).await;
    agree(&[&leader, &again], &reads(&leader, id), "/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_directory_goes_on_from_the_image_where_all_messages_were_deleted() {
    let Some(server) = NatsServer::start() else { return };
    let leader = ingester(&server.url(), &[&QUICK[..], &["--image-every", "10"]].concat());
    let seen = advance(&leader, 30).await;
    // A replica begins with an image, so there is one.
    drop(replica(&server.url(), &[]));
    let genesis = leader.result("/", "eth_getBlockByNumber", json!(["0x0", false])).await["hash"].clone();
    drop(leader);
    server.stream("test").await.purge().await.expect("it is purged");
    let again = ingester(&server.url(), &QUICK);
    led_anew(&again, seen).await;
    assert_eq!(again.result("/", "eth_getBlockByNumber", json!(["0x0", false])).await["hash"], genesis);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_with_a_chain_that_stands_still_one_leads() {
    let Some(server) = NatsServer::start() else { return };
    let genesis = file(super::leading::GENESIS);
    let flags = ["--genesis", genesis.path().to_str().expect("UTF-8"), "--feed", "static"];
    let way = CutProxy::to(server.port).await;
    let first = ingester(&way.url(), &flags);
    let second = ingester(&server.url(), &flags);
    let last = |node: &TestNode| node.node.snapshots().load().last;
    until("the second follows the first", async || last(&first) == last(&second)).await;
    let epoch = last(&first).epoch();
    way.cut();
    until("the second leads", async || last(&second).epoch() > epoch).await;
    way.mend();
    until("the first follows the second", async || last(&first) == last(&second)).await;
    say(&format!("the second leads epoch {:#x}", last(&second).epoch()));
}
