//! Batches from end to end: sent over HTTP, mined, and their status read.

mod approval;
mod approver;
mod atomic;
mod clients;
mod keyed;
mod load;
mod parallel;
mod sequential;
mod signatures;
mod status;
mod words;

use std::io::Write;

use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B256, Bytes, U256, address, bytes};
use alloy_signer_local::PrivateKeySigner;
use presim::testing::source::devnet::world::{dev_genesis, dev_signers, traffic_signers};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::{
    process::text,
    support::{TestNode, items, number},
};

/// Logs its call data, with its caller and its value as topics.
const WITNESS: Address = address!("0x000000000000000000000000000000000000c0d1");
/// Logs the result of GAS as its first instruction, which is its gas less 2.
const METER: Address = address!("0x000000000000000000000000000000000000c0d2");
/// Reverts with its call data.
const REVERTER: Address = address!("0x000000000000000000000000000000000000c0d3");
/// Closes when it is called with data, and from then on reverts when it is called without.
const GATE: Address = address!("0x000000000000000000000000000000000000c0d4");
/// Loops as often as its call data says, for 26 gas each time.
const LOOP: Address = address!("0x000000000000000000000000000000000000c0d5");
/// Reverts with a reason of 2 MiB, for some nine million gas.
const SHOUTER: Address = address!("0x000000000000000000000000000000000000c0d6");
/// Begins with an invalid opcode.
const HALTER: Address = address!("0x000000000000000000000000000000000000c0d7");
/// Expands memory for some 330,000 gas and then executes an invalid opcode.
const LATE_HALTER: Address = address!("0x000000000000000000000000000000000000c0d8");
/// Stores its call data, and without data loops as often as it has stored, for 26 gas each time.
const TOLL: Address = address!("0x000000000000000000000000000000000000c0d9");
/// An address without an account.
const NOBODY: Address = address!("0x000000000000000000000000000000000000abcd");

/// The fee recipient of the devnet's blocks. Without it, address 0 would receive the fees.
const FEES: &str = "0x00000000000000000000000000000000000000fe";

const QUIET: [&str; 2] = ["--sub-block-ms", "60000"];
const QUICK: [&str; 2] = ["--sub-block-ms", "50"];

/// A devnet on a genesis with test contracts. Its data directory outlives its nodes.
struct WalletChain {
    genesis: NamedTempFile,
    data: TempDir,
}

impl WalletChain {
    /// Creates a chain on which all accounts of the test mnemonic that presim knows have ether.
    fn new() -> Self {
        Self::of(&[dev_signers().unwrap(), traffic_signers().unwrap()].concat())
    }

    /// Creates a chain on which these accounts have ether.
    fn of(signers: &[PrivateKeySigner]) -> Self {
        let mut genesis = dev_genesis(signers, 1_000);
        let contracts = [
            (WITNESS, bytes!("365f5f373433365fa2")),
            (METER, bytes!("5a5f5260205fa0")),
            (REVERTER, bytes!("365f5f37365ffd")),
            (GATE, bytes!("36600a575f54601057005b60015f55005b5f5ffd")),
            (LOOP, bytes!("5f355b600190038060025700")),
            (SHOUTER, bytes!("6308c379a060e01b5f52602060045262200000602452622000445ffd")),
            (HALTER, bytes!("fe")),
            (LATE_HALTER, bytes!("5f620600005360fe50fe")),
            (TOLL, bytes!("366010575f545b6001900380600657005b5f355f5500")),
        ];
        let contracts = contracts.map(|(at, code)| (at, GenesisAccount::default().with_code(Some(code))));
        genesis.alloc.extend(contracts);
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&serde_json::to_vec(&genesis).unwrap()).unwrap();
        Self { genesis: file, data: TempDir::new().unwrap() }
    }

    /// Starts a node without traffic and without a data directory.
    fn node(&self, flags: &[&[&str]]) -> TestNode {
        self.with_traffic("0", flags)
    }

    fn with_traffic(&self, traffic: &str, flags: &[&[&str]]) -> TestNode {
        let all = ["--genesis", text(self.genesis.path()), "--traffic", traffic, "--fee-recipient", FEES];
        TestNode::start(&[&all, &flags.concat()[..]].concat())
    }

    /// Starts a node that continues from the data directory.
    fn lasting(&self, flags: &[&[&str]]) -> TestNode {
        let data: &[&str] = &["--data-dir", text(self.data.path())];
        self.node(&[&[data], flags].concat())
    }
}

