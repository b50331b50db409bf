//! The pairs of the trading world, their reserves, and the arbitrage between them.

use alloy_primitives::{Address, U256, keccak256};
use alloy_sol_types::SolValue;

use crate::chain::TradingWorld;
use crate::state::World;

/// Slot of a token's `balanceOf`. The README of this folder has the layout of all contracts.
const BALANCES: u64 = 0;
/// Slot of the factory's `getPair`.
const PAIRS: u64 = 0;
/// Slot of a pair's reserves.
const RESERVES: u64 = 5;
/// The part of an input that a pair trades; the rest is its fee.
const AFTER_FEE: f64 = 0.997;

/// A constant-product pair of two tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TradingPair {
    /// The symbols of the tokens: `WETH/ALPHA`.
    pub name: &'static str,
    /// The contract.
    pub address: Address,
    /// The tokens in the order of their addresses.
    pub tokens: [Address; 2],
}

/// The trading world with the pairs that it has.
#[derive(Clone, Debug)]
pub struct Market {
    /// The contracts.
    pub world: TradingWorld,
    /// The pairs. There are three between WETH, ALPHA and BETA, or two in a world of an earlier version.
    pub pairs: Vec<TradingPair>,
}

/// A trade along a cycle of pairs, which begins and ends with the same token.
#[derive(Clone, Debug)]
pub(super) struct Arbitrage {
    pub path: Vec<Address>,
    /// The amount that earns most, of the first token.
    pub amount: U256,
    /// Earnings before the cost of gas, of the same token.
    pub profit: U256,
}

impl Market {
    /// Returns the market of `world` with the pairs that its factory has in `state`.
    pub fn of(world: TradingWorld, state: &World) -> Self {
        let TradingWorld { weth, alpha, beta, factory, .. } = world;
        let all = [("ALPHA/BETA", alpha, beta), ("WETH/ALPHA", weth, alpha), ("WETH/BETA", weth, beta)];
        let pairs = all.into_iter().filter_map(|(name, one, other)| {
            let address =
                Address::from_word(slot(state, factory, in_map(in_map(U256::from(PAIRS), one), other)).into());
            let tokens = if one < other { [one, other] } else { [other, one] };
            (!address.is_zero()).then_some(TradingPair { name, address, tokens })
        });
        Self { world, pairs: pairs.collect() }
    }

    /// Returns the most profitable arbitrage over the three pairs that begins with ALPHA. `None` if there is none, or a
    /// pair is missing.
    pub(super) fn best_cycle(&self, state: &World) -> Option<Arbitrage> {
        let TradingWorld { weth, alpha, beta, .. } = self.world;
        let cycles = [[alpha, beta, weth, alpha], [alpha, weth, beta, alpha]];
        cycles.into_iter().filter_map(|path| self.arbitrage(state, path)).max_by_key(|found| found.profit)
    }

    /// Returns the arbitrage along `path`, if it is profitable.
    ///
    /// For an input `x`, a constant-product pair gives `a·x / (b + c·x)`, and so does a path of pairs, with other
    /// constants. The profit, `a·x / (b + c·x) - x`, is largest where its derivative is zero: `x = (√(a·b) - b) / c`.
    fn arbitrage(&self, state: &World, path: [Address; 4]) -> Option<Arbitrage> {
        let (mut a, mut b, mut c) = (1.0, 1.0, 0.0);
        for step in path.windows(2) {
            let pair = self.pairs.iter().find(|pair| pair.has(step[0]) && pair.has(step[1]))?;
            let [input, output] = pair.reserves_from(state, step[0]).map(f64::from);
            // From the amount y of the path so far to AFTER_FEE·output·y / (input + AFTER_FEE·y).
            c = input * c + AFTER_FEE * a;
            (a, b) = (AFTER_FEE * output * a, input * b);
        }
        let amount = ((a * b).sqrt() - b) / c;
        let profit = a * amount / (b + c * amount) - amount;
        // If every amount loses, the root is negative. Reserves are below 2^112, and so are both numbers.
        (amount > 0.0).then(|| Arbitrage {
            path: path.to_vec(),
            amount: U256::from(amount as u128),
            profit: U256::from(profit as u128),
        })
    }
}

impl TradingPair {
    fn has(&self, token: Address) -> bool {
        self.tokens.contains(&token)
    }

    /// Returns the reserves of `input`, one of the two tokens, and of the other one.
    pub(super) fn reserves_from(&self, state: &World, input: Address) -> [U256; 2] {
        let packed = slot(state, self.address, U256::from(RESERVES));
        let part = |word: U256| word & U256::from(u128::MAX >> 16);
        let (first, second) = (part(packed), part(packed >> 112));
        if input == self.tokens[0] { [first, second] } else { [second, first] }
    }
}

/// Returns the balance of `owner` in `token`.
pub(super) fn balance_of(state: &World, token: Address, owner: Address) -> U256 {
    slot(state, token, in_map(U256::from(BALANCES), owner))
}

fn slot(state: &World, contract: Address, key: U256) -> U256 {
    state.account(&contract).map_or(U256::ZERO, |account| account.slot(&key))
}

/// Returns the slot of `key` in Solidity's mapping at the slot `map`.
fn in_map(map: U256, key: Address) -> U256 {
    keccak256((key, map).abi_encode()).into()
}
