//! Clients that send without a pause and record the answers. A node has to stand by its answers, however it ended.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use presim::testing::source::devnet::world::dev_signers;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    process::eventually,
    support::{hex, http, items, number, request},
};

const CHAIN: u64 = 31337;
const GWEI: u128 = 1_000_000_000;
/// The number of entries in one JSON-RPC batch.
const MANY: usize = 500;
/// Clients that send batches; they share the second to the fourth account.
const WALLET_CLIENTS: usize = 4;
/// Clients that send signed transactions, each from an account of its own.
const RAW_CLIENTS: usize = 2;

/// A client of a node that may end at any moment.
#[derive(Clone, Debug)]
pub struct Rpc {
    url: String,
    http: reqwest::Client,
}

impl Rpc {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), http: http() }
    }

    /// Sends a request. Returns the whole answer and the snapshot id from its header, or an error if the node is gone.
    async fn try_send(&self, body: &Value) -> reqwest::Result<(Value, Option<u64>)> {
        let request = self.http.post(&self.url).header("content-type", "application/json").body(body.to_string());
        let response = request.send().await?;
        let header = response.headers().get("x-presim-snapshot").map(|header| header.to_str().unwrap().to_owned());
        let id = header.map(|header| snapshot_id(&header));
        Ok((response.json().await?, id))
    }

    pub async fn try_call(&self, method: &str, params: Value) -> Option<Value> {
        self.try_send(&request(1, method, params)).await.ok().map(|(answer, _)| answer)
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answered = self.try_send(&request(1, method, params)).await;
        answered.unwrap_or_else(|error| panic!("{method}: the node is gone: {error:?}")).0
    }

    pub async fn result(&self, method: &str, params: Value) -> Value {
        let mut answer = self.call(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Returns the id of the newest snapshot.
    pub async fn snapshot(&self) -> u64 {
        let (_, id) = self.try_send(&request(1, "eth_blockNumber", json!([]))).await.expect("the node answers");
        id.expect("a single answer bears x-presim-snapshot")
    }

    /// Calls one method with each of these parameters and returns the whole answers.
    pub async fn each(&self, method: &str, params: impl IntoIterator<Item = Value>) -> Vec<Value> {
        let params: Vec<Value> = params.into_iter().collect();
        let mut answers = Vec::with_capacity(params.len());
        for some in params.chunks(MANY) {
            let calls = some.iter().enumerate().map(|(id, params)| request(id as u64, method, params.clone()));
            let (answer, _) = self.try_send(&calls.collect()).await.expect("the node answers");
            answers.extend(items(&answer).iter().cloned());
        }
        assert_eq!(answers.len(), params.len(), "{method}");
        answers
    }

    /// Like [`each`](Self::each), for a method that must succeed. Returns the results.
    pub async fn results(&self, method: &str, params: impl IntoIterator<Item = Value>) -> Vec<Value> {
        let result = |mut answer: Value| {
            assert!(answer.get("error").is_none(), "{method}: {answer}");
            answer["result"].take()
        };
        self.each(method, params).await.into_iter().map(result).collect()
    }
}

fn snapshot_id(header: &str) -> u64 {
    let id = header.split(", ").find_map(|field| field.strip_prefix("id=")).expect("it names the snapshot");
    number(&json!(id))
}

/// Classifies an answer. An internal error (-32603) leaves the outcome open: the disk may have the item or not.
fn told(answer: &Value) -> Told {
    match answer["error"]["code"].as_i64() {
        None => Told::Taken,
        Some(-32603) => Told::Nothing,
        Some(_) => Told::Refused,
    }
}

/// A client's knowledge of an item that it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The outcome is unknown.
    Nothing,
    /// The node acknowledged it.
    Taken,
    /// The node rejected it.
    Refused,
}

/// A batch. Each of its calls sends a unique sum to a unique address.
#[derive(Clone, Debug)]
struct Batch {
    id: String,
    from: Address,
    atomic: bool,
    calls: Vec<(Address, u64)>,
    told: Told,
    checked: bool,
}

