//! Executes a block: each transaction with op-revm, then the settlement of its refund.

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, U256};
use op_revm::OpSpecId;
use revm::{DatabaseCommit, DatabaseRef};

use crate::{
    block_case::{
        BlockCase, BlockOutcome, BlockRule, BlockTransaction, ExecutedTransaction, InvalidBlock, Parent, ValidBlock,
    },
    case::{Block, Changed, PreAccount, Status},
    execute::{self, Run, State, end, post_account, state},
    post_exec::{OperatorFee, Settlement, refunds},
    receipts,
};

/// The fork whose EVM Lagoon has.
pub const FORK: OpSpecId = OpSpecId::KARST;

/// Executes a case.
pub fn execute(case: &BlockCase) -> BlockOutcome {
    match execute_valid(case) {
        Ok(valid) => BlockOutcome::Valid(Box::new(valid)),
        Err(invalid) => BlockOutcome::Invalid(invalid),
    }
}

fn execute_valid(case: &BlockCase) -> Result<ValidBlock, InvalidBlock> {
    assert_eq!(case.block.base_fee, next_base_fee(&case.parent), "{}: the base fee", case.name);
    let refunds = refunds(case).map_err(|rules| InvalidBlock { rules, transaction: None, error: None })?;
    let mut block = BlockRun::new(&case.block, &case.pre);
    for (at, transaction) in case.transactions.iter().enumerate() {
        if transaction.is_post_exec() {
            block.include_post_exec();
            continue;
        }
        let invalid = |rules, error| InvalidBlock { rules, transaction: Some(at), error };
        let run = block.run(transaction).map_err(|error| invalid(vec![BlockRule::InvalidTransaction], Some(error)))?;
        block.commit(transaction, run, refunds.get(&at).copied()).map_err(|rules| invalid(rules, None))?;
    }
    let (receipts_root, logs_bloom) = receipts::root_and_bloom(&case.transactions, &block.executed);
    let header = Parent {
        number: case.block.number,
        timestamp: case.block.timestamp,
        gas_limit: case.block.gas_limit,
        gas_used: block.gas_used,
        blob_gas_used: block.da_footprint,
        base_fee: case.block.base_fee,
        extra_data: case.extra_data.clone(),
    };
    Ok(ValidBlock {
        rules: block.rules.into_iter().collect(),
        gas_used: block.gas_used,
        blob_gas_used: block.da_footprint,
        receipts_root,
        logs_bloom,
        next_base_fee: next_base_fee(&header),
        post: case.diff(changes(block.state)),
        transactions: block.executed,
    })
}

/// A block that is being executed.
pub struct BlockRun<'a> {
    block: &'a Block,
    pub state: State,
    /// The gas of the transactions so far, after refunds.
    pub gas_used: u64,
    pub da_footprint: u64,
    pub executed: Vec<ExecutedTransaction>,
    /// The rules by which op-revm itself would have had another outcome.
    rules: BTreeSet<String>,
}

impl<'a> BlockRun<'a> {
    pub fn new(block: &'a Block, pre: &BTreeMap<Address, PreAccount>) -> Self {
        let (executed, rules) = (Vec::new(), BTreeSet::new());
        Self { block, state: state(pre), gas_used: 0, da_footprint: 0, executed, rules }
    }

    /// Returns the gas that the block still has, after refunds.
    pub fn gas_left(&self) -> u64 {
        self.block.gas_limit - self.gas_used
    }

    /// Executes a transaction after those that are committed.
    ///
    /// # Errors
    ///
    /// Returns the class of the error if the transaction is invalid, or does not fit into the block.
    pub fn run(&mut self, transaction: &BlockTransaction) -> Result<Run, String> {
        let mut rules = Vec::new();
        let run = execute::run(&transaction.tx, transaction.sender, self.block, &self.state, FORK, &mut rules)?;
        if run.gas_limit > self.gas_left() {
            return Err("CallerGasLimitMoreThanBlock".to_owned());
        }
        if self.da_footprint + run.da_footprint > self.block.gas_limit {
            return Err("DaFootprint".to_owned());
        }
        self.rules.extend(rules.iter().map(|rule| format!("{rule:?}")));
        Ok(run)
    }

