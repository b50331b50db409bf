//! The cost of a request's calls in revm alone, as a lower bound.

use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::EvmEnv;
use alloy_primitives::{Address, B256, Bytes, map::B256Map};
use alloy_rpc_types_eth::{TransactionRequest, simulate::SimulatePayload, state::AccountOverride};
use presim::testing::{
    engine::Simulation,
    rpc::{dialect::PRESIM, parse_simulation},
    state::Overlay,
};
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext, SystemCallCommitEvm,
    bytecode::Bytecode,
    context::{ContextTr, TxEnv, either::Either, transaction::TransactionType},
    database::{AccountState, CacheDB},
};
use serde_json::Value;

use super::{BodiesChain, Body};

/// A parsed body, and what the bare loop needs precomputed.
pub struct Request {
    pub body: Body,
    pub sim: Simulation,
    payload: SimulatePayload,
    /// The environment of each block, by the engine's own headers, and the hash of its parent.
    envs: Vec<(EvmEnv, B256)>,
}

impl BodiesChain {
    /// Runs the calls of `request` in revm only; with `SYSTEM`, also the system calls that begin and end each block.
    /// `seen` gets the gas of each call.
    pub fn bare<const SYSTEM: bool>(&self, request: &Request, mut seen: impl FnMut(u64)) {
        let (snapshot, backend) = (self.node.snapshots().newest(), &self.node.runner().backend);
        let world = snapshot.world.local().expect("all of it is here");
        let mut evm = Context::mainnet().with_db(CacheDB::new(world)).build_mainnet();
        let mut gas_left = backend.limits.gas_cap;
        for (block, (env, parent)) in request.payload.block_state_calls.iter().zip(&request.envs) {
            evm.ctx.cfg = env.cfg_env.clone();
            evm.ctx.block = env.block_env.clone();
            let db = evm.ctx.db_mut();
            for (address, account) in block.state_overrides.iter().flatten() {
                override_account(db, *address, account);
            }
            let mut system = |address: Address, data: Bytes| {
                if SYSTEM {
                    evm.system_call_commit(address, data).expect("a system call");
                }
            };
            system(HISTORY_STORAGE_ADDRESS, (*parent).into());
            system(BEACON_ROOTS_ADDRESS, B256::ZERO.into());
            let mut used = 0;
            for call in &block.calls {
                let most = (env.block_env.gas_limit - used).min(gas_left);
                let tx = transaction(call, most, backend.spec.chain_id());
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
    let slots = |slots: &B256Map<B256>| slots.iter().map(|(slot, value)| ((*slot).into(), (*value).into())).collect();
    if let Some(state) = &account.state {
        db.replace_account_storage(address, slots(state)).expect("slots");
    } else if let Some(state_diff) = &account.state_diff {
        known.storage.extend(slots(state_diff));
    }
}

/// Returns a call as revm takes it, with at most this gas.
fn transaction(call: &TransactionRequest, most: u64, chain_id: u64) -> TxEnv {
    let is_market = call.max_fee_per_gas.is_some() || call.max_priority_fee_per_gas.is_some();
    let kind = if call.authorization_list.is_some() {
        TransactionType::Eip7702
    } else if call.blob_versioned_hashes.is_some() {
        TransactionType::Eip4844
    } else if is_market {
        TransactionType::Eip1559
    } else {
        TransactionType::Eip2930
    };
    TxEnv {
        tx_type: kind as u8,
        caller: call.from.unwrap_or_default(),
        gas_limit: call.gas.unwrap_or(most),
        gas_price: call.gas_price.or(call.max_fee_per_gas).unwrap_or_default(),
        gas_priority_fee: is_market.then(|| call.max_priority_fee_per_gas.unwrap_or_default()),
        kind: call.to.unwrap_or_default(),
        value: call.value.unwrap_or_default(),
        data: call.input.input().cloned().unwrap_or_default(),
        chain_id: Some(chain_id),
        access_list: call.access_list.clone().unwrap_or_default(),
        blob_hashes: call.blob_versioned_hashes.clone().unwrap_or_default(),
        max_fee_per_blob_gas: call.max_fee_per_blob_gas.unwrap_or_default(),
        authorization_list: call.authorization_list.iter().flatten().cloned().map(Either::Left).collect(),
        ..TxEnv::default()
    }
}

impl Request {
    /// Parses a body, prepares it for the bare loop, and checks that all three ways use the same gas.
    pub fn new(chain: &BodiesChain, body: Body) -> Self {
        let (snapshot, backend) = (chain.node.snapshots().newest(), &chain.node.runner().backend);
        let request = parse_simulation(body.params.get(), &PRESIM, &backend.limits.shape).expect("a simulation");
        let sim = request.simulation;
        let [payload, _]: [Value; 2] = serde_json::from_str(body.params.get()).expect("a payload and a tag");
        let payload = serde_json::from_value(payload).expect("a payload of execution-apis");
        let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
        let rules = backend.rules(&PRESIM);
        let blocks = backend.engine(&rules, &mut overlay).simulate(&snapshot, &sim).expect("a simulation").blocks;
        let envs = blocks.iter().map(|block| {
            let header = &block.listing.as_ref().expect("headers are asked for").header;
            let mut env = backend.spec.evm_env(header);
            let cfg = &mut env.cfg_env;
            (cfg.disable_nonce_check, cfg.disable_base_fee, cfg.disable_block_gas_limit) = (true, true, true);
            (cfg.disable_eip3607, cfg.tx_gas_limit_cap, cfg.tx_chain_id_check) = (true, Some(u64::MAX), false);
            (env, header.parent_hash)
        });
        let request = Self { body, sim, payload, envs: envs.collect() };
        let engine: Vec<u64> = blocks.iter().flat_map(|block| &block.calls).map(|call| call.gas_used).collect();
        let (mut bare, mut with_system) = (Vec::new(), Vec::new());
        chain.bare::<false>(&request, |gas| bare.push(gas));
        chain.bare::<true>(&request, |gas| with_system.push(gas));
        assert_eq!(engine, bare, "the engine and bare revm use the same gas");
        assert_eq!(engine, with_system, "system calls change no call's gas");
        request
    }

    /// Returns the number of calls in the request.
    pub fn calls(&self) -> usize {
        self.sim.blocks.iter().map(|block| block.calls.len()).sum()
    }
}
