//! Replicas answer as the node that publishes, under the same ids.

use std::time::Instant;

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, TxKind, U256, hex};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use presim::testing::{
    ledger::{FeedProblem, FeedState, Selector, SnapshotId},
    telemetry::PUBLISH_SECONDS,
};
use serde_json::{Value, json};

use super::{
    QUICK, advance, agree_on, ingester,
    proxy::CutProxy,
    reach, reads,
    relay::{Relay, id},
    replica,
    server::NatsServer,
    start, try_agree, until,
};
use crate::{
    support::{TestNode, number, request, say},
    upstream::StreamedDevnet,
};

/// Reads that each replica answers in the suite. `PRESIM_FLEET_READS` asks for more.
fn reads_wanted() -> usize {
    std::env::var("PRESIM_FLEET_READS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_pinned_to_an_id_are_equal_to_the_byte_on_three_replicas() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "100", "--sub-blocks", "5"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 3).await;
    let replicas = [(); 3].map(|()| replica(&server.url(), &[]));
    let nodes: Vec<_> = [&leader].into_iter().chain(&replicas).collect();
    let (begun, mut asked) = (Instant::now(), 0);
    while asked < 3 * reads_wanted() {
        let id = advance(&leader, 1).await;
        for replica in &replicas {
            reach(replica, id).await;
        }
        for path in ["/", "/standard"] {
            asked += agree_on(&nodes, id, path).await;
        }
    }
    say(&format!("{asked} reads were equal in {:?}", begun.elapsed()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_larger_than_the_server_takes_comes_in_parts() {
    let Some(server) = NatsServer::start_with(&["max_payload: 8192"]) else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "100", "--traffic", "120"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let follower = replica(&server.url(), &[]);
    let id = advance(&leader, 5).await;
    reach(&follower, id).await;
    agree_on(&[&leader, &follower], id, "/").await;
    let state = server.stream("test").await.get_info().await.expect("it answers").state;
    let changes = leader.node.snapshots().load().last.0 & u64::from(u32::MAX);
    assert!(state.messages > changes + 1, "{} messages for {changes} changes", state.messages);
}

/// Returns a signed transfer of one wei from the first dev account.
fn transfer(node: &TestNode, nonce: u64, to: Address) -> String {
    let key: PrivateKeySigner =
        "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80".parse().expect("the test mnemonic's key");
    let tx = TxEip1559 {
        chain_id: node.node.info().chain_id,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(to),
        value: U256::ONE,
        ..TxEip1559::default()
    };
    let signature = key.sign_hash_sync(&tx.signature_hash()).expect("it signs");
    hex::encode_prefixed(TxEnvelope::from(tx.into_signed(signature)).encoded_2718())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_sent_to_a_replica_is_mined_by_the_upstream_and_seen_by_all() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "50", "--traffic", "0"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    let follower = replica(&server.url(), &[]);
    let to = Address::repeat_byte(0x77);
    let receipt = follower.result("/", "eth_sendRawTransactionSync", json!([transfer(&leader, 0, to), 20_000])).await;
    assert_eq!(receipt["status"], "0x1");
    // The leader, which has answered, may be ahead of it.
    until("the replica has the payment", async || {
        follower.result("/", "eth_getBalance", json!([to, "pending"])).await == "0x1"
    })
    .await;
    let again = follower.error("/", "eth_sendRawTransaction", json!([transfer(&leader, 0, to)])).await;
    assert!(again["message"].as_str().is_some_and(|text| text.contains("nonce too low")), "{again}");
    let hash = follower.result("/", "eth_sendRawTransaction", json!([transfer(&leader, 1, to)])).await;
    for node in [&leader, &follower] {
        until("the receipt", async || !node.result("/", "eth_getTransactionReceipt", json!([hash])).await.is_null())
            .await;
    }
}

/// Posts a request that asks for a snapshot at least. Returns the answer, and the id in its header.
async fn at_least(node: &TestNode, id: &str) -> (Value, Option<u64>) {
    let post = node.client.post(node.url("/")).header("x-presim-min-snapshot", id);
    let response = post.json(&request(7, "eth_blockNumber", json!([]))).send().await.expect("it answers");
    let header = response.headers().get("x-presim-snapshot").and_then(|value| value.to_str().ok());
    let told = header.and_then(|text| text.strip_prefix("id=")?.split_once(',')).map(|(id, _)| number(&json!(id)));
    (response.json().await.expect("JSON"), told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_seen_a_snapshot_never_goes_back() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    let follower = replica(&server.url(), &["--max-catch-up-ms", "5000"]);
    let mut seen = 0;
    for turn in 0..100 {
        let node = if turn % 2 == 0 { &leader } else { &follower };
        let (answer, told) = at_least(node, &format!("{seen:#x}")).await;
        assert!(answer["result"].is_string(), "{answer}");
        let told = told.expect("the header");
        assert!(told >= seen, "turn {turn}: {told:#x} after {seen:#x}");
        seen = told;
    }
    let quick = replica(&server.url(), &["--max-catch-up-ms", "1"]);
    let (answer, _) = at_least(&quick, &format!("{:#x}", seen + 1_000_000)).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32000)), "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("--max-catch-up-ms")), "{answer}");
    let (answer, _) = at_least(&quick, "nine").await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_cut_off_says_so_and_begins_anew_where_the_stream_was_purged() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let way = CutProxy::to(server.port).await;
    let follower = replica(&way.url(), &[]);
    reach(&follower, advance(&leader, 2).await).await;
    way.cut();
    let cut = follower.node.snapshots();
    until("the partition is shown", async || cut.load().feed() == FeedState::Degraded(FeedProblem::Partition)).await;
    let response = follower.client.get(follower.url("/health")).send().await.expect("it answers");
    assert_eq!(response.status(), 503);
    let last = cut.load().last;
    advance(&leader, 20).await;
    server.stream("test").await.purge().await.expect("it is purged");
    way.mend();
    let id = advance(&leader, 5).await;
    reach(&follower, id).await;
    assert!(last < id);
    agree_on(&[&leader, &follower], advance_both(&leader, &follower).await, "/").await;
    until("the feed is live", async || matches!(cut.load().feed(), FeedState::Live { .. })).await;
}

async fn advance_both(leader: &TestNode, follower: &TestNode) -> SnapshotId {
    let id = advance(leader, 1).await;
    reach(follower, id).await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_transport_drops_swaps_or_repeats_changes_no_state() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, &server.url(), &["--keep-snapshots", "1000"]);
    advance(&leader, 2).await;
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    until("an image", async || facts.get("image").await.expect("an answer").is_some()).await;
    for (fleet, fault) in [("dropped", 0), ("swapped", 1), ("repeated", 2), ("usurped", 3)] {
        let mut relay = Relay::begin(&server, fleet).await;
        // The fleet has no leader, so its replica needs an upstream for the state.
        let upstream = format!("ws://{}", chain.devnet.at());
        let follower = start(&["--follow", &server.url(), "--fleet", fleet, "--upstream", &upstream]);
        let mut wanted =
            server.connect().await.subscribe(format!("presim.{fleet}.want-image")).await.expect("it listens");
        advance(&leader, 30).await;
        let mut sound = relay.take(10).await;
        relay.put(&sound).await;
        let last = SnapshotId(id(sound.last().expect("a message")));
        reach(&follower, last).await;
        let mut rest = relay.take(10).await;
        match fault {
            0 => drop(rest.remove(3)),
            1 => rest.swap(3, 4),
            2 => {
                // All that was there comes once more, and in between.
                let copies = rest.clone();
                rest.splice(5..5, copies[..5].to_vec());
                rest.append(&mut sound);
            }
            _ => {
                // A node that leads without `epoch`: the ids of an epoch that nothing has begun.
                for message in &mut rest[3..] {
                    let stolen = format!("{:#x}", id(message) + (1 << 32));
                    message.headers.insert("presim-id", stolen.as_str());
                }
            }
        }
        relay.put(&rest).await;
        if fault == 2 {
            reach(&follower, SnapshotId(id(&rest[14]))).await;
        } else {
            // The replica asks for an image, because it goes over no gap.
            use futures::StreamExt;
            let asked = tokio::time::timeout(crate::support::BOUND, wanted.next()).await;
            assert!(asked.is_ok(), "{fleet}: it went on over the fault");
            assert_eq!(follower.node.snapshots().load().last.0, id(&rest[2]), "{fleet}");
        }
        // The newest that both retain: the leader may have gone back meanwhile.
        let (theirs, own) = (leader.node.snapshots().load(), follower.node.snapshots().load());
        let is_kept = |id: &SnapshotId| theirs.select(Selector::Snapshot(*id)).is_ok();
        let kept = own.snapshots_after(SnapshotId::default()).map(|snapshot| snapshot.id).filter(is_kept).max();
        let reads = reads(&follower, kept.expect("a snapshot that both retain")).expect("it is retained");
        let agrees = try_agree(&[&leader, &follower], &reads[..9], "/").await;
        assert!(agrees.is_some_and(|asked| asked == 9), "{fleet}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_with_another_root_of_receipts_is_counted_and_not_shown() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--sub-block-ms", "50", "--sub-blocks", "3"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    advance(&leader, 2).await;
    let jetstream = async_nats::jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    until("an image", async || facts.get("image").await.expect("an answer").is_some()).await;
    let mut relay = Relay::begin(&server, "forged").await;
    let follower = start(&["--follow", &server.url(), "--fleet", "forged"]);
    advance(&leader, 30).await;
    let mut messages = relay.take(20).await;
    let published = leader.node.snapshots().load();
    let roots: Vec<_> = (1..=published.head().number())
        .filter_map(|number| Some(published.sealed_block(number)?.header.receipts_root))
        // Headers of blocks that are being built have the root of no receipts.
        .filter(|root| *root != alloy_consensus::EMPTY_ROOT_HASH)
        .collect();
    let sealing = messages.iter().enumerate().skip(1).find_map(|(at, message)| {
        // After the byte of the version.
        let bytes = zstd::decode_all(&message.payload[1..]).expect("it is compressed");
        let place = bytes.windows(32).position(|window| roots.iter().any(|root| root == window))?;
        Some((at, bytes, place))
    });
    let (at, mut bytes, place) = sealing.expect("a block is sealed in between");
    bytes[place] ^= 1;
    let forged = zstd::bulk::compress(&bytes, 1).expect("it is compressed");
    messages[at].payload = [&messages[at].payload[..1], forged.as_slice()].concat().into();
    relay.put(&messages).await;
    until("it is counted", async || follower.metric("presim_divergences_total") >= 1.0).await;
    let last = follower.node.snapshots().load().last.0;
    assert_eq!(last, id(&messages[at - 1]), "nothing of the forged block is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_counts_the_time_from_a_message_to_its_snapshot_and_not_the_time_between_messages() {
    let Some(server) = NatsServer::start() else { return };
    let chain = StreamedDevnet::start(&["--traffic", "0", "--sub-block-ms", "2000"]).await;
    let leader = ingester(&chain, &server.url(), &[]);
    let follower = replica(&server.url(), &[]);
    reach(&follower, advance(&leader, 4).await).await;
    let [sum, count] = ["sum", "count"].map(|part| follower.metric(&format!("{PUBLISH_SECONDS}_{part}")));
    assert!(count >= 3.0 && sum / count < 1.0, "{sum} s for {count} snapshots, of which one comes every 2 s");
}
