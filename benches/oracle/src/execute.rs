//! Executes a case with op-revm.

use std::collections::BTreeMap;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, TxKind, U256};
use alloy_rlp::{Decodable, RlpDecodable, RlpEncodable};
use op_revm::{
    DefaultOp, L1BlockInfo, OpBuilder, OpHaltReason, OpSpecId, OpTransaction, OpTransactionError,
    api::default_ctx::OpContext, estimate_tx_compressed_size, transaction::deposit::DepositTransactionParts,
};
use revm::{
    Context, ExecuteEvm,
    bytecode::Bytecode,
    context::{
        BlockEnv, CfgEnv, Transaction as _, TxEnv,
        either::Either,
        result::{EVMError, ExecutionResult, Output, ResultAndState},
    },
    context_interface::block::BlobExcessGasAndPrice,
    database::{CacheDB, EmptyDB, WrapDatabaseRef},
    primitives::hardfork::SpecId,
    state::AccountInfo,
};

use crate::{
    case::{Block, CHAIN_ID, Case, Changed, ForkOutcome, Included, Outcome, PostAccount, PreAccount, Status},
    corrections::{self, Rule},
};

/// The forks, without Interop: op-revm has no rules of its own for it.
pub const FORKS: [OpSpecId; 10] = [
    OpSpecId::BEDROCK,
    OpSpecId::REGOLITH,
    OpSpecId::CANYON,
    OpSpecId::ECOTONE,
    OpSpecId::FJORD,
    OpSpecId::GRANITE,
    OpSpecId::HOLOCENE,
    OpSpecId::ISTHMUS,
    OpSpecId::JOVIAN,
    OpSpecId::KARST,
];

/// The type of a deposit.
pub const DEPOSIT: u8 = 0x7e;

/// A deposit's fields (<https://specs.optimism.io/protocol/deposits.html#the-deposited-transaction-type>).
#[derive(Clone, Debug, RlpDecodable, RlpEncodable)]
pub struct Deposit {
    pub source_hash: B256,
    pub from: Address,
    pub to: TxKind,
    /// Wei that the sender gets. 0 is none.
    pub mint: u128,
    pub value: U256,
    pub gas_limit: u64,
    pub is_system: bool,
    pub input: Bytes,
}

impl Deposit {
    /// Returns a deposit by a sender without a mint. Its other fields are set when it is encoded.
    pub fn by(from: Address, source_hash: B256) -> Self {
        Self {
            source_hash,
            from,
            to: TxKind::Create,
            mint: 0,
            value: U256::ZERO,
            gas_limit: 0,
            is_system: false,
            input: Bytes::new(),
        }
    }
}

/// The state before a transaction.
pub type State = CacheDB<EmptyDB>;

/// Returns a state with these accounts.
pub fn state(pre: &BTreeMap<Address, PreAccount>) -> State {
    let mut state = State::default();
    for (address, account) in pre {
        let code = Bytecode::new_raw_checked(account.code.clone()).expect("code that can be deployed");
        let info = AccountInfo::new(account.balance, account.nonce, code.hash_slow(), code);
        state.insert_account_info(*address, info);
        for (slot, value) in &account.storage {
            state.insert_account_storage(*address, *slot, *value).expect("a state in memory");
        }
    }
    state
}

/// Executes a case under each fork.
pub fn execute(case: &Case) -> Vec<ForkOutcome> {
    let state = state(&case.pre);
    let mut outcomes: Vec<ForkOutcome> = Vec::new();
    for fork in FORKS {
        let mut rules = Vec::new();
        let outcome = execute_under(case, &state, fork, &mut rules);
        let rules: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        let name = <&str>::from(fork).to_lowercase();
        match outcomes.iter_mut().find(|known| known.outcome == outcome && known.rules == rules) {
            Some(known) => known.forks.push(name),
            None => outcomes.push(ForkOutcome { forks: vec![name], rules, outcome }),
        }
    }
    outcomes
}

