//! A fleet that an earlier program has led, whose stream is of another version.

use async_nats::{HeaderMap, jetstream};
use serde::Deserialize;
use serde_json::Value;

use super::{QUICK, server::NatsServer, try_start, with_flags};
use crate::{format::recorded, upstream::StreamedDevnet};

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
async fn a_stream_of_another_version_is_refused_with_what_to_do_and_left_as_it_is() {
    let Some(server) = NatsServer::start() else { return };
    put(&server).await;
    let facts = jetstream::new(server.connect().await).get_key_value("presim_test").await.expect("a bucket");
    let chain: Value = serde_json::from_slice(&facts.get("chain").await.unwrap().expect("a chain")).unwrap();
    let before = server.stream("test").await.get_info().await.expect("it answers").state;
    let (url, upstream) = (server.url(), StreamedDevnet::start(&QUICK).await);
    for refused in [try_start(&["--follow", &url]), with_flags(&upstream, "test", &url, &[], try_start)] {
        let error = format!("{:#}", refused.err().expect("it is refused"));
        let [named, cure] = ["the fleet test is of version 5, and", "run one version of presim in the fleet"];
        assert!(error.contains(named) && error.contains(cure), "{error}");
    }
    let after = server.stream("test").await.get_info().await.expect("it answers").state;
    assert_eq!((before.messages, before.last_sequence), (after.messages, after.last_sequence));
    let left: Value = serde_json::from_slice(&facts.get("chain").await.unwrap().expect("a chain")).unwrap();
    assert_eq!(left, chain);
}
