//! The devnet for searchers: three pairs, traffic that opens and closes arbitrage, base fees that move.
//!
//! The tests drive the chain a sub-block at a time, by mining: with `--testing` a mined block has one sub-block.

use alloy_primitives::{Address, Bytes, U256, address};
use alloy_sol_types::{SolCall, sol};
use serde_json::{Value, json};

use crate::support::{TestNode, items, number};

const ONE: u64 = 1_000_000_000_000_000_000;
const GWEI: u64 = 1_000_000_000;
/// An account of the user, which has ALPHA.
const SEARCHER: Address = address!("0x70997970c51812dc3a010c7d01b50e0d17dc79c8");

sol! {
    function getAmountsOut(uint256 amountIn, address[] calldata path) external view returns (uint256[] memory amounts);
    function getPair(address tokenA, address tokenB) external view returns (address pair);
    function getReserves() external view returns (uint112 reserve0, uint112 reserve1, uint32 blockTimestampLast);
    function balanceOf(address account) external view returns (uint256);
    function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
}

/// A devnet with traffic, in which nothing happens by itself.
struct TradedNode {
    node: TestNode,
    weth: Address,
    alpha: Address,
    beta: Address,
    router: Address,
    pairs: Vec<Address>,
}

impl TradedNode {
    fn new(flags: &[&str]) -> Self {
        Self::in_sub_blocks("600s", flags)
    }

    /// Starts the devnet with blocks that take this time, of sub-blocks of a minute.
    fn in_sub_blocks(block_time: &str, flags: &[&str]) -> Self {
        let still =
            ["--testing", "--world", "--dialect", "project", "--block-time", block_time, "--sub-block-ms", "60000"];
        let node = TestNode::start(&[&still, flags].concat());
        let info = node.node.info();
        let world = info.trading.expect("the devnet trades");
        let pairs = info.pairs.iter().map(|pair| pair.address).collect();
        Self { weth: world.weth, alpha: world.alpha, beta: world.beta, router: world.router, pairs, node }
    }

    async fn mine(&self) {
        self.node.result("/", "evm_mine", json!([])).await;
    }

    async fn ask<C: SolCall>(&self, to: Address, call: C) -> C::Return {
        let call = json!({"to": to, "data": Bytes::from(call.abi_encode())});
        let answer = self.node.result("/", "eth_call", json!([call, "pending"])).await;
        C::abi_decode_returns(&answer.as_str().unwrap().parse::<Bytes>().unwrap()).unwrap()
    }

    async fn reserves(&self) -> Vec<[U256; 2]> {
        let mut all = Vec::new();
        for &pair in &self.pairs {
            let reserves = self.ask(pair, getReservesCall {}).await;
            all.push([reserves.reserve0, reserves.reserve1].map(U256::from));
        }
        all
    }

