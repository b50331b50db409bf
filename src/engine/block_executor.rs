//! Executes real blocks by the rules of the chain's family.

use alloy_consensus::{Header, Transaction, Typed2718, transaction::Recovered};
use alloy_eips::{eip4895::Withdrawals, eip7685::Requests};
use alloy_evm::{
    Evm,
    block::{BlockExecutionError, BlockExecutionResult, BlockExecutor, BlockValidationError},
    eth::{
        EthBlockExecutionCtx, EthBlockExecutor,
        dao_fork::{DAO_HARDFORK_ACCOUNTS, DAO_HARDFORK_BENEFICIARY},
    },
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::U256;
use revm::context::CfgEnv;

use super::{
    evm::{Ethereum, FamilyEvm, OpBlock, RunEvm},
    precompiles::RunPrecompiles,
};
use crate::{
    chain::{BlockGas, ChainReceipt, ChainReceiptBuilder, ChainSpec, ChainTx, Family, GasRefunds},
    ledger::OpenBlock,
    state::Overlay,
};

/// Executes a block's system calls and transactions in an overlay. It may begin in the middle of a block
/// ([`resume`](Self::resume)): the changes of the earlier part are in the state, and do not run again.
pub struct ChainExecutor<'a> {
    family: FamilyExecutor<'a>,
    /// The number of the block's transactions that did not run here.
    before: usize,
}

type EthereumExecutor<'a> = EthBlockExecutor<'a, RunEvm<'a, Ethereum>, &'a ChainSpec, ChainReceiptBuilder>;

enum FamilyExecutor<'a> {
    Ethereum(Box<EthereumExecutor<'a>>),
    OpStack(Box<OpBlock<'a>>),
}

/// The progress of a block that is executed in parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockProgress {
    /// The number of transactions.
    pub transactions: usize,
    /// Gas used by receipts.
    pub cumulative_gas: u64,
    /// Gas used out of the block's gas.
    pub gas: BlockGas,
    /// `blobGasUsed` so far: blob gas, or on the OP stack from Jovian on the DA footprint.
    pub blob_gas: u64,
}

impl BlockProgress {
    /// Returns the progress of a block being built.
    pub fn of(open: &OpenBlock) -> Self {
        Self {
            transactions: open.transactions.len(),
            cumulative_gas: open.cumulative_gas(),
            gas: open.gas,
            blob_gas: open.blob_gas_used,
        }
    }
}

/// The result of executing a block.
#[derive(Debug, Default)]
pub struct BlockResult {
    /// The receipts of the block's transactions.
    pub receipts: Vec<ChainReceipt>,
    /// Requests (EIP-7685). Empty on the OP stack.
    pub requests: Requests,
    /// Gas used by the transactions.
    pub gas_used: u64,
    /// The value of `blobGasUsed`: blob gas, or on the OP stack from Jovian on the DA footprint.
    pub blob_gas_used: u64,
}

/// Returns whether the value and the highest fees of a transaction are together more than 2^256 - 1.
fn spends_too_much(tx: &Recovered<ChainTx>) -> bool {
    let fee = |gas: u64, price: u128| U256::from(gas).checked_mul(U256::from(price));
    let blobs = match (tx.blob_gas_used(), tx.max_fee_per_blob_gas()) {
        (Some(gas), Some(price)) => fee(gas, price),
        _ => Some(U256::ZERO),
    };
    let fees = fee(tx.gas_limit(), tx.max_fee_per_gas()).zip(blobs).and_then(|(gas, blobs)| gas.checked_add(blobs));
    fees.is_none_or(|fees| fees.checked_add(tx.value()).is_none())
}

impl<'a> ChainExecutor<'a> {
    /// Creates the executor of `header`'s block on the state in `overlay`. The OP stack has no withdrawals or uncles.
    pub fn new(
        spec: &'a ChainSpec,
        overlay: &'a mut Overlay,
        header: &'a Header,
        withdrawals: Option<&'a Withdrawals>,
        ommers: &'a [Header],
    ) -> Self {
        if spec.is_amsterdam_active_at_timestamp(header.timestamp) {
            overlay.list_accesses(0);
        }
        let family = match spec.family() {
            Family::Ethereum => {
                let context = EthBlockExecutionCtx {
                    parent_hash: header.parent_hash,
                    parent_beacon_block_root: header.parent_beacon_block_root,
                    ommers,
                    withdrawals: withdrawals.map(|list| std::borrow::Cow::Borrowed(list.as_slice())),
                    extra_data: header.extra_data.clone(),
                    tx_count_hint: None,
                    slot_number: header.slot_number,
                };
                let evm = evm(spec, overlay, header);
                FamilyExecutor::Ethereum(Box::new(EthBlockExecutor::new(evm, context, spec, ChainReceiptBuilder)))
            }
            Family::OpStack => {
                FamilyExecutor::OpStack(Box::new(OpBlock::new(evm(spec, overlay, header), spec, header)))
            }
        };
        Self { family, before: 0 }
    }

