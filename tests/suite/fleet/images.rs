//! Images from which nodes join: how long they stay, and what is not taken for one.

use std::time::Duration;

use async_nats::jetstream::{self, kv, object_store::ObjectStore};
use futures::TryStreamExt;
use serde_json::Value;
use tokio::time::timeout;

use super::{advance, ingester, reach, replica, server::NatsServer, try_start, until};

/// The bucket of a fleet's images, and that of its facts.
async fn buckets(server: &NatsServer) -> (ObjectStore, kv::Store) {
    let jetstream = jetstream::new(server.connect().await);
    let images = jetstream.get_object_store("presim_test_images").await.expect("a bucket of images");
    (images, jetstream.get_key_value("presim_test").await.expect("a bucket of facts"))
}

/// Lists the images. A list does not always end while images are written and deleted: it is begun again then.
async fn names(images: &ObjectStore) -> Vec<String> {
    loop {
        let listed = images.list().await.expect("a list").map_ok(|image| image.name);
        if let Ok(names) = timeout(Duration::from_secs(2), listed.try_collect()).await {
            return names.expect("names");
        }
    }
}

async fn newest(facts: &kv::Store) -> Value {
    let key = facts.get("image").await.expect("an answer").expect("an image");
    serde_json::from_slice(&key).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn images_that_have_stayed_are_deleted_whichever_leader_wrote_them() {
    let Some(server) = NatsServer::start() else { return };
    let quick = ["--sub-block-ms", "20", "--image-keep-s", "1"];
    let leader = ingester(&server.url(), &[&quick[..], &["--image-every", "5"]].concat());
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
    let next = ingester(&server.url(), &[&quick[..], &["--image-every", "1000000"]].concat());
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
    let leader = ingester(&server.url(), &["--sub-block-ms", "50"]);
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
