//! State tests: a transaction on a whole state, as an `eth_simulateV1` that overrides all of it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    chain::{BlockBody, BlockHashes, ChainSpec, ChainTx, SealedBlock},
    engine::{
        AccountOverride, BaseFeeRule, BlockOverrides, Call, CallFees, CallOutcome, CallResult, ChainExecutor, Engine,
        SimBlock, Simulation, SimulationRules, StorageOverride,
    },
    ledger::Snapshot,
    meter::Meter,
    state::{CodeCache, LocalWorld, Overlay},
};
use alloy_consensus::Header;
use alloy_eips::eip2718::Decodable2718;
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_primitives::{Address, B256, Log, TxKind, U256, keccak256};

use super::{
    AMSTERDAM, ARCHIVE, CaseOutcome, assert_none_failed,
    cases::{Env, Expected, ExpectedReceipt, Indexes, PreAccount, StateTest, is_precompile},
    run_all, spec,
};

impl ExpectedReceipt {
    /// Compares the receipt with the outcome of a call, and with the gas that its block used.
    fn check(&self, call: &CallResult, block_gas: u64) -> Result<(), String> {
        let succeeds = call.outcome == CallOutcome::Success;
        let told = self.block_execution_gas_used.max(self.block_state_gas_used);
        if succeeds != self.succeeds() {
            Err(format!("{:?}, expected status {}", call.outcome, self.status))
        } else if U256::from(call.gas_used) != self.gas_used {
            Err(format!("gas {}, expected {}", call.gas_used, self.gas_used))
        } else if told.is_some_and(|told| told != U256::from(block_gas)) {
            Err(format!("gas of the block {block_gas}, expected {told:?}"))
        } else {
            Ok(())
        }
    }
}

/// Returns the transaction of a test with these alternatives; `None` if a number does not fit into its field.
fn call(test: &StateTest, indexes: &Indexes) -> Option<Call> {
    let tx = test.transaction.call(indexes)?;
    let market = CallFees::Market { max_fee: tx.max_fee_per_gas, max_priority: tx.max_priority_fee_per_gas };
    Some(Call {
        from: tx.from?,
        to: tx.to.unwrap_or(TxKind::Create),
        gas: tx.gas,
        fees: tx.gas_price.map_or(market, CallFees::GasPrice),
        value: tx.value?,
        data: tx.input.input?,
        nonce: tx.nonce,
        chain_id: None,
        access_list: tx.access_list,
        blob_hashes: tx.blob_versioned_hashes,
        max_fee_per_blob_gas: tx.max_fee_per_blob_gas,
        authorization_list: tx.authorization_list,
    })
}

/// Returns the state of a test's accounts.
pub fn world<'a>(pre: impl Iterator<Item = (&'a Address, &'a PreAccount)>) -> LocalWorld {
    let account = |account: &PreAccount| GenesisAccount {
        nonce: Some(account.nonce.to()),
        balance: account.balance,
        code: Some(account.code.clone()),
        storage: Some(account.storage.iter().map(|(slot, value)| ((*slot).into(), (*value).into())).collect()),
        private_key: None,
    };
    let alloc = pre.map(|(address, pre)| (*address, account(pre))).collect();
    LocalWorld::of_genesis(&Genesis { alloc, ..Genesis::default() }, &CodeCache::new(1 << 20))
}

/// Returns the parent of the block of a test. Its state has the accounts at the addresses of precompiles, because an
/// override of such an account removes the precompile.
fn parent(test: &StateTest) -> Snapshot {
    let env = &test.env;
    let number = env.current_number.to::<u64>() - 1;
    let header = Header {
        number,
        timestamp: env.current_timestamp.to::<u64>().saturating_sub(1),
        gas_limit: env.current_gas_limit.saturating_to(),
        difficulty: env.current_difficulty,
        base_fee_per_gas: env.current_base_fee.map(|fee| fee.to()),
        ..Header::default()
    };
    let world = world(test.pre.iter().filter(|(address, _)| is_precompile(address)));
    let mut hashes = BlockHashes::default();
    for ancestor in number.saturating_sub(255)..=number {
        hashes.push(ancestor, keccak256(ancestor.to_string()));
    }
    Snapshot::at_head(world, Arc::new(SealedBlock::new(header, BlockBody::default())), hashes)
}

fn block(spec: &ChainSpec, env: &Env) -> BlockOverrides {
    let time = env.current_timestamp.to();
    BlockOverrides {
        number: Some(env.current_number.to()),
        time: Some(time),
        gas_limit: Some(env.current_gas_limit.saturating_to()),
        fee_recipient: Some(env.current_coinbase),
        prev_randao: env.current_random,
        base_fee: env.current_base_fee.map(|fee| fee.to()),
        blob_base_fee: env
            .current_excess_blob_gas
            .and_then(|excess| Some(spec.blob_params(time)?.calc_blob_fee(excess.to()))),
        difficulty: Some(env.current_difficulty),
        slot_number: env.slot_number.map(|slot| slot.to()),
        ..BlockOverrides::default()
    }
}

fn overrides(pre: &BTreeMap<Address, PreAccount>) -> Vec<(Address, AccountOverride)> {
    let account = |account: &PreAccount| AccountOverride {
        balance: Some(account.balance),
        nonce: Some(account.nonce.to()),
        code: Some(account.code.clone()),
        storage: StorageOverride::Replace(account.storage.iter().map(|(slot, value)| (*slot, *value)).collect()),
        move_precompile_to: None,
    };
    pre.iter().filter(|(address, _)| !is_precompile(address)).map(|(address, pre)| (*address, account(pre))).collect()
}

