//! The cost of a sub-block's transactions in revm's own loop, as a lower bound: without the fees of the OP stack.

use alloy_consensus::Transaction;
use alloy_eips::Decodable2718;
use alloy_evm::EvmEnv;
use alloy_primitives::U256;
use presim::testing::chain::ChainTx;
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext,
    bytecode::Bytecode,
    context::{CfgEnv, TxEnv},
    database::{CacheDB, EmptyDB},
    state::AccountInfo,
};
use support::built::Built;

/// A state to which revm applies the transactions of sub-blocks.
pub struct BareChain {
    db: CacheDB<EmptyDB>,
    /// The environment of the newest block.
    env: EvmEnv,
    /// The gas of the newest block so far.
    gas: u64,
}

impl BareChain {
    /// Creates the state after `block`.
    pub fn new(block: &Built) -> Self {
        let mut db = CacheDB::new(EmptyDB::new());
        for (address, account) in block.block.state.iter() {
            let info = AccountInfo {
                balance: account.balance,
                nonce: account.nonce.unwrap_or_default(),
                ..AccountInfo::default()
            };
            let info = match &account.code {
                Some(code) => info.with_code(Bytecode::new_raw(code.clone())),
                None => info,
            };
            db.insert_account_info(*address, info);
            for (slot, value) in account.storage.iter().flatten() {
                let stored =
                    db.insert_account_storage(*address, U256::from_be_bytes(slot.0), U256::from_be_bytes(value.0));
                stored.expect("an empty database has no errors");
            }
        }
        Self { db, env: env_of(block), gas: 0 }
    }

    /// Begins a block, and returns its transactions, cut as its sub-blocks are.
    pub fn parts(&mut self, block: &Built, split: &[usize]) -> Vec<Vec<TxEnv>> {
        (self.env, self.gas) = (env_of(block), 0);
        let mut transactions = block.raw().iter().map(|raw| {
            let tx = ChainTx::decode_2718_exact(raw).expect("a transaction").recovered().expect("a sender");
            TxEnv {
                caller: tx.signer(),
                gas_limit: tx.gas_limit(),
                gas_price: tx.max_fee_per_gas(),
                kind: tx.kind(),
                value: tx.value(),
                data: tx.input().clone(),
                ..TxEnv::default()
            }
        });
        split.iter().map(|count| transactions.by_ref().take(*count).collect()).collect()
    }

    /// Runs transactions and commits them. Returns their gas.
    pub fn run(&mut self, transactions: &[TxEnv]) -> u64 {
        let EvmEnv { cfg_env, block_env } = self.env.clone();
        let context = Context::mainnet().with_db(&mut self.db).with_block(block_env).with_cfg(cfg_env);
        let mut evm = context.build_mainnet();
        let gas = |tx: &TxEnv| evm.transact_commit(tx.clone()).expect("a transaction").tx_gas_used();
        let used = transactions.iter().map(gas).sum();
        self.gas += used;
        used
    }

    /// Returns the gas of the newest block so far.
    pub const fn gas(&self) -> u64 {
        self.gas
    }
}

/// Returns the environment of a block, in which deposits need no fees and no nonces.
fn env_of(block: &Built) -> EvmEnv {
    let EvmEnv { cfg_env, block_env } = block.spec.op_evm_env(block.header());
    let mut cfg = CfgEnv::new_with_spec(cfg_env.spec.into());
    (cfg.disable_nonce_check, cfg.disable_base_fee, cfg.tx_chain_id_check) = (true, true, false);
    EvmEnv { cfg_env: cfg, block_env }
}