/// Returns the key of one of the first ten accounts.
fn key(index: usize) -> PrivateKeySigner {
    dev_signers().unwrap().swap_remove(index)
}

/// Returns one of the first ten accounts.
fn account(index: usize) -> Address {
    key(index).address()
}

fn call(to: Address, value: u64, data: impl Into<Bytes>) -> Value {
    json!({"to": to, "value": format!("{value:#x}"), "data": data.into()})
}

fn limited(mut call: Value, gas: u64) -> Value {
    call["capabilities"] = json!({"gasLimitOverride": {"value": format!("{gas:#x}")}});
    call
}

fn batch(from: Address, atomic: bool, calls: &[Value]) -> Value {
    json!([{"version": "2.0.0", "from": from, "chainId": "0x7a69", "atomicRequired": atomic, "calls": calls}])
}

fn named(mut params: Value, id: &str) -> Value {
    params[0]["id"] = json!(id);
    params
}

/// Sends a batch that must be accepted. Returns its id and the capabilities of the answer.
async fn send(node: &TestNode, params: Value) -> (String, Value) {
    send_to(node, "/", params).await
}

async fn send_to(node: &TestNode, path: &str, params: Value) -> (String, Value) {
    let mut result = node.result(path, "wallet_sendCalls", params).await;
    let id = result["id"].as_str().unwrap_or_else(|| panic!("no id: {result}")).to_owned();
    (id, result["capabilities"].take())
}

/// Sends a batch that must be refused.
async fn refusal(node: &TestNode, path: &str, params: Value) -> Value {
    node.error(path, "wallet_sendCalls", params).await
}

async fn status(node: &TestNode, id: &str) -> Value {
    node.result("/", "wallet_getCallsStatus", json!([id])).await
}

/// Waits for the first status that satisfies a condition, checking after each publication.
async fn status_when(node: &TestNode, id: &str, is: impl Fn(&Value) -> bool) -> Value {
    node.when(id, async || Some(status(node, id).await).filter(&is)).await
}

/// Waits until a batch is no longer pending and returns its status.
async fn settled(node: &TestNode, id: &str) -> Value {
    status_when(node, id, |status| status["status"] != 100).await
}

/// Returns the transactions of a status with receipts, in order.
async fn transactions(node: &TestNode, status: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for receipt in items(&status["receipts"]) {
        all.push(node.result("/", "eth_getTransactionByHash", json!([receipt["transactionHash"]])).await);
    }
    all
}

/// Returns whether each transaction of a status succeeded.
fn successes(status: &Value) -> Vec<bool> {
    items(&status["receipts"]).iter().map(|receipt| receipt["status"] == "0x1").collect()
}

/// Returns the next nonce of an account, including transactions in the pool.
async fn nonce(node: &TestNode, of: Address) -> u64 {
    number(&node.result("/", "eth_getTransactionCount", json!([of, "pending"])).await)
}

async fn code(node: &TestNode, of: Address) -> Bytes {
    serde_json::from_value(node.result("/", "eth_getCode", json!([of, "pending"])).await).unwrap()
}

/// Returns the code of an account that is delegated (EIP-7702).
fn designator(to: Address) -> Bytes {
    [&[0xef, 0x01, 0x00], to.as_slice()].concat().into()
}

/// Returns the witness's log without its position.
fn witnessed(by: Address, value: u64, data: impl Into<Bytes>) -> Value {
    let topics = [by.into_word(), B256::from(U256::from(value))];
    json!({"address": WITNESS, "topics": topics, "data": data.into()})
}

/// Returns the logs of a receipt without their position.
fn logs(receipt: &Value) -> Vec<Value> {
    let log = |log: &Value| {
        let address: Address = serde_json::from_value(log["address"].clone()).unwrap();
        json!({"address": address, "topics": log["topics"], "data": log["data"]})
    };
    items(&receipt["logs"]).iter().map(log).collect()
}

/// Installs a filter for transactions that enter the pool.
async fn watch_pool(node: &TestNode) -> Value {
    node.result("/", "eth_newPendingTransactionFilter", json!([])).await
}

/// Returns the transactions that entered the pool since the last call.
async fn came(node: &TestNode, watch: &Value) -> Vec<Value> {
    items(&node.result("/", "eth_getFilterChanges", json!([watch])).await).to_vec()
}

/// Sends a signed transaction and returns its receipt once it is in a block.
async fn mine(node: &TestNode, raw: Bytes) -> Value {
    node.result("/", "eth_sendRawTransactionSync", json!([raw, 10_000])).await
}
