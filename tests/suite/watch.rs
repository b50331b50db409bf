//! Standing bundles: `presim_watch` and what belongs to it.

use std::{collections::BTreeMap, time::Duration};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::support::{Socket, TestNode, items, number, request};

const FROM: &str = "0x000000000000000000000000000000000000f00d";
const RUNNER: &str = "0x0000000000000000000000000000000000004e11";

/// Starts a devnet that moves on only when it is told to.
fn node() -> TestNode {
    node_with(&[])
}

fn node_with(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--traffic", "0", "--testing", "--sub-block-ms", "60000"], flags].concat())
}

/// Returns the account of the pool with this number.
fn account(number: u64) -> String {
    format!("0x{:040x}", 0xacc0_0000 + number)
}

/// The accounts that bundles read and changes touch.
const ACCOUNTS: u64 = 6;
/// The slots of each.
const SLOTS: u64 = 4;

/// Code that returns words, each from one piece.
fn code(pieces: &[Vec<u8>]) -> String {
    let mut code = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        code.extend(piece);
        // PUSH2 offset, MSTORE
        code.extend([0x61, (index >> 3) as u8, (index << 5) as u8, 0x52]);
    }
    // PUSH2 length, PUSH0, RETURN
    code.extend([0x61, (pieces.len() >> 3) as u8, (pieces.len() << 5) as u8, 0x5f, 0xf3]);
    alloy_primitives::hex::encode_prefixed(code)
}

fn push_address(number: u64) -> Vec<u8> {
    let mut out = vec![0x73];
    out.extend([0; 12]);
    out.extend((0xacc0_0000 + number).to_be_bytes());
    out
}

/// Returns code that leaves one word that follows from the state or the block.
fn piece(random: &mut SmallRng) -> Vec<u8> {
    let address = push_address(random.random_range(0..ACCOUNTS));
    let unary = |opcode: u8| [address.as_slice(), &[opcode]].concat();
    match random.random_range(0..16) {
        0 => unary(0x31),                           // BALANCE
        1 => unary(0x3b),                           // EXTCODESIZE
        2 => unary(0x3f),                           // EXTCODEHASH
        3 => vec![0x42],                            // TIMESTAMP
        4 => vec![0x43],                            // NUMBER
        5 => vec![0x48],                            // BASEFEE
        6 => vec![0x41],                            // COINBASE
        7 => vec![0x45],                            // GASLIMIT
        8 => vec![0x44],                            // PREVRANDAO
        9 => vec![0x43, 0x60, 1, 0x90, 0x03, 0x40], // BLOCKHASH of the number before
        // CALL of an account, with up to 2 wei, whose return data is a word at 0x3e0
        10 | 11 => {
            let value = random.random_range(0..3);
            [&[0x60, 32, 0x61, 0x03, 0xe0, 0x5f, 0x5f, 0x60, value], address.as_slice(), &[0x5a, 0xf1]].concat()
        }
        // STATICCALL, then the word that it returned
        12..=14 => {
            [&[0x60, 32, 0x61, 0x03, 0xe0, 0x5f, 0x5f], address.as_slice(), &[0x5a, 0xfa, 0x50, 0x61, 0x03, 0xe0, 0x51]]
                .concat()
        }
        _ => vec![0x47], // SELFBALANCE
    }
}

/// Returns the code of an account of the pool: it returns one of its slots, or counts it up.
fn pool_code(kind: u64) -> &'static str {
    match kind {
        0 => "0x5f545f5260205ff3",
        1 => "0x6001545f5260205ff3",
        2 => "0x600254600101600255",
        3 => "0x60035415600b575f5ffd5b",
        4 => "0x33ff",
        _ => "0x",
    }
}