/// Executes a case under a fork. Adds the rules by which op-revm would differ to `rules`.
fn execute_under(case: &Case, state: &State, fork: OpSpecId, rules: &mut Vec<Rule>) -> Outcome {
    let run = match run(&case.tx, case.sender, &case.block, state, fork, rules) {
        Ok(run) => run,
        Err(class) => return Outcome::Rejected(class),
    };
    // These two are rules of blocks, which op-revm leaves to others.
    if run.is_deposit() && corrections::takes_block_gas(&run.tx, fork) && run.gas_limit > case.block.gas_limit {
        if fork == OpSpecId::BEDROCK {
            rules.push(Rule::DepositBlockGas);
        }
        return Outcome::Rejected("CallerGasLimitMoreThanBlock".to_owned());
    }
    if run.da_footprint > case.block.gas_limit {
        return Outcome::Rejected("DaFootprint".to_owned());
    }
    let mut included = included(case, run.ended, run.da_footprint);
    if run.is_unfunded {
        included.gas_used = run.gas_limit;
    }
    if corrections::free_system_deposit(&mut included, &run.tx, fork) {
        rules.push(Rule::SystemDepositGas);
    }
    Outcome::Included(included)
}

/// A transaction that op-revm executed. None of its changes are committed.
pub struct Run {
    pub tx: OpTransaction<TxEnv>,
    /// The gas limit that the transaction has, whatever op-revm executed it with.
    pub gas_limit: u64,
    is_unfunded: bool,
    pub ended: ResultAndState<OpHaltReason>,
    /// The part of the block's DA footprint, from Jovian on.
    pub da_footprint: u64,
}

impl Run {
    pub fn is_deposit(&self) -> bool {
        self.tx.tx_type() == DEPOSIT
    }
}

/// Executes a transaction on a state under a fork. Adds the rules by which op-revm would differ to `rules`.
///
/// # Errors
///
/// Returns the class of the error if the transaction is invalid. The gas and the DA footprint that the block still has are
/// not checked.
pub fn run(
    bytes: &Bytes,
    sender: Address,
    block: &Block,
    state: &State,
    fork: OpSpecId,
    rules: &mut Vec<Rule>,
) -> Result<Run, String> {
    let mut tx = transaction(bytes, sender)?;
    let is_deposit = tx.tx_type() == DEPOSIT;
    if corrections::fail_long_init_code(&mut tx, fork) {
        rules.push(Rule::DepositInitCode);
    }
    let gas_limit = tx.gas_limit();
    let is_unfunded = corrections::fail_unfunded_creation(&mut tx, state, fork);
    if is_unfunded {
        rules.push(Rule::UnfundedCreation);
    }
    let mut cfg = cfg(fork);
    if corrections::lift_gas_cap(&mut cfg, &tx) {
        rules.push(Rule::DepositGasCap);
    }
    let context: OpContext<EmptyDB> = Context::op();
    let context = context.with_ref_db(state).with_cfg(cfg).with_block(block_env(block, fork));
    let mut evm = context.build_op().with_precompiles(corrections::precompiles(fork));
    if !is_deposit && let Some(info) = corrections::l1_block(block.number, bytes, state, fork) {
        evm.0.ctx.chain = info;
        rules.push(Rule::UnsetScalars);
    }
    let ended = evm.transact(tx.clone());
    if corrections::take_long_pairing() {
        rules.push(Rule::KarstPairing);
    }
    let ended = match ended {
        Ok(ended) => ended,
        Err(EVMError::Transaction(OpTransactionError::Base(error))) => return Err(class(&error)),
        Err(EVMError::Transaction(error)) => return Err(class(&error)),
        Err(error) => panic!("{bytes}: {error}"),
    };
    let mut da_footprint = 0;
    if fork.is_enabled_in(OpSpecId::JOVIAN) && !is_deposit {
        let scalar =
            L1BlockInfo::fetch_da_footprint_gas_scalar(&mut WrapDatabaseRef(state)).expect("a state in memory");
        da_footprint = estimate_tx_compressed_size(bytes) / 1_000_000 * u64::from(scalar);
    }
    Ok(Run { tx, gas_limit, is_unfunded, ended, da_footprint })
}

