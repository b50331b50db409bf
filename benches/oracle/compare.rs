//! Compares the project's own rules of the OP stack with the outcomes of a case. The suite and the bench share it.

#[path = "src/block_case.rs"]
pub mod block_case;
#[path = "compare_blocks.rs"]
pub mod blocks;
#[path = "src/case.rs"]
pub mod case;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write},
    sync::LazyLock,
    time::Duration,
};

use alloy_consensus::{Header, TxReceipt, transaction::Recovered};
use alloy_eips::eip2718::Decodable2718;
use alloy_evm::FromTxWithEncoded;
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_primitives::{Address, Log, keccak256};
use presim::testing::{
    chain::{BlockHashes, ChainSpec, ChainTx},
    engine::{ChainExecutor, FamilyEvm, OpStack, RunEvm, RunPrecompiles},
    state::{CodeCache, LocalWorld, Overlay, World},
};
use revm::context::result::{EVMError, ExecutionResult, Output};
use serde_json::json;

use self::case::{CHAIN_ID, Case, Changed, Included, Outcome, PostAccount, PreAccount, Status};

/// The forks, by the names that the cases give them.
pub const FORKS: [&str; 10] =
    ["bedrock", "regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian", "karst"];

/// The rules of a chain with each fork from the start, and those of Lagoon, which changes blocks alone.
static SPECS: LazyLock<[ChainSpec; FORKS.len() + 1]> = LazyLock::new(|| std::array::from_fn(spec));

/// Returns the rules of a chain whose newest fork this is.
fn spec_of(fork: &str) -> &'static ChainSpec {
    &SPECS[FORKS.iter().position(|known| *known == fork).unwrap_or(FORKS.len())]
}

fn spec(last: usize) -> ChainSpec {
    let mut config = json!({
        "chainId": CHAIN_ID,
        "bedrockBlock": 0,
        "terminalTotalDifficulty": 0,
        "terminalTotalDifficultyPassed": true,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in FORKS.iter().chain(&["lagoon"]).take(last + 1).skip(1) {
        config[format!("{fork}Time")] = json!(0);
    }
    let config = serde_json::from_value(config).expect("a config");
    ChainSpec::new(config, Duration::from_secs(2)).expect("the rules of an OP-stack chain")
}

/// Compares a case under each fork. Returns the number of forks, or the differences as text.
pub fn compare(case: &Case) -> Result<usize, String> {
    let world = world_of(&case.pre);
    let (mut count, mut differences) = (0, String::new());
    for outcome in &case.outcomes {
        for fork in &outcome.forks {
            count += 1;
            let found = execute(case, fork, &world);
            let problem = match &found {
                Ok(found) if is_equal(&outcome.outcome, found) => continue,
                Ok(found) => format!("  expected {:?}\n  found    {found:?}", outcome.outcome),
                Err(problem) => format!("  {problem}"),
            };
            writeln!(differences, "{}, under {fork} {:?}\n{problem}", case.name, outcome.rules).expect("a text");
        }
    }
    if differences.is_empty() { Ok(count) } else { Err(differences) }
}

/// Returns whether two outcomes are equal. op-revm does not tell why a deposit failed.
fn is_equal(expected: &Outcome, found: &Outcome) -> bool {
    match (expected, found) {
        (Outcome::Included(expected), Outcome::Included(found))
            if expected.reason.as_deref() == Some("FailedDeposit") =>
        {
            *expected == Included { reason: expected.reason.clone(), ..found.clone() }
        }
        _ => expected == found,
    }
}

/// Returns the state of these accounts.
fn world_of(pre: &BTreeMap<Address, PreAccount>) -> World {
    let alloc = pre.iter().map(|(address, pre)| {
        let storage = pre.storage.iter().map(|(slot, value)| ((*slot).into(), (*value).into())).collect();
        let account = GenesisAccount {
            nonce: Some(pre.nonce),
            balance: pre.balance,
            code: Some(pre.code.clone()),
            storage: Some(storage),
            private_key: None,
        };
        (*address, account)
    });
    let genesis = Genesis { alloc: alloc.collect(), ..Genesis::default() };
    LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 16)).into()
}

fn header(case: &Case, has_blobs: bool) -> Header {
    let block = &case.block;
    Header {
        number: block.number,
        timestamp: block.timestamp,
        gas_limit: block.gas_limit,
        beneficiary: block.beneficiary,
        mix_hash: block.prev_randao,
        base_fee_per_gas: Some(block.base_fee),
        blob_gas_used: has_blobs.then_some(0),
        excess_blob_gas: has_blobs.then_some(block.excess_blob_gas),
        ..Header::default()
    }
}

