//! A transport with faults: copies the messages of one fleet into the stream of another, as a test says.

use async_nats::{
    HeaderMap,
    jetstream::{self, Context, object_store, stream},
};
use bytes::Bytes;
use tokio::io::AsyncReadExt;

use super::server::NatsServer;

/// A message of a stream.
#[derive(Clone)]
pub struct Copied {
    pub headers: HeaderMap,
    pub payload: Bytes,
}

/// The fleet that messages are copied to.
pub struct Relay {
    jetstream: Context,
    from: stream::Stream,
    to: &'static str,
    /// The sequence of the next message to be copied.
    next: u64,
}

impl Relay {
    /// Creates the fleet `to` with the chain and the newest image of the fleet `test`. Its stream is empty.
    pub async fn begin(server: &NatsServer, to: &'static str) -> Self {
        let jetstream = jetstream::new(server.connect().await);
        let facts = jetstream.get_key_value("presim_test").await.expect("facts");
        let config = stream::Config {
            name: format!("KV_presim_{to}"),
            subjects: vec![format!("$KV.presim_{to}.>")],
            max_messages_per_subject: 1,
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.expect("a bucket");
        let copies = jetstream.get_key_value(format!("presim_{to}")).await.expect("a bucket");
        let chain = facts.get("chain").await.expect("an answer").expect("a chain");
        let image = facts.get("image").await.expect("an answer").expect("an image");
        let mut key: serde_json::Value = serde_json::from_slice(&image).expect("JSON");
        let name = key["name"].as_str().expect("a name").to_owned();
        let next = key["sequence"].as_u64().expect("a sequence") + 1;
        key["sequence"] = 0.into();
        let mut bytes = Vec::new();
        let images = jetstream.get_object_store("presim_test_images").await.expect("images");
        images.get(&name).await.expect("an image").read_to_end(&mut bytes).await.expect("it is read");
        let config = object_store::Config { bucket: format!("presim_{to}_images"), ..object_store::Config::default() };
        let copied = jetstream.create_object_store(config).await.expect("a bucket");
        copied.put(name.as_str(), &mut bytes.as_slice()).await.expect("it is written");
        let config = stream::Config {
            name: format!("presim_{to}"),
            subjects: vec![format!("presim.{to}.feed")],
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.expect("a stream");
        copies.put("chain", chain).await.expect("it is written");
        copies.put("image", key.to_string().into()).await.expect("it is written");
        let from = jetstream.get_stream("presim_test").await.expect("the fleet's stream");
        Self { jetstream, from, to, next }
    }

    /// Copies the newest image of the fleet `test`, as the image of all that the stream has.
    pub async fn put_image(&self) {
        let [facts, copies] = [String::from("presim_test"), format!("presim_{}", self.to)];
        let facts = self.jetstream.get_key_value(facts).await.expect("facts");
        let image = facts.get("image").await.expect("an answer").expect("an image");
        let mut key: serde_json::Value = serde_json::from_slice(&image).expect("JSON");
        let name = key["name"].as_str().expect("a name").to_owned();
        let mut bytes = Vec::new();
        let images = self.jetstream.get_object_store("presim_test_images").await.expect("images");
        images.get(&name).await.expect("an image").read_to_end(&mut bytes).await.expect("it is read");
        let copied = self.jetstream.get_object_store(format!("presim_{}_images", self.to)).await.expect("a bucket");
        copied.put(name.as_str(), &mut bytes.as_slice()).await.expect("it is written");
        let stream = self.jetstream.get_stream(format!("presim_{}", self.to)).await.expect("a stream");
        key["sequence"] = stream.cached_info().state.last_sequence.into();
        let copies = self.jetstream.get_key_value(copies).await.expect("a bucket");
        copies.put("image", key.to_string().into()).await.expect("it is written");
    }

    /// Returns the next messages of the fleet `test`, which must be there.
    pub async fn take(&mut self, count: usize) -> Vec<Copied> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let message = self.from.get_raw_message(self.next).await.expect("the message is there");
            taken.push(Copied { headers: message.headers, payload: message.payload });
            self.next += 1;
        }
        taken
    }

    /// Puts messages into the stream.
    pub async fn put(&self, messages: &[Copied]) {
        for Copied { headers, payload } in messages {
            // The names and the expected sequences are those of the other stream.
            let mut kept = HeaderMap::new();
            for name in ["presim-id", "presim-part"] {
                kept.insert(name, headers.get(name).expect("presim's header").clone());
            }
            let subject = format!("presim.{}.feed", self.to);
            let put = self.jetstream.publish_with_headers(subject, kept, payload.clone()).await;
            put.expect("it is sent").await.expect("it is stored");
        }
    }
}

/// Returns the id of a message.
pub fn id(message: &Copied) -> u64 {
    let text = message.headers.get("presim-id").expect("an id").as_str();
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an id")
}
