//! The rules of the feed as a table: events, and their visible effects.

use std::time::Duration;

use alloy_eips::Decodable2718;
use alloy_primitives::{B256, U256};
use op_alloy::{consensus::OpTxEnvelope, rpc_types_engine::OpFlashblockPayload};
use presim::testing::ledger::FeedProblem::{self, *};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{
    built::{Built, OP_CHAIN, SOMEBODY, store, transfer},
    feed, head, health, refused, serve, start, until,
};
use crate::{
    support::{BOUND, Socket, TestNode, hex, number},
    upstream::{FlashblocksServer, SmallUpstream},
};

/// An event.
enum Do {
    /// A sub-block arrives.
    Send(OpFlashblockPayload),
    /// A sub-block arrives, compressed.
    Brotli(OpFlashblockPayload),
    /// A sub-block arrives as this JSON.
    Json(Value),
    /// A message arrives that is not a sub-block.
    Garbage,
    /// The connection is lost, and the node reconnects.
    Reconnect,
    /// The upstream has a new block, which extends or replaces its head.
    Block(Box<Built>),
    /// The upstream delays its answers by this many milliseconds.
    Slow(u64),
    /// No event.
    Nothing,
}

/// The expected effect of an event. State that a step leaves unchanged stays visible in the next steps.
enum Then {
    /// The feed is live, and `pending` is this block at this sub-block index.
    Pending(u64, u32),
    /// The feed is live, and nothing is pre-confirmed.
    Canonical,
    /// The feed newly has this problem, and `pending` is the canonical head.
    Fell(FeedProblem),
    /// The problem is unchanged.
    Still(FeedProblem),
    /// Nothing is checked.
    Whatever,
}

use self::{Do::*, Then::*};

struct Case {
    name: &'static str,
    flags: &'static [&'static str],
    steps: Vec<(Do, Then)>,
}

/// The blocks of the table: the head, its parent and sibling, the `a` blocks on the head, and their siblings.
struct Blocks {
    before: Built,
    head: Built,
    a1: Built,
    a2: Built,
    a3: Built,
    b1: Built,
    b2: Built,
    other_head: Built,
    other_1: Built,
    /// A sibling of `a2`.
    c2: Built,
}

impl Blocks {
    fn new() -> Self {
        let before = Built::op_stack();
        let head = before.next(vec![], 1);
        let four = |nonce: u64, value: u64| {
            vec![
                transfer(OP_CHAIN, nonce, value),
                store(OP_CHAIN, nonce + 1, value),
                transfer(OP_CHAIN, nonce + 2, value),
                store(OP_CHAIN, nonce + 3, value + 1),
            ]
        };
        let a1 = head.next(four(0, 100), 1);
        let a2 = a1.next(four(4, 200), 1);
        let a3 = a2.next(four(8, 300), 1);
        let b1 = head.next(four(0, 900), 2);
        let b2 = b1.next(four(4, 800), 2);
        let c2 = a1.next(four(4, 250), 2);
        let other_head = before.next(vec![transfer(OP_CHAIN, 0, 7)], 3);
        let other_1 = other_head.next(four(1, 70), 3);
        Self { before, head, a1, a2, a3, b1, b2, other_head, other_1, c2 }
    }
}

/// A block in five sub-blocks of 1, 1, 2, 0 and 1 transactions.
const SPLIT: [usize; 5] = [1, 1, 2, 0, 1];