fn bundle(random: &mut SmallRng) -> Value {
    let pieces: Vec<Vec<u8>> = (0..random.random_range(1..5)).map(|_| piece(random)).collect();
    let mut state = json!({ RUNNER: { "code": code(&pieces) }, FROM: { "balance": "0xde0b6b3a7640000" } });
    match random.random_range(0..6) {
        0 => state[account(0)] = json!({ "balance": "0x5" }),
        1 => state[account(1)] = json!({ "code": pool_code(random.random_range(0..6)) }),
        2 => state[account(2)] = json!({ "stateDiff": { format!("{:#066x}", 0): format!("{:#066x}", 7) } }),
        _ => {}
    }
    let to_pool = account(random.random_range(0..ACCOUNTS));
    let mut calls = vec![json!({ "from": FROM, "to": RUNNER, "gas": "0x493e0", "value": "0x3" })];
    match random.random_range(0..5) {
        0 => calls.push(json!({ "from": FROM, "to": to_pool, "gas": "0x186a0", "value": "0x1" })),
        1 => calls.push(json!({ "from": to_pool, "to": FROM, "gas": "0x186a0", "value": "0x64" })),
        2 => calls.push(
            json!({ "from": to_pool, "to": null, "gas": "0x186a0", "data": "0x600a600c600039600a6000f3602a60805260206080f3" }),
        ),
        _ => {}
    }
    let mut block = json!({ "stateOverrides": state, "calls": calls });
    if random.random_range(0..5) == 0 {
        block["blockOverrides"] = json!({ "baseFeePerGas": "0x7" });
    }
    let mut blocks = vec![block];
    if random.random_range(0..6) == 0 {
        blocks.push(json!({ "calls": [{ "from": FROM, "to": RUNNER, "gas": "0x30d40" }] }));
    }
    let all = [
        "status",
        "gasUsed",
        "returnData",
        "error",
        "logs",
        "transfers",
        "stateDiff",
        "accessList",
        "assets",
        "coinbase",
    ];
    let outputs: Vec<&str> = all.into_iter().filter(|_| random.random_range(0..2) == 0).collect();
    let validates = random.random_range(0..6) == 0;
    json!({ "blockStateCalls": blocks, "outputs": outputs, "validation": validates })
}

/// Makes a change of the chain.
async fn change(node: &TestNode, random: &mut SmallRng, saved: &mut Vec<Value>) {
    let account = account(random.random_range(0..ACCOUNTS));
    let (method, params) = match random.random_range(0..14) {
        0 | 1 => ("anvil_setBalance", json!([account, format!("{:#x}", random.random_range(0..4) * 50)])),
        2 => ("anvil_setNonce", json!([account, format!("{:#x}", random.random_range(0..3))])),
        3 => ("anvil_setCode", json!([account, pool_code(random.random_range(0..6))])),
        4..=7 => (
            "anvil_setStorageAt",
            json!([
                account,
                format!("{:#x}", random.random_range(0..SLOTS)),
                format!("{:#066x}", random.random_range(0..3))
            ]),
        ),
        8 => ("evm_increaseTime", json!([random.random_range(1..50)])),
        9 => ("evm_snapshot", json!([])),
        10 if !saved.is_empty() => {
            let at = random.random_range(0..saved.len());
            let id = saved[at].clone();
            saved.truncate(at);
            ("evm_revert", json!([id]))
        }
        11 => {
            let signer = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
            let sent = json!([{ "from": signer, "to": account, "value": "0x1", "gas": "0x30d40" }]);
            let _ = node.call("/", "eth_sendTransaction", sent).await;
            ("evm_mine", json!([]))
        }
        _ => ("evm_mine", json!([])),
    };
    let done = node.result("/", method, params).await;
    if method == "evm_snapshot" {
        saved.push(done);
    }
}

/// The state that a client holds of its standing bundles.
struct Held {
    id: Value,
    answers: BTreeMap<String, Value>,
    behind: BTreeMap<String, Value>,
}

impl Held {
    fn new() -> Self {
        Self { id: Value::Null, answers: BTreeMap::new(), behind: BTreeMap::new() }
    }

