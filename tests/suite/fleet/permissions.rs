//! Each role of a fleet works with the permissions that `src/fleet/README.md` lists for it, and with no others.

use async_nats::{ConnectOptions, HeaderMap};
use futures::{FutureExt, StreamExt};
use serde_json::json;

use super::{QUICK, advance, agree, agree_on, ingester, reach, server::NatsServer, start};
use crate::{support::request, upstream::StreamedDevnet};

/// Returns the part of the page on feeds that lists the permissions, for the fleet `test`.
pub fn listed() -> String {
    let page = include_str!("../../../src/fleet/README.md");
    let (_, after) = page.split_once("```hocon\n").expect("the page has a configuration");
    after.split_once("```").expect("it ends").0.replace("<fleet>", "test")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_works_with_the_permissions_of_the_page_alone() {
    let listed = listed();
    let Some(server) = NatsServer::start_with(&[&listed]) else { return };
    let as_user = |name: &str| format!("nats://{name}:secret-of-{name}@127.0.0.1:{}", server.port);
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &as_user("ingester"), &[]);
    // Far from the image, to whose state nothing is answered.
    let id = advance(&leader, 60).await;
    let follower = start(&["--follow", &as_user("replica"), "--fleet", "test"]);
    assert!(follower.node.snapshots().newest().id >= id, "it has come to the end of the stream");
    let id = advance(&leader, 3).await;
    reach(&follower, id).await;
    super::until("it is ready", async || {
        reqwest::get(follower.url("/ready")).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    agree_on(&[&leader, &follower], id, "/").await;
    // The leader answers for its upstream, and state that the replica does not have.
    let block = follower.result("/", "eth_getBlockByNumber", json!(["0x1", true])).await;
    assert_eq!(block["number"], "0x1");
    let raw = follower.error("/", "eth_sendRawTransaction", json!(["0x02"])).await;
    assert!(raw["message"].as_str().is_some_and(|text| text.contains("malformed transaction")), "{raw}");
    let connect = async |name: &str| {
        let options = ConnectOptions::with_user_and_password(name.to_owned(), format!("secret-of-{name}"));
        let inbox = if name == "client" { "_INBOX_client" } else { "_INBOX" };
        let options = options.custom_inbox_prefix(inbox);
        options.connect(format!("127.0.0.1:{}", server.port)).await.expect("it connects")
    };
    let client = connect("client").await;
    let body = request(1, "eth_chainId", json!([])).to_string();
    let asked = client.request_with_headers("presim.test.rpc", HeaderMap::new(), body.clone().into()).await;
    let answer: serde_json::Value = serde_json::from_slice(&asked.expect("a replica answers").payload).expect("JSON");
    assert_eq!(answer["result"], "0x7a69");
    // Neither a client nor a replica can write to the stream, nor a client ask the leader past its replica.
    let before = advance(&leader, 1).await;
    for (user, subject) in [
        ("client", "presim.test.feed"),
        ("replica", "presim.test.feed"),
        ("client", "presim.test.leader"),
        ("client", "presim.test.state"),
    ] {
        let other = connect(user).await;
        let asked = async_nats::Request::new().payload(body.clone().into());
        let asked = asked.timeout(Some(std::time::Duration::from_millis(300)));
        assert!(other.send_request(subject, asked).await.is_err(), "{user} may publish to {subject}");
    }
    // A client does not hear the answers to others.
    let mut heard = client.subscribe("_INBOX.>").await.expect("it is sent");
    agree(&[&leader, &follower], &[("presim_divergences", json!([]))], "/").await;
    client.flush().await.expect("the server answers");
    assert!(heard.next().now_or_never().is_none_or(|heard| heard.is_none()), "a client hears the answers to others");
    reach(&follower, advance(&leader, 3).await).await;
    assert_eq!(before.epoch(), leader.node.snapshots().newest().id.epoch(), "nobody else has written to the stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_in_no_error() {
    for wrong in ["natss://a:wrong-one@127.0.0.1", "nats://a:wrong-one@127.0.0.1:99999", "nats://a:wrong-one@"] {
        let error = format!("{:#}", super::try_start(&["--follow", wrong]).err().expect("it is refused"));
        assert!(!error.contains("wrong-one") && error.contains("--follow") && error.contains("expected"), "{error}");
    }
    let Some(server) = NatsServer::start_with(&["authorization { user: a, password: right-one }"]) else { return };
    let url = format!("nats://a:wrong-one@127.0.0.1:{}", server.port);
    let error = format!("{:#}", super::try_start(&["--follow", &url]).err().expect("it is refused"));
    assert!(!error.contains("wrong-one") && error.contains("127.0.0.1"), "{error}");
    let right = format!("nats://a:right-one@127.0.0.1:{}", server.port);
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &right, &[]);
    advance(&leader, 1).await;
    let seed = crate::process::file("no seed of an nkey");
    let seed = seed.path().to_str().expect("UTF-8");
    let flags = ["--follow", &format!("nats://127.0.0.1:{}", server.port), "--nats-nkey-file", seed];
    let error = format!("{:#}", super::try_start(&flags).err().expect("it is refused"));
    assert!(error.contains(&format!("--nats-nkey-file {seed}")) && !error.contains("no seed"), "{error}");
}
