//! The accounts and markets of a target, read before the run so that every request is about its own contracts.

use alloy_primitives::{Address, Bytes, U256, address, hex};
use alloy_sol_types::{SolCall, sol};
use eyre::{Context, Result, bail, ensure, eyre};
use serde_json::{Value, json};

use crate::{quantity::quantity, rpc::Rpc};

/// The router of the trading world of presim's devnet.
pub const ROUTER: Address = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
/// Most accounts that requests come from.
const MAX_SENDERS: usize = 32;
/// Most pairs of the factory that are read.
const MAX_PAIRS: u64 = 16;

sol! {
    /// The Uniswap V2 surface that workloads use.
    interface IRouter {
        function WETH() external view returns (address);
        function factory() external view returns (address);
        function getAmountsOut(uint256 amountIn, address[] path) external view returns (uint256[] amounts);
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline) external returns (uint256[] amounts);
        function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline) external payable returns (uint256[] amounts);
        function swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline) external returns (uint256[] amounts);
    }
    interface IFactory {
        function allPairsLength() external view returns (uint256);
        function allPairs(uint256 index) external view returns (address pair);
    }
    interface IPair {
        function token0() external view returns (address);
        function token1() external view returns (address);
        function getReserves() external view returns (uint112 reserve0, uint112 reserve1, uint32 time);
    }
    interface IErc20 {
        function balanceOf(address account) external view returns (uint256);
        function allowance(address owner, address spender) external view returns (uint256);
        function approve(address spender, uint256 value) external returns (bool);
        function deposit() external payable;
    }
}

/// A target's accounts and markets.
#[derive(Clone, Debug)]
pub struct World {
    pub chain_id: u64,
    /// Accounts that requests come from. Never empty.
    pub senders: Vec<Address>,
    /// Accounts that the node signs for.
    pub signers: Vec<Address>,
    /// `None` if no workload needs a router, or if there is no code at its address.
    pub market: Option<Market>,
}

/// A router, and the pairs that it trades.
#[derive(Clone, Debug)]
pub struct Market {
    pub router: Address,
    pub weth: Address,
    /// The deployed code of WETH.
    pub weth_code: Bytes,
    pub factory: Address,
    /// The pairs with reserves. Never empty.
    pub pairs: Vec<Pair>,
    /// Tokens of the senders that the router may take.
    pub holdings: Vec<Holding>,
}

/// A market of two tokens.
#[derive(Clone, Debug)]
pub struct Pair {
    pub address: Address,
    pub tokens: [Address; 2],
    pub reserves: [U256; 2],
}

/// An account's tokens that the router may take.
#[derive(Clone, Debug)]
pub struct Holding {
    pub owner: Address,
    pub token: Address,
    pub amount: U256,
}

impl World {
    /// Reads the world of a target; without a router, only its accounts. `senders` replace those of `eth_accounts`.
    ///
    /// # Errors
    ///
    /// Returns an error if the target does not answer, or if it has no accounts and `senders` is empty.
    pub async fn discover(rpc: &mut Rpc, router: Option<Address>, senders: &[Address]) -> Result<Self> {
        let chain_id = rpc.call("eth_chainId", json!([])).await.wrap_err("eth_chainId")?;
        let chain_id =
            quantity(&chain_id).ok_or_else(|| eyre!("eth_chainId answered {chain_id}, which is not a quantity"))?;
        // A node may lack accounts, or the method.
        let accounts = rpc.call("eth_accounts", json!([])).await.unwrap_or_default();
        let signers: Vec<Address> = serde_json::from_value(accounts).unwrap_or_default();
        let senders = if senders.is_empty() { signers.as_slice() } else { senders };
        ensure!(!senders.is_empty(), "the target has no accounts (eth_accounts): name some with --senders 0x…,0x…");
        let senders = senders[..senders.len().min(MAX_SENDERS)].to_vec();
        let market = match router {
            Some(router) => Market::discover(rpc, router, &senders).await?,
            None => None,
        };
        Ok(Self { chain_id, senders, signers, market })
    }
}

