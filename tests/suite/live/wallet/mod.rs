//! The wallet on a live chain: batches that are sent to an upstream, and followed to their end.

mod faults;
mod killed;
mod op_stack;
mod receipts;
mod sending;

use std::time::Duration;

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, hex};
use alloy_signer_local::PrivateKeySigner;
use presim::testing::{chain::ChainTx, source::devnet::world::dev_signers};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use super::{built::Built, head, serve, stage::launch_by, with_usual};
use crate::{
    disk::Disk,
    power_loss::start_on,
    process::{command, file, text},
    support::{BOUND, TestNode, number},
    upstream::{SmallUpstream, UpstreamBlock},
};

/// An upstream's chain, and a node with a wallet of two accounts that follows it.
struct LiveWallet {
    upstream: SmallUpstream,
    /// The newest block of the upstream.
    newest: Built,
    keys: Vec<NamedTempFile>,
    data: TempDir,
    /// The disk of the store. `None` stands for a file in `data`.
    disk: Option<Disk>,
    node: Option<TestNode>,
}

impl LiveWallet {
    async fn ethereum(flags: &[&str]) -> Self {
        Self::on(Built::ethereum(), flags).await
    }

    async fn on(chain: Built, flags: &[&str]) -> Self {
        let mut live = Self::unstarted(chain, None).await;
        live.start(flags).await;
        live
    }

    async fn unstarted(chain: Built, disk: Option<Disk>) -> Self {
        let upstream = serve(&[&chain]).await;
        let keys = (0..2).map(|at| file(&hex::encode(key(at).to_bytes()))).collect();
        Self { upstream, newest: chain, keys, data: TempDir::new().unwrap(), disk, node: None }
    }

    async fn start(&mut self, flags: &[&str]) {
        let keys = self.keys.iter().flat_map(|key| ["--wallet-key-file", text(key.path())]);
        let usual = ["--data-dir", text(self.data.path()), "--wallet-resend-ms", "200"];
        let flags: Vec<&str> = usual.into_iter().chain(keys).chain(flags.iter().copied()).collect();
        let disk = self.disk.clone();
        let start = move |flags: &[&str]| match &disk {
            Some(disk) => Ok(start_on(disk, flags)),
            None => TestNode::try_start(flags),
        };
        let started = launch_by(&self.upstream.url(), Some(&self.newest.config), &with_usual(&flags), start).await;
        self.node = Some(started.unwrap_or_else(|error| panic!("the node did not start: {error:#}")));
    }

    fn node(&self) -> &TestNode {
        self.node.as_ref().expect("it runs")
    }

    async fn stop(&mut self) {
        let node = self.node.take().expect("it runs");
        tokio::task::spawn_blocking(move || node.node.stop()).await.unwrap();
    }

    /// Stops the node, and deletes what it has stored of the upstream's state. So it starts again at the newest block, and does not
    /// execute the blocks before it.
    async fn stop_and_forget(&mut self) {
        self.stop().await;
        std::fs::remove_file(self.data.path().join("upstream-state.bin")).unwrap();
    }

    async fn send(&self, from: usize, atomic: bool, calls: &[Value]) -> String {
        let result = self.node().result("/", "wallet_sendCalls", self.batch(from, atomic, calls)).await;
        result["id"].as_str().unwrap_or_else(|| panic!("no id: {result}")).to_owned()
    }

    fn batch(&self, from: usize, atomic: bool, calls: &[Value]) -> Value {
        let chain = format!("{:#x}", self.newest.spec.chain_id());
        json!([{"version": "2.0.0", "from": key(from).address(), "chainId": chain, "atomicRequired": atomic, "calls": calls}])
    }

    /// Builds a block of these transactions on the newest, and has the upstream announce it.
    async fn mine(&mut self, transactions: Vec<ChainTx>) {
        self.newest = self.newest.next(transactions, 1);
        self.upstream.push(with_receipts(self.newest.block.clone()));
        head(self.node(), self.newest.hash()).await;
    }

    /// Builds a block of these transactions and one on it, while the node is down, and returns the number of the first.
    fn mine_unseen(&mut self, transactions: Vec<ChainTx>) -> Value {
        self.newest = self.newest.next(transactions, 1);
        let block = with_receipts(self.newest.block.clone());
        let block_number = json!(format!("{:#x}", block.number));
        self.upstream.push(block);
        self.newest = self.newest.next(vec![], 1);
        self.upstream.push(self.newest.block.clone());
        block_number
    }

    async fn status(&self, id: &str) -> Value {
        self.node().result("/", "wallet_getCallsStatus", json!([id])).await
    }

    /// Waits for a status that satisfies a condition. Not every change of a status comes with a block.
    async fn status_when(&self, id: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let wait = async {
            loop {
                last = self.status(id).await;
                if is(&last) {
                    return last.clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(BOUND, wait).await;
        waited.unwrap_or_else(|_| panic!("the status does not come to be so: {last}"))
    }

    async fn settled(&self, id: &str, code: u64) -> Value {
        self.status_when(id, |status| status["status"] == code).await
    }

    /// Waits until `count` different transactions were sent, and returns them in the order of their first sending.
    async fn sent(&self, count: usize) -> Vec<TxEnvelope> {
        let mut times = count;
        loop {
            let raw = self.upstream.has_sent(times).await;
            times = raw.len() + 1;
            let mut seen: Vec<Bytes> = Vec::new();
            raw.into_iter().for_each(|raw| {
                if !seen.contains(&raw) {
                    seen.push(raw)
                }
            });
            if seen.len() >= count {
                return seen.iter().map(|raw| TxEnvelope::decode_2718_exact(raw).unwrap()).collect();
            }
        }
    }

    /// Runs `presim wallet` beside the node. Returns its output, or its errors.
    async fn operate(&self, task: &[&str]) -> Result<String, String> {
        let mut run = command(&[&["wallet"], task, &["--data-dir", text(self.data.path())]].concat(), &[]);
        let ended = tokio::task::spawn_blocking(move || run.output().expect("the program runs")).await.unwrap();
        let [out, errors] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        if ended.status.success() { Ok(out) } else { Err(errors) }
    }
}

/// Returns a block whose receipts have all that `eth_getTransactionReceipt` answers.
fn with_receipts(mut block: UpstreamBlock) -> UpstreamBlock {
    let (block_hash, block_number) = (json!(block.hash), json!(format!("{:#x}", block.number)));
    let mut before = 0;
    for receipt in block.receipts.iter_mut().flatten() {
        let cumulative = number(&receipt["cumulativeGasUsed"]);
        receipt["gasUsed"] = json!(format!("{:#x}", cumulative - before));
        (receipt["blockHash"], receipt["blockNumber"]) = (block_hash.clone(), block_number.clone());
        before = cumulative;
    }
    block
}

fn key(index: usize) -> PrivateKeySigner {
    dev_signers().unwrap().swap_remove(index)
}

fn call(to: Address, value: u64, data: impl Into<Bytes>) -> Value {
    json!({"to": to, "value": format!("{value:#x}"), "data": data.into()})
}

/// Returns the reason why the first transaction of a status waits.
fn reason(status: &Value) -> &str {
    status["capabilities"]["transactions"]["waiting"][0]["reason"].as_str().unwrap_or_default()
}

fn mined(transactions: Vec<TxEnvelope>) -> Vec<ChainTx> {
    transactions.into_iter().map(ChainTx::from).collect()
}
