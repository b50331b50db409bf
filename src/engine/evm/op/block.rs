//! Executes blocks of the OP stack.

use alloy_consensus::{Header, Transaction, TransactionEnvelope, transaction::Recovered};
use alloy_eips::Encodable2718;
use alloy_evm::{
    Evm, FromTxWithEncoded,
    block::{BlockExecutionError, BlockValidationError, SystemCaller},
};
use alloy_primitives::{Address, Bytes, address};
use revm::{DatabaseCommit, bytecode::Bytecode, context::result::ResultAndState};

use crate::{
    chain::{ChainReceipt, ChainSpec, ChainTx, DepositReceiptFields, ForkName, GasRefunds, OpFork, OpTx},
    engine::evm::{OpBlockFees, OpStack, RunEvm},
    state::{Code, Overlay},
};

/// The contract that Canyon deploys (<https://specs.optimism.io/protocol/preinstalls.html#create2deployer>).
const CREATE2_DEPLOYER: Address = address!("13b0D85CcB8bf860b6b79AF3029fCA081AE9beF2");
const CREATE2_DEPLOYER_CODE: &[u8] = include_bytes!("create2_deployer.bin");

/// The version of a deposit's receipt from Canyon on.
const RECEIPT_VERSION: u64 = 1;

/// The executor of a block of the OP stack.
pub(in crate::engine) struct OpBlock<'a> {
    pub evm: RunEvm<'a, OpStack>,
    /// Receipts of the transactions that it has executed.
    pub receipts: Vec<ChainReceipt>,
    /// The number of the block's transactions so far.
    pub transactions: usize,
    /// Gas used by the block's transactions so far, less the refunds.
    pub gas_used: u64,
    /// The DA footprint of the block's transactions so far, in gas. Zero before Jovian.
    pub da_footprint: u64,
    /// The refunds of the block's transactions.
    pub refunds: GasRefunds,
    spec: &'a ChainSpec,
    fork: OpFork,
    header: &'a Header,
}

impl<'a> OpBlock<'a> {
    pub fn new(evm: RunEvm<'a, OpStack>, spec: &'a ChainSpec, header: &'a Header) -> Self {
        let fork = spec.op_fork(header.timestamp);
        let (receipts, refunds) = (Vec::new(), GasRefunds::default());
        Self { evm, receipts, transactions: 0, gas_used: 0, da_footprint: 0, refunds, spec, fork, header }
    }

    /// Runs the system calls, and applies the change of state that begins Canyon.
    pub fn begin(&mut self) -> Result<(), BlockExecutionError> {
        let mut system = SystemCaller::new(self.spec);
        system.apply_blockhashes_contract_call(self.header.parent_hash, &mut self.evm)?;
        system.apply_beacon_root_contract_call(self.header.parent_beacon_block_root, &mut self.evm)?;
        // As in op-geth, the block at the very time of the fork has the change.
        if self.spec.activates_at(ForkName::Canyon, self.header.timestamp) {
            let overlay: &mut Overlay = self.evm.db_mut();
            let bytecode = Bytecode::new_legacy(Bytes::from_static(CREATE2_DEPLOYER_CODE));
            let code = Code { hash: bytecode.hash_slow(), bytecode };
            overlay.set(CREATE2_DEPLOYER, None, None, Some(code));
        }
        Ok(())
    }

    /// Executes the next transaction, and commits its changes if `keep` holds for the overlay after its run. Returns
    /// whether they were committed.
    pub fn execute(
        &mut self,
        tx: &Recovered<ChainTx>,
        keep: impl FnOnce(&Overlay) -> bool,
    ) -> Result<bool, BlockExecutionError> {
        if tx.as_post_exec().is_some() {
            return self.end(tx, keep);
        }
        let deposit = tx.as_deposit();
        // The L1 attributes of Bedrock used no gas of their block.
        let is_system = deposit.is_some_and(|deposit| deposit.is_system_transaction) && self.fork < OpFork::Regolith;
        let available = self.header.gas_limit.saturating_sub(self.gas_used);
        if tx.gas_limit() > available && !is_system {
            return Err(BlockValidationError::TransactionGasLimitMoreThanAvailableBlockGas {
                transaction_gas_limit: tx.gas_limit(),
                block_available_gas: available,
            }
            .into());
        }
        let encoded = if deposit.is_some() { Bytes::new() } else { tx.encoded_2718().into() };
        let footprint = if deposit.is_some() { 0 } else { self.footprint(&encoded)? };
        let had = match deposit {
            Some(_) if self.fork >= OpFork::Regolith => Some(self.evm.db_mut().balance_and_nonce(tx.signer()).1),
            _ => None,
        };
        let refund = self.refunds.of(self.transactions);
        let env = OpTx { refund, ..OpTx::from_encoded_tx(tx.inner(), tx.signer(), encoded) };
        let ran = self.evm.transact_raw(env);
        let ResultAndState { result, state } = ran.map_err(|error| BlockExecutionError::evm(error, *tx.tx_hash()))?;
        if !keep(self.evm.db()) {
            // The parameters may derive from missing state.
            self.evm.inner.ctx.chain = OpBlockFees::default();
            return Ok(false);
        }
        self.transactions += 1;
        // A refund is at most the gas: the handler has settled it.
        self.gas_used += result.tx_gas_used().saturating_sub(refund);
        self.da_footprint = self.da_footprint.saturating_add(footprint);
        let fields =
            DepositReceiptFields { nonce: had, version: (self.fork >= OpFork::Canyon).then_some(RECEIPT_VERSION) };
        self.receipts.push(ChainReceipt::of(tx.tx_type(), result, self.gas_used, fields));
        self.evm.db_mut().commit(state);
        Ok(true)
    }

    /// Takes the post-execution transaction. It runs no code, and uses neither gas nor DA footprint: the transactions before it have
    /// had its refunds.
    fn end(
        &mut self,
        tx: &Recovered<ChainTx>,
        keep: impl FnOnce(&Overlay) -> bool,
    ) -> Result<bool, BlockExecutionError> {
        if self.refunds.hash() != Some(*tx.tx_hash()) {
            // Only the block's sequencer makes one.
            let problem = "a post-execution transaction of which the block's transactions have no refunds";
            return Err(BlockValidationError::msg(problem).into());
        }
        let is_kept = keep(self.evm.db());
        if is_kept {
            self.transactions += 1;
            self.receipts.push(ChainReceipt::PostExec { cumulative_gas_used: self.gas_used });
        }
        Ok(is_kept)
    }

    /// Returns the DA footprint in gas of a signed transaction, which the block must have left
    /// (<https://specs.optimism.io/protocol/jovian/exec-engine.html#da-footprint-block-limit>).
    fn footprint(&mut self, encoded: &[u8]) -> Result<u64, BlockExecutionError> {
        if self.fork < OpFork::Jovian {
            return Ok(0);
        }
        let ctx = &mut self.evm.inner.ctx;
        // The parameters are the ones after the block's first transaction.
        let Ok(info) = ctx.chain.info(ctx.journaled_state.database, self.fork);
        let footprint = info.da_footprint(encoded).unwrap_or_default();
        let available = self.header.gas_limit.saturating_sub(self.da_footprint);
        if footprint > available {
            return Err(BlockValidationError::msg(format!(
                "DA footprint of {footprint} gas: expected at most {available}, which the block has left"
            ))
            .into());
        }
        Ok(footprint)
    }
}