impl Batch {
    fn params(&self) -> Value {
        let calls = self.calls.iter().map(|(to, value)| json!({"to": to, "value": hex(*value)}));
        json!([{
            "version": "2.0.0", "id": self.id, "from": self.from, "chainId": hex(CHAIN),
            "atomicRequired": self.atomic, "calls": calls.collect::<Value>(),
        }])
    }
}

/// A signed transaction that sends a unique sum to a unique address.
#[derive(Clone, Debug)]
struct Sent {
    hash: B256,
    to: Address,
    value: u64,
    told: Told,
    checked: bool,
}

#[derive(Debug, Default)]
struct Record {
    /// While set, answers are not recorded, because the disk copy that the next node starts on may lack them.
    frozen: bool,
    batches: Vec<Batch>,
    sent: Vec<Sent>,
    /// Hashes of sealed blocks by number. The newest one is still to be checked.
    blocks: HashMap<u64, Value>,
    newest: u64,
    /// Receipts without their block hash, which changes when the block is sealed, and whether they were checked.
    receipts: HashMap<B256, (Value, bool)>,
    snapshot: u64,
    refusals: Vec<String>,
}

/// The answers of a node and of its successors to their clients.
#[derive(Debug, Default)]
pub struct Witness(Mutex<Record>);

/// Totals of a run.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub batches: usize,
    pub answered: usize,
    pub atomic: usize,
    pub calls: usize,
    pub raw: usize,
    /// Batches that were taken although no answer arrived.
    pub unheard: usize,
    pub receipts: usize,
    pub blocks: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, answered, atomic, calls, raw, unheard, receipts, blocks } = self;
        write!(f, "{batches} batches sent, {answered} answered ({atomic} atomic), {unheard} not answered and taken, ")?;
        write!(f, "{calls} calls landed, {raw} raw transactions, {receipts} receipts and {blocks} blocks held to")
    }
}

impl Witness {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops recording answers, because the disk is about to be copied.
    pub fn freeze(&self) {
        self.record().frozen = true;
    }

    /// Records answers again.
    pub fn thaw(&self) {
        self.record().frozen = false;
    }

    /// Returns the rejections that clients received.
    pub fn refusals(&self) -> Vec<String> {
        self.record().refusals.clone()
    }

    /// Returns the ids of the batches that were acknowledged so far.
    pub fn taken(&self) -> Vec<String> {
        let record = self.record();
        record.batches.iter().filter(|batch| batch.told == Told::Taken).map(|batch| batch.id.clone()).collect()
    }

    /// Starts clients that send to a node until it is gone or they are aborted.
    pub fn clients(self: &Arc<Self>, rpc: &Rpc, seed: u64) -> JoinSet<()> {
        let signers = dev_signers().unwrap();
        let mut clients = JoinSet::new();
        for index in 0..WALLET_CLIENTS {
            let from = signers[1 + index % 3].address();
            let rng = SmallRng::seed_from_u64(seed.wrapping_add(index as u64));
            clients.spawn(self.clone().send_batches(rpc.clone(), from, rng));
        }
        for signer in &signers[5..5 + RAW_CLIENTS] {
            clients.spawn(self.clone().send_raw(rpc.clone(), signer.clone()));
        }
        clients.spawn(self.clone().watch(rpc.clone()));
        clients
    }