    /// Resumes in the middle of the block.
    pub fn resume(&mut self, progress: BlockProgress) {
        let BlockProgress { transactions, cumulative_gas, gas, blob_gas } = progress;
        self.before = transactions;
        match &mut self.family {
            FamilyExecutor::Ethereum(executor) => {
                executor.cumulative_tx_gas_used = cumulative_gas;
                (executor.block_regular_gas_used, executor.block_state_gas_used) = (gas.regular, gas.state);
                executor.blob_gas_used = blob_gas;
            }
            FamilyExecutor::OpStack(executor) => {
                executor.transactions = transactions;
                executor.gas_used = cumulative_gas;
                executor.da_footprint = blob_gas;
            }
        }
        if self.overlay().lists_accesses() {
            self.overlay().list_accesses(transactions as u64);
        }
    }

    /// Sets the refunds of the block's transactions. No block of Ethereum has any.
    pub fn refund(&mut self, refunds: GasRefunds) {
        if let FamilyExecutor::OpStack(executor) = &mut self.family {
            executor.refunds = refunds;
        }
    }

    /// Returns the progress of the block, including its part that did not run here.
    pub fn progress(&self) -> BlockProgress {
        match &self.family {
            FamilyExecutor::Ethereum(executor) => {
                let cumulative_gas = executor.cumulative_tx_gas_used;
                let gas = if executor.evm.cfg_env().enable_amsterdam_eip8037 {
                    BlockGas { regular: executor.block_regular_gas_used, state: executor.block_state_gas_used }
                } else {
                    BlockGas { regular: cumulative_gas, state: 0 }
                };
                let transactions = self.before + executor.receipts.len();
                BlockProgress { transactions, cumulative_gas, gas, blob_gas: executor.blob_gas_used }
            }
            FamilyExecutor::OpStack(executor) => BlockProgress {
                transactions: executor.transactions,
                cumulative_gas: executor.gas_used,
                gas: BlockGas { regular: executor.gas_used, state: 0 },
                blob_gas: executor.da_footprint,
            },
        }
    }

    /// Runs the system calls, and applies the changes of a fork, that precede the first transaction.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if one of them fails.
    pub fn begin(&mut self) -> Result<(), BlockExecutionError> {
        match &mut self.family {
            FamilyExecutor::Ethereum(executor) => {
                let number = executor.evm.block().number;
                if executor.spec.dao_fork_block().is_some_and(|fork| number == U256::from(fork)) {
                    move_dao_balances(executor.evm.db_mut());
                }
                executor.apply_pre_execution_changes()
            }
            FamilyExecutor::OpStack(executor) => executor.begin(),
        }
    }

    /// Executes the next transaction.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if the transaction is invalid in the block. It then changes nothing.
    pub fn execute(&mut self, tx: &Recovered<ChainTx>) -> Result<(), BlockExecutionError> {
        self.run(tx, |_| true).map(|_| ())
    }

    /// Executes the next transaction unless it reads unknown state of an upstream. Returns whether it was executed. If
    /// not, it changes nothing, and the overlay holds the missed state. The overlay must have missed nothing before.
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if the transaction is invalid in the block. It then changes nothing.
    pub fn execute_known(&mut self, tx: &Recovered<ChainTx>) -> Result<bool, BlockExecutionError> {
        match self.run(tx, |overlay| !overlay.has_missed()) {
            // The transaction may be valid on the state that is missing.
            Err(_) if self.overlay().has_missed() => Ok(false),
            executed => executed,
        }
    }

