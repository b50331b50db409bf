//! The total bytes of bodies, answers and notifications, and the share of one connection.

use std::time::Duration;

use presim::testing::source::devnet::world::dev_signers;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    process::eventually,
    raw::{Answer, Frames, Http2, Transport},
    stalls::{long_call, long_request, padded},
    support::{TestNode, request},
};

/// The bound in these tests: 32 MiB. One connection alone may have half of seven eighths of it, 14.7 MB.
const MEMORY: &str = "33554432";
const NOBODY: &str = "0x000000000000000000000000000000000000abcd";

fn node(flags: &[&str]) -> TestNode {
    let own =
        ["--max-memory-io", MEMORY, "--max-body", "30000000", "--gas-cap", "2000000000", "--deadline-ms", "120000"];
    TestNode::quiet_with(&[&own, flags].concat())
}

fn served(answer: &Answer, case: &str) {
    assert!((200..300).contains(&answer.status), "{case}: {}", answer.status);
    assert!(answer.json()["result"].is_string(), "{case}: {:.300}", answer.body);
}

fn refused(answer: &Answer, case: &str) {
    assert_eq!(answer.code(), -32005, "{case}: {:.300}", answer.body);
    assert!(answer.message().contains("--max-memory-io"), "{case}: {:.300}", answer.body);
}

async fn asked(node: &TestNode, transport: Transport, text: &str) -> Answer {
    transport.ask(node.at(), &[], text).await
}

