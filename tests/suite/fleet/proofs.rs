//! Replicas that check the state of an upstream by its proofs, whoever gives it to them.

use std::sync::{Arc, Mutex};

use alloy_primitives::{Address, B256, U256};
use async_nats::Client;
use futures::StreamExt;
use serde_json::{Value, json};

use super::{
    live::{head, ingester, replica},
    server::NatsServer,
};
use crate::{
    live::{
        built::{Built, CHASES, ETHEREUM, TOKEN, trail_slot, transfer},
        stage::serve,
    },
    support::TestNode,
    upstream::SmallUpstream,
};

/// The contract whose slots are read.
const CONTRACT: Address = CHASES[2].0;
const CHECKED: [&str; 1] = ["--verify-proofs"];

/// Has an upstream prove the states of these blocks.
fn prove(upstream: &SmallUpstream, blocks: &[&Built]) {
    let blocks: Vec<Built> = blocks.iter().map(|block| (*block).clone()).collect();
    upstream.script(move |method, params| {
        if method != "eth_getProof" {
            return None;
        }
        let hash = params[2]["blockHash"].clone();
        let block = blocks.iter().find(|block| json!(block.hash()) == hash)?;
        let address = serde_json::from_value(params[0].clone()).ok()?;
        let slots: Vec<U256> = serde_json::from_value(params[1].clone()).ok()?;
        Some(Ok(block.proof(address, &slots)))
    });
}

/// An upstream with two blocks, which proves their states.
async fn proving_upstream() -> (SmallUpstream, Built, Built) {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let block = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    prove(&upstream, &[&first, &block]);
    (upstream, first, block)
}

/// Reads the first slot of a trail.
async fn read(node: &TestNode, trail: u64) -> Value {
    node.call("/", "eth_getStorageAt", json!([CONTRACT, U256::from(trail_slot(trail)), "latest"])).await
}

