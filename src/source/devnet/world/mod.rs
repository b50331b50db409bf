//! The devnet's accounts, its trading world, and the background traffic in it.

mod market;
mod traffic;

pub use self::{
    market::{Market, TradingPair},
    traffic::Traffic,
};

use std::{collections::BTreeMap, ops::Range, sync::OnceLock};

use alloy_eips::{eip2935, eip4788, eip7002, eip7251, eip7840::BlobParams, eip8282};
use alloy_evm::Evm;
use alloy_genesis::{ChainConfig, Genesis, GenesisAccount};
use alloy_hardforks::EthereumHardfork;
use alloy_primitives::{Address, Bytes, TxKind, U256};
use alloy_signer_local::{MnemonicBuilder, PrivateKeySigner, coins_bip39::English};
use alloy_sol_types::{SolCall, SolValue, sol};
use revm::{
    DatabaseCommit,
    context::{TxEnv, result::ExecutionResult},
};
use serde::Deserialize;

use crate::{
    chain::{
        BlockHashes, ChainSpec, DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, TradingWorld, genesis_block, set_newest_fork,
    },
    engine::{Ethereum, RunEvm, RunPrecompiles, lift_checks},
    state::{CodeCache, LocalWorld, Overlay},
};

/// The mnemonic that the ecosystem's test tools share. Its keys are public.
const MNEMONIC: &str = "test test test test test test test test test test test junk";
/// The number of accounts for the user.
const ACCOUNTS: usize = 10;
/// The number of accounts for background traffic. They follow the user's accounts.
const TRAFFIC_ACCOUNTS: usize = 10;
/// The balance of each account of the user: 10,000 ether, in wei.
const BALANCE: u128 = 10_000 * ONE;
/// The balance of each account of background traffic, in wei. The fees of the load would use up 10,000 ether within
/// weeks.
const TRAFFIC_BALANCE: u128 = 1_000_000 * ONE;
/// One ether, or one token.
const ONE: u128 = 1_000_000_000_000_000_000;
/// The devnet's chain id.
const CHAIN_ID: u64 = 31337;
/// Gas limit of the devnet's blocks.
const GAS_LIMIT: u64 = 60_000_000;

