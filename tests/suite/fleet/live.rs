//! An upstream's chain that is published: replicas answer as the node that follows the upstream, under the same ids.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use alloy_primitives::{Address, B256, U256};
use async_nats::jetstream;
use presim::testing::ledger::{FeedState, Selector, SnapshotId, frames, join};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{agree, reach, server::NatsServer, start, until};
use crate::{
    live::{
        built::{Built, CHASES, ETHEREUM, OP_CHAIN, SOMEBODY, STORE, TOKEN, base_time, sent_by, store, transfer},
        stage::{EVERY, LiveStage, chases, launch, serve},
        with_usual,
    },
    support::{Socket, TestNode, hex},
    upstream::SmallUpstream,
};

/// The flags with which a node publishes as the fleet `test`.
pub fn publishing(url: &str) -> [&str; 4] {
    ["--publish", url, "--fleet", "test"]
}

/// Starts a node that follows an upstream and publishes its chain as the fleet `test`.
pub async fn ingester(server: &NatsServer, upstream: &str, config: &Value, flags: &[&str]) -> TestNode {
    let url = server.url();
    let all = [&publishing(&url), flags].concat();
    let started = launch(upstream, Some(config), &with_usual(&all)).await;
    started.unwrap_or_else(|error| panic!("the node did not start: {error:#}"))
}

/// Starts a node that follows the fleet `test`.
pub fn replica(server: &NatsServer, flags: &[&str]) -> TestNode {
    start(&[&["--follow", &server.url(), "--fleet", "test"], flags].concat())
}

/// Waits until a node's newest canonical block is this one.
pub async fn head(node: &TestNode, hash: B256) {
    until("the head", async || node.node.snapshots().load().head().hash() == hash).await;
}

/// Returns a call that reads six slots, of which each names the next. No block reads those of the last trails.
pub fn follow(trail: u64) -> Value {
    json!({ "to": CHASES[2].0, "data": B256::from(U256::from((trail + 1) << 8)) })
}

/// Reads that say all of a snapshot, of state that blocks have changed and of state that only the upstream has.
pub fn live_reads(node: &TestNode, id: SnapshotId) -> Vec<(&'static str, Value)> {
    let at = json!({ "snapshotId": hex(id.0) });
    let (stored, trail) = (json!({ "to": STORE, "data": B256::repeat_byte(9) }), follow(1_000));
    let simulated = json!({ "blockStateCalls": [{ "calls": [stored, trail, { "to": SOMEBODY, "value": "0x0" }] }] });
    let newest = node.node.snapshots().load().select(Selector::Snapshot(id)).expect("it is retained");
    let sealed = json!(newest.head.hash());
    vec![
        ("eth_getBlockByNumber", json!([at, true])),
        ("eth_getBlockReceipts", json!([at])),
        ("eth_getLogs", json!([{ "fromBlock": at, "toBlock": at }])),
        ("eth_getBalance", json!([SOMEBODY, at])),
        ("eth_getTransactionCount", json!(["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", at])),
        ("eth_getCode", json!([TOKEN, at])),
        ("eth_getStorageAt", json!([STORE, "0x0", at])),
        ("eth_call", json!([stored, at])),
        ("eth_call", json!([trail, at])),
        ("eth_simulateV1", json!([simulated, at])),
        ("eth_getBlockByHash", json!([sealed, true])),
        ("eth_getBlockReceipts", json!([sealed])),
    ]
}