/// Executes the transaction of a case twice: as one of a block, and by itself for what a receipt does not tell.
///
/// # Errors
///
/// Returns a text if the two runs differ.
fn execute(case: &Case, fork: &str, world: &World) -> Result<Outcome, String> {
    let at = FORKS.iter().position(|known| *known == fork).ok_or_else(|| format!("{fork}: an unknown fork"))?;
    let (spec, header) = (&SPECS[at], header(case, at >= 3));
    let Ok(tx) = ChainTx::decode_2718_exact(&case.tx) else { return Ok(Outcome::Rejected("Malformed".to_owned())) };
    let is_blob = case.tx.first() == Some(&3);
    let tx = Recovered::new_unchecked(tx, case.sender);
    let mut hashes = BlockHashes::default();
    for ancestor in 0..case.block.number {
        hashes.push(ancestor, keccak256(ancestor.to_string()));
    }

    let mut overlay = Overlay::new(world.clone(), hashes.clone());
    let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
    let in_block = executor.execute(&tx);
    let progress = executor.progress();
    let (gas_used, da_footprint) = (progress.cumulative_gas, progress.blob_gas);
    let receipt = executor.receipts_mut().pop();
    let post_in_block = case.diff(changes(executor.overlay()));
    if is_blob && in_block.is_err() {
        return Ok(Outcome::Rejected("BlobTransaction".to_owned()));
    }

    let mut alone = Overlay::new(world.clone(), hashes);
    let env = OpStack::env(spec, &header);
    let precompiles = RunPrecompiles::of(spec, env.cfg_env.spec);
    let mut evm = RunEvm::<OpStack>::new(&mut alone, env, precompiles);
    let result =
        evm.commit(FromTxWithEncoded::from_encoded_tx(tx.inner(), case.sender, case.tx.clone()), None, |_, _| ());
    let post = case.diff(changes(evm.finish()));

    let result = match (in_block, result) {
        (Err(_), Err(EVMError::Transaction(error))) => return Ok(Outcome::Rejected(class(&error))),
        (Err(error), Ok(_)) => return Ok(Outcome::Rejected(block_class(&error.to_string()))),
        (Err(_), Err(error)) => return Err(error.to_string()),
        (Ok(()), Err(error)) => return Err(format!("executed in a block, and by itself rejected: {error}")),
        (Ok(()), Ok(result)) => result,
    };
    let gas = *result.gas();
    let (status, reason, created) = match &result {
        ExecutionResult::Success { output: Output::Create(_, created), .. } => (Status::Success, None, *created),
        ExecutionResult::Success { .. } => (Status::Success, None, None),
        ExecutionResult::Revert { .. } => (Status::Revert, None, None),
        ExecutionResult::Halt { reason, .. } => (Status::Halt, Some(class(reason)), None),
    };
    let included = Included {
        status,
        reason,
        gas_used: gas.tx_gas_used(),
        refunded: gas.final_refunded(),
        da_footprint,
        output: result.output().cloned().unwrap_or_default(),
        created,
        logs: result.logs().to_vec(),
        post,
    };
    let Some(receipt) = receipt else { return Err("no receipt".to_owned()) };
    let logs: Vec<Log> = receipt.logs().to_vec();
    let of_block = (receipt.status(), gas_used, receipt.cumulative_gas_used(), logs, post_in_block);
    let by_itself = (
        included.status == Status::Success,
        included.gas_used,
        included.gas_used,
        included.logs.clone(),
        included.post.clone(),
    );
    if of_block != by_itself {
        return Err(format!("in a block {of_block:?}\n  by itself {by_itself:?}"));
    }
    Ok(Outcome::Included(included))
}

fn changes(overlay: &Overlay) -> impl Iterator<Item = (Address, Changed)> {
    overlay.changes().map(|change| {
        let account = change.info.as_ref().map(|info| PostAccount {
            balance: info.balance,
            nonce: info.nonce,
            code_hash: info.code_hash,
            storage: change.slots.iter().map(|(slot, value)| (*slot, *value)).collect(),
        });
        (change.address, Changed { account, cleared: change.storage_cleared })
    })
}

/// Returns the name of an error's or a reason's variant. The context of a precompile's error is a text of the crate's.
fn class(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let name = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    name.trim_end_matches("WithContext").to_owned()
}

/// Returns the name of an error of the block, which the transaction by itself does not have.
fn block_class(error: &str) -> String {
    match error {
        error if error.contains("DA footprint") => "DaFootprint".to_owned(),
        error if error.contains("gas") => "CallerGasLimitMoreThanBlock".to_owned(),
        error => error.to_owned(),
    }
}