    /// Settles the refund of a transaction, and commits its changes.
    ///
    /// # Errors
    ///
    /// Returns the rules that the refund violates.
    pub fn commit(
        &mut self,
        transaction: &BlockTransaction,
        run: Run,
        refund: Option<u64>,
    ) -> Result<(), Vec<BlockRule>> {
        let result = &run.ended.result;
        let (evm_gas, mut changes) = (result.gas().tx_gas_used(), run.ended.state);
        if let Some(refund) = refund {
            let price = effective_price(&transaction.tx, self.block.base_fee);
            let operator = OperatorFee::of(&self.state);
            let settlement = Settlement::new(refund, evm_gas, price, self.block.base_fee, operator);
            let applied = settlement.apply(&mut changes, &self.state, transaction.sender, self.block.beneficiary);
            let is_above = refund > evm_gas;
            let violated: Vec<BlockRule> =
                is_above.then_some(BlockRule::RefundAboveGas).into_iter().chain(applied.err()).collect();
            if !violated.is_empty() {
                return Err(violated);
            }
        }
        let gas_used = evm_gas - refund.unwrap_or_default();
        self.gas_used += gas_used;
        self.da_footprint += run.da_footprint;
        let (status, reason, created) = end(result);
        let sender = self.state.basic_ref(transaction.sender).expect("a state in memory");
        self.executed.push(ExecutedTransaction {
            status,
            reason,
            evm_gas,
            op_gas_refund: refund,
            gas_used,
            cumulative_gas_used: self.gas_used,
            da_footprint: run.da_footprint,
            output: result.output().cloned().unwrap_or_default(),
            created,
            logs: result.logs().to_vec(),
            deposit_nonce: transaction.is_deposit().then(|| sender.map_or(0, |sender| sender.nonce)),
            deposit_receipt_version: transaction.is_deposit().then_some(1),
        });
        let is_burning = changes.values().any(|account| account.is_selfdestructed());
        let mint = U256::from(run.tx.deposit.mint.unwrap_or_default());
        let before = ether(&self.state);
        self.state.commit(changes);
        assert_conserved(before + mint, ether(&self.state), is_burning);
        Ok(())
    }

    /// Adds the result of the post-execution transaction, which does nothing itself (post-exec.md, "Receipt").
    pub fn include_post_exec(&mut self) {
        self.executed.push(ExecutedTransaction {
            status: Status::Success,
            reason: None,
            evm_gas: 0,
            op_gas_refund: None,
            gas_used: 0,
            cumulative_gas_used: self.gas_used,
            da_footprint: 0,
            output: Bytes::new(),
            created: None,
            logs: Vec::new(),
            deposit_nonce: None,
            deposit_receipt_version: None,
        });
    }
}

/// Returns the price of a unit of gas that a signed transaction pays (EIP-1559).
fn effective_price(transaction: &Bytes, base_fee: u64) -> u128 {
    let tx = TxEnvelope::decode_2718_exact(transaction).expect("a transaction that was executed");
    match tx.max_priority_fee_per_gas() {
        None => tx.max_fee_per_gas(),
        Some(priority_fee) => tx.max_fee_per_gas().min(u128::from(base_fee) + priority_fee),
    }
}

/// Returns the base fee of the block after one with this header ([Holocene], [Jovian]).
///
/// [Holocene]: https://specs.optimism.io/protocol/holocene/exec-engine.html#dynamic-eip-1559-parameters
/// [Jovian]: https://specs.optimism.io/protocol/jovian/exec-engine.html
pub fn next_base_fee(header: &Parent) -> u64 {
    let number = |from: usize, to: usize| {
        header.extra_data[from..to].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    };
    let (denominator, elasticity, minimum) = (number(1, 5), number(5, 9), number(9, 17));
    let base_fee = u128::from(header.base_fee);
    let target = u128::from(header.gas_limit) / elasticity;
    let metered = u128::from(header.gas_used.max(header.blob_gas_used));
    let change = base_fee * metered.abs_diff(target) / target / denominator;
    let next = match metered.cmp(&target) {
        std::cmp::Ordering::Less => base_fee - change,
        std::cmp::Ordering::Equal => base_fee,
        std::cmp::Ordering::Greater => base_fee + change.max(1),
    };
    next.max(minimum).try_into().expect("a base fee of 64 bits")
}

/// Returns all ether of a state.
fn ether(state: &State) -> U256 {
    state.cache.accounts.values().map(|account| account.info.balance).sum()
}

/// Panics if a transaction created ether, or burnt some without a contract that was destroyed: all fees are paid to vaults
/// or to the fee recipient, the base fee included.
fn assert_conserved(expected: U256, found: U256, is_burning: bool) {
    assert!(found == expected || is_burning && found < expected, "{expected} wei became {found}");
}

/// Returns the accounts as a block left them.
fn changes(state: State) -> impl Iterator<Item = (Address, Changed)> {
    state.cache.accounts.into_iter().map(|(address, account)| {
        let cleared = account.account_state.is_storage_cleared();
        let info = account.info().filter(|info| !info.is_empty());
        let slots: BTreeMap<U256, U256> = account.storage.into_iter().collect();
        (address, Changed { account: info.map(|info| post_account(&info, slots)), cleared })
    })
}
