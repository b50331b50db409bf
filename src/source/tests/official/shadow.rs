//! The chains of official tests, shadowed under another fork. What is told of each transaction is checked by simulations by both rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    chain::{ChainSpec, ChainTx},
    engine::{
        AccountDiff, BaseFeeRule, BlockOverrides, BlockRun, CallOutcome, CallResult, DifferentParts, Engine, Outputs,
        ShadowedTx, SimBlock, SimCall, Simulation, SimulationError, SimulationRules, shadow_block,
    },
    ledger::{Block, Included, Snapshot},
    meter::Meter,
    source::chain_file::import_bytes,
    state::{CodeCache, Overlay},
};
use alloy_consensus::{Transaction, Typed2718, transaction::Recovered};
use alloy_primitives::{Address, U256, address};
use revm::state::AccountInfo;

use super::{AMSTERDAM, ARCHIVE, CaseOutcome, assert_none_failed, chains::ChainTest, run_all, say, spec};

/// The account that logs transfers (EIP-7708).
const SYSTEM: Address = address!("0xfffffffffffffffffffffffffffffffffffffffe");
/// The least number of blocks of Amsterdam.
const LEAST: usize = 1_000;
/// The least number of blocks of Osaka.
const LEAST_OF_OSAKA: usize = 500;

/// The numbers of what has run.
#[derive(Default)]
struct Counts {
    blocks: AtomicUsize,
    transactions: AtomicUsize,
    reported: AtomicUsize,
    invalid: AtomicUsize,
}

const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: None,
    state_roots: false,
    gas_cap: u64::MAX,
    max_blocks: 256,
    max_trace: 1 << 20,
    estimate_tolerance: 0.0,
};

fn overlay_on(snapshot: &Snapshot) -> Overlay {
    let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
    overlay.meter = Meter::until(Instant::now() + Duration::from_secs(120), Arc::default(), None);
    overlay
}

/// The outcome of a simulated transaction: its result, its gas, and the accounts after it.
struct Simulated {
    call: CallResult,
    diff: BTreeMap<Address, AccountDiff>,
    beneficiary: Address,
    base_fee: u64,
}

/// Simulates the next transaction of the block that `at` is building.
fn simulate(
    spec: &ChainSpec,
    at: &Snapshot,
    tx: &Recovered<ChainTx>,
    fork: Option<&str>,
) -> Result<Simulated, SimulationError> {
    let ChainTx::Signed(signed) = tx.inner() else { panic!("a transaction of Ethereum") };
    let call = SimCall::Signed(Box::new(Recovered::new_unchecked(signed.clone(), tx.signer())));
    let block = BlockOverrides { fork: fork.map(Into::into), ..BlockOverrides::default() };
    let outputs = Outputs::STATUS | Outputs::GAS_USED | Outputs::RETURN_DATA | Outputs::LOGS | Outputs::STATE_DIFF;
    let simulation = Simulation {
        blocks: vec![SimBlock { block, calls: vec![call], ..SimBlock::default() }],
        outputs,
        ..Simulation::default()
    };
    let (codes, mut overlay) = (CodeCache::new(1 << 20), overlay_on(at));
    let mut engine = Engine { spec, rules: &RULES, codes: &codes, overlay: &mut overlay };
    let mut block = engine.simulate(at, &simulation)?.blocks.remove(0);
    Ok(Simulated {
        call: block.calls.remove(0),
        diff: block.diff.unwrap_or_default(),
        beneficiary: block.fee_recipient,
        base_fee: block.base_fee,
    })
}