/// Checks that all nodes answer the same at the newest snapshot of the first. Returns the snapshot's id.
pub async fn same(nodes: &[&TestNode]) -> SnapshotId {
    let id = nodes[0].node.snapshots().newest().id;
    for node in &nodes[1..] {
        reach(node, id).await;
    }
    for path in ["/", "/standard"] {
        agree(nodes, &live_reads(nodes[0], id), path).await;
    }
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_answer_as_the_node_that_follows_the_upstream() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let replicas = [(); 2].map(|()| replica(&server, &[]));
    let nodes: Vec<_> = [&leader].into_iter().chain(&replicas).collect();
    let mut at = first;
    for nonce in 0..5 {
        at = at.next(vec![transfer(ETHEREUM, 2 * nonce, 5), store(ETHEREUM, 2 * nonce + 1, nonce + 3)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        same(&nodes).await;
    }
    for node in &nodes {
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, json!(at.balance(SOMEBODY)));
        // The first block was there before anything was published.
        let oldest = node.result("/", "eth_getBlockByNumber", json!(["0x0", false])).await;
        assert_eq!(oldest["number"], "0x0", "{oldest}");
    }
    upstream.change(|chain| (chain.safe, chain.finalized) = (Some(4), Some(3)));
    for node in &nodes {
        until("the tags", async || node.node.snapshots().load().finalized() == Some(3)).await;
    }
}

/// The node that follows the upstream fetches state of the past, and a replica that has none refuses at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_an_upstream_has_no_state_of_the_past() {
    const KEPT: [&str; 4] = ["--keep-blocks", "2", "--flashblocks-ahead", "1"];
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &KEPT).await;
    let replica = replica(&server, &KEPT);
    let mut at = first;
    for nonce in 0..5 {
        at = at.next(vec![transfer(ETHEREUM, nonce, 5)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        same(&[&leader, &replica]).await;
    }
    for (method, params) in [
        ("eth_getBalance", json!([SOMEBODY, "0x1"])),
        ("eth_call", json!([{"to": SOMEBODY}, "0x1"])),
        ("eth_simulateV1", json!([{"blockStateCalls": [{}]}, "0x1"])),
    ] {
        let error = replica.error("/", method, params.clone()).await;
        assert_eq!(error["code"], 4444, "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains("this node has no upstream"), "{method}: {error}");
        leader.result("/", method, params).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_for_state_is_unpacked_and_decoded_within_the_bounds_of_questions() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    same(&[&leader, &replica(&server, &[])]).await;
    let client = server.connect().await;
    // Some KB each, which become 64 MiB, and 8 bytes in memory for each byte of the list.
    for (hashes, problem) in [(64 << 20, "bytes: expected at most 262144"), (100_000, "too many items")] {
        let fields = [
            alloy_rlp::encode(0_u64),
            alloy_rlp::encode(first.hash()),
            vec![alloy_rlp::EMPTY_LIST_CODE; 2],
            alloy_rlp::encode(vec![0_u64; hashes]),
        ];
        let mut question = Vec::new();
        let payload_length = fields.iter().map(Vec::len).sum();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut question);
        question.extend(fields.concat());
        let question = frames(&question, NonZeroUsize::MAX).swap_remove(0).bytes;
        assert!(question.len() < 1 << 14, "{}", question.len());
        let reply = client.request("presim.test.state", question.0).await.expect("the leader answers");
        let reply = join(&[reply.payload.into()], 1 << 20).expect("it is an answer");
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.contains(problem), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_whose_receipts_come_late_reach_the_subscribers_of_replicas() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::op_stack();
    let upstream = serve(&[&first]).await;
    let withheld = Arc::new(AtomicBool::new(true));
    let (is_withheld, own) = (withheld.clone(), json!(first.hash()));
    upstream.lie(move |method, params, result| match method {
        "eth_getBlockReceipts" if params[0] != own && is_withheld.load(SeqCst) => Value::Null,
        _ => result,
    });
    let native = Address::repeat_byte(0xb2);
    let leader = ingester(&server, &upstream.url(), &first.config, &["--native", &native.to_string()]).await;
    let replica = replica(&server, &[]);
    let mut socket = Socket::open(&replica, "/").await;
    let logs = socket.subscribe(json!(["logs", { "address": STORE }])).await;
    let calls_native = sent_by(0, OP_CHAIN, 1, native, 0, Default::default());
    let one = first.next(vec![store(OP_CHAIN, 0, 7), calls_native], 1);
    let two = one.next(vec![store(OP_CHAIN, 2, 8)], 1);
    for block in [&one, &two] {
        upstream.push(block.block.clone());
        for node in [&leader, &replica] {
            head(node, block.hash()).await;
        }
    }
    for node in [&leader, &replica] {
        assert_eq!(node.node.snapshots().load().late_blocks().count(), 1);
    }
    withheld.store(false, SeqCst);
    for word in [7, 8] {
        let log = socket.notification(&logs).await;
        assert_eq!(log["topics"][0], json!(B256::from(U256::from(word))), "{log}");
    }
    assert_eq!(replica.node.snapshots().load().late_blocks().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sub_block_reaches_replicas_and_becomes_canonical_there() {
    let Some(server) = NatsServer::start() else { return };
    let url = server.url();
    let flags = [&publishing(&url)[..], &["--keep-snapshots", "1000"]].concat();
    let stage = LiveStage::new(Built::op_stack(), SmallUpstream::url, &with_usual(&flags)).await;
    let early = replica(&server, &["--keep-snapshots", "1000"]);
    let split = [2, 1, 1];
    let blocks = chases(&stage.first, CHASES[0].0, split.len(), 4);
    stage.play(&blocks[..2], &split, EVERY).await;
    // The block being built, and the one before it, are in this one's image.
    let late = replica(&server, &["--keep-snapshots", "1000"]);
    let nodes = [&stage.node, &early, &late];
    assert!(stage.node.node.snapshots().newest().open.is_some());
    same(&nodes).await;
    stage.upstream.push(blocks[1].block.clone());
    head(&stage.node, blocks[1].hash()).await;
    same(&nodes).await;
    stage.play(&blocks[2..], &split, EVERY).await;
    same(&nodes).await;
    stage.upstream.push(blocks[3].block.clone());
    head(&stage.node, blocks[3].hash()).await;
    let last = same(&nodes).await;
    // Everything that is still retained is the same, too.
    let published = late.node.snapshots().load();
    let ids: Vec<SnapshotId> = published.snapshots_after(SnapshotId::default()).map(|snapshot| snapshot.id).collect();
    assert!(ids.contains(&last) && ids.len() > 1, "{ids:?}");
    for id in ids {
        agree(&nodes, &live_reads(&late, id), "/").await;
    }
    for node in [&early, &late] {
        let feed = node.node.snapshots().load().feed();
        assert!(matches!(feed, FeedState::Live { every_ms: 200 }), "{feed:?}");
        let hash = blocks[3].tx_hash(1);
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!(receipt, stage.node.result("/", "eth_getTransactionReceipt", json!([hash])).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_each_200_ms_reaches_replicas() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::denim();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.ws_url(), &first.config, &[]).await;
    let replicas = [(); 2].map(|()| replica(&server, &[]));
    let nodes: Vec<_> = [&leader].into_iter().chain(&replicas).collect();
    let mut clock = tokio::time::interval(Duration::from_millis(200));
    let mut newest = first;
    for at in 0..12_u64 {
        let number = newest.number() + 1;
        let transactions =
            vec![base_time(number, (at + 1) % 5 * 200), store(OP_CHAIN, 2 * at, at), transfer(OP_CHAIN, 2 * at + 1, 1)];
        newest = newest.next_after(u64::from(at % 5 == 4), transactions, 1);
        clock.tick().await;
        upstream.push(newest.block.clone());
        for node in &nodes {
            head(node, newest.hash()).await;
        }
        let blocks = nodes[1].result("/", "eth_getBlockByNumber", json!(["pending", true])).await;
        assert_eq!(blocks["hash"], json!(newest.hash()));
        assert_eq!(blocks, leader.result("/", "eth_getBlockByNumber", json!(["pending", true])).await);
    }
    same(&nodes).await;
    for node in &nodes {
        let feed = node.node.snapshots().load().feed();
        assert!(matches!(feed, FeedState::Live { every_ms: 200 }), "{feed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_the_upstream_is_fetched_once_for_the_fleet() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let replicas = [(); 3].map(|()| replica(&server, &[]));
    let block = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    upstream.push(block.block.clone());
    for node in [&leader].into_iter().chain(&replicas) {
        head(node, block.hash()).await;
    }
    let asked =
        || upstream.asked("eth_getStorageAt") + upstream.asked("eth_getCode") + upstream.asked("eth_getBalance");
    // State that the leader has fetched for itself.
    let expected = leader.result("/", "eth_call", json!([follow(700), "latest"])).await;
    let before = asked();
    for node in &replicas {
        assert_eq!(node.result("/", "eth_call", json!([follow(700), "latest"])).await, expected);
    }
    assert_eq!(asked(), before, "the leader has it");
    // State that one replica asks for, and state that all ask for at once. The contract itself is known by now.
    replicas[0].result("/", "eth_call", json!([follow(701), "latest"])).await;
    let one = asked() - before;
    assert!(one > 0, "the upstream has it alone");
    let before = asked();
    let calls = replicas.iter().map(|node| node.result("/", "eth_call", json!([follow(702), "latest"])));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(asked() - before, one, "however many want it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_an_upstream_of_its_own_goes_on_without_an_ingester() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let own = replica(&server, &["--upstream", &upstream.url()]);
    let none = replica(&server, &["--deadline-ms", "1500"]);
    let at = json!({ "snapshotId": hex(same(&[&leader, &own, &none]).await.0) });
    drop(leader);
    let answer = own.result("/", "eth_call", json!([follow(800), at])).await;
    let error = none.error("/", "eth_call", json!([follow(800), at])).await;
    assert!([-32603, -32016].contains(&error["code"].as_i64().expect("a code")), "{error}");
    // Requests for cached state are answered throughout, and the others as soon as a node leads again.
    none.result("/", "eth_call", json!([follow(1_000), at])).await;
    let _leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    until("the state", async || none.call("/", "eth_call", json!([follow(800), "latest"])).await["result"] == answer)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_not_executed_and_writes_go_through_replicas() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &["--upstream-execute-ms", "0"]).await;
    let follower = replica(&server, &[]);
    let mut at = first;
    for nonce in 0..3 {
        at = at.next(vec![store(ETHEREUM, nonce, nonce + 3)], 1);
        upstream.push(at.block.clone());
        head(&leader, at.hash()).await;
        let id = leader.node.snapshots().newest().id;
        reach(&follower, id).await;
        // The upstream gives no receipts of these blocks, so only their headers are known.
        let reads = live_reads(&leader, id)
            .into_iter()
            .filter(|(method, _)| !method.contains("Block") && !method.contains("Logs"));
        agree(&[&leader, &follower], &reads.collect::<Vec<_>>(), "/").await;
    }
    let raw = json!(["0x02"]);
    assert_eq!(
        follower.result("/", "eth_sendRawTransaction", raw.clone()).await,
        leader.result("/", "eth_sendRawTransaction", raw).await
    );
    assert_eq!(upstream.sent().len(), 2, "the upstream has both");
}

/// Has the leader write an image of what is published now, which becomes the fleet's newest.
async fn imaged(server: &NatsServer, leader: &TestNode) {
    let client = server.connect().await;
    let facts = jetstream::new(client.clone()).get_key_value("presim_test").await.expect("facts");
    let last = leader.node.snapshots().load().last.0;
    until("the image", async || {
        client.publish("presim.test.want-image", "".into()).await.expect("it is sent");
        let key = facts.get("image").await.expect("an answer");
        key.is_some_and(|key| serde_json::from_slice::<Value>(&key).expect("JSON")["id"].as_u64() >= Some(last))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_has_the_headers_and_hashes_of_kept_blocks_from_its_image() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let kept = ["--keep-blocks", "6", "--flashblocks-ahead", "1"];
    let leader = ingester(&server, &upstream.url(), &first.config, &kept).await;
    let mut at = first;
    let mut push = async |leader: &TestNode| {
        at = at.next(vec![transfer(ETHEREUM, at.number(), 5)], 1);
        upstream.push(at.block.clone());
        head(leader, at.hash()).await;
    };
    for _ in 0..9 {
        push(&leader).await;
    }
    imaged(&server, &leader).await;
    let late = replica(&server, &kept);
    let few = replica(&server, &["--keep-blocks", "3"]);
    let own = replica(&server, &[&kept[..], &["--upstream", &upstream.url()]].concat());
    let numbers = |node: &TestNode| {
        let published = node.node.snapshots().load();
        published.blocks(0, u64::MAX).map(|block| (block.number(), block.hash())).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&late).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9]);
    assert_eq!((numbers(&late), numbers(&few).len()), (numbers(&leader), 3));
    // BLOCKHASH of the blocks before the newest, by a contract that a request brings.
    let hash_before = |back: u8| {
        let code = format!("0x60{back:02x}4303405f5260205ff3");
        json!([{ "to": SOMEBODY }, "latest", { SOMEBODY.to_string(): { "code": code } }])
    };
    let headers = |node: &TestNode| {
        let of = |(number, hash): (u64, B256)| {
            [("eth_getHeaderByNumber", json!([hex(number)])), ("eth_getHeaderByHash", json!([hash]))]
        };
        let hashes = (1..8).map(|back| ("eth_call", hash_before(back)));
        numbers(node).into_iter().flat_map(of).chain(hashes).collect::<Vec<_>>()
    };
    let bodies = |number: u64| json!([hex(number), true]);
    let whole = leader.result("/", "eth_getBlockByNumber", bodies(5)).await;
    for node in [&late, &few, &own] {
        assert_eq!(node.result("/", "eth_getBlockByNumber", bodies(5)).await, whole, "the leader has the body");
    }
    for _ in 0..3 {
        push(&leader).await;
        let newest = leader.node.snapshots().newest().id;
        for node in [&late, &few, &own] {
            reach(node, newest).await;
            agree(&[&leader, node], &headers(node), "/").await;
        }
        assert_eq!(numbers(&late), numbers(&leader), "as many are pruned");
    }
    let expected: Vec<Value> = futures::future::join_all(
        headers(&late).into_iter().map(|(method, params)| leader.result("/", method, params)),
    )
    .await;
    drop(leader);
    // Without a leader it still knows them, and says of the others that they are not here.
    for ((method, params), expected) in headers(&late).into_iter().zip(expected) {
        assert_eq!(late.result("/", method, params.clone()).await, expected, "{method} {params}");
    }
    for number in [8, 2] {
        let error = late.error("/", "eth_getBlockByNumber", bodies(number)).await;
        assert_eq!(error["code"], -32000, "{number}: {error}");
        let block = own.result("/", "eth_getBlockByNumber", bodies(number)).await;
        assert_eq!(block["number"], hex(number), "its own upstream is asked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_another_version_is_refused_with_both_versions() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    imaged(&server, &leader).await;
    drop(leader);
    let jetstream = jetstream::new(server.connect().await);
    let facts = jetstream.get_key_value("presim_test").await.expect("facts");
    let key = facts.get("image").await.expect("an answer").expect("an image");
    let mut key: Value = serde_json::from_slice(&key).expect("JSON");
    let images = jetstream.get_object_store("presim_test_images").await.expect("images");
    let mut bytes = Vec::new();
    let name = key["name"].as_str().expect("a name");
    images.get(name).await.expect("an image").read_to_end(&mut bytes).await.expect("it is read");
    let own = std::mem::replace(&mut bytes[0], 2);
    images.put("older", &mut bytes.as_slice()).await.expect("it is written");
    key["name"] = "older".into();
    facts.put("image", key.to_string().into()).await.expect("it is written");
    let refused = super::try_start(&["--follow", &server.url(), "--fleet", "test"]).err().expect("it is refused");
    let text = format!("{refused:#}");
    assert!(own > 2 && text.contains(&format!("it is of version 2, and this presim reads version {own}")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_read_costs_an_image_and_no_more() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let follower = replica(&server, &[]);
    same(&[&leader, &follower]).await;
    let mut headers = async_nats::HeaderMap::new();
    let next = follower.node.snapshots().load().last.next();
    headers.insert("presim-id", format!("{:#x}", next.0));
    headers.insert("presim-part", "0/1");
    let stream = jetstream::new(server.connect().await);
    let put = stream.publish_with_headers("presim.test.feed", headers, vec![7, 7, 7].into()).await;
    put.expect("it is sent").await.expect("it is stored");
    let block = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    upstream.push(block.block.clone());
    head(&follower, block.hash()).await;
    same(&[&leader, &follower]).await;
    assert_eq!(follower.metric("presim_divergences_total"), 0.0, "nothing differs");
}