/// Returns the transaction in `bytes`.
///
/// # Errors
///
/// Returns the class of the error if the OP stack has no such transaction.
pub fn transaction(bytes: &Bytes, sender: Address) -> Result<OpTransaction<TxEnv>, &'static str> {
    let enveloped_tx = Some(bytes.clone());
    if bytes.first() == Some(&DEPOSIT) {
        let Ok(tx) = Deposit::decode(&mut &bytes[1..]) else { return Err("Malformed") };
        let base = TxEnv {
            tx_type: DEPOSIT,
            caller: tx.from,
            gas_limit: tx.gas_limit,
            kind: tx.to,
            value: tx.value,
            data: tx.input,
            ..TxEnv::default()
        };
        let mint = (tx.mint > 0).then_some(tx.mint);
        let deposit = DepositTransactionParts::new(tx.source_hash, mint, tx.is_system);
        return Ok(OpTransaction { base, enveloped_tx, deposit });
    }
    let Ok(tx) = TxEnvelope::decode_2718_exact(bytes) else { return Err("Malformed") };
    if tx.is_eip4844() {
        return Err("BlobTransaction");
    }
    let base = TxEnv {
        tx_type: tx.tx_type() as u8,
        caller: sender,
        gas_limit: tx.gas_limit(),
        gas_price: tx.max_fee_per_gas(),
        kind: tx.kind(),
        value: tx.value(),
        data: tx.input().clone(),
        nonce: tx.nonce(),
        chain_id: tx.chain_id(),
        access_list: tx.access_list().cloned().unwrap_or_default(),
        gas_priority_fee: tx.max_priority_fee_per_gas(),
        authorization_list: tx.authorization_list().into_iter().flatten().cloned().map(Either::Left).collect(),
        ..TxEnv::default()
    };
    Ok(OpTransaction { base, enveloped_tx, deposit: DepositTransactionParts::default() })
}

fn cfg(fork: OpSpecId) -> CfgEnv<OpSpecId> {
    CfgEnv::new().with_chain_id(CHAIN_ID).with_spec_and_mainnet_gas_params(fork)
}

fn block_env(block: &Block, fork: OpSpecId) -> BlockEnv {
    let has_blobs = fork.into_eth_spec().is_enabled_in(SpecId::CANCUN);
    BlockEnv {
        number: U256::from(block.number),
        beneficiary: block.beneficiary,
        timestamp: U256::from(block.timestamp),
        gas_limit: block.gas_limit,
        basefee: block.base_fee,
        difficulty: U256::ZERO,
        prevrandao: Some(block.prev_randao),
        // The price of a unit of blob gas without excess is 1 wei.
        blob_excess_gas_and_price: has_blobs
            .then_some(BlobExcessGasAndPrice { excess_blob_gas: block.excess_blob_gas, blob_gasprice: 1 }),
        ..BlockEnv::default()
    }
}

fn included(case: &Case, ended: ResultAndState<OpHaltReason>, da_footprint: u64) -> Included {
    let ResultAndState { result, state } = ended;
    let gas = *result.gas();
    let (status, reason, created) = end(&result);
    let changes = state.into_iter().filter(|(_, account)| account.is_touched()).map(|(address, account)| {
        let is_gone = account.is_selfdestructed() || account.is_empty();
        let slots = account.storage.iter().map(|(slot, value)| (*slot, value.present_value())).collect();
        let post = post_account(&account.info, slots);
        (address, Changed { account: (!is_gone).then_some(post), cleared: account.is_created() })
    });
    Included {
        status,
        reason,
        gas_used: gas.tx_gas_used(),
        refunded: gas.final_refunded(),
        da_footprint,
        output: result.output().cloned().unwrap_or_default(),
        created,
        logs: result.logs().to_vec(),
        post: case.diff(changes),
    }
}

/// Returns how a transaction ended, the reason of a halt, and the address of the contract that it created.
pub fn end(result: &ExecutionResult<OpHaltReason>) -> (Status, Option<String>, Option<Address>) {
    match result {
        ExecutionResult::Success { output: Output::Create(_, created), .. } => (Status::Success, None, *created),
        ExecutionResult::Success { .. } => (Status::Success, None, None),
        ExecutionResult::Revert { .. } => (Status::Revert, None, None),
        ExecutionResult::Halt { reason: OpHaltReason::Base(reason), .. } => (Status::Halt, Some(class(reason)), None),
        ExecutionResult::Halt { reason, .. } => (Status::Halt, Some(class(reason)), None),
    }
}

pub fn post_account(info: &AccountInfo, storage: BTreeMap<U256, U256>) -> PostAccount {
    let code_hash = if info.code_hash.is_zero() { KECCAK256_EMPTY } else { info.code_hash };
    PostAccount { balance: info.balance, nonce: info.nonce, code_hash, storage }
}

/// Returns the name of an error's or a reason's variant. The context of a precompile's error is a text of the crate's.
fn class(error: &impl std::fmt::Debug) -> String {
    let text = format!("{error:?}");
    let name = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    name.trim_end_matches("WithContext").to_owned()
}