    async fn send_batches(self: Arc<Self>, rpc: Rpc, from: Address, mut rng: SmallRng) {
        loop {
            let (index, batch) = {
                let mut record = self.record();
                let index = record.batches.len();
                let atomic = rng.random_ratio(1, 4);
                let call = |call: usize| (address_of(0xba7c, index, call), (index * 4 + call + 1) as u64);
                let calls = (0..rng.random_range(1..=3)).map(call).collect();
                let id = format!("batch {index}");
                let batch = Batch { id, from, atomic, calls, told: Told::Nothing, checked: false };
                record.batches.push(batch.clone());
                (index, batch)
            };
            let Some(answer) = rpc.try_call("wallet_sendCalls", batch.params()).await else { return };
            let mut record = self.record();
            if record.frozen {
                continue;
            }
            record.batches[index].told = told(&answer);
            if answer.get("error").is_some() {
                record.refusals.push(answer["error"].to_string());
            } else {
                assert_eq!(answer["result"]["batchId"], json!(batch.id), "{answer}");
            }
        }
    }

    async fn send_raw(self: Arc<Self>, rpc: Rpc, signer: PrivateKeySigner) {
        let Some(nonce) = rpc.try_call("eth_getTransactionCount", json!([signer.address(), "pending"])).await else {
            return;
        };
        let mut nonce = number(&nonce["result"]);
        loop {
            let (index, raw) = {
                let mut record = self.record();
                let index = record.sent.len();
                let (to, value) = (address_of(0x5e7d, index, 0), index as u64 + 1);
                let tx = transfer(&signer, nonce, to, value, GWEI);
                record.sent.push(Sent { hash: *tx.tx_hash(), to, value, told: Told::Nothing, checked: false });
                (index, Bytes::from(tx.encoded_2718()))
            };
            let Some(answer) = rpc.try_call("eth_sendRawTransaction", json!([raw])).await else { return };
            let mut record = self.record();
            let taken = answer.get("error").is_none();
            nonce += u64::from(taken);
            if record.frozen {
                continue;
            }
            record.sent[index].told = told(&answer);
            if !taken {
                record.refusals.push(answer["error"].to_string());
            }
        }
    }

    /// Records published blocks, receipts and snapshots.
    async fn watch(self: Arc<Self>, rpc: Rpc) {
        loop {
            let calls = json!([
                request(0, "eth_getBlockByNumber", json!(["latest", false])),
                request(1, "eth_getBlockReceipts", json!(["pending"])),
            ]);
            let Ok((answers, _)) = rpc.try_send(&calls).await else { return };
            let Ok((_, Some(id))) = rpc.try_send(&request(2, "eth_chainId", json!([]))).await else { return };
            let mut record = self.record();
            if record.frozen {
                return;
            }
            let block = &answers[0]["result"];
            record.newest = number(&block["number"]);
            let newest = record.newest;
            record.blocks.insert(newest, block["hash"].clone());
            record.snapshot = record.snapshot.max(id);
            if answers[1]["result"].is_array() {
                for receipt in items(&answers[1]["result"]) {
                    let hash = receipt["transactionHash"].as_str().unwrap().parse().unwrap();
                    record.receipts.entry(hash).or_insert_with(|| (unsealed(receipt), false));
                }
            }
        }
    }