    /// Lifts the checks of nonces, balances and base fees, for transactions that are not the
    /// next of the block.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        fn relax<S>(cfg: &mut CfgEnv<S>) {
            cfg.disable_nonce_check = true;
            cfg.disable_balance_check = true;
            cfg.disable_base_fee = true;
        }
        match &mut self.family {
            FamilyExecutor::Ethereum(executor) => relax(executor.evm.cfg_mut()),
            FamilyExecutor::OpStack(executor) => relax(executor.evm.cfg_mut()),
        }
        self
    }

    /// Executes the next transaction, and commits its changes if `keep` holds for the overlay after its run. Returns
    /// whether they were committed.
    fn run(
        &mut self,
        tx: &Recovered<ChainTx>,
        keep: impl FnOnce(&Overlay) -> bool,
    ) -> Result<bool, BlockExecutionError> {
        let foreign = |expected: &str| {
            let found = tx.inner().ty();
            BlockValidationError::msg(format!("transaction type {found:#04x}: expected one of {expected}")).into()
        };
        // revm relies on it where balances are not checked.
        if spends_too_much(tx) {
            let problem = "value and fees are together more than 2^256 - 1 wei: no account has so much";
            return Err(BlockValidationError::msg(problem).into());
        }
        match &mut self.family {
            FamilyExecutor::Ethereum(_) if !matches!(tx.inner(), ChainTx::Signed(_)) => {
                Err(foreign("Ethereum's, 0x0 to 0x4"))
            }
            FamilyExecutor::Ethereum(executor) => {
                let output = executor.execute_transaction_without_commit(tx)?;
                let is_kept = keep(executor.evm.db_mut());
                if is_kept {
                    executor.evm.db_mut().next_access_index();
                    executor.commit_transaction(output);
                }
                Ok(is_kept)
            }
            FamilyExecutor::OpStack(_) if tx.is_eip4844() => {
                Err(foreign("the OP stack's: 0x0, 0x1, 0x2, 0x4, 0x7d and 0x7e"))
            }
            FamilyExecutor::OpStack(executor) => executor.execute(tx, keep),
        }
    }

    /// Returns the receipts of the transactions that this executor has executed.
    pub fn receipts_mut(&mut self) -> &mut Vec<ChainReceipt> {
        match &mut self.family {
            FamilyExecutor::Ethereum(executor) => &mut executor.receipts,
            FamilyExecutor::OpStack(executor) => &mut executor.receipts,
        }
    }

    /// Returns the overlay with the changes of the block.
    pub fn overlay(&mut self) -> &mut Overlay {
        match &mut self.family {
            FamilyExecutor::Ethereum(executor) => executor.evm.db_mut(),
            FamilyExecutor::OpStack(executor) => executor.evm.db_mut(),
        }
    }

    /// Applies rewards, withdrawals and requests, which follow the last transaction. `before` are the receipts of the
    /// transactions before [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// Returns a [`BlockExecutionError`] if a system call fails.
    pub fn finish(
        mut self,
        before: impl IntoIterator<Item = ChainReceipt>,
    ) -> Result<BlockResult, BlockExecutionError> {
        let receipts = self.receipts_mut();
        receipts.splice(..0, before);
        match self.family {
            FamilyExecutor::Ethereum(mut executor) => {
                let overlay = executor.evm.db_mut();
                overlay.next_access_index();
                // EIP-7928 lists the recipient of each withdrawal, and alloy-evm looks at none that receives nothing.
                for withdrawal in executor.ctx.withdrawals.iter().flat_map(|list| list.iter()) {
                    overlay.list_account(withdrawal.address);
                }
                let BlockExecutionResult { receipts, requests, gas_used, blob_gas_used } = executor.finish()?.1;
                Ok(BlockResult { receipts, requests, gas_used, blob_gas_used })
            }
            FamilyExecutor::OpStack(executor) => {
                let OpBlock { receipts, gas_used, da_footprint: blob_gas_used, .. } = *executor;
                Ok(BlockResult { receipts, requests: Requests::default(), gas_used, blob_gas_used })
            }
        }
    }
}

fn evm<'a, F: FamilyEvm>(spec: &ChainSpec, overlay: &'a mut Overlay, header: &Header) -> RunEvm<'a, F> {
    let env = F::env(spec, header);
    let precompiles = RunPrecompiles::of(spec, env.cfg_env.spec);
    RunEvm::new(overlay, env, precompiles)
}

/// Moves the balances of the DAO and its children to the contract for withdrawals (EIP-779), before the first
/// transaction of the block.
fn move_dao_balances(overlay: &mut Overlay) {
    let mut moved = overlay.balance_and_nonce(DAO_HARDFORK_BENEFICIARY).0;
    for address in DAO_HARDFORK_ACCOUNTS {
        let balance = overlay.balance_and_nonce(address).0;
        if !balance.is_zero() {
            moved += balance;
            overlay.set(address, Some(U256::ZERO), None, None);
        }
    }
    overlay.set(DAO_HARDFORK_BENEFICIARY, Some(moved), None, None);
}