/// Executes the signed transaction of a case as one of a block, and returns the state root after it, without a reward.
fn execute(spec: &ChainSpec, test: &StateTest, expected: &Expected) -> Result<B256, String> {
    let tx = ChainTx::decode_2718_exact(&expected.txbytes).map_err(|error| error.to_string())?;
    let tx = tx.recovered().map_err(|error| error.to_string())?;
    let env = &test.env;
    let header = Header {
        number: env.current_number.to(),
        timestamp: env.current_timestamp.to(),
        gas_limit: env.current_gas_limit.saturating_to(),
        beneficiary: env.current_coinbase,
        difficulty: env.current_difficulty,
        mix_hash: env.current_random.unwrap_or_default(),
        base_fee_per_gas: env.current_base_fee.map(|fee| fee.to()),
        excess_blob_gas: env.current_excess_blob_gas.map(|excess| excess.to()),
        slot_number: env.slot_number.map(|slot| slot.to()),
        ..Header::default()
    };
    let mut overlay = Overlay::new(world(test.pre.iter()).into(), parent(test).hashes);
    let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
    executor.execute(&tx).map_err(|error| error.to_string())?;
    let world = executor.overlay().changed_world();
    Ok(world.local().expect("a local state").state_root())
}

/// Rules of transactions that `eth_simulateV1` does not check, as in geth, even with `validation`: EIP-3607 and EIP-7825.
const UNCHECKED: [&str; 2] = ["SENDER_NOT_EOA", "GAS_LIMIT_EXCEEDS_MAXIMUM"];

fn run_case(spec: &ChainSpec, test: &StateTest, expected: &Expected) -> CaseOutcome {
    let Some(call) = call(test, &expected.indexes) else {
        return if expected.expect_exception.is_some() {
            CaseOutcome::Passed
        } else {
            CaseOutcome::Failed("the transaction cannot be expressed".to_owned())
        };
    };
    let rules = SimulationRules {
        base_fee: BaseFeeRule::ZeroWhenFree,
        keeps_prev_randao: false,
        block_time: Some(std::time::Duration::from_secs(12)),
        state_roots: true,
        gas_cap: u64::MAX,
        max_blocks: 256,
        max_trace: 1 << 20,
        estimate_tolerance: 0.0,
    };
    let snapshot = parent(test);
    let codes = CodeCache::new(1 << 20);
    let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
    overlay.meter = Meter::until(std::time::Instant::now() + std::time::Duration::from_secs(120), Arc::default(), None);
    let block = SimBlock { state: overrides(&test.pre), block: block(spec, &test.env), calls: vec![call.into()] };
    let simulation = Simulation { blocks: vec![block], validation: true, ..Simulation::default() };
    let mut engine = Engine { spec, rules: &rules, codes: &codes, overlay: &mut overlay };
    match (engine.simulate(&snapshot, &simulation), &expected.expect_exception) {
        (Err(_), Some(_)) => CaseOutcome::Passed,
        (Err(error), None) => CaseOutcome::Failed(error.to_string()),
        (Ok(_), Some(exception)) if UNCHECKED.iter().any(|unchecked| exception.contains(unchecked)) => {
            match execute(spec, test, expected) {
                Ok(_) => CaseOutcome::Failed(format!("executed: {exception}")),
                Err(_) => CaseOutcome::Passed,
            }
        }
        (Ok(_), Some(exception)) => CaseOutcome::Failed(format!("accepted: {exception}")),
        (Ok(simulated), None) => {
            let block = simulated.blocks.last().unwrap();
            let header = &block.listing.as_ref().unwrap().header;
            let logs: Vec<Log> = block.calls[0].logs.iter().map(|numbered| numbered.log.clone()).collect();
            let logs = keccak256(alloy_rlp::encode(&logs));
            // Before the merge a simulated block has its producer's reward, which state tests leave out.
            let root = if spec.is_post_merge(header.number) {
                header.state_root
            } else {
                match execute(spec, test, expected) {
                    Ok(root) => root,
                    Err(problem) => return CaseOutcome::Failed(problem),
                }
            };
            if root != expected.hash {
                CaseOutcome::Failed(format!("state root {root}, expected {}", expected.hash))
            } else if logs != expected.logs {
                CaseOutcome::Failed(format!("logs {logs}, expected {}", expected.logs))
            } else {
                let checked =
                    expected.receipt.as_ref().map_or(Ok(()), |one| one.check(&block.calls[0], header.gas_used));
                checked.map_or_else(CaseOutcome::Failed, |()| CaseOutcome::Passed)
            }
        }
    }
}

fn pass(archive: &str, folders: [&str; 2]) {
    for folder in folders {
        if let Some(tally) = run_all(archive, folder, run_file) {
            assert_none_failed(&tally);
        }
    }
}

#[test]
fn state_tests_pass() {
    pass(ARCHIVE, ["eest/state_tests/", "tests/GeneralStateTests/"]);
}

/// EIP-7773.
#[test]
fn amsterdams_state_tests_pass() {
    pass(AMSTERDAM, ["state_tests/", "random/random_"]);
}

fn run_file(path: &str, content: &[u8], report: &mut dyn FnMut(&str, &str, CaseOutcome)) {
    if path.contains("lockchain") {
        return;
    }
    let tests: BTreeMap<String, StateTest> = match serde_json::from_slice(content) {
        Ok(tests) => tests,
        Err(error) => return report("", "", CaseOutcome::Failed(error.to_string())),
    };
    for (name, test) in &tests {
        for (fork, cases) in &test.post {
            let Some(spec) = spec(fork, test.config.as_ref()) else {
                report(fork, name, CaseOutcome::Failed("an unknown fork".to_owned()));
                continue;
            };
            for (at, expected) in cases.iter().enumerate() {
                report(fork, &format!("{name} #{at}"), run_case(&spec, test, expected));
            }
        }
    }
}
