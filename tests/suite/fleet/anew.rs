//! Streams that were created again, and nodes that join where the stream does not lead on.

use async_nats::jetstream;
use futures::{StreamExt, TryStreamExt};
use presim::testing::ledger::{FeedState, SnapshotId};

use super::{
    QUICK, advance, agree_on, ingester, reach,
    relay::{Relay, id},
    replica,
    server::NatsServer,
    start, until,
};
use crate::{support::BOUND, upstream::StreamedDevnet};

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_follows_a_stream_that_was_created_anew() {
    let Some(server) = NatsServer::start() else { return };
    let (url, chain) = (server.url(), StreamedDevnet::start(&QUICK).await);
    let publish = || ingester(&chain, &url, &[]);
    let leader = publish();
    let follower = replica(&url, &[]);
    reach(&follower, advance(&leader, 3).await).await;
    drop(leader);
    // The replica is far into the stream: it would wait for minutes until another is as long.
    let jetstream = jetstream::new(server.connect().await);
    for _ in 0..3_000 {
        let put = jetstream.publish("presim.test.feed", "no message of presim".into()).await.expect("it is sent");
        put.await.expect("it is stored");
    }
    let stream = server.stream("test").await;
    until("the replica has read them", async || {
        let readers: Vec<_> = stream.consumers().try_collect().await.expect("consumers");
        readers.iter().all(|reader| reader.num_pending == 0)
    })
    .await;
    jetstream.delete_stream("presim_test").await.expect("it is deleted");
    let leader = publish();
    // The follower begins with an image.
    reach(&follower, advance(&leader, 3).await).await;
    let id = advance(&leader, 3).await;
    reach(&follower, id).await;
    let end = server.stream("test").await.cached_info().state.last_sequence;
    assert!(end < 3_000, "the replica waited until the new stream was as long as the old one: {end}");
    agree_on(&[&leader, &follower], id, "/").await;
    until("it is live", async || matches!(follower.node.snapshots().load().feed(), FeedState::Live { .. })).await;
    // One that joins does not wait for the place that the old stream's image names.
    let joiner = replica(&url, &[]);
    reach(&joiner, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_is_not_ready_before_it_has_come_to_the_end_of_the_stream() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &["--image-every", "40"]);
    advance(&leader, 2).await;
    let jetstream = jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    let image = async || facts.get("image").await.expect("an answer");
    until("an image", async || image().await.is_some()).await;
    let begun = image().await;
    let mut relay = Relay::begin(&server, "torn").await;
    advance(&leader, 60).await;
    let mut messages = relay.take(20).await;
    let last = SnapshotId(id(messages.last().expect("a message")));
    drop(messages.remove(5));
    relay.put(&messages).await;
    let mut wanted = server.connect().await.subscribe("presim.torn.want-image").await.expect("it listens");
    let url = server.url();
    let joining = tokio::task::spawn_blocking(move || start(&["--follow", &url, "--fleet", "torn"]));
    for _ in 0..3 {
        let asked = tokio::time::timeout(BOUND, wanted.next()).await;
        assert!(asked.is_ok_and(|asked| asked.is_some()), "it asks for an image that leads on");
    }
    assert!(!joining.is_finished(), "it answers from the past");
    until("the leader has written a newer image", async || image().await != begun).await;
    relay.put_image().await;
    let follower = joining.await.expect("it starts");
    assert!(follower.node.snapshots().newest().id >= last, "{:#x}", follower.node.snapshots().newest().id.0);
}