    /// Checks that a successor stands by all answers of its predecessor that were not checked before.
    pub async fn check(&self, rpc: &Rpc) {
        let (snapshot, head, receipts, batches, sent) = {
            let mut record = self.record();
            let head = record.blocks.get(&record.newest).map(|hash| (record.newest, hash.clone()));
            let fresh = |(hash, (receipt, checked)): (&B256, &mut (Value, bool))| {
                (!std::mem::replace(checked, true)).then(|| (*hash, receipt.clone()))
            };
            let receipts: Vec<_> = record.receipts.iter_mut().filter_map(fresh).collect();
            let taken = |told: Told, checked: &mut bool| told == Told::Taken && !std::mem::replace(checked, true);
            let batches: Vec<_> = record
                .batches
                .iter_mut()
                .filter_map(|one| taken(one.told, &mut one.checked).then(|| one.clone()))
                .collect();
            let sent: Vec<_> = record
                .sent
                .iter_mut()
                .filter_map(|one| taken(one.told, &mut one.checked).then_some(one.hash))
                .collect();
            (record.snapshot, head, receipts, batches, sent)
        };
        let now = rpc.snapshot().await;
        assert!(now >= snapshot, "snapshot {snapshot:#x} was seen, and now {now:#x} is the newest");
        if let Some((number, hash)) = head {
            let block = rpc.result("eth_getBlockByNumber", json!([hex(number), false])).await;
            assert_eq!(block["hash"], hash, "block {number} was sealed");
        }
        self.check_receipts(rpc, &receipts).await;
        let statuses = rpc.each("wallet_getCallsStatus", batches.iter().map(|batch| json!([batch.id]))).await;
        for (batch, status) in batches.iter().zip(statuses) {
            let code = &status["result"]["status"];
            assert!(*code == json!(100) || *code == json!(200), "{batch:?} was answered, and is {status}");
            assert!(!batch.atomic || status["result"]["atomic"] == true, "{status}");
        }
        self.check_ids(rpc, &batches).await;
        let found = rpc.results("eth_getTransactionByHash", sent.iter().map(|hash| json!([hash]))).await;
        for (hash, tx) in sent.iter().zip(found) {
            assert_eq!(tx["hash"], json!(hash), "a transaction whose hash was answered is lost");
        }
    }

    async fn check_receipts(&self, rpc: &Rpc, seen: &[(B256, Value)]) {
        let now = rpc.results("eth_getTransactionReceipt", seen.iter().map(|(hash, _)| json!([hash]))).await;
        for ((hash, seen), now) in seen.iter().zip(now) {
            assert_eq!(*seen, unsealed(&now), "{hash} was pre-confirmed");
        }
    }

    async fn check_ids(&self, rpc: &Rpc, batches: &[Batch]) {
        let again = rpc.each("wallet_sendCalls", batches.iter().map(Batch::params)).await;
        for (batch, answer) in batches.iter().zip(again) {
            assert_eq!(answer["error"]["code"], 5720, "{batch:?} was answered: {answer}");
        }
    }

    /// Waits until everything is mined. Checks that each acknowledged item landed once, no rejected item landed, and no
    /// other item landed twice.
    pub async fn finish(&self, rpc: &Rpc) -> Counts {
        let (batches, sent, blocks, receipts) = {
            let record = self.record();
            let receipts: Vec<_> =
                record.receipts.iter().map(|(hash, (receipt, _))| (*hash, receipt.clone())).collect();
            (record.batches.clone(), record.sent.clone(), record.blocks.clone(), receipts)
        };
        let statuses = eventually("all are mined", async || {
            let statuses = rpc.each("wallet_getCallsStatus", batches.iter().map(|batch| json!([batch.id]))).await;
            let found = rpc.results("eth_getTransactionByHash", sent.iter().map(|sent| json!([sent.hash]))).await;
            let waits = statuses.iter().filter(|status| status["result"]["status"] == 100).count()
                + found.iter().filter(|tx| tx.is_object() && tx["blockHash"].is_null()).count();
            (waits == 0).then_some(statuses)
        })
        .await;
        let mut counts = Counts { batches: batches.len(), receipts: receipts.len(), ..Counts::default() };
        for (batch, status) in batches.iter().zip(&statuses) {
            let landed = balances(rpc, batch.calls.iter().map(|(to, _)| *to)).await;
            let sums: Vec<U256> = batch.calls.iter().map(|(_, value)| U256::from(*value)).collect();
            let known = status.get("error").is_none();
            let wanted = if known { sums } else { vec![U256::ZERO; landed.len()] };
            assert_eq!(landed, wanted, "{batch:?}: {status}");
            if known {
                assert_ne!(batch.told, Told::Refused, "{batch:?}: {status}");
                assert_eq!(status["result"]["status"], 200, "{batch:?}: {status}");
                counts.calls += landed.len();
                counts.unheard += usize::from(batch.told == Told::Nothing);
                counts.atomic += usize::from(batch.atomic);
            } else {
                assert_ne!(batch.told, Told::Taken, "{batch:?}: {status}");
                assert_eq!(status["error"]["code"], 5730, "{batch:?}: {status}");
            }
            counts.answered += usize::from(batch.told == Told::Taken);
        }
        let landed = balances(rpc, sent.iter().map(|sent| sent.to)).await;
        let mined = rpc.results("eth_getTransactionReceipt", sent.iter().map(|sent| json!([sent.hash]))).await;
        for ((sent, landed), receipt) in sent.iter().zip(landed).zip(mined) {
            let wanted = if receipt.is_null() { U256::ZERO } else { U256::from(sent.value) };
            assert_eq!(landed, wanted, "{sent:?}: {receipt}");
            match sent.told {
                Told::Taken => assert_eq!(receipt["status"], "0x1", "{sent:?}: {receipt}"),
                Told::Refused => assert!(receipt.is_null(), "{sent:?}: {receipt}"),
                Told::Nothing => {}
            }
            counts.raw += usize::from(sent.told == Told::Taken);
        }
        self.check_receipts(rpc, &receipts).await;
        let taken: Vec<_> = batches.into_iter().filter(|batch| batch.told == Told::Taken).collect();
        self.check_ids(rpc, &taken).await;
        counts.blocks = self.check_chain(rpc, &blocks).await;
        counts
    }

