//! A fleet that an earlier program has led: its stream is followed, and one of another version is refused unchanged.

use async_nats::{HeaderMap, jetstream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{advance, ingester, reach, replica, server::NatsServer, try_start};
use crate::format::{Answers, answers, recorded, says_the_same};

/// The folder of what the leader has left on its NATS server.
const FOLDER: &str = "stream-5";

/// A line of the recorded file: a stream, or a message of the stream before it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Stream { stream: Box<jetstream::stream::Config> },
    Message { subject: String, headers: std::collections::BTreeMap<String, String>, data: String },
}

/// Puts the recorded streams and buckets on a server.
async fn put(server: &NatsServer) {
    let jetstream = jetstream::new(server.connect().await);
    for line in String::from_utf8(recorded(&format!("{FOLDER}/stream.jsonl.br"))).expect("text").lines() {
        match serde_json::from_str(line).expect("a line of the file") {
            Line::Stream { stream } => drop(jetstream.create_stream(*stream).await.expect("it is created")),
            Line::Message { subject, headers, data } => {
                let mut all = HeaderMap::new();
                headers.iter().for_each(|(name, value)| all.insert(name.as_str(), value.as_str()));
                let data = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, data).expect("base64");
                let published = jetstream.publish_with_headers(subject, all, data.into()).await;
                published.expect("it is sent").await.expect("it is stored");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_version_5_is_followed_and_says_the_same_and_its_chain_continues() {
    let Some(server) = NatsServer::start() else { return };
    put(&server).await;
    let node = replica(&server.url(), &[]);
    let answers: Answers = answers(FOLDER);
    let pinned = answers.iter().filter(|(_, params, _)| params.to_string().contains("snapshotId"));
    assert!(pinned.count() > 5, "the ids are those of the leader");
    says_the_same(&node, &answers, "followed").await;
    // The next leader goes on from the stream.
    let next = ingester(&server.url(), &["--sub-block-ms", "50"]);
    reach(&node, advance(&next, 4).await).await;
    says_the_same(&node, &answers, "continued").await;
    for (method, params, result) in answers.iter().filter(|(method, ..)| method == "eth_getTransactionReceipt") {
        assert_eq!(next.result("/", method, params.clone()).await, *result, "{params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_another_version_is_refused_with_what_to_do_and_left_as_it_is() {
    let Some(server) = NatsServer::start() else { return };
    put(&server).await;
    let facts = jetstream::new(server.connect().await).get_key_value("presim_test").await.expect("a bucket");
    let mut chain: Value = serde_json::from_slice(&facts.get("chain").await.unwrap().expect("a chain")).unwrap();
    chain["version"] = json!(4);
    facts.put("chain", chain.to_string().into()).await.expect("it is written");
    let before = server.stream("test").await.get_info().await.expect("it answers").state;
    for flags in [["--follow", &server.url(), "--traffic", "0"], ["--publish", &server.url(), "--fleet", "test"]] {
        let error = format!("{:#}", try_start(&flags).err().expect("it is refused"));
        let expected =
            "the fleet test is of version 4, and this presim has version 5: run one version of presim in the fleet";
        assert!(error.contains(expected), "{error}");
    }
    let after = server.stream("test").await.get_info().await.expect("it answers").state;
    assert_eq!((before.messages, before.last_sequence), (after.messages, after.last_sequence));
    let left: Value = serde_json::from_slice(&facts.get("chain").await.unwrap().expect("a chain")).unwrap();
    assert_eq!(left, chain);
}