/// Makes an answer of this many bytes wait in the node, because the client opens no window. Released on drop.
async fn held(node: &TestNode, bytes: usize) -> (Http2, http::Response<h2::RecvStream>) {
    let mut connection = Http2::open(node.at(), 0).await;
    let answer = connection.send(&[], &long_call(bytes).to_string()).await;
    assert_eq!(answer.status(), 200);
    let length =
        answer.headers().get("content-length").map(|length| length.to_str().unwrap().parse::<usize>().unwrap());
    assert!(length.is_none_or(|length| length >= bytes), "no answer of that length waits: {length:?}");
    (connection, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_alone_may_have_half() {
    let node = node(&[]);
    for transport in Transport::ALL {
        let case = format!("{transport:?}");
        served(&asked(&node, transport, &long_request(12_000_000)).await, &case);
        refused(&asked(&node, transport, &long_request(20_000_000)).await, &case);
        served(&asked(&node, transport, &long_call(12_000_000).to_string()).await, &case);
        refused(&asked(&node, transport, &long_call(20_000_000).to_string()).await, &case);
        served(&asked(&node, transport, &long_request(100)).await, &case);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_gives_its_bytes_back_before_its_answer_takes_any() {
    let node = node(&[]);
    for transport in Transport::ALL {
        // The body and the answer are each almost the limit of a connection.
        let text = padded(&long_call(12_000_000).to_string(), 12_000_000);
        served(&asked(&node, transport, &text).await, &format!("{transport:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_connection_has_leaves_others_their_share() {
    let node = node(&[]);
    let first = held(&node, 14_000_000).await;
    // 15.4 MB are left, of which a new connection may have half.
    for transport in Transport::ALL {
        let case = format!("{transport:?} beside one that has much");
        refused(&asked(&node, transport, &long_call(12_000_000).to_string()).await, &case);
        served(&asked(&node, transport, &long_call(6_000_000).to_string()).await, &case);
    }
    let second = held(&node, 7_000_000).await;
    let third = held(&node, 4_000_000).await;
    for transport in Transport::ALL {
        let case = format!("{transport:?} beside three that have much");
        refused(&asked(&node, transport, &long_call(6_000_000).to_string()).await, &case);
        served(&asked(&node, transport, &long_call(1_500_000).to_string()).await, &case);
    }
    // The memory of closed connections is released.
    drop((first, second, third));
    eventually("it is given back", async || {
        let answer = asked(&node, Transport::Http1, &long_call(12_000_000).to_string()).await;
        (answer.code() != -32005).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_waits_until_there_is_room_for_it() {
    for transport in Transport::ALL {
        let node = node(&[]);
        let first = held(&node, 14_000_000).await;
        let text = long_request(12_000_000);
        let asking = asked(&node, transport, &text);
        tokio::pin!(asking);
        let early = timeout(Duration::from_millis(400), &mut asking).await;
        assert!(early.is_err(), "{transport:?}: it did not wait: {early:?}");
        // Small bodies do not wait behind the large one.
        served(&asked(&node, Transport::Http1, &long_request(100)).await, "a small one");
        drop(first);
        served(&asking.await, &format!("{transport:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_waits_no_longer_than_the_time_out() {
    let node = node(&["--io-timeout-ms", "5000"]);
    // The slow client makes progress all the time.
    let mut slow = Http2::open(node.at(), 20_000).await;
    let mut answer = slow.send(&[], &long_call(12_000_000).to_string()).await.into_body();
    let slow = tokio::spawn(async move {
        while let Some(Ok(chunk)) = answer.data().await {
            answer.flow_control().release_capacity(chunk.len()).expect("it may go on");
            sleep(Duration::from_millis(50)).await;
        }
        drop(slow);
    });
    let answer = asked(&node, Transport::Http1, &long_request(12_000_000)).await;
    assert!(!slow.is_finished(), "the slow one was cut");
    slow.abort();
    refused(&answer, "a body that waits");
}

/// An answer to a request that has committed something is never rejected for lack of memory.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_what_has_committed_something_is_always_given() {
    let from = dev_signers().unwrap().swap_remove(0).address();
    let send = request(1, "eth_sendTransaction", json!([{"from": from, "to": NOBODY, "value": "0x1"}]));
    let calls = [json!({"to": NOBODY, "value": "0x1"})];
    let batch = json!({"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": false, "calls": calls});
    let batch = request(2, "wallet_sendCalls", json!([batch]));
    for transport in Transport::ALL {
        let node = node(&[]);
        let _first = held(&node, 14_000_000).await;
        let text = json!([send, batch, long_call(12_000_000)]).to_string();
        let answer = asked(&node, transport, &text).await.json();
        assert!(answer[0]["result"].is_string(), "{transport:?}: {:.300}", answer.to_string());
        assert!(answer[1]["result"]["id"].is_string(), "{transport:?}: {:.300}", answer.to_string());
    }
}

/// Returns a transaction that logs half a million zero bytes: PUSH3 its length, PUSH0, LOG0, STOP.
fn loud(from: impl serde::Serialize) -> Value {
    request(1, "eth_sendTransaction", json!([{"from": from, "to": null, "data": "0x6207a1205fa000"}]))
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_that_are_not_read_count_as_well() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "20", "--max-memory-io", "8388608"]);
    let mut socket = Frames::open(node.at(), &[]).await.expect("it is upgraded");
    let subscribed = socket.ask(&request(1, "eth_subscribe", json!(["logs", {}])).to_string()).await;
    served(&subscribed, "a subscription");
    let signers = dev_signers().unwrap();
    let mut sent = Vec::new();
    for index in 0..16 {
        let answer = node.send("/", &loud(signers[index % signers.len()].address())).await;
        assert!(answer["result"].is_string(), "{answer}");
        sent.push(answer["result"].clone());
    }
    for hash in &sent {
        node.mined(hash).await;
    }
    // Of the 16 MB of notifications, the client gets what fits into the system's buffers, and the reason for the close.
    let mut texts = Vec::new();
    while let Some(message) = socket.read().await {
        texts.push(message.body);
        assert!(texts.len() < 16, "all of them came");
    }
    let last = texts.last().expect("the reason at least");
    assert!(last.contains("-32005") && last.contains("--max-memory-io"), "{last:.300}");
    // The memory of the notifications is released.
    eventually("it is given back", async || {
        let answer = asked(&node, Transport::Http1, &long_request(3_500_000)).await;
        answer.json()["result"].is_string().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_of_a_filter_that_finds_no_room_loses_nothing() {
    let node = node(&["--max-connections", "1000"]);
    let filter = node.result("/", "eth_newPendingTransactionFilter", json!([])).await;
    let mut sent = Vec::new();
    for value in 0..20 {
        for from in node.node.info().accounts.iter().map(|account| account.address()) {
            let send = json!([{"from": from, "to": from, "value": format!("{value:#x}"), "gas": "0x5208"}]);
            sent.push(node.result("/", "eth_sendTransaction", send).await);
        }
    }
    // Each connection may hold half of what is left of seven eighths.
    let (mut left, mut holders) = (MEMORY.parse::<usize>().expect("a number") / 8 * 7, Vec::new());
    while left > 16_384 {
        let bytes = left / 2 - 2_048;
        holders.push(held(&node, bytes).await);
        left -= bytes;
    }
    let poll = request(1, "eth_getFilterChanges", json!([filter])).to_string();
    refused(&asked(&node, Transport::Http1, &poll).await, "a poll");
    drop(holders);
    // The memory is free once the node has seen that the connections are closed.
    let polled = eventually("there is room", async || {
        let polled = node.call("/", "eth_getFilterChanges", json!([filter])).await["result"].take();
        (!polled.is_null()).then_some(polled)
    });
    assert_eq!(polled.await, json!(sent));
}
