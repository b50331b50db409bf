//! Makes requests like those that users send to such a node, from a target's world.

use alloy_primitives::{Address, Bytes, U256, hex};
use alloy_sol_types::SolCall;
use eyre::{Result, ensure, eyre};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use serde_json::{Value, json};

use crate::{
    body::{Body, Draft, Tag},
    mix::{Mix, Workload},
    world::{IErc20, IRouter, Market, World},
};

/// Deadline of swaps, in seconds since 1970. No block is that late.
const DEADLINE: u64 = 99_999_999_999;
/// Blocks, and calls in each, of `multi` and `big`.
const MULTI: (usize, usize) = (5, 5);
const BIG: (usize, usize) = (20, 20);
/// Entries of the JSON-RPC batches of `search` and `batch`.
const BATCH: usize = 32;
/// The address at which `override` puts code that is not on the chain.
const UNDEPLOYED: Address = Address::new(*b"\xc0\xde\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

/// Settings for making bodies.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    pub tag: Tag,
    pub seed: u64,
    /// Number of bodies of each kind.
    pub count: usize,
    /// Most bytes of all bodies together.
    pub max_bytes: u64,
}

/// Makes the bodies of each kind of a mix in order, except `Recorded`. The same seed makes the same bodies.
///
/// # Errors
///
/// Returns an error if the world lacks what a kind needs, or if a kind's share of `max_bytes` does not hold one body.
pub fn make(mix: &Mix, world: &World, making: Making) -> Result<Vec<Vec<Body>>> {
    let market = world.market.as_ref();
    if let Some((workload, _)) = mix.0.iter().find(|(workload, _)| workload.needs_market() && market.is_none()) {
        return Err(eyre!(
            "the workload {workload} needs a Uniswap V2 router, but there is no contract at the router's address: set it with --router, \
             or use --mix wallet or --bodies FILE"
        ));
    }
    let mut left = making.max_bytes;
    let mut all = Vec::new();
    for (place, (workload, _)) in mix.0.iter().enumerate() {
        // Each kind has a share, so that large ones leave room for the others.
        let share = left / (mix.0.len() - place) as u64;
        // The seed depends on the kind alone, so that a kind's bodies do not depend on the rest of the mix.
        let rng = SmallRng::seed_from_u64(making.seed ^ (*workload as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut maker = Maker { world, tag: making.tag, rng };
        let (mut bodies, mut bytes) = (Vec::new(), 0);
        while bodies.len() < making.count && *workload != Workload::Recorded {
            let body = match (*workload, market) {
                (Workload::Wallet, _) => maker.wallet(place)?,
                (workload, Some(market)) => maker.make(workload, place, market)?,
                (_, None) => break,
            };
            bytes += body.len() as u64;
            if bytes > share {
                break;
            }
            bodies.push(body);
        }
        ensure!(
            !bodies.is_empty() || *workload == Workload::Recorded,
            "--max-body-bytes {}: no body of {workload} fits into its share",
            making.max_bytes
        );
        left -= bytes.min(left);
        all.push(bodies);
    }
    Ok(all)
}

struct Maker<'a> {
    world: &'a World,
    tag: Tag,
    rng: SmallRng,
}

/// A call object, and the sender to be given ether for it, if any.
struct Trade {
    call: Value,
    pays: Option<Address>,
}

impl Maker<'_> {
    fn make(&mut self, workload: Workload, place: usize, market: &Market) -> Result<Body> {
        let mut draft = match workload {
            Workload::Search | Workload::Batch => Draft::batch(),
            _ => Draft::default(),
        };
        match workload {
            Workload::Balance => self.balance(&mut draft, market)?,
            Workload::Quote => self.quote(&mut draft, market)?,
            Workload::Code => self.code(&mut draft, market)?,
            Workload::Swap => {
                let trade = self.trade(market)?;
                self.simulate(&mut draft, &[vec![trade]], false);
            }
            Workload::Sandwich => self.sandwich(&mut draft, market)?,
            Workload::Multi => self.bundle(&mut draft, market, MULTI)?,
            Workload::Big => self.bundle(&mut draft, market, BIG)?,
            Workload::Override => self.undeployed(&mut draft, market)?,
            Workload::Search => self.search(&mut draft, market)?,
            Workload::Batch => {
                for entry in 0..BATCH {
                    match entry % 4 {
                        0 | 1 => self.balance(&mut draft, market)?,
                        2 => self.quote(&mut draft, market)?,
                        _ => self.code(&mut draft, market)?,
                    }
                }
            }
            Workload::Wallet | Workload::Recorded => {}
        }
        Ok(draft.body(place, Some(self.tag), false))
    }

    fn balance(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let (account, token) = (self.sender()?, self.token(market)?);
        self.call(draft, &json!({"from": account, "to": token, "data": data(&IErc20::balanceOfCall { account })}));
        Ok(())
    }

    fn quote(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let token = self.token(market)?;
        let path = self.path(market, token)?;
        let amount = self.amount(market, &path)?;
        let data = data(&IRouter::getAmountsOutCall { amountIn: amount, path });
        self.call(draft, &json!({"to": market.router, "data": data}));
        Ok(())
    }

    fn code(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let mut contracts = vec![market.router, market.factory, market.weth];
        contracts.extend(market.pairs.iter().flat_map(|pair| [pair.address, pair.tokens[0], pair.tokens[1]]));
        let contract = self.one_of(&contracts)?;
        draft.request("eth_getCode", &json!([contract, self.tag.to_string()]).to_string());
        Ok(())
    }

    fn call(&self, draft: &mut Draft, call: &Value) {
        draft.request("eth_call", &json!([call, self.tag.to_string()]).to_string());
    }

    /// Makes a swap by an account that owns a token, or a swap of ether.
    fn trade(&mut self, market: &Market) -> Result<Trade> {
        if market.holdings.is_empty() {
            let sender = self.sender()?;
            let path = self.path(market, market.weth)?;
            let amount = self.amount(market, &path)?;
            return Ok(buy(market, sender, path, amount));
        }
        let holding = self.one_of(&market.holdings)?;
        let path = self.path(market, holding.token)?;
        // The amount is small, because bundles have many swaps of one account.
        let amount = self.amount(market, &path)?.min(holding.amount / U256::from(1_000)).max(U256::from(1_000));
        let owner = holding.owner;
        let swap = IRouter::swapExactTokensForTokensCall {
            amountIn: amount,
            amountOutMin: U256::ZERO,
            path,
            to: owner,
            deadline: U256::from(DEADLINE),
        };
        Ok(Trade { call: json!({"from": owner, "to": market.router, "data": data(&swap)}), pays: None })
    }

    fn bundle(&mut self, draft: &mut Draft, market: &Market, (blocks, calls): (usize, usize)) -> Result<()> {
        let block = |maker: &mut Self| (0..calls).map(|_| maker.trade(market)).collect::<Result<Vec<_>>>();
        let blocks = (0..blocks).map(|_| block(self)).collect::<Result<Vec<_>>>()?;
        self.simulate(draft, &blocks, false);
        Ok(())
    }

    fn sandwich(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let path = self.path(market, market.weth)?;
        let amount = self.amount(market, &path)?;
        let trades = self.sandwich_of(market, path, amount)?;
        self.simulate(draft, &[trades], true);
        Ok(())
    }

    /// Makes the same trade with one amount after another, like a search for the best one.
    fn search(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let path = self.path(market, market.weth)?;
        let least = self.amount(market, &path)? / U256::from(BATCH);
        for step in 1..=BATCH {
            let trades = self.sandwich_of(market, path.clone(), least * U256::from(step))?;
            self.simulate(draft, &[trades], false);
        }
        Ok(())
    }

    /// Makes a sandwich: the attacker buys, the victim buys at a higher price, and the attacker sells half of the
    /// expected amount, because prices may have moved since they were read.
    fn sandwich_of(&mut self, market: &Market, path: Vec<Address>, amount: U256) -> Result<Vec<Trade>> {
        let (attacker, victim) = (self.sender()?, self.sender()?);
        let bought = path.last().copied().unwrap_or(market.weth);
        let sold = quote(market, &path, amount).unwrap_or_default() / U256::from(2);
        let back: Vec<Address> = path.iter().rev().copied().collect();
        let approve = IErc20::approveCall { spender: market.router, value: U256::MAX };
        let sell = IRouter::swapExactTokensForETHCall {
            amountIn: sold,
            amountOutMin: U256::ZERO,
            path: back,
            to: attacker,
            deadline: U256::from(DEADLINE),
        };
        let trade =
            |to: Address, data: Bytes| Trade { call: json!({"from": attacker, "to": to, "data": data}), pays: None };
        Ok(vec![
            buy(market, attacker, path.clone(), amount),
            buy(market, victim, path, amount),
            trade(bought, data(&approve)),
            trade(market.router, data(&sell)),
        ])
    }

    fn undeployed(&mut self, draft: &mut Draft, market: &Market) -> Result<()> {
        let sender = self.sender()?;
        let value = U256::from(self.rng.random_range(1_u64..1_000_000_000_000_000_000));
        let overrides = json!({
            UNDEPLOYED.to_string(): {
                "code": market.weth_code,
                "balance": value,
                "stateDiff": {word(U256::from(self.rng.random::<u64>())): word(value)},
            },
            sender.to_string(): {"balance": wealth()},
        });
        let calls = json!([
            {"from": sender, "to": UNDEPLOYED, "value": value, "data": data(&IErc20::depositCall {})},
            {"from": sender, "to": UNDEPLOYED, "data": data(&IErc20::balanceOfCall { account: sender })},
        ]);
        let payload = json!({"blockStateCalls": [{"stateOverrides": overrides, "calls": calls}]});
        draft.request("eth_simulateV1", &json!([payload, self.tag.to_string()]).to_string());
        Ok(())
    }

    /// Adds a simulation. Payers are given ether in the first block, because the balances of accounts are not read.
    fn simulate(&self, draft: &mut Draft, blocks: &[Vec<Trade>], trace_transfers: bool) {
        let payers = blocks.iter().flatten().filter_map(|trade| trade.pays);
        let overrides: serde_json::Map<String, Value> =
            payers.map(|payer| (payer.to_string(), json!({"balance": wealth()}))).collect();
        let mut blocks: Vec<Value> = blocks
            .iter()
            .map(|trades| json!({"calls": trades.iter().map(|trade| &trade.call).collect::<Vec<_>>()}))
            .collect();
        if let (false, Some(first)) = (overrides.is_empty(), blocks.first_mut()) {
            first["stateOverrides"] = overrides.into();
        }
        let mut payload = json!({"blockStateCalls": blocks});
        if trace_transfers {
            payload["traceTransfers"] = true.into();
        }
        draft.request("eth_simulateV1", &json!([payload, self.tag.to_string()]).to_string());
    }

    /// Makes a batch for the node's wallet. Its id holds the time and the request's id, so that none repeats another.
    fn wallet(&mut self, place: usize) -> Result<Body> {
        ensure!(
            !self.world.signers.is_empty(),
            "the workload wallet needs an account that the target signs for, but eth_accounts names none"
        );
        let from = self.one_of(&self.world.signers)?;
        let run: u64 = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        let payment = |rng: &mut SmallRng| {
            let mut to = [0_u8; 20];
            rng.fill(&mut to[12..]);
            json!({"to": Address::new(to), "value": "0x1"})
        };
        let calls = [payment(&mut self.rng), payment(&mut self.rng)];
        let mut draft = Draft::default();
        draft.request_with("wallet_sendCalls", |draft| {
            draft.push(&format!(r#"[{{"version":"2.0.0","id":"loadtest-{run:x}-"#));
            draft.push_id();
            draft.push(&format!(
                r#"","from":"{from}","chainId":"{:#x}","atomicRequired":false,"calls":{}}}]"#,
                self.world.chain_id,
                json!(calls)
            ));
        });
        Ok(draft.body(place, None, true))
    }

    fn sender(&mut self) -> Result<Address> {
        self.one_of(&self.world.senders)
    }

    fn token(&mut self, market: &Market) -> Result<Address> {
        let pair = self.one_of(&market.pairs)?;
        self.one_of(&pair.tokens)
    }

    fn path(&mut self, market: &Market, from: Address) -> Result<Vec<Address>> {
        self.one_of(&market.paths_from(from)).map_err(|_| eyre!("no pair of the router's factory trades {from}"))
    }

    /// Returns an amount that moves the price little: between a millionth and a thousandth of the first pair's reserve.
    fn amount(&mut self, market: &Market, path: &[Address]) -> Result<U256> {
        let [from, to, ..] = path else { return Err(eyre!("a path needs two tokens")) };
        let [reserve, _] = market.reserves([*from, *to]).ok_or_else(|| eyre!("no pair of {from} and {to}"))?;
        let share = 10_f64.powf(self.rng.random_range(3.0..6.0));
        Ok((reserve / U256::from(share as u64)).max(U256::from(1_000)))
    }

    fn one_of<T: Clone>(&mut self, of: &[T]) -> Result<T> {
        of.choose(&mut self.rng).cloned().ok_or_else(|| eyre!("nothing to choose from"))
    }
}

fn buy(market: &Market, buyer: Address, path: Vec<Address>, amount: U256) -> Trade {
    let deadline = U256::from(DEADLINE);
    let swap = IRouter::swapExactETHForTokensCall { amountOutMin: U256::ZERO, path, to: buyer, deadline };
    let call = json!({"from": buyer, "to": market.router, "value": amount, "data": data(&swap)});
    Trade { call, pays: Some(buyer) }
}

/// Returns what a path gives for an amount, by the pairs' reserves and Uniswap V2's rule: 0.3 % stay with each pair.
fn quote(market: &Market, path: &[Address], amount: U256) -> Option<U256> {
    path.windows(2).try_fold(amount, |amount, hop| {
        let [from, to] = market.reserves([hop[0], hop[1]])?;
        let after_fee = amount * U256::from(997);
        Some(after_fee * to / (from * U256::from(1_000) + after_fee))
    })
}

/// Returns enough ether for any trade here.
fn wealth() -> U256 {
    U256::from(10).pow(U256::from(24))
}

fn data(call: &impl SolCall) -> Bytes {
    call.abi_encode().into()
}

/// Encodes a storage slot or value.
fn word(value: U256) -> String {
    hex::encode_prefixed(value.to_be_bytes::<32>())
}
