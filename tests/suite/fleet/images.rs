//! Images from which nodes join: how long they stay, and what is not taken for one.

use async_nats::jetstream::{self, kv, stream::Stream};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use futures::TryStreamExt;
use serde_json::Value;

use super::{QUICK, advance, ingester, reach, replica, server::NatsServer, try_start, until};
use crate::upstream::StreamedDevnet;

/// The stream of the bucket of a fleet's images, and the bucket of its facts.
async fn buckets(server: &NatsServer) -> (Stream, kv::Store) {
    let jetstream = jetstream::new(server.connect().await);
    let images = jetstream.get_stream("OBJ_presim_test_images").await.expect("a bucket of images");
    (images, jetstream.get_key_value("presim_test").await.expect("a bucket of facts"))
}

/// The names of the images. The client's own list waits for messages, and does not end if they are deleted meanwhile.
async fn names(images: &Stream) -> Vec<String> {
    let named = "$O.presim_test_images.M.";
    let subjects = images.info_with_subjects(format!("{named}>")).await.expect("the subjects");
    let subjects: Vec<_> = subjects.map_ok(|(subject, _)| subject).try_collect().await.expect("the subjects");
    let names = subjects.iter().map(|subject| {
        let name = subject.strip_prefix(named).expect("the subject of an image");
        String::from_utf8(BASE64_URL_SAFE.decode(name).expect("Base64")).expect("a name")
    });
    names.collect()
}

async fn newest(facts: &kv::Store) -> Value {
    let key = facts.get("image").await.expect("an answer").expect("an image");
    serde_json::from_slice(&key).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn images_that_have_stayed_are_deleted_whichever_leader_wrote_them() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "20"]).await;
    let keep = ["--image-keep-s", "1", "--image-every"];
    // Images are deleted between two that are written.
    let leader = ingester(&chain, &server.url(), &[&keep[..], &["40"]].concat());
    advance(&leader, 60).await;
    let (images, facts) = buckets(&server).await;
    until("there are several", async || {
        advance(&leader, 10).await;
        names(&images).await.len() > 2
    })
    .await;
    until("the first are gone", async || {
        let first = newest(&facts).await["name"].clone();
        advance(&leader, 150).await;
        !names(&images).await.iter().any(|name| first == *name)
    })
    .await;
    drop(leader);
    // The next leader writes none, and deletes what the one before has left.
    let next = ingester(&chain, &server.url(), &[&keep[..], &["1000000"]].concat());
    until("one is left", async || {
        // Each list is work for the server.
        advance(&next, 20).await;
        names(&images).await.len() == 1
    })
    .await;
    assert_eq!(newest(&facts).await["name"], names(&images).await[0], "the newest stays");
    let follower = replica(&server.url(), &[]);
    reach(&follower, advance(&next, 1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_another_size_than_its_key_says_is_refused() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let (_, facts) = buckets(&server).await;
    until("an image", async || facts.get("image").await.expect("an answer").is_some()).await;
    drop(leader);
    for bytes in [1, u64::MAX] {
        let mut key = newest(&facts).await;
        key["bytes"] = bytes.into();
        facts.put("image", key.to_string().into()).await.expect("it is written");
        let error = format!("{:#}", try_start(&["--follow", &server.url()]).err().expect("it is refused"));
        assert!(error.contains("the image of the fleet cannot be used") && error.contains("its key says"), "{error}");
    }
}
