//! A node whose upstream has not answered yet.

use std::net::TcpListener;

use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::built::Built;
use crate::{
    process::{Presim, eventually, refusing_port, text},
    signals::Starting,
    support::TestNode,
    upstream::{Fault, FlashblocksServer, SmallUpstream, UpstreamChain},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_upstream_does_not_answer_says_so_and_stops_at_once() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (silent, (_held, nobody)) = (silent.local_addr().unwrap().to_string(), refusing_port());
    for (scheme, address, problem, name) in [
        ("http", &silent, "", "TERM"),
        ("http", &silent, "no answer within", "INT"),
        ("http", &nobody, "eth_chainId", "TERM"),
        ("ws", &nobody, "Connection refused", "TERM"),
    ] {
        let presim = Starting::spawn(&["--upstream", &format!("{scheme}://{address}")]);
        presim.waits_for("the node is starting: it waits for the upstream's first answer").await;
        presim.waits_for(problem).await;
        let (status, answer) = presim.ask("/", "eth_blockNumber").await;
        assert_eq!((status, &answer["error"]["code"]), (503, &json!(-32000)), "{answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains("waits for the upstream's first answer") && text.contains(problem), "{answer}");
        presim.signal(name);
        presim.ends_in_order();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_the_upstream_answers_requests_are_served_on_the_same_port() {
    // The chain id is Base's, which presim knows.
    let upstream = SmallUpstream::start(8453, UpstreamChain::new(vec![Built::op_stack().block])).await;
    upstream.fail(Fault::Silence, usize::MAX);
    let presim = Starting::spawn(&["--upstream", &upstream.url(), "--upstream-timeout-ms", "100"]);
    presim.waits_for("upstream's first answer").await;
    upstream.well();
    // The port is never closed meanwhile.
    eventually("it serves", async || {
        let (status, health) = presim.health().await.expect("it answers");
        assert!(health["status"] == "starting" || status == 200, "{health}");
        (status == 200).then_some(())
    })
    .await;
    let (status, answer) = presim.ask("/", "eth_chainId").await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x2105")), "{answer}");
    presim.signal("TERM");
    presim.ends_in_order();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_not_there_yet_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("presim.ipc");
    let presim = Starting::spawn(&["--upstream", text(&path)]);
    presim.waits_for("No such file").await;
    let _served = TestNode::start(&[&format!("--ipc={}", path.display())]);
    eventually("it serves", async || (presim.health().await?.0 == 200).then_some(())).await;
    let (status, answer) = presim.ask("/", "eth_chainId").await;
    assert_eq!((status, &answer["result"]), (200, &json!("0x7a69")), "{answer}");
    presim.signal("TERM");
    presim.ends_in_order();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_the_stream_that_cannot_be_read_are_one_warning_a_minute_with_their_number() {
    const MESSAGES: usize = 200;
    let upstream = SmallUpstream::start(8453, UpstreamChain::new(vec![Built::op_stack().block])).await;
    let server = FlashblocksServer::start().await;
    let flags = ["--upstream", &upstream.url(), "--flashblocks", &server.url(), "--metrics", "127.0.0.1:0"];
    let mut presim = Presim::start(&flags);
    server.connected(1).await;
    for _ in 0..MESSAGES {
        server.send_message(Message::text("{\"hello\":"));
    }
    let counted = format!("presim_flashblocks_total{{outcome=\"unreadable\"}} {MESSAGES}");
    eventually("all are read", async || presim.scrape().await.contains(&counted).then_some(())).await;
    presim.signal("TERM");
    let (_, log) = presim.ended().await;
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("not Flashblocks")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("count=1"), "{log}");
}