impl Simulated {
    /// Returns an account after the transaction, with its balance but for fees. `other` has what this run does not change.
    fn account(&self, other: &Self, address: &Address, tx: &Recovered<ChainTx>) -> (u64, alloy_primitives::B256, U256) {
        let own = self.diff.get(address).map(|diff| diff.info.to.clone());
        let unchanged = || other.diff.get(address).and_then(|diff| diff.info.from.clone());
        let info: AccountInfo = own.unwrap_or_else(unchanged).unwrap_or_default();
        let gas = U256::from(self.call.gas_used);
        let price = tx.effective_gas_price(Some(self.base_fee));
        let paid = if *address == tx.signer() { gas * U256::from(price) } else { U256::ZERO };
        let tip = gas * U256::from(price.saturating_sub(self.base_fee.into()));
        let got = if *address == self.beneficiary { tip } else { U256::ZERO };
        (info.nonce, info.code_hash, info.balance.wrapping_add(paid).wrapping_sub(got))
    }

    fn slot(&self, other: &Self, address: &Address, slot: &U256) -> U256 {
        let own = self.diff.get(address).and_then(|diff| diff.slots.get(slot));
        let unchanged = || other.diff.get(address).and_then(|diff| diff.slots.get(slot)).map(|value| value.from);
        own.map(|value| value.to).or_else(unchanged).unwrap_or_default()
    }

    fn logs(&self) -> Vec<&alloy_primitives::Log> {
        self.call.logs.iter().map(|log| &log.log).filter(|log| log.address != SYSTEM).collect()
    }

    /// Returns the parts that differ, but for creations.
    fn difference(&self, other: &Self, tx: &Recovered<ChainTx>) -> DifferentParts {
        let mut parts = DifferentParts::empty();
        let succeeds = |one: &Self| one.call.outcome == CallOutcome::Success;
        parts.set(DifferentParts::STATUS, succeeds(self) != succeeds(other));
        parts.set(DifferentParts::RETURN_DATA, self.call.return_data != other.call.return_data);
        parts.set(DifferentParts::LOGS, self.logs() != other.logs());
        let addresses: BTreeSet<&Address> = self.diff.keys().chain(other.diff.keys()).collect();
        for address in addresses {
            let (one, two) = (self.account(other, address, tx), other.account(self, address, tx));
            parts |= if one.0 != two.0 { DifferentParts::NONCE } else { DifferentParts::empty() };
            parts |= if one.1 != two.1 { DifferentParts::CODE } else { DifferentParts::empty() };
            // The price of blobs may differ, too.
            let differs = one.2 != two.2 && !tx.is_eip4844();
            parts |= if differs { DifferentParts::BALANCE } else { DifferentParts::empty() };
            let slots =
                [self, other].into_iter().filter_map(|one| one.diff.get(address)).flat_map(|diff| diff.slots.keys());
            if slots.into_iter().any(|slot| self.slot(other, address, slot) != other.slot(self, address, slot)) {
                parts |= DifferentParts::STORAGE;
            }
        }
        parts
    }
}

/// Returns what is wrong with what was told of a transaction, the next of the block that `at` is building.
fn problem(spec: &ChainSpec, at: &Snapshot, tx: &Recovered<ChainTx>, under: &str, told: &ShadowedTx) -> Option<String> {
    let own = match simulate(spec, at, tx, None) {
        Ok(own) => own,
        Err(error) => return Some(format!("as it is: {error}")),
    };
    let invalid = told.difference.as_ref().and_then(|difference| difference.invalid.as_ref());
    let other = match simulate(spec, at, tx, Some(under)) {
        Ok(other) => other,
        // Whether it still fits its block is no matter of the transaction.
        Err(SimulationError::BlockGasLimit { .. }) => return None,
        Err(error) => return invalid.is_none().then(|| format!("invalid: {error}")),
    };
    if let Some(reason) = invalid {
        return Some(format!("told to be invalid: {reason}"));
    }
    if told.gas_under != Some(other.call.gas_used) {
        return Some(format!("gas {:?}, expected {}", told.gas_under, other.call.gas_used));
    }
    let expected = own.difference(&other, tx);
    let mut parts = told.difference.as_ref().map_or(DifferentParts::empty(), |difference| difference.parts);
    parts.remove(DifferentParts::CREATED);
    if tx.is_eip4844() {
        parts.remove(DifferentParts::BALANCE);
    }
    (parts != expected).then(|| format!("told {parts:?}, expected {expected:?}"))
}

