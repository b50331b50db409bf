//! A block of many swaps, or of many transfers, on the devnet's world, and how long work on it takes.

use std::{sync::Arc, time::Instant};

use alloy_consensus::transaction::Recovered;
use alloy_eips::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, Bytes, U256};
use alloy_sol_types::{SolCall, sol};
use presim::testing::{chain::ChainTx, ledger::Snapshot};
use serde_json::json;
use support::TestNode;

sol! {
    function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline);
}

/// The work of the transactions of a block. Each ends at an account of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Swap,
    Transfer,
}

/// A node whose newest block is full, and the state before it.
pub struct FullBlock {
    pub node: TestNode,
    pub before: Arc<Snapshot>,
    pub after: Arc<Snapshot>,
    /// The transactions as they were sent, and with their senders.
    pub raw: Vec<ChainTx>,
    pub sent: Vec<Recovered<ChainTx>>,
}

impl FullBlock {
    /// Builds a block of so many transactions on a chain with these flags in addition to those of its world.
    pub async fn new(flags: &[&str], count: usize, doing: Doing) -> Self {
        let all = ["--testing", "--world", "--no-mining", "--gas-limit", "2000000000"];
        let node = tokio::task::block_in_place(|| TestNode::start(&[&all, flags].concat()));
        let before = node.node.snapshots().newest();
        let trading = node.node.info().trading.expect("the trading world");
        let one = |at: usize| {
            let own = Address::left_padding_from(&(at as u64 + (1 << 40)).to_be_bytes());
            let (to, input) = match doing {
                Doing::Transfer => (own, Bytes::new()),
                Doing::Swap => {
                    let (path, deadline) = (vec![trading.weth, trading.alpha], U256::MAX);
                    let call = swapExactETHForTokensCall { amountOutMin: U256::ZERO, path, to: own, deadline };
                    (trading.router, call.abi_encode().into())
                }
            };
            let tx = json!({
                "from": node.account(at % 10), "to": to, "input": input, "value": "0xe8d4a51000", "gas": "0x7a120",
                "maxFeePerGas": "0x2540be400", "maxPriorityFeePerGas": "0x3b9aca00",
            });
            ("eth_sendTransaction", json!([tx]))
        };
        let transactions: Vec<_> = (0..count).map(one).collect();
        for part in transactions.chunks(500) {
            node.batch("/", part).await;
        }
        node.result("/", "evm_mine", json!([])).await;
        let after = node.node.snapshots().newest();
        let sent = after.head.body().transactions.clone();
        assert_eq!(sent.len(), count, "all transactions are in the block");
        println!("  {count} transactions, {} Mgas", after.head.header.gas_used / 1_000_000);
        // Read again, because a transaction remembers its hash.
        let read = |tx: &Recovered<ChainTx>| ChainTx::decode_2718_exact(&tx.encoded_2718()).expect("a transaction");
        let raw = sent.iter().map(read).collect();
        Self { node, before, after, raw, sent }
    }
}

/// Returns the median time of so many runs on one thread, in milliseconds.
pub fn timed(runs: usize, work: &(dyn Fn() + Sync)) -> f64 {
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            one_thread.install(|| {
                let began = Instant::now();
                work();
                began.elapsed().as_secs_f64() * 1e3
            })
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
