//! The cost of a request's calls in revm alone, as a lower bound.

use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::EvmEnv;
use alloy_primitives::{Address, B256, Bytes};
use presim::testing::{
    engine::{AccountOverride, Call, CallFees, SimCall, SimulatedBlock, Simulation, StorageOverride, lift_checks},
    rpc::{dialect::PRESIM, parse_simulation},
    state::Overlay,
};
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext, SystemCallCommitEvm,
    bytecode::Bytecode,
    context::{ContextTr, TxEnv, either::Either, transaction::TransactionType},
    database::{AccountState, CacheDB},
};

use super::{BodiesChain, Body, GAS_CAP, SHAPE};

/// A parsed body, and what the bare loop needs precomputed.
pub struct Request {
    pub body: Body,
    pub sim: Simulation,
    /// The environment of each block, by the engine's own headers, and the hash of its parent.
    envs: Vec<(EvmEnv, B256)>,
}

impl BodiesChain {
    /// Runs the calls of `request` in revm only; with `SYSTEM`, also the system calls that begin and end each block.
    /// `seen` gets the gas of each call.
    pub fn bare<const SYSTEM: bool>(&self, request: &Request, mut seen: impl FnMut(u64)) {
        let world = self.snapshot.world.local().expect("all of it is here");
        let mut evm = Context::mainnet().with_db(CacheDB::new(world)).build_mainnet();
        let mut gas_left = GAS_CAP;
        for (block, (env, parent)) in request.sim.blocks.iter().zip(&request.envs) {
            evm.ctx.cfg = env.cfg_env.clone();
            evm.ctx.block = env.block_env.clone();
            let db = evm.ctx.db_mut();
            block.state.iter().for_each(|(address, account)| override_account(db, *address, account));
            let mut system = |address: Address, data: Bytes| {
                if SYSTEM {
                    evm.system_call_commit(address, data).expect("a system call");
                }
            };
            system(HISTORY_STORAGE_ADDRESS, (*parent).into());
            system(BEACON_ROOTS_ADDRESS, B256::ZERO.into());
            let mut used = 0;
            for call in &block.calls {
                let SimCall::Unsigned(call) = call else { panic!("the bodies have no signed transaction") };
                let most = (env.block_env.gas_limit - used).min(gas_left);
                let tx = transaction(call, most, self.backend.spec.chain_id());
                let gas = evm.transact_commit(tx).expect("a call").tx_gas_used();
                (used, gas_left) = (used + gas, gas_left - gas);
                seen(gas);
            }
            let mut system = |address: Address| {
                if SYSTEM {
                    evm.system_call_commit(address, Bytes::new()).expect("a system call");
                }
            };
            system(WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS);
            system(CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS);
        }
    }
}

fn override_account<D: revm::DatabaseRef<Error: std::fmt::Debug>>(
    db: &mut CacheDB<D>,
    address: Address,
    account: &AccountOverride,
) {
    let known = db.load_account(address).expect("an account");
    if known.account_state == AccountState::NotExisting {
        known.account_state = AccountState::None;
    }
    known.info.balance = account.balance.unwrap_or(known.info.balance);
    known.info.nonce = account.nonce.unwrap_or(known.info.nonce);
    if let Some(code) = &account.code {
        known.info =
            known.info.clone().with_code_and_hash(Bytecode::new_raw(code.clone()), alloy_primitives::keccak256(code));
    }
    match &account.storage {
        StorageOverride::Keep => {}
        StorageOverride::Replace(slots) => {
            db.replace_account_storage(address, slots.iter().copied().collect()).expect("slots");
        }
        StorageOverride::Diff(slots) => known.storage.extend(slots.iter().copied()),
    }
}

/// Returns a call as revm takes it, with at most this gas.
fn transaction(call: &Call, most: u64, chain_id: u64) -> TxEnv {
    let (price, priority) = match call.fees {
        CallFees::GasPrice(price) => (price, None),
        CallFees::Market { max_fee, max_priority } => {
            (max_fee.unwrap_or_default(), Some(max_priority.unwrap_or_default()))
        }
    };
    let kind = if call.authorization_list.is_some() {
        TransactionType::Eip7702
    } else if call.blob_hashes.is_some() {
        TransactionType::Eip4844
    } else if priority.is_some() {
        TransactionType::Eip1559
    } else {
        TransactionType::Eip2930
    };
    TxEnv {
        tx_type: kind as u8,
        caller: call.from,
        gas_limit: call.gas.unwrap_or(most),
        gas_price: price,
        gas_priority_fee: priority,
        kind: call.to,
        value: call.value,
        data: call.data.clone(),
        chain_id: Some(chain_id),
        access_list: call.access_list.clone().unwrap_or_default(),
        blob_hashes: call.blob_hashes.clone().unwrap_or_default(),
        max_fee_per_blob_gas: call.max_fee_per_blob_gas.unwrap_or_default(),
        authorization_list: call.authorization_list.iter().flatten().cloned().map(Either::Left).collect(),
        ..TxEnv::default()
    }
}

impl Request {
    /// Parses a body and prepares it for the bare loop.
    pub fn new(chain: &BodiesChain, body: Body) -> Self {
        let request = parse_simulation(body.params.get(), &PRESIM, &SHAPE).expect("a simulation");
        let sim = request.simulation;
        let blocks = chain.simulate(&sim, &mut Overlay::default()).blocks;
        let envs = blocks
            .iter()
            .map(|block| {
                let header = &block.listing.as_ref().expect("headers are asked for").header;
                let mut env = chain.backend.spec.evm_env(header);
                lift_checks(&mut env);
                env.cfg_env.disable_base_fee = true;
                (env, header.parent_hash)
            })
            .collect();
        let request = Self { body, sim, envs };
        request.check(chain, &blocks);
        request
    }

    /// Returns the number of calls in the request.
    pub fn calls(&self) -> usize {
        self.sim.blocks.iter().map(|block| block.calls.len()).sum()
    }

    /// Checks that all three ways use the same gas.
    fn check(&self, chain: &BodiesChain, blocks: &[SimulatedBlock]) {
        let engine: Vec<u64> = blocks.iter().flat_map(|block| &block.calls).map(|call| call.gas_used).collect();
        let (mut bare, mut with_system) = (Vec::new(), Vec::new());
        chain.bare::<false>(self, |gas| bare.push(gas));
        chain.bare::<true>(self, |gas| with_system.push(gas));
        assert_eq!(engine, bare, "the engine and bare revm use the same gas");
        assert_eq!(engine, with_system, "system calls change no call's gas");
    }
}