impl Market {
    async fn discover(rpc: &mut Rpc, router: Address, senders: &[Address]) -> Result<Option<Self>> {
        let code = code(rpc, router).await.wrap_err("the router's code")?;
        if code.is_empty() {
            return Ok(None);
        }
        let wrap = |what: &str| format!("--router {router} does not answer as a Uniswap V2 router: {what}");
        let weth = call(rpc, router, IRouter::WETHCall {}).await.wrap_err_with(|| wrap("WETH()"))?;
        let factory = call(rpc, router, IRouter::factoryCall {}).await.wrap_err_with(|| wrap("factory()"))?;
        let count =
            call(rpc, factory, IFactory::allPairsLengthCall {}).await.wrap_err_with(|| wrap("allPairsLength()"))?;
        let count = count.min(U256::from(MAX_PAIRS)).to::<u64>();
        let mut pairs = Vec::new();
        for index in 0..count {
            let address = call(rpc, factory, IFactory::allPairsCall { index: U256::from(index) }).await?;
            let tokens =
                [call(rpc, address, IPair::token0Call {}).await?, call(rpc, address, IPair::token1Call {}).await?];
            let reserves = call(rpc, address, IPair::getReservesCall {}).await?;
            let reserves = [U256::from(reserves.reserve0), U256::from(reserves.reserve1)];
            // A pair with next to no reserves cannot be traded on.
            if reserves.iter().all(|reserve| *reserve > U256::from(1_000_000)) {
                pairs.push(Pair { address, tokens, reserves });
            }
        }
        if pairs.is_empty() {
            bail!("the factory {factory} of --router {router} has no pair with reserves");
        }
        let mut tokens: Vec<Address> = pairs.iter().flat_map(|pair| pair.tokens).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let mut holdings = Vec::new();
        for owner in senders {
            for token in &tokens {
                let balance = call(rpc, *token, IErc20::balanceOfCall { account: *owner }).await?;
                let allowed = call(rpc, *token, IErc20::allowanceCall { owner: *owner, spender: router }).await?;
                let amount = balance.min(allowed);
                if amount > U256::from(1_000_000) {
                    holdings.push(Holding { owner: *owner, token: *token, amount });
                }
            }
        }
        let weth_code = self::code(rpc, weth).await?;
        Ok(Some(Self { router, weth, weth_code, factory, pairs, holdings }))
    }

    /// Returns the paths of two and three tokens that begin with `token`.
    pub fn paths_from(&self, token: Address) -> Vec<Vec<Address>> {
        let mut paths: Vec<Vec<Address>> = self.others(token).map(|other| vec![token, other]).collect();
        for path in paths.clone() {
            for third in self.others(path[1]).filter(|third| *third != token) {
                paths.push(vec![token, path[1], third]);
            }
        }
        paths
    }

    fn others(&self, token: Address) -> impl Iterator<Item = Address> {
        self.pairs.iter().filter_map(move |pair| match pair.tokens {
            [a, b] if a == token => Some(b),
            [a, b] if b == token => Some(a),
            _ => None,
        })
    }

    /// Returns the reserves of the pair of two tokens, in their order.
    pub fn reserves(&self, tokens: [Address; 2]) -> Option<[U256; 2]> {
        self.pairs.iter().find_map(|pair| match pair.tokens {
            [a, b] if [a, b] == tokens => Some(pair.reserves),
            [a, b] if [b, a] == tokens => Some([pair.reserves[1], pair.reserves[0]]),
            _ => None,
        })
    }
}

async fn call<C: SolCall>(rpc: &mut Rpc, to: Address, call: C) -> Result<C::Return> {
    let data = hex::encode_prefixed(call.abi_encode());
    let result = rpc.call("eth_call", json!([{"to": to, "data": data}, "latest"])).await.wrap_err(C::SIGNATURE)?;
    let bytes: Bytes = serde_json::from_value(result).wrap_err(C::SIGNATURE)?;
    C::abi_decode_returns(&bytes).wrap_err_with(|| format!("{} of {to} answered {bytes}", C::SIGNATURE))
}

async fn code(rpc: &mut Rpc, address: Address) -> Result<Bytes> {
    let code: Value = rpc.call("eth_getCode", json!([address, "latest"])).await.wrap_err("eth_getCode")?;
    Ok(serde_json::from_value(code)?)
}
