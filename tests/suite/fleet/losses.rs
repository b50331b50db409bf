//! Streams that have lost something while no node leads: the fleet mends itself.

use async_nats::HeaderMap;
use presim::testing::ledger::SnapshotId;

use super::{QUICK, advance, agree_on, ingester, proxy::CutProxy, reach, replica, server::NatsServer, until};
use crate::{
    support::{TestNode, say},
    upstream::StreamedDevnet,
};

/// Waits until a node shows a snapshot of a later epoch, and returns the newest.
async fn led_anew(node: &TestNode, before: SnapshotId) -> SnapshotId {
    until("a node leads anew", async || node.node.snapshots().newest().id.epoch() > before.epoch()).await;
    node.node.snapshots().newest().id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_can_read_stops_no_fleet() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let (standby, follower) = (ingester(&chain, &server.url(), &[]), replica(&server.url(), &[]));
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
    agree_on(&[&standby, &follower], id, "/").await;
    let late = replica(&server.url(), &[]);
    reach(&late, advance(&standby, 1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_behind_what_was_deleted_leads_from_what_it_has() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let standby = ingester(&chain, &way.url(), &[]);
    let follower = replica(&server.url(), &[]);
    reach(&standby, advance(&leader, 4).await).await;
    way.cut();
    let seen = advance(&leader, 20).await;
    reach(&follower, seen).await;
    drop(leader);
    server.stream("test").await.purge().await.expect("it is purged");
    way.mend();
    led_anew(&standby, seen).await;
    // The follower starts again with an image, and has the snapshots after that.
    led_anew(&follower, seen).await;
    let id = advance(&standby, 3).await;
    reach(&follower, id).await;
    agree_on(&[&standby, &follower], id, "/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_on_from_the_image_where_all_messages_were_deleted() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &["--image-every", "10"]);
    let seen = advance(&leader, 30).await;
    // A replica begins with an image, so there is one.
    drop(replica(&server.url(), &[]));
    drop(leader);
    server.stream("test").await.purge().await.expect("it is purged");
    let again = ingester(&chain, &server.url(), &[]);
    led_anew(&again, seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_with_a_chain_that_stands_still_one_leads() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--traffic", "0", "--sub-block-ms", "60000"]).await;
    let way = CutProxy::to(server.port).await;
    let first = ingester(&chain, &way.url(), &[]);
    let second = ingester(&chain, &server.url(), &[]);
    let last = |node: &TestNode| node.node.snapshots().load().last;
    until("the second follows the first", async || last(&first) == last(&second)).await;
    let epoch = last(&first).epoch();
    way.cut();
    until("the second leads", async || last(&second).epoch() > epoch).await;
    way.mend();
    until("the first follows the second", async || last(&first) == last(&second)).await;
    say(&format!("the second leads epoch {:#x}", last(&second).epoch()));
}
