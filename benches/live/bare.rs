//! The cost of a sub-block's transactions in op-revm alone, as a lower bound.

use alloy_consensus::transaction::Recovered;
use alloy_eips::Decodable2718;
use alloy_evm::{Evm, EvmEnv, EvmFactory, FromRecoveredTx};
use alloy_op_evm::{OpEvmFactory, OpTx};
use alloy_primitives::U256;
use op_revm::OpSpecId;
use presim::chain::ChainTx;
use revm::{
    bytecode::Bytecode,
    database::{CacheDB, EmptyDB},
    state::AccountInfo,
};

use crate::built::Built;

/// A state to which op-revm applies the transactions of sub-blocks.
pub struct BareChain {
    db: CacheDB<EmptyDB>,
    /// The environment of the newest block.
    env: EvmEnv<OpSpecId>,
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
        let mut evm = OpEvmFactory::default().create_evm(&mut self.db, self.env.clone());
        let mut used = 0;
        for tx in transactions {
            used += evm.transact_commit(tx.clone()).expect("a transaction").tx_gas_used();
        }
        self.gas += used;
        used
    }

    /// Returns the gas of the newest block so far.
    pub const fn gas(&self) -> u64 {
        self.gas
    }
}
