//! Background traffic: real signed transactions, so that the pending state differs from the sealed one.
//!
//! In the trading world there are three kinds. *Trades* move one pair a little. Now and then a *large trade* moves a
//! pair so far that a cycle over the three pairs is profitable, until an *arbitrage* closes it two or three sub-blocks
//! later. In the snapshot or two between them, a client can be first. The *load* represents the other traffic of a
//! chain: it uses gas around the target of EIP-1559, and less of it the higher the base fee is, so that the base fee
//! moves around [`USUAL_BASE_FEE`].

use std::ops::RangeInclusive;

use alloy_consensus::{Header, SignableTransaction, TxEip1559, TxEnvelope, transaction::Recovered};
use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use alloy_primitives::{Address, Bytes, TxKind, U256, map::AddressMap};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use alloy_sol_types::SolCall;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    IRouter, Market, ONE, TradingPair,
    market::{Arbitrage, balance_of},
};
use crate::{ledger::Snapshot, pool::Pool};

/// A generator of transactions for each sub-block. The same seed makes the same choices.
#[derive(Debug)]
pub struct Traffic {
    count: u32,
    sub_blocks: u32,
    chain_id: u64,
    rng: SmallRng,
    signers: Vec<PrivateKeySigner>,
    /// The market to trade on; `None` if there is none, in which case ether is transferred.
    market: Option<Market>,
    /// The sub-blocks until the arbitrage that was last seen is closed; `None` if none was seen.
    closing: Option<u32>,
    /// The number of the newest block, and the gas that it shall use.
    demand: (u64, u64),
}

/// A transaction before its sender and its fees are known.
struct TrafficAction {
    gas_limit: u64,
    to: Address,
    value: U256,
    input: Bytes,
}

/// Gas limit of a swap: twice its usage.
const SWAP_GAS: u64 = 250_000;
/// Gas limit of a cycle of three swaps: twice its usage.
const CYCLE_GAS: u64 = 500_000;
/// Gas of a plain transfer.
const TRANSFER_GAS: u64 = 21_000;
/// The priority fee, in wei per unit of gas.
const TIP: u128 = 1_000_000_000;
/// The input of a trade, in millionths of the pair's reserve of it.
const TRADE: RangeInclusive<u32> = 1..=50;
/// The input of a large trade. It moves the price by 2 to 5 %, and the fees of a cycle are 0.9 %.
const LARGE_TRADE: RangeInclusive<u32> = 10_000..=25_000;
/// One of so many sub-blocks without an arbitrage has a large trade.
const LARGE_TRADE_EACH: u32 = 3;
/// The profit from which on an arbitrage is worth its gas, in ALPHA's smallest unit.
const WORTH: u128 = 2 * ONE;
/// Sub-blocks that an arbitrage is left to others.
const CLOSING: RangeInclusive<u32> = 1..=2;
/// The amount of ALPHA or BETA below which an account buys it with ether more often than it sells it.
const HOLDING: u128 = 100_000 * ONE;
/// The base fee at which the load is as large as the target on average, in wei.
const USUAL_BASE_FEE: u64 = 1_000_000_000;
/// The smallest load that is worth a transaction, in gas.
const MIN_LOAD: u64 = 100_000;