/// Shadows a block on its parent.
fn check(spec: &ChainSpec, under: &str, parent: &Snapshot, head: &Snapshot, counts: &Counts) -> Result<(), String> {
    let rules = spec.under(under).map_err(|error| error.to_string())?;
    let block = Block::sealed(&head.head).ok_or("a block without its body")?;
    let mut told = Vec::new();
    let take = |_: &Included<'_>, tx: ShadowedTx| {
        told.push(tx);
        Ok::<_, SimulationError>(())
    };
    shadow_block(spec, rules, &block, 64 << 20, &mut overlay_on(parent), take).map_err(|error| error.to_string())?;
    let (mut run, _) = BlockRun::begin(spec, parent, block.context().clone()).map_err(|error| error.to_string())?;
    for (included, told) in block.transactions().zip(&told) {
        if let Some(problem) = problem(spec, run.at(), included.tx, under, told) {
            return Err(format!("transaction {} of block {}: {problem}", included.index, block.number()));
        }
        run.go_on(spec, std::slice::from_ref(included.tx), u64::MAX).map_err(|error| error.to_string())?;
        counts.transactions.fetch_add(1, Relaxed);
        if let Some(difference) = &told.difference {
            counts.reported.fetch_add(1, Relaxed);
            counts.invalid.fetch_add(difference.invalid.is_some().into(), Relaxed);
        }
    }
    counts.blocks.fetch_add(1, Relaxed);
    Ok(())
}

fn shadow_chain(test: &ChainTest, under: &str, counts: &Counts) -> CaseOutcome {
    let Some(spec) = spec(&test.network, test.config.as_ref()) else {
        return CaseOutcome::Failed(format!("an unknown network: {}", test.network));
    };
    let mut head = match test.first() {
        Ok(head) => head,
        Err(problem) => return CaseOutcome::Failed(problem),
    };
    for block in &test.blocks {
        // Invalid blocks and other branches are no matter of these tests.
        let Ok(next) = import_bytes(&spec, head.copy(), &block.rlp, |_, _| {}) else { continue };
        if let Err(problem) = check(&spec, under, &head, &next, counts) {
            return CaseOutcome::Failed(problem);
        }
        head = next;
    }
    CaseOutcome::Passed
}

/// Shadows the chains of `network` in an archive under another fork.
fn shadow_all(archive: &str, folder: &str, network: &str, under: &str) -> Option<Counts> {
    let counts = Counts::default();
    let tally = run_all(archive, folder, |_, content, report| {
        let tests: BTreeMap<String, ChainTest> = serde_json::from_slice(content).unwrap();
        for (name, test) in tests.iter().filter(|(_, test)| test.network == network) {
            report(&test.network, name, shadow_chain(test, under, &counts));
        }
    })?;
    assert_none_failed(&tally);
    say(&format!(
        "OFFICIAL {network} under {under}: {} blocks, {} transactions, {} reported, {} of them invalid",
        counts.blocks.load(Relaxed),
        counts.transactions.load(Relaxed),
        counts.reported.load(Relaxed),
        counts.invalid.load(Relaxed),
    ));
    Some(counts)
}

#[test]
fn amsterdams_chains_under_osaka_differ_as_simulations_say() {
    let Some(counts) = shadow_all(AMSTERDAM, "blockchain_tests/", "Amsterdam", "osaka") else { return };
    let blocks = counts.blocks.load(Relaxed);
    assert!(blocks >= LEAST, "{blocks} blocks");
    assert!(counts.reported.load(Relaxed) > 0 && counts.invalid.load(Relaxed) > 0);
}

#[test]
fn osakas_chains_under_amsterdam_differ_as_simulations_say() {
    let Some(counts) = shadow_all(ARCHIVE, "eest/blockchain_tests/", "Osaka", "amsterdam") else { return };
    let blocks = counts.blocks.load(Relaxed);
    assert!(blocks >= LEAST_OF_OSAKA && counts.reported.load(Relaxed) > 0, "{blocks} blocks");
}
