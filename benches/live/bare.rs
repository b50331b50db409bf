//! The cost of a sub-block's transactions in revm's own loop with the OP stack's handler, as a lower bound.

use alloy_consensus::transaction::Recovered;
use alloy_eips::Decodable2718;
use alloy_evm::{EvmEnv, FromRecoveredTx, precompiles::PrecompilesMap};
use alloy_primitives::U256;
use presim::testing::{
    chain::{ChainTx, Fork, OpFork, OpTx},
    engine::{OpBlockFees, OpHandler, precompiles_of},
};
use revm::{
    Context, DatabaseCommit, Journal,
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv, ContextSetters, ContextTr, Evm, JournalTr},
    database::{CacheDB, EmptyDB},
    handler::{EthFrame, Handler, instructions::EthInstructions},
    state::AccountInfo,
};

use crate::built::Built;

type BareDb<'a> = &'a mut CacheDB<EmptyDB>;
type BareContext<'a> = Context<BlockEnv, OpTx, CfgEnv<OpFork>, BareDb<'a>, Journal<BareDb<'a>>, OpBlockFees>;

/// A state to which revm applies the transactions of sub-blocks.
pub struct BareChain {
    db: CacheDB<EmptyDB>,
    /// The environment of the newest block.
    env: EvmEnv<OpFork>,
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
        Self { db, env: block.spec.op_evm_env(block.header()), gas: 0 }
    }

    /// Begins a block, and returns its transactions, cut as its sub-blocks are.
    pub fn parts(&mut self, block: &Built, split: &[usize]) -> Vec<Vec<OpTx>> {
        (self.env, self.gas) = (block.spec.op_evm_env(block.header()), 0);
        let mut transactions = block.raw().iter().map(|raw| {
            let tx = ChainTx::decode_2718_exact(raw).expect("a transaction");
            let tx: Recovered<ChainTx> = tx.recovered().expect("a sender");
            OpTx::from_recovered_tx(tx.inner(), tx.signer())
        });
        split.iter().map(|count| transactions.by_ref().take(*count).collect()).collect()
    }

    /// Runs transactions and commits them. Returns their gas.
    pub fn run(&mut self, transactions: &[OpTx]) -> u64 {
        let EvmEnv { cfg_env, block_env } = self.env.clone();
        let fork = cfg_env.spec;
        let context = BareContext::new(&mut self.db, fork).with_block(block_env).with_cfg(cfg_env);
        let precompiles = PrecompilesMap::from_static(precompiles_of(Fork::OpStack(fork)));
        let mut evm: Evm<_, (), _, _, EthFrame> =
            Evm::new(context, EthInstructions::new_mainnet_with_spec(fork.into()), precompiles);
        let mut used = 0;
        for tx in transactions {
            evm.ctx.set_tx(tx.clone());
            used += OpHandler::default().run(&mut evm).expect("a transaction").tx_gas_used();
            let changes = evm.ctx.journal_mut().finalize();
            evm.ctx.db_mut().commit(changes);
        }
        self.gas += used;
        used
    }

    /// Returns the gas of the newest block so far.
    pub const fn gas(&self) -> u64 {
        self.gas
    }
}