    /// Takes a notification, or the result of a poll. Returns whether it was the last of its snapshot.
    fn take(&mut self, news: &Value) -> bool {
        for one in items(&news["changed"]) {
            let mut answer = one.clone();
            let name = answer["name"].as_str().unwrap().to_owned();
            answer.as_object_mut().unwrap().remove("name");
            self.answers.insert(name, answer);
        }
        self.id = news["id"].clone();
        if let Some(behind) = news.get("behind") {
            self.behind =
                items(behind).iter().map(|one| (one["name"].as_str().unwrap().to_owned(), one.clone())).collect();
        }
        news.get("last").is_none_or(|last| last == true)
    }

    /// Takes notifications until those of a snapshot have come to their end.
    async fn until(&mut self, socket: &mut Socket, watch: &Value, id: &Value) {
        let mut is_last = true;
        while !is_last || self.id.is_null() || number(&self.id) < number(id) || !self.behind.is_empty() {
            let news = tokio::time::timeout(Duration::from_secs(20), socket.notification(watch)).await;
            is_last = self.take(&news.unwrap_or_else(|_| panic!("no news of {id}: {} and behind {:?}", self.id, self.behind)));
        }
    }

    /// Compares all answers with fresh ones.
    async fn check(&self, node: &TestNode, bundles: &[Value], what: &str) {
        let requests = bundles.iter().zip(0..).map(|(bundle, id)| {
            let method = if bundle.get("search").is_some() { "presim_search" } else { "presim_simulate" };
            let payload = bundle.get("search").or(bundle.get("simulate")).unwrap();
            request(id, method, json!([payload, { "snapshotId": self.id }]))
        });
        let mut answers = node.send("/", &requests.collect()).await;
        for (bundle, fresh) in bundles.iter().zip(answers.as_array_mut().unwrap()) {
            let fresh = fresh.as_object_mut().unwrap();
            fresh.retain(|key, _| key == "result" || key == "error");
            let name = bundle["name"].as_str().unwrap();
            let held = self.answers.get(name).unwrap_or_else(|| panic!("no answer of {name}"));
            assert_eq!(*held, Value::Object(fresh.clone()), "{name} at {} {what}\n{bundle}", self.id);
        }
    }
}

/// Lets bundles stand, and returns the answer.
async fn stand(socket: &mut Socket, params: Value) -> Value {
    let mut answer = socket.call("presim_watch", params).await;
    assert!(answer["result"]["watch"].is_string(), "{answer}");
    answer["result"].take()
}

async fn newest(node: &TestNode) -> Value {
    node.result("/", "presim_snapshot", json!([])).await["id"].clone()
}

#[tokio::test]
async fn what_a_watcher_holds_is_what_a_fresh_run_gives() {
    const SEEDS: u64 = 8;
    const STEPS: usize = 250;
    for seed in 0..SEEDS {
        let mut random = SmallRng::seed_from_u64(seed);
        let node = node();
        let mut saved = Vec::new();
        for _ in 0..30 {
            change(&node, &mut random, &mut saved).await;
        }
        let bundles: Vec<Value> =
            (0..24).map(|index| json!({ "name": format!("b{index}"), "simulate": bundle(&mut random) })).collect();
        let mut socket = Socket::open(&node, "/").await;
        let begun = stand(&mut socket, json!([bundles])).await;
        let mut held = Held::new();
        held.until(&mut socket, &begun["watch"], &newest(&node).await).await;
        held.check(&node, &bundles, "at first").await;
        let before = node.metric("presim_standing_runs_total");
        for step in 0..STEPS {
            change(&node, &mut random, &mut saved).await;
            held.until(&mut socket, &begun["watch"], &newest(&node).await).await;
            held.check(&node, &bundles, &format!("seed {seed} step {step}")).await;
        }
        let runs = node.metric("presim_standing_runs_total") - before;
        assert!(runs < 0.6 * (STEPS * bundles.len()) as f64, "{runs} runs");
    }
}