fn cases(blocks: &Blocks) -> Vec<Case> {
    let cut = |built: &Built| built.flashblocks(&SPLIT);
    let (a1, a2, a3, b1, b2, o1) =
        (cut(&blocks.a1), cut(&blocks.a2), cut(&blocks.a3), cut(&blocks.b1), cut(&blocks.b2), cut(&blocks.other_1));
    let send = |payloads: &[OpFlashblockPayload], index: usize| Send(payloads[index].clone());
    let block = |built: &Built| Block(built.clone().into());
    let whole = |payloads: &[OpFlashblockPayload], number: u64| {
        (0..5).map(|index| (send(payloads, index), Pending(number, index as u32))).collect::<Vec<_>>()
    };
    let (n1, n2, n3) = (blocks.a1.number(), blocks.a2.number(), blocks.a3.number());
    let case = |name, steps| Case { name, flags: &[], steps };
    let changed = |payload: &OpFlashblockPayload, change: &dyn Fn(&mut OpFlashblockPayload)| {
        let mut payload = payload.clone();
        change(&mut payload);
        Send(payload)
    };
    let with = |payload: &OpFlashblockPayload, field: &str, value: Value| {
        let mut json = serde_json::to_value(payload).unwrap();
        json["metadata"][field] = value;
        Json(json)
    };
    let lied_receipt = |gas: u64| {
        let own = &blocks.a1.receipts()[1];
        let logs: Vec<Value> = Vec::new();
        let bloom = alloy_primitives::Bloom::ZERO;
        let receipt =
            json!({"Eip1559": {"status": "0x1", "cumulativeGasUsed": hex(gas), "logs": logs, "logsBloom": bloom}});
        assert!(alloy_consensus::TxReceipt::logs(own).is_empty());
        json!({ blocks.a1.tx_hash(1).to_string(): receipt })
    };
    let gas = alloy_consensus::TxReceipt::cumulative_gas_used(&blocks.a1.receipts()[1]);
    let wrong_nonce = || {
        let mut payload = a1[1].clone();
        payload.diff.transactions = vec![a1[2].diff.transactions[0].clone()];
        payload
    };

    vec![
        case("blocks in order, each confirmed while the next is built", {
            let mut steps = whole(&a1, n1);
            steps.extend([
                (send(&a2, 0), Pending(n2, 0)),
                (send(&a2, 1), Pending(n2, 1)),
                (block(&blocks.a1), Pending(n2, 1)),
                (send(&a2, 2), Pending(n2, 2)),
                (send(&a2, 3), Pending(n2, 3)),
                (send(&a2, 4), Pending(n2, 4)),
                (block(&blocks.a2), Canonical),
                (send(&a3, 0), Pending(n3, 0)),
            ]);
            steps
        }),
        case("several blocks ahead of the canonical one", {
            let mut steps = whole(&a1, n1);
            steps.extend(whole(&a2, n2));
            steps.extend(whole(&a3, n3));
            steps.extend([
                (block(&blocks.a1), Pending(n3, 4)),
                (block(&blocks.a2), Pending(n3, 4)),
                (block(&blocks.a3), Canonical),
            ]);
            steps
        }),
        case(
            "text and brotli",
            vec![
                (Brotli(a1[0].clone()), Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (Brotli(a1[2].clone()), Pending(n1, 2)),
            ],
        ),
        case(
            "duplicates",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&a1, 0), Whatever),
                (send(&a1, 1), Pending(n1, 1)),
                (send(&a1, 0), Whatever),
                (send(&a1, 1), Whatever),
                (send(&a1, 2), Pending(n1, 2)),
            ],
        ),
        case(
            "a gap",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&a1, 2), Fell(Gap)),
                (send(&a1, 3), Still(Gap)),
                (send(&a1, 1), Still(Gap)),
                (block(&blocks.a1), Still(Gap)),
                (send(&a2, 0), Pending(n2, 0)),
            ],
        ),
        case(
            "a whole block is missing",
            vec![(send(&a1, 0), Pending(n1, 0)), (send(&a3, 0), Fell(Gap)), (send(&b1, 0), Pending(n1, 0))],
        ),
        case(
            "an index again with other content",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (changed(&a1[1], &|payload| payload.diff.gas_used += 1), Fell(OutOfOrder)),
                (send(&a1, 2), Still(OutOfOrder)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        case(
            "another builder in the middle of a block",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&b1, 1), Fell(OutOfOrder)),
                (send(&a1, 1), Still(OutOfOrder)),
                (send(&b1, 0), Pending(n1, 0)),
                (send(&b1, 1), Pending(n1, 1)),
            ],
        ),
        case(
            "another builder from index 0",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (send(&b1, 0), Pending(n1, 0)),
                (send(&a1, 2), Whatever),
                (send(&b1, 1), Pending(n1, 1)),
            ],
        ),
        case("another builder begins the block before the newest again", {
            let c2 = cut(&blocks.c2);
            let mut steps = whole(&a1, n1);
            steps.extend(whole(&a2, n2));
            steps.extend([(send(&a3, 0), Pending(n3, 0)), (send(&a3, 1), Pending(n3, 1))]);
            steps.extend(whole(&c2, n2));
            steps.extend([(block(&blocks.a1), Pending(n2, 4)), (block(&blocks.c2), Canonical)]);
            steps
        }),
        case(
            "the upstream takes another branch under it",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (block(&blocks.other_head), Fell(Reorg)),
                (send(&a1, 1), Still(Reorg)),
                (send(&o1, 0), Pending(n1, 0)),
                (send(&o1, 1), Pending(n1, 1)),
            ],
        ),
        case(
            "the connection is lost",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (Reconnect, Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (Reconnect, Pending(n1, 1)),
                (send(&a1, 3), Fell(Gap)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        case(
            "garbage",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (Garbage, Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (Garbage, Pending(n1, 1)),
                (send(&a1, 3), Fell(Gap)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        Case {
            name: "silence",
            flags: &["--flashblocks-silent-ms", "1000"],
            steps: vec![(send(&a1, 0), Whatever), (Nothing, Fell(Silent)), (send(&a1, 1), Still(Silent))],
        },
        Case {
            name: "later than it may be",
            flags: &["--max-lag-ms", "1000"],
            steps: vec![
                (Slow(4_000), Whatever),
                (send(&a1, 0), Fell(TooLate)),
                (send(&a1, 1), Still(TooLate)),
                (Slow(0), Whatever),
                (block(&blocks.a1), Still(TooLate)),
                (send(&a2, 0), Pending(n2, 0)),
            ],
        },
        case(
            "true receipts and balances",
            vec![
                (with(&a1[0], "new_account_balances", json!({})), Pending(n1, 0)),
                (with(&a1[1], "receipts", lied_receipt(gas)), Pending(n1, 1)),
                (with(&a1[2], "new_account_balances", json!({SOMEBODY.to_string(): "0xc8"})), Pending(n1, 2)),
            ],
        ),
        case(
            "a lie in a receipt",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (with(&a1[1], "receipts", lied_receipt(gas + 1)), Fell(Mismatch)),
                (send(&a1, 2), Still(Mismatch)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        case(
            "a lie in a balance",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (with(&a1[1], "new_account_balances", json!({SOMEBODY.to_string(): "0x65"})), Fell(Mismatch)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        case("other receipts at the block's end", {
            let mut steps = whole(&a1, n1);
            steps.pop();
            let lie = changed(&a1[4], &|payload| payload.diff.receipts_root = B256::repeat_byte(1));
            steps.extend([(lie, Fell(Mismatch)), (send(&a2, 0), Still(Mismatch)), (block(&blocks.a1), Pending(n2, 0))]);
            steps
        }),
        case("other gas at the block's end", {
            let mut steps = whole(&a1, n1);
            steps.pop();
            let lie = changed(&a1[4], &|payload| payload.diff.gas_used += 1);
            steps.extend([(lie, Fell(Mismatch)), (send(&b1, 0), Pending(n1, 0))]);
            steps
        }),
        case("another block becomes canonical", {
            let mut steps = whole(&a1, n1);
            steps.extend([
                (block(&blocks.b1), Fell(Mismatch)),
                (send(&a2, 0), Still(Mismatch)),
                (send(&b2, 0), Pending(n2, 0)),
                (send(&b2, 1), Pending(n2, 1)),
            ]);
            steps
        }),
        case(
            "it becomes canonical before all of it came",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (send(&a1, 1), Pending(n1, 1)),
                (block(&blocks.a1), Canonical),
                (send(&a1, 2), Whatever),
                (send(&a2, 0), Pending(n2, 0)),
            ],
        ),
        case(
            "the node joins in the middle of a block",
            vec![
                (send(&a1, 2), Still(Connecting)),
                (send(&a2, 0), Still(Connecting)),
                (send(&a2, 1), Still(Connecting)),
                (block(&blocks.a1), Pending(n2, 1)),
                (send(&a2, 2), Pending(n2, 2)),
            ],
        ),
        case(
            "a parent that nobody knows",
            vec![(send(&a1, 0), Pending(n1, 0)), (send(&b2, 0), Fell(UnknownParent)), (send(&b1, 0), Pending(n1, 0))],
        ),
        case(
            "a transaction that cannot be in the block",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (Send(wrong_nonce()), Fell(Execution)),
                (send(&a1, 1), Still(Execution)),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        case(
            "bytes that are no transaction",
            vec![
                (send(&a1, 0), Pending(n1, 0)),
                (
                    changed(&a1[1], &|payload| payload.diff.transactions = vec!["0x02c0".parse().unwrap()]),
                    Fell(Execution),
                ),
                (send(&b1, 0), Pending(n1, 0)),
            ],
        ),
        Case {
            name: "too far ahead of the upstream",
            flags: &["--flashblocks-ahead", "1"],
            steps: {
                let mut steps = whole(&a1, n1);
                steps.extend([
                    (send(&a2, 0), Fell(Upstream)),
                    (send(&a2, 1), Still(Upstream)),
                    (block(&blocks.a1), Pending(n2, 1)),
                    (send(&a2, 2), Pending(n2, 2)),
                ]);
                steps
            },
        },
    ]
}

/// A node, and the servers that it follows.
struct Stage {
    name: &'static str,
    upstream: SmallUpstream,
    server: FlashblocksServer,
    node: TestNode,
    /// The number of connections that the node has opened to the server.
    connections: usize,
}

impl Stage {
    async fn new(blocks: &Blocks, name: &'static str, flags: &[&str]) -> Self {
        let upstream = serve(&[&blocks.before, &blocks.head]).await;
        let server = FlashblocksServer::start().await;
        let url = server.url();
        let node =
            start(&upstream.url(), &blocks.head.config, &[&["--flashblocks", url.as_str()], flags].concat()).await;
        server.connected(1).await;
        Self { name, upstream, server, node, connections: 1 }
    }

    async fn act(&mut self, what: Do) {
        match what {
            Send(payload) => self.server.send(&payload),
            Brotli(payload) => self.server.send_brotli(&payload),
            Json(json) => self.server.send_json(&json),
            Garbage => self.server.send_message(Message::text("{\"hello\":")),
            Reconnect => {
                self.server.drop_connections();
                self.connections += 1;
                self.server.connected(self.connections).await;
            }
            Block(built) => {
                self.upstream.push(built.block.clone());
                head(&self.node, built.hash()).await;
            }
            Slow(delay) => self.upstream.delay(Duration::from_millis(delay)),
            Nothing => {}
        }
    }

    /// Checks everything that shows the state of the feed.
    async fn see(&self, step: usize, then: &Then, fallbacks: &mut f64) {
        let (node, at) = (&self.node, format!("{}, step {step}", self.name));
        let at = at.as_str();
        let problem = match then {
            Whatever => return,
            Pending(number, index) => {
                until(node, at, |published| {
                    let newest = &published.newest;
                    let is_open = newest.open.is_some() && !published.feed().is_degraded();
                    is_open && (newest.header().number, newest.index()) == (*number, *index)
                })
                .await;
                None
            }
            Canonical => {
                until(node, at, |published| !published.feed().is_degraded() && published.newest.open.is_none()).await;
                None
            }
            Fell(problem) | Still(problem) => {
                until(node, at, |published| {
                    published.feed().problem() == Some(*problem) && published.newest.open.is_none()
                })
                .await;
                Some(*problem)
            }
        };
        let calls =
            [("eth_getBlockByNumber", json!(["pending", false])), ("eth_getBlockByNumber", json!(["latest", false]))];
        let [pending, latest] = node.batch("/", &calls).await.try_into().expect("two");
        match then {
            Pending(block, _) => assert_eq!(number(&pending["number"]), *block, "{at}"),
            _ => assert_eq!(pending["hash"], latest["hash"], "{at}"),
        }
        let published = node.node.snapshots().load();
        let (status, document, freshness) = health(node).await;
        let newest = &published.newest;
        // A step that takes long on a busy machine is late, and so is a stream that was cut.
        let state = document["feed"].as_str().expect("a state");
        assert_eq!(state == "degraded", problem.is_some(), "{at}: {document}");
        assert!(freshness.contains(&format!(", feed={state}")), "{at}: {freshness}");
        let place = format!("id={:#x}, block={}, index={},", newest.id.0, newest.header().number, newest.index());
        assert!(freshness.starts_with(&place), "{at}: {freshness}: expected {place}");
        match problem {
            Some(problem) => {
                assert_eq!((status, &document["cause"]), (503, &json!(problem.as_str())), "{at}: {document}");
                let reason = document["reason"].as_str().expect("a reason");
                assert!(reason.contains(problem.meaning()), "{at}: {reason}");
            }
            // A delay of the test itself is not a stalled feed.
            None => assert!(status == 200 || number_of(&document["ageMs"]) > 1_000, "{at}: {document}"),
        }
        let shown = |state: &str| node.metric(&format!("presim_feed_state{{state=\"{state}\"}}"));
        assert_eq!(shown("live") + shown("lagging"), f64::from(problem.is_none()), "{at}");
        for one in FeedProblem::ALL.iter().copied().filter(|one| *one != FeedProblem::Lagging) {
            assert_eq!(shown(one.as_str()), f64::from(problem == Some(one)), "{at}: {one:?}");
        }
        if matches!(then, Fell(_)) {
            *fallbacks += 1.0;
        }
        assert_eq!(fallen(node), *fallbacks, "{at}: fallbacks");
    }
}

fn number_of(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Returns the number of all fallbacks so far.
fn fallen(node: &TestNode) -> f64 {
    let of =
        |problem: FeedProblem| node.metric(&format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str()));
    FeedProblem::ALL.iter().copied().map(of).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_over_the_stream_is_followed_by_the_rules() {
    let blocks = Blocks::new();
    for case in cases(&blocks) {
        let mut stage = Stage::new(&blocks, case.name, case.flags).await;
        let mut fallbacks = fallen(&stage.node);
        for (step, (what, then)) in case.steps.into_iter().enumerate() {
            stage.act(what).await;
            stage.see(step, &then, &mut fallbacks).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_is_of_the_sub_blocks_and_latest_of_the_upstream() {
    let blocks = Blocks::new();
    let mut stage = Stage::new(&blocks, "state", &[]).await;
    let payloads = blocks.a1.flashblocks(&SPLIT);
    let expected = [(0, 0), (100, 0), (200, 100), (200, 100), (200, 101)];
    for (index, (payload, (balance, word))) in payloads.iter().zip(expected).enumerate() {
        stage.act(Send(payload.clone())).await;
        stage.see(index, &Pending(blocks.a1.number(), index as u32), &mut 0.0).await;
        let at = |block: &str| {
            [
                ("eth_getBalance", json!([SOMEBODY, block])),
                ("eth_getStorageAt", json!([super::built::STORE, "0x0", block])),
            ]
        };
        let pending = stage.node.batch("/", &at("pending")).await;
        assert_eq!(pending, [hex(balance), json!(B256::from(U256::from(word)))], "index {index}");
        let latest = stage.node.batch("/", &at("latest")).await;
        assert_eq!(latest, [hex(0), json!(B256::ZERO)], "index {index}");
        let block = stage.node.block("pending").await;
        assert_eq!(number(&block["gasUsed"]), payload.diff.gas_used, "index {index}");
        assert_eq!(block["receiptsRoot"], json!(payload.diff.receipts_root), "index {index}");
        assert_eq!(block["logsBloom"], json!(payload.diff.logs_bloom), "index {index}");
        for raw in &payload.diff.transactions {
            let hash = OpTxEnvelope::decode_2718_exact(raw).unwrap().tx_hash();
            let receipt = stage.node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
            assert_eq!(number(&receipt["blockNumber"]), blocks.a1.number());
        }
    }
    stage.act(Block(blocks.a1.clone().into())).await;
    stage.see(9, &Canonical, &mut 0.0).await;
    assert_eq!(stage.node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
    assert_eq!(stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xc8");
    let latest = stage.node.block("latest").await;
    assert_eq!(latest["hash"], json!(blocks.a1.hash()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_node_refuses_a_broken_pending() {
    let blocks = Blocks::new();
    let mut stage = Stage::new(&blocks, "strict", &["--strict-pending"]).await;
    let params = json!([SOMEBODY, "pending"]);
    let told = refused(&stage.node, "eth_getBalance", params.clone(), -32000, BOUND).await;
    assert!(told.contains("connecting"), "{told}");
    let payloads = blocks.a1.flashblocks(&SPLIT);
    stage.act(Send(payloads[0].clone())).await;
    stage.see(0, &Pending(blocks.a1.number(), 0), &mut 0.0).await;
    assert_eq!(stage.node.result("/", "eth_getBalance", params.clone()).await, "0x0");
    stage.act(Send(payloads[2].clone())).await;
    feed(&stage.node, Some(Gap)).await;
    let told = refused(&stage.node, "eth_getBalance", params, -32000, BOUND).await;
    assert!(told.contains("gap") && told.contains("--strict-pending"), "{told}");
    assert_eq!(stage.node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lie_is_told_to_subscribers_of_the_feed_and_kept_as_a_divergence() {
    let blocks = Blocks::new();
    let mut stage = Stage::new(&blocks, "divergences", &[]).await;
    assert_eq!(stage.node.result("/", "presim_divergences", json!([])).await, json!([]));
    let mut socket = Socket::open(&stage.node, "/").await;
    let id = socket.subscribe(json!(["presim_feed"])).await;
    let first = socket.notification(&id).await;
    assert_eq!((&first["state"], &first["cause"]), (&json!("degraded"), &json!("connecting")));
    let payloads = blocks.a1.flashblocks(&SPLIT);
    stage.act(Send(payloads[0].clone())).await;
    stage.see(0, &Pending(blocks.a1.number(), 0), &mut 0.0).await;
    let mut lie = serde_json::to_value(&payloads[1]).unwrap();
    lie["metadata"]["new_account_balances"] = json!({SOMEBODY.to_string(): "0x65"});
    stage.act(Json(lie)).await;
    feed(&stage.node, Some(Mismatch)).await;
    let mut told = socket.notification(&id).await;
    let mut states = Vec::new();
    while told["cause"] != "mismatch" {
        states.push(told["state"].clone());
        told = socket.notification(&id).await;
    }
    assert!(states.contains(&json!("live")), "{states:?}");
    assert_eq!(told["state"], "degraded");
    let divergences = stage.node.result("/", "presim_divergences", json!([])).await;
    let one = &divergences[0];
    assert!(divergences[1].is_null() && one["time"].is_u64(), "{divergences}");
    let place = (number(&one["block"]), number(&one["index"]), &one["transaction"], &one["field"]);
    assert_eq!(place, (blocks.a1.number(), 1, &Value::Null, &json!("balance")), "{one}");
    assert_eq!(
        (&one["computed"], &one["announced"]),
        (&json!(format!("100 of {SOMEBODY}")), &json!(format!("101 of {SOMEBODY}")),)
    );
}