impl Traffic {
    /// Creates a generator of `count` transactions per sub-block from `signers`, not counting the load. A block has
    /// `sub_blocks` sub-blocks.
    pub fn new(
        count: u32,
        seed: u64,
        chain_id: u64,
        sub_blocks: u32,
        signers: Vec<PrivateKeySigner>,
        market: Option<Market>,
    ) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        Self { count, sub_blocks, chain_id, rng, signers, market, closing: None, demand: (0, 0) }
    }

    /// Returns the transactions of the next sub-block on `snapshot`, as many as fit into `gas`, and calls `give_way`
    /// before each. An account with transactions in `pool` is no longer used for traffic, so that traffic never takes a
    /// nonce that its owner relies on.
    pub fn next(
        &mut self,
        snapshot: &Snapshot,
        mut gas: u64,
        pool: &Pool,
        give_way: impl Fn(),
    ) -> Vec<Recovered<TxEnvelope>> {
        self.signers.retain(|signer| !pool.has_sender(&signer.address()));
        if self.signers.is_empty() || gas == 0 {
            return Vec::new();
        }
        let header = snapshot.header();
        let load = self.load(snapshot, header.gas_limit.saturating_sub(gas));
        let mut nonces = AddressMap::default();
        let mut signed = Vec::new();
        let mut send = |traffic: &Self, from: usize, action: TrafficAction| {
            give_way();
            match gas.checked_sub(action.gas_limit) {
                Some(left) => gas = left,
                None => return false,
            }
            signed.extend(traffic.sign(from, action, snapshot, &mut nonces));
            true
        };
        let mut special = self.market_maker(snapshot);
        for _ in 0..self.count {
            let (from, action) = special.take().unwrap_or_else(|| self.usual(snapshot));
            if !send(self, from, action) {
                break;
            }
        }
        for action in load {
            let from = self.any();
            send(self, from, action);
        }
        signed
    }

    fn sign(
        &self,
        from: usize,
        action: TrafficAction,
        snapshot: &Snapshot,
        nonces: &mut AddressMap<u64>,
    ) -> Option<Recovered<TxEnvelope>> {
        let TrafficAction { gas_limit, to, value, input } = action;
        let sender = self.signers[from].address();
        let base_fee = u128::from(snapshot.header().base_fee_per_gas.unwrap_or_default());
        let nonce =
            nonces.entry(sender).or_insert_with(|| snapshot.world.account(&sender).map_or(0, |account| account.nonce));
        let tx = TxEip1559 {
            chain_id: self.chain_id,
            nonce: *nonce,
            gas_limit,
            max_fee_per_gas: 2 * base_fee + TIP,
            max_priority_fee_per_gas: TIP,
            to: TxKind::Call(to),
            value,
            input,
            ..TxEip1559::default()
        };
        let signature = self.signers[from].sign_hash_sync(&tx.signature_hash()).ok()?;
        *nonce += 1;
        Some(Recovered::new_unchecked(tx.into_signed(signature).into(), sender))
    }

    /// Returns one of the accounts.
    fn any(&mut self) -> usize {
        self.rng.random_range(0..self.signers.len())
    }

    /// Returns a trade, or a transfer of ether where there is no market.
    fn usual(&mut self, snapshot: &Snapshot) -> (usize, TrafficAction) {
        let from = self.any();
        let trade = self.trade(from, TRADE, snapshot).unwrap_or_else(|| {
            let value = U256::from(self.rng.random_range(ONE / 100..50 * ONE) / 1_000_000);
            let to = self.any();
            TrafficAction { gas_limit: TRANSFER_GAS, to: self.signers[to].address(), value, input: Bytes::new() }
        });
        (from, trade)
    }

    /// Returns the large trade or the arbitrage of this sub-block, if it has one of them.
    fn market_maker(&mut self, snapshot: &Snapshot) -> Option<(usize, TrafficAction)> {
        let found = self.market.as_ref()?.best_cycle(&snapshot.world);
        let Some(found) = found.filter(|found| found.profit >= U256::from(WORTH)) else {
            self.closing = None;
            let from = self.any();
            let large = self.rng.random_ratio(1, LARGE_TRADE_EACH).then(|| self.trade(from, LARGE_TRADE, snapshot));
            return large.flatten().map(|action| (from, action));
        };
        let closing = match self.closing {
            Some(left) => left - 1,
            None => self.rng.random_range(CLOSING),
        };
        self.closing = (closing > 0).then_some(closing);
        if closing > 0 {
            return None;
        }
        let from = self.any();
        Some((from, self.close(from, found, snapshot)?))
    }

    /// Returns the transaction of an arbitrage. It reverts if another one precedes it.
    fn close(&self, from: usize, found: Arbitrage, snapshot: &Snapshot) -> Option<TrafficAction> {
        let market = self.market.as_ref()?;
        let sender = self.signers[from].address();
        let amount = found.amount.min(balance_of(&snapshot.world, found.path[0], sender));
        if amount.is_zero() {
            return None;
        }
        let cycle = IRouter::swapExactTokensForTokensCall {
            amountIn: amount,
            amountOutMin: amount,
            path: found.path,
            to: sender,
            deadline: deadline(snapshot),
        };
        let input = cycle.abi_encode().into();
        Some(TrafficAction { gas_limit: CYCLE_GAS, to: market.world.router, value: U256::ZERO, input })
    }

    /// Returns a trade on one of the pairs, if there are any and the account can pay for it.
    fn trade(&mut self, from: usize, size: RangeInclusive<u32>, snapshot: &Snapshot) -> Option<TrafficAction> {
        let market = self.market.as_ref()?;
        let (weth, router) = (market.world.weth, market.world.router);
        let pair = *market.pairs.get(self.rng.random_range(0..market.pairs.len().max(1)))?;
        let sender = self.signers[from].address();
        let size = U256::from(self.rng.random_range(size));
        let state = &snapshot.world;
        let held = |token| if token == weth { U256::from(HOLDING) } else { balance_of(state, token, sender) };
        let [first, second] = pair.tokens.map(|token| f64::from(held(token)) + 1.0);
        // Sells the token that it holds more of, so that prices and balances return to their start.
        let input = pair.tokens[usize::from(!self.rng.random_bool(first / (first + second)))];
        let amount = pair.reserves_from(state, input)[0] * size / U256::from(1_000_000);
        let funds = match input == weth {
            true => state.account(&sender).map_or(U256::ZERO, |account| account.balance / U256::from(2)),
            false => held(input),
        };
        (amount <= funds).then(|| {
            let (value, input) = swap(&pair, weth, input, amount, sender, deadline(snapshot));
            TrafficAction { gas_limit: SWAP_GAS, to: router, value, input }
        })
    }

    /// Returns the load's transactions for a sub-block of a block that has used `used` gas so far.
    fn load(&mut self, snapshot: &Snapshot, used: u64) -> Vec<TrafficAction> {
        let Some(to) = self.market.as_ref().and_then(|market| market.world.load) else { return Vec::new() };
        let header = snapshot.header();
        if self.demand.0 != header.number {
            self.demand = (header.number, self.demand_at(header));
        }
        // The sub-blocks share the demand of the block equally. Users' gas is a part of it.
        let done = snapshot.index().saturating_add(1).min(self.sub_blocks);
        let due = u128::from(self.demand.1) * u128::from(done) / u128::from(self.sub_blocks.max(1));
        let mut due = u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(used);
        let mut load = Vec::new();
        while due >= MIN_LOAD {
            let gas_limit = due.min(MAX_TX_GAS_LIMIT_OSAKA);
            load.push(TrafficAction { gas_limit, to, value: U256::ZERO, input: Bytes::new() });
            due -= gas_limit;
        }
        load
    }

    /// Returns the gas that the block of `header` shall use: random, the target on average at the usual base fee, up to
    /// twice as much below it, and less the higher the base fee is. A quarter of the block stays free for others.
    fn demand_at(&mut self, header: &Header) -> u64 {
        const PARTS: u128 = 1_000;
        let limit = u128::from(header.gas_limit);
        let (usual, base) = (u128::from(USUAL_BASE_FEE), u128::from(header.base_fee_per_gas.unwrap_or_default()));
        // The target is half of the limit (EIP-1559), so this is twice the target.
        let wanted = limit * usual / (usual + base) * self.rng.random_range(0..=2 * PARTS) / PARTS;
        u64::try_from(wanted.min(limit / 4 * 3)).unwrap_or(u64::MAX)
    }
}

/// Returns the value and the input of a transaction to the router that swaps on one pair. WETH is paid and received as
/// ether.
fn swap(pair: &TradingPair, weth: Address, input: Address, amount: U256, to: Address, deadline: U256) -> (U256, Bytes) {
    let output = pair.tokens[usize::from(input == pair.tokens[0])];
    let (path, least) = (vec![input, output], U256::ZERO);
    let (value, input) = if input == weth {
        (amount, IRouter::swapExactETHForTokensCall { amountOutMin: least, path, to, deadline }.abi_encode())
    } else if output == weth {
        let call = IRouter::swapExactTokensForETHCall { amountIn: amount, amountOutMin: least, path, to, deadline };
        (U256::ZERO, call.abi_encode())
    } else {
        let call = IRouter::swapExactTokensForTokensCall { amountIn: amount, amountOutMin: least, path, to, deadline };
        (U256::ZERO, call.abi_encode())
    };
    (value, input.into())
}

fn deadline(snapshot: &Snapshot) -> U256 {
    U256::from(snapshot.header().timestamp.saturating_add(3600))
}