    /// Returns the most profitable of some amounts over both cycles, and its path and profit in ALPHA; `None` if all of
    /// them lose.
    async fn best(&self) -> Option<(U256, Vec<Address>, U256)> {
        let Self { weth, alpha, beta, .. } = *self;
        let mut best: Option<(U256, Vec<Address>, U256)> = None;
        for path in [vec![alpha, beta, weth, alpha], vec![alpha, weth, beta, alpha]] {
            for amount in [500, 1_000, 2_000, 4_000, 8_000].map(|tokens| U256::from(tokens) * U256::from(ONE)) {
                let amounts = self.ask(self.router, getAmountsOutCall { amountIn: amount, path: path.clone() });
                let profit = amounts.await.last().unwrap().saturating_sub(amount);
                if profit > best.as_ref().map_or(U256::ZERO, |best| best.2) {
                    best = Some((amount, path.clone(), profit));
                }
            }
        }
        best
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_pairs_begin_at_prices_between_which_there_is_nothing_to_earn() {
    let market = TradedNode::new(&[]);
    let TradedNode { weth, alpha, beta, ref node, .. } = market;
    let (pairs, factory) = (&node.node.info().pairs, node.node.info().trading.unwrap().factory);
    let names: Vec<_> = pairs.iter().map(|pair| pair.name).collect();
    assert_eq!(names, ["ALPHA/BETA", "WETH/ALPHA", "WETH/BETA"]);
    for (pair, (one, other)) in pairs.iter().zip([(alpha, beta), (weth, alpha), (weth, beta)]) {
        assert_eq!(pair.tokens, [one, other]);
        for (one, other) in [(one, other), (other, one)] {
            let call = getPairCall { tokenA: one, tokenB: other };
            assert_eq!(market.ask(factory, call).await, pair.address, "{}", pair.name);
        }
    }
    let of = |amounts: [u64; 2]| amounts.map(|tokens| U256::from(tokens) * U256::from(ONE));
    let expected = [of([1_000_000, 1_000_000]), of([1_000, 2_000_000]), of([1_000, 2_000_000])];
    assert_eq!(market.reserves().await, expected);
    assert_eq!(market.best().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_moves_all_pairs_and_opens_and_closes_arbitrage() {
    let market = TradedNode::new(&["--traffic", "4"]);
    let (mut before, mut moves) = (market.reserves().await, [0; 3]);
    let mut open = Vec::new();
    for _ in 0..80 {
        market.mine().await;
        let after = market.reserves().await;
        for (moved, (before, after)) in moves.iter_mut().zip(before.iter().zip(&after)) {
            *moved += usize::from(before != after);
        }
        before = after;
        // Less than two tokens would not pay for the gas.
        open.push(market.best().await.is_some_and(|(.., profit)| profit > U256::from(2 * ONE)));
    }
    assert!(moves.into_iter().all(|moved| moved > 40), "{moves:?}");
    let spells: Vec<&[bool]> = open.chunk_by(|one, next| one == next).filter(|spell| spell[0]).collect();
    assert!(spells.len() >= 5, "{open:?}");
    // Others see the arbitrage in two or three snapshots, and so can be first in one or two sub-blocks.
    let over = if open.ends_with(&[true]) { &spells[..spells.len() - 1] } else { &spells[..] };
    assert!(over.iter().all(|spell| (2..=3).contains(&spell.len())), "{open:?}");
    for length in [2, 3] {
        assert!(over.iter().any(|spell| spell.len() == length), "{open:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_searcher_who_watches_is_first() {
    let market = TradedNode::new(&["--traffic", "4"]);
    let (mut taken, mut earned) = (0, U256::ZERO);
    for _ in 0..60 {
        market.mine().await;
        let Some((amount, path, profit)) = market.best().await else { continue };
        if profit < U256::from(5 * ONE) {
            continue;
        }
        let before = market.ask(market.alpha, balanceOfCall { account: SEARCHER }).await;
        let data = swapExactTokensForTokensCall {
            amountIn: amount,
            amountOutMin: amount + profit,
            path,
            to: SEARCHER,
            deadline: U256::MAX,
        };
        let tx = json!({"from": SEARCHER, "to": market.router, "data": Bytes::from(data.abi_encode())});
        let hash = market.node.result("/", "eth_sendTransaction", json!([tx])).await;
        market.mine().await;
        // Traffic's own arbitrage, if it came in the same sub-block, came later.
        let receipt = market.node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        assert_eq!((&receipt["status"], &receipt["transactionIndex"]), (&json!("0x1"), &json!("0x0")));
        let after = market.ask(market.alpha, balanceOfCall { account: SEARCHER }).await;
        assert_eq!(after - before, profit, "the snapshot before the sub-block tells the profit exactly");
        (taken, earned) = (taken + 1, earned + profit);
    }
    assert!(taken >= 3, "{taken} of them earned {earned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_makes_the_same_trades() {
    let mut ends = Vec::new();
    for seed in ["5", "5", "6"] {
        let market = TradedNode::new(&["--traffic", "3", "--traffic-seed", seed]);
        market.node.result("/", "anvil_mine", json!([12])).await;
        ends.push(market.reserves().await);
    }
    assert_eq!(ends[0], ends[1]);
    assert_ne!(ends[0], ends[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn base_fees_move_up_and_down_around_a_gwei() {
    let market = TradedNode::in_sub_blocks("60s", &["--traffic", "2"]);
    market.node.result("/", "anvil_mine", json!([120])).await;
    let history = market.node.result("/", "eth_feeHistory", json!(["0x78", "latest", []])).await;
    let fees: Vec<u64> = items(&history["baseFeePerGas"]).iter().map(number).collect();
    assert!(fees.iter().all(|fee| (GWEI / 4..4 * GWEI).contains(fee)), "{fees:?}");
    let rises = fees.windows(2).filter(|fees| fees[0] < fees[1]).count();
    assert!((30..=90).contains(&rises), "{rises} of 120 blocks raised it: {fees:?}");
    let used: Vec<f64> = items(&history["gasUsedRatio"]).iter().map(|ratio| ratio.as_f64().unwrap()).collect();
    assert!(used.iter().all(|ratio| *ratio < 0.8), "a part of each block is the users': {used:?}");
    assert!(used.iter().any(|ratio| *ratio > 0.6) && used.iter().any(|ratio| *ratio < 0.4), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn background_transactions_succeed() {
    let market = TradedNode::new(&["--traffic", "4"]);
    let mut senders = std::collections::BTreeSet::new();
    for _ in 0..20 {
        market.mine().await;
        let receipts = market.node.result("/", "eth_getBlockReceipts", json!(["latest"])).await;
        assert!(items(&receipts).len() >= 4, "{receipts}");
        let failed: Vec<&Value> = items(&receipts).iter().filter(|receipt| receipt["status"] != "0x1").collect();
        assert!(failed.is_empty(), "{failed:?}");
        senders.extend(items(&receipts).iter().map(|receipt| receipt["from"].to_string()));
    }
    assert!(senders.len() >= 8, "{senders:?}");
}