/// Returns the value of that slot: it names the next one.
fn stored(trail: u64) -> Value {
    json!(B256::from(U256::from(trail_slot(trail) + 1)))
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_are_fetched_once_for_the_fleet() {
    for leads in [&[][..], &CHECKED] {
        let Some(server) = NatsServer::start() else { return };
        let (upstream, first, block) = proving_upstream().await;
        let leader = ingester(&server, &upstream.url(), &first.config, leads).await;
        let replicas = [(); 3].map(|()| replica(&server, &CHECKED));
        upstream.push(block.block.clone());
        for node in [&leader].into_iter().chain(&replicas) {
            head(node, block.hash()).await;
        }
        let asked = || upstream.asked("eth_getProof") + upstream.asked("eth_getCode");
        let follow = |trail: u64| json!([{ "to": CONTRACT, "data": B256::from(U256::from(trail_slot(trail))), "gas": "0x30d40" }, "latest"]);
        let expected = leader.result("/", "eth_estimateGas", follow(1)).await;
        let (by_leader, plain) = (asked(), upstream.asked("eth_getStorageAt"));
        for (count, node) in replicas.iter().enumerate() {
            let before = asked();
            assert_eq!(node.result("/", "eth_estimateGas", follow(1)).await, expected);
            let more = asked() - before;
            assert_eq!(more > 0, count == 0 && leads.is_empty(), "{more} for replica {count}, led with {leads:?}");
        }
        assert_eq!(upstream.asked("eth_getStorageAt"), plain, "replicas want nothing without proofs");
        assert_eq!((by_leader > 0, plain > 0), (true, leads.is_empty()), "how the leader asks for itself");
        // All want the same at once.
        let before = asked();
        read(&replicas[0], 2).await;
        let one = asked() - before;
        let before = asked();
        let answers = futures::future::join_all(replicas.iter().map(|node| read(node, 3))).await;
        assert!(answers.iter().all(|answer| answer["result"] == stored(3)), "{answers:?}");
        assert_eq!((asked() - before, one), (1, 1), "however many want it");
    }
}

/// A function from the bytes of a question, or of its true answer, to those that a liar sends on.
type Lie = Box<dyn Fn(Relayed, Vec<u8>) -> Vec<u8> + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Relayed {
    Question,
    Answer,
}

/// Answers all questions for state in the leader's place, with what a lie makes of its answers.
struct Liar {
    lie: Arc<Mutex<Lie>>,
}

impl Liar {
    /// Lines of a server's configuration by which questions go to the liar, and the liar's to the leader.
    const MAPPINGS: &str = r#"mappings: { "presim.test.state": "hidden.state", "true.state": "presim.test.state" }"#;

    async fn start(client: Client) -> Self {
        let lie: Arc<Mutex<Lie>> = Arc::new(Mutex::new(Box::new(|_, bytes| bytes)));
        let mut questions = client.subscribe("hidden.state").await.expect("a subscription");
        let told = lie.clone();
        tokio::spawn(async move {
            while let Some(message) = questions.next().await {
                let lie = |of, bytes| (told.lock().expect("no lie panics"))(of, bytes);
                let version = message.payload[0];
                let packed = |bytes: Vec<u8>| [&[version, 0], bytes.as_slice()].concat();
                let question = lie(Relayed::Question, unpacked(&message.payload));
                let answer = client.request("true.state", packed(question).into()).await.expect("the leader answers");
                let answer = lie(Relayed::Answer, unpacked(&answer.payload));
                let reply = message.reply.expect("questions want an answer");
                client.publish(reply, packed(answer).into()).await.expect("it is sent");
            }
        });
        Self { lie }
    }

    fn tell(&self, lie: impl Fn(Relayed, Vec<u8>) -> Vec<u8> + Send + 'static) {
        *self.lie.lock().expect("no lie panics") = Box::new(lie);
    }
}

/// Returns the message in a frame, which may be compressed.
fn unpacked(frame: &[u8]) -> Vec<u8> {
    match frame[1] {
        0 => frame[2..].to_vec(),
        _ => zstd::bulk::decompress(&frame[10..], 1 << 24).expect("it is compressed"),
    }
}

/// Returns a lie that changes the last byte of the first `pattern` in an answer.
fn changing(pattern: Vec<u8>) -> impl Fn(Relayed, Vec<u8>) -> Vec<u8> {
    move |told, mut bytes| {
        let at = bytes.windows(pattern.len()).position(|part| part == pattern);
        if let (Relayed::Answer, Some(at)) = (told, at) {
            bytes[at + pattern.len() - 1] ^= 1;
        }
        bytes
    }
}

/// Returns the bytes of a slot and its value, as they stand side by side in an answer.
fn slot_and_value(trail: u64) -> Vec<u8> {
    let slot = U256::from(trail_slot(trail));
    [alloy_rlp::encode(slot), alloy_rlp::encode(slot + U256::from(1))].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lie_about_state_is_rejected_by_a_replica_that_checks_proofs() {
    let Some(server) = NatsServer::start_with(&[Liar::MAPPINGS]) else { return };
    let (upstream, first, block) = proving_upstream().await;
    let leader = ingester(&server, &upstream.url(), &first.config, &[]).await;
    let trusting = replica(&server, &[]);
    let checking = replica(&server, &CHECKED);
    let own = replica(&server, &["--verify-proofs", "--upstream", &upstream.url()]);
    upstream.push(block.block.clone());
    for node in [&leader, &trusting, &checking, &own] {
        head(node, block.hash()).await;
    }
    let liar = Liar::start(server.connect().await).await;
    for node in [&trusting, &checking, &own] {
        assert_eq!(read(node, 1).await["result"], stored(1), "the truth");
    }
    // A value: whoever does not check it believes it.
    liar.tell(changing(slot_and_value(2)));
    let believed = read(&trusting, 2).await["result"].clone();
    assert!(believed != stored(2) && believed.is_string(), "{believed}");
    let refused = |answer: Value, parts: &[&str]| {
        let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{parts:?}: {answer}")).to_owned();
        assert_eq!(answer["error"]["code"], -32603);
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
    };
    let slot = format!("slot {:#x} of {CONTRACT}", trail_slot(2));
    refused(read(&checking, 2).await, &["the leader's state of block 1", &slot, "does not check"]);
    assert_eq!(read(&own, 2).await["result"], stored(2), "its own upstream is asked");
    // An account, its code, and the header that the proofs lead to.
    let holder = presim::source::devnet::world::dev_signers().expect("keys")[3].address();
    let about = async |node: &TestNode, method: &str, address: Address| {
        node.call("/", method, json!([address, "latest"])).await
    };
    let balance = block.balance(holder);
    liar.tell(changing(alloy_rlp::encode(balance)));
    let account = format!("account {holder}");
    refused(about(&checking, "eth_getBalance", holder).await, &[&account, "does not check"]);
    assert_eq!(about(&own, "eth_getBalance", holder).await["result"], json!(balance));
    let code = leader.result("/", "eth_getCode", json!([TOKEN, "latest"])).await;
    liar.tell(changing(alloy_primitives::hex::decode(code.as_str().expect("code")).expect("hex")));
    refused(about(&checking, "eth_getCode", TOKEN).await, &[&format!("account {TOKEN}"), "the code's hash"]);
    assert_eq!(about(&own, "eth_getCode", TOKEN).await["result"], code);
    liar.tell(changing(block.header().state_root.to_vec()));
    refused(read(&checking, 4).await, &["expected the header of block"]);
    // No proofs at all: the question says at its end that it wants them.
    liar.tell(|told, mut bytes| {
        if told == Relayed::Question {
            let last = bytes.last_mut().expect("a question has bytes");
            assert_eq!(std::mem::replace(last, 0x80), 1);
        }
        bytes
    });
    refused(read(&checking, 5).await, &["returns less than was asked for"]);
    // A bit anywhere: nothing else than the truth is ever answered, and each of them is answered when the lies end.
    let mut rejected = 0;
    for trail in 10..110 {
        liar.tell(move |told, mut bytes| {
            if told == Relayed::Answer {
                let at = bytes.len() * (trail as usize - 10) / 100;
                bytes[at] ^= 1 << (trail % 8);
            }
            bytes
        });
        let answer = read(&checking, trail).await;
        match answer.get("result") {
            Some(result) => assert_eq!(*result, stored(trail)),
            None => rejected += 1,
        }
    }
    assert!(rejected > 80, "{rejected} of 100");
    liar.tell(|_, bytes| bytes);
    for trail in 2..110 {
        assert_eq!(read(&checking, trail).await["result"], stored(trail));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_are_not_for_a_fleet_whose_state_is_whole() {
    let Some(server) = NatsServer::start() else { return };
    let _leader = super::ingester(&server.url(), &[]);
    let refused = super::try_start(&["--follow", &server.url(), "--verify-proofs"]).err().expect("it is refused");
    assert!(format!("{refused:#}").contains("--verify-proofs: the fleet has a chain of its own"), "{refused:#}");
}