    /// Checks that the chain contains the blocks that were seen, each block is the child of the one before it, and no
    /// account used a nonce twice.
    async fn check_chain(&self, rpc: &Rpc, seen: &HashMap<u64, Value>) -> u64 {
        let head = number(&rpc.result("eth_blockNumber", json!([])).await);
        let blocks = rpc.results("eth_getBlockByNumber", (0..=head).map(|block| json!([hex(block), true]))).await;
        let mut next: HashMap<String, u64> = HashMap::new();
        for (at, block) in blocks.iter().enumerate() {
            if let Some(hash) = seen.get(&(at as u64)) {
                assert_eq!(block["hash"], *hash, "block {at} was seen");
            }
            if at > 0 {
                assert_eq!(block["parentHash"], blocks[at - 1]["hash"], "block {at}");
            }
            for tx in items(&block["transactions"]) {
                let nonce = number(&tx["nonce"]);
                let next = next.entry(tx["from"].as_str().unwrap().to_owned()).or_insert(nonce);
                // An authorization that an account signs for itself also uses up a nonce.
                assert!(nonce >= *next, "block {at}: {tx}");
                *next = nonce + 1;
            }
        }
        head
    }
}

async fn balances(rpc: &Rpc, of: impl IntoIterator<Item = Address>) -> Vec<U256> {
    let all = rpc.results("eth_getBalance", of.into_iter().map(|address| json!([address, "pending"]))).await;
    all.iter().map(|balance| balance.as_str().unwrap().parse().unwrap()).collect()
}

/// Removes from a receipt what sealing its block changes.
fn unsealed(receipt: &Value) -> Value {
    crate::support::without_block_hash(receipt)
}

fn address_of(kind: u16, index: usize, call: usize) -> Address {
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&kind.to_be_bytes());
    bytes[4..12].copy_from_slice(&(index as u64).to_be_bytes());
    bytes[12..].copy_from_slice(&(call as u64 + 1).to_be_bytes());
    bytes.into()
}

/// Signs a transfer. `value` is in wei, `tip` in wei per gas.
pub fn transfer(signer: &PrivateKeySigner, nonce: u64, to: Address, value: u64, tip: u128) -> TxEnvelope {
    let tx = TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: tip,
        to: to.into(),
        value: U256::from(value),
        ..TxEip1559::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    tx.into_signed(signature).into()
}

/// Returns the seed for the random parts of a test: `PRESIM_TEST_SEED`, or a random one.
pub fn seed() -> u64 {
    match std::env::var("PRESIM_TEST_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("PRESIM_TEST_SEED={text}: {error}")),
        Err(_) => rand::random(),
    }
}