sol! {
    interface IErc20 {
        function approve(address spender, uint256 value) external returns (bool);
        function transfer(address to, uint256 value) external returns (bool);
    }

    interface IWeth {
        function deposit() external payable;
    }

    interface IRouter {
        function addLiquidity(address tokenA, address tokenB, uint256 amountADesired, uint256 amountBDesired, uint256 amountAMin, uint256 amountBMin, address to, uint256 deadline) external returns (uint256 amountA, uint256 amountB, uint256 liquidity);
        function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
        function swapExactETHForTokens(uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external payable returns (uint256[] memory amounts);
        function swapExactTokensForETH(uint256 amountIn, uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external returns (uint256[] memory amounts);
    }
}

/// The reason why the trading world cannot be built: the artifacts do not fit the set-up.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The artifacts cannot be read.
    #[error("the trading world's artifacts: {0}")]
    Artifacts(#[from] serde_json::Error),
    /// An account cannot be derived from the mnemonic.
    #[error("the mnemonic: {0}")]
    Mnemonic(#[from] alloy_signer_local::LocalSignerError),
    /// A step of the set-up failed.
    #[error("the trading world: {step}: {problem}")]
    SubBlockStep { step: &'static str, problem: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Artifact {
    creation_code: Bytes,
}

/// Returns the keys of the first ten accounts of the test mnemonic, which belong to the user.
///
/// # Errors
///
/// Returns [`WorldError::Mnemonic`] if a key cannot be derived.
pub fn dev_signers() -> Result<Vec<PrivateKeySigner>, WorldError> {
    signers(0..ACCOUNTS)
}

/// Returns the first keys that are derived from a mnemonic; of the test mnemonic if none is given.
///
/// # Errors
///
/// Returns [`WorldError::Mnemonic`] if the mnemonic is none, or a key cannot be derived.
pub fn signers_of(mnemonic: Option<&str>, count: usize) -> Result<Vec<PrivateKeySigner>, WorldError> {
    let mnemonic = match mnemonic {
        None if count <= ACCOUNTS => return signers(0..count),
        given => given.unwrap_or(MNEMONIC),
    };
    derive(mnemonic, count)
}

/// Returns the keys of the next ten accounts, for background traffic, so that it never takes a nonce of the user's.
///
/// # Errors
///
/// Returns [`WorldError::Mnemonic`] if a key cannot be derived.
pub fn traffic_signers() -> Result<Vec<PrivateKeySigner>, WorldError> {
    signers(ACCOUNTS..ACCOUNTS + TRAFFIC_ACCOUNTS)
}

fn signers(indices: Range<usize>) -> Result<Vec<PrivateKeySigner>, WorldError> {
    // The derivation of the keys is slow, so it is done once.
    static ALL: OnceLock<Vec<PrivateKeySigner>> = OnceLock::new();
    let all = match ALL.get() {
        Some(all) => all,
        None => {
            let derived = derive(MNEMONIC, ACCOUNTS + TRAFFIC_ACCOUNTS)?;
            ALL.get_or_init(|| derived)
        }
    };
    Ok(all[indices].to_vec())
}

/// Derives the first keys of a mnemonic.
fn derive(mnemonic: &str, count: usize) -> Result<Vec<PrivateKeySigner>, WorldError> {
    let parent = MnemonicBuilder::<English>::default().phrase(mnemonic).index(0)?.build_parent_key()?;
    Ok(parent.children_from(0).take(count).collect::<Result<_, _>>()?)
}

/// Returns the devnet's genesis before its contracts: every fork to Osaka from the start, the system contracts, the
/// deterministic deployment proxy ([EIP-7997](https://eips.ethereum.org/EIPS/eip-7997)), the accounts.
pub fn dev_genesis(signers: &[PrivateKeySigner], timestamp: u64) -> Genesis {
    let mut config = ChainConfig {
        chain_id: CHAIN_ID,
        blob_schedule: BTreeMap::from([
            ("cancun".to_owned(), BlobParams::cancun()),
            ("prague".to_owned(), BlobParams::prague()),
            ("osaka".to_owned(), BlobParams::osaka()),
        ]),
        ..ChainConfig::default()
    };
    set_newest_fork(&mut config, EthereumHardfork::Osaka);
    let contracts = [
        (eip4788::BEACON_ROOTS_ADDRESS, eip4788::BEACON_ROOTS_CODE.clone()),
        (eip2935::HISTORY_STORAGE_ADDRESS, eip2935::HISTORY_STORAGE_CODE.clone()),
        (eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_CODE.clone()),
        (eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_CODE.clone()),
        (DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE),
    ]
    .map(predeploy);
    let accounts = signers
        .iter()
        .map(|signer| (signer.address(), GenesisAccount { balance: U256::from(BALANCE), ..GenesisAccount::default() }));
    Genesis {
        config,
        timestamp,
        gas_limit: GAS_LIMIT,
        base_fee_per_gas: Some(1_000_000_000),
        alloc: contracts.into_iter().chain(accounts).collect(),
        ..Genesis::default()
    }
}

/// Adds the contracts of builder requests ([EIP-8282](https://eips.ethereum.org/EIPS/eip-8282)) to the devnet's genesis if
/// Amsterdam is scheduled.
pub fn add_contracts_of_forks(genesis: &mut Genesis) {
    if genesis.config.amsterdam_time.is_some() {
        let contracts = [
            (eip8282::BUILDER_DEPOSIT_CONTRACT_ADDRESS, eip8282::BUILDER_DEPOSIT_CONTRACT_CODE.clone()),
            (eip8282::BUILDER_EXIT_CONTRACT_ADDRESS, eip8282::BUILDER_EXIT_CONTRACT_CODE.clone()),
        ];
        genesis.alloc.extend(contracts.map(predeploy));
    }
}

/// Returns a contract that is there from the start.
fn predeploy((address, code): (Address, Bytes)) -> (Address, GenesisAccount) {
    (address, GenesisAccount { nonce: Some(1), code: Some(code), ..GenesisAccount::default() })
}

/// Returns the state of `genesis` with the trading world. `signers` are all accounts that take part in it, and the
/// first of them sets it up. The contracts are deployed by running a deployer's transactions. Then the accounts get
/// back their ether and their nonces, except for the first account's nonce, from which the contracts' addresses follow.
///
/// # Errors
///
/// Returns a [`WorldError`] if a step of the set-up fails.
pub fn build(
    genesis: &Genesis,
    spec: &ChainSpec,
    signers: &[PrivateKeySigner],
    codes: &CodeCache,
) -> Result<(LocalWorld, TradingWorld), WorldError> {
    let artifacts: BTreeMap<String, Artifact> = serde_json::from_str(include_str!("artifacts.json"))?;
    let code = |name: &'static str, arguments: Vec<u8>| -> Result<Bytes, WorldError> {
        let artifact = artifacts
            .get(name)
            .ok_or_else(|| WorldError::SubBlockStep { step: name, problem: "no such artifact".to_owned() })?;
        Ok([artifact.creation_code.as_ref(), &arguments].concat().into())
    };
    let mut state = LocalWorld::of_genesis(genesis, codes);
    let block = genesis_block(genesis, spec, state.state_root_in_parallel());
    let mut overlay = Overlay::new(state.clone().into(), BlockHashes::default());
    let accounts: Vec<Address> = signers.iter().map(PrivateKeySigner::address).collect();
    let owner = accounts[0];
    let tokens = |count: u128| U256::from(count * ONE);

    let world = {
        let mut env = spec.evm_env(&block.header);
        lift_checks(&mut env);
        env.cfg_env.disable_base_fee = true;
        let precompiles = RunPrecompiles::of(spec, env.cfg_env.spec);
        let mut setup = Setup { evm: RunEvm::<Ethereum>::new(&mut overlay, env, precompiles) };
        let weth = setup.create("Weth", owner, code("Weth", Vec::new())?)?;
        let mut token = |name: &'static str, symbol: &str| {
            let arguments = (name, symbol, tokens(5_000_000), owner).abi_encode_params();
            setup.create(name, owner, code("Token", arguments)?)
        };
        let (beta, alpha) = (token("Beta", "BETA")?, token("Alpha", "ALPHA")?);
        let factory = setup.create("Factory", owner, code("Factory", Vec::new())?)?;
        let router = setup.create("Router", owner, code("Router", (factory, weth).abi_encode_params())?)?;
        setup.call("deposit", owner, weth, tokens(2_000), &IWeth::depositCall {})?;
        for account in &accounts {
            for token in [weth, alpha, beta] {
                let approve = IErc20::approveCall { spender: router, value: U256::MAX };
                setup.call("approve", *account, token, U256::ZERO, &approve)?;
            }
        }
        for (token_a, amount_a, token_b, amount_b) in [
            (alpha, 1_000_000, beta, 1_000_000),
            (weth, 1_000, alpha, 2_000_000),
            // The price follows from the other two pairs, so that no cycle over the three is profitable yet.
            (weth, 1_000, beta, 2_000_000),
        ] {
            let add = IRouter::addLiquidityCall {
                tokenA: token_a,
                tokenB: token_b,
                amountADesired: tokens(amount_a),
                amountBDesired: tokens(amount_b),
                amountAMin: tokens(amount_a),
                amountBMin: tokens(amount_b),
                to: owner,
                deadline: U256::MAX,
            };
            setup.call("addLiquidity", owner, router, U256::ZERO, &add)?;
        }
        // The first account sends the users' tokens. It sends the second account the tokens of the other accounts too,
        // and the second account passes them on. The first account therefore sends the same transactions regardless of
        // the number of accounts, and its nonce is constant.
        let (users, others) = accounts.split_at(accounts.len().min(ACCOUNTS));
        for token in [alpha, beta] {
            for (index, to) in users.iter().enumerate().skip(1) {
                let shares = if index == 1 { 1 + others.len() as u128 } else { 1 };
                setup.transfer(token, owner, *to, tokens(shares * 100_000))?;
            }
            for to in others {
                setup.transfer(token, users[1], *to, tokens(100_000))?;
            }
        }
        let load = Some(setup.create("Load", owner, code("Load", Vec::new())?)?);
        TradingWorld { weth, alpha, beta, factory, router, load }
    };
    for (index, account) in accounts.iter().enumerate() {
        let balance = if index < ACCOUNTS { BALANCE } else { TRAFFIC_BALANCE };
        overlay.set(*account, Some(U256::from(balance)), (*account != owner).then_some(0), None);
    }
    state.apply_many(&overlay.changes().cloned().collect::<Vec<_>>());
    Ok((state, world))
}

/// The state of the set-up.
struct Setup<E> {
    evm: E,
}

impl<E: Evm<Tx = TxEnv, DB: DatabaseCommit>> Setup<E> {
    fn create(&mut self, step: &'static str, from: Address, code: Bytes) -> Result<Address, WorldError> {
        let result = self.run(step, TxEnv { caller: from, kind: TxKind::Create, data: code, ..TxEnv::default() })?;
        result.created_address().ok_or_else(|| WorldError::SubBlockStep { step, problem: "created nothing".to_owned() })
    }

    fn call(
        &mut self,
        step: &'static str,
        from: Address,
        to: Address,
        value: U256,
        call: &impl SolCall,
    ) -> Result<(), WorldError> {
        let tx =
            TxEnv { caller: from, kind: TxKind::Call(to), value, data: call.abi_encode().into(), ..TxEnv::default() };
        self.run(step, tx).map(drop)
    }

    fn transfer(&mut self, token: Address, from: Address, to: Address, value: U256) -> Result<(), WorldError> {
        self.call("transfer", from, token, U256::ZERO, &IErc20::transferCall { to, value })
    }

    fn run(&mut self, step: &'static str, mut tx: TxEnv) -> Result<ExecutionResult<E::HaltReason>, WorldError> {
        // More than the largest step uses, with its state gas where Amsterdam is active from the start.
        tx.gas_limit = GAS_LIMIT;
        let done =
            self.evm.transact_raw(tx).map_err(|error| WorldError::SubBlockStep { step, problem: error.to_string() })?;
        if !done.result.is_success() {
            return Err(WorldError::SubBlockStep { step, problem: format!("{:?}", done.result) });
        }
        self.evm.db_mut().commit(done.state);
        Ok(done.result)
    }
}
