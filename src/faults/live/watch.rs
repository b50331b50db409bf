//! Standing bundles on a live chain. What is held of each that is not due must be what a fresh run gives.

use std::fmt::Write;

use crate::{
    chain::ChainSpec,
    engine::{BaseFeeRule, BlockContext, Engine, Simulation, SimulationRules},
    ledger::Snapshot,
    rpc::{ShapeLimits, SimulationView, dialect::PRESIM, parse_presim_simulation, write_simulation},
    state::{AccountReads, CodeCache, Overlay, ReadSet, World},
    watch::{StaleReason, StandingBundles, StandingRun, StateHistory},
};
use alloy_primitives::{Address, hex};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use super::truth::{FEES, SOMEBODY, STORE};

/// The number of bundles that stand.
const BUNDLES: usize = 12;
const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: Some(std::time::Duration::from_secs(1)),
    state_roots: false,
    gas_cap: 50_000_000,
    max_blocks: 8,
    max_trace: 1 << 16,
    estimate_tolerance: 0.0,
};
const SHAPE: ShapeLimits = ShapeLimits { max_blocks: 8, max_block_calls: 8, max_calls: 8, max_search_runs: 1 };

/// Bundles that stand on the snapshots of a live chain, as a client with `presim_watch` has them.
pub struct LiveWatch {
    bundles: StandingBundles<Simulation, Bytes>,
    codes: CodeCache,
    rng: SmallRng,
    /// Whether the reads of slots and balances are left out, which must be found.
    forgets: bool,
}

impl LiveWatch {
    /// Creates random bundles of these senders.
    pub fn new(seed: u64, senders: &[Address], forgets: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let bundles: Vec<(String, Simulation)> =
            (0..BUNDLES).map(|index| (index.to_string(), bundle(&mut rng, senders))).collect();
        Self { bundles: StandingBundles::new(bundles), codes: CodeCache::new(1 << 20), rng, forgets }
    }

    /// Moves to a snapshot, and runs what is due; some snapshots pass before, and some while this is done. Compares what
    /// is held then with fresh runs on `truth`, which is the state of the snapshot.
    ///
    /// Returns the number of answers that were compared, without runs on the snapshot itself.
    ///
    /// # Errors
    ///
    /// Returns a text if an answer is held that a fresh run does not give.
    pub fn follow(
        &mut self,
        spec: &ChainSpec,
        snapshot: &Snapshot,
        history: &StateHistory,
        truth: &World,
    ) -> Result<usize, String> {
        if self.rng.random_ratio(1, 5) {
            return Ok(0);
        }
        let Ok(context) = BlockContext::of(spec, snapshot, &RULES) else { return Ok(0) };
        self.bundles.advance(snapshot, context, history);
        for at in self.bundles.due(|_| true) {
            if self.rng.random_ratio(1, 40) {
                break;
            }
            let simulation = &self.bundles.bundles()[at as usize].request;
            let run = match self.run(spec, snapshot, &snapshot.world, simulation) {
                Some((text, reads)) => StandingRun::Answered {
                    answer: Some(text.into()),
                    reads: self.noted(reads),
                    gained: None,
                    is_long: false,
                },
                None => StandingRun::Stale(StaleReason::Unfinished),
            };
            self.bundles.record(at, run);
        }
        let mut compared = 0;
        let due = self.bundles.due(|_| true);
        for (at, bundle) in (0..).zip(self.bundles.bundles()) {
            let Some(told) = bundle.announced.as_ref().filter(|_| !due.contains(&at)) else { continue };
            let Some((fresh, _)) = self.run(spec, snapshot, truth, &bundle.request) else { continue };
            compared += 1;
            let told_text = told.answer.as_deref().unwrap_or_default();
            if told_text != fresh {
                return Err(format!(
                    "bundle {at} at {:?}: held since {:?}:\n{}\nfresh:\n{}\n{:?}",
                    snapshot.id,
                    told.since,
                    String::from_utf8_lossy(told_text),
                    String::from_utf8_lossy(&fresh),
                    bundle.request.blocks
                ));
            }
        }
        Ok(compared)
    }

    /// Runs a bundle on a snapshot whose state is `world`. Returns the answer, and what was read, unless it needs state
    /// that is not known.
    fn run(
        &self,
        spec: &ChainSpec,
        snapshot: &Snapshot,
        world: &World,
        simulation: &Simulation,
    ) -> Option<(Vec<u8>, ReadSet)> {
        let mut overlay = Overlay::new(world.clone(), snapshot.hashes.clone());
        overlay.record_reads(true);
        let mut engine = Engine { spec, rules: &RULES, codes: &self.codes, overlay: &mut overlay };
        let mut out = Vec::new();
        match engine.simulate(snapshot, simulation) {
            Ok(simulated) => {
                let view = SimulationView {
                    dialect: &PRESIM,
                    names_fork: true,
                    outputs: simulation.outputs,
                    full_transactions: false,
                    errors: None,
                    reads: None,
                    limit: usize::MAX,
                };
                write_simulation(&mut out, &simulated, &view).expect("there is no limit");
            }
            Err(error) => out = format!("{} {error}", error.code()).into_bytes(),
        }
        (!overlay.has_missed()).then(|| (out, overlay.reads()))
    }

    fn noted(&self, mut reads: ReadSet) -> ReadSet {
        if self.forgets {
            for account in &mut reads.accounts {
                account.parts -= AccountReads::BALANCE;
                account.slots.clear();
            }
        }
        reads
    }
}

/// Returns a random bundle, which reads what the chain's transactions write, and fields of the block.
fn bundle(rng: &mut SmallRng, senders: &[Address]) -> Simulation {
    let from = senders[rng.random_range(0..senders.len())];
    let runner = if rng.random_ratio(1, 2) { STORE } else { SOMEBODY };
    let mut code = String::new();
    let pieces = rng.random_range(1..4);
    for index in 0..pieces {
        // Each leaves a word, which is stored: PUSH1 offset, MSTORE.
        let _ = write!(code, "{}60{:02x}52", piece(rng, senders), 32 * index);
    }
    // PUSH1 length, PUSH0, RETURN
    let _ = write!(code, "60{:02x}5ff3", 32 * pieces);
    let mut calls = vec![json!({ "from": from, "to": runner, "gas": "0x30d40" })];
    let word = format!("0x{:064x}", rng.random_range(0..3));
    match rng.random_range(0..6) {
        0 => calls.push(json!({ "from": from, "to": SOMEBODY, "value": "0x1", "gas": "0x186a0" })),
        1 => calls.push(json!({ "from": from, "to": STORE, "data": word, "gas": "0x186a0" })),
        2 => calls.push(json!({ "from": SOMEBODY, "to": STORE, "value": "0x3e8", "data": word, "gas": "0x186a0" })),
        _ => {}
    }
    let validates = rng.random_ratio(1, 5);
    if validates {
        // The nonce is right once, too high before, and too low after.
        calls[0]["nonce"] = format!("{:#x}", rng.random_range(0..6)).into();
        calls[0]["maxFeePerGas"] = "0x4a817c800".into();
    }
    let mut block = json!({ "calls": calls });
    if rng.random_ratio(3, 4) {
        block["stateOverrides"] = json!({ runner.to_string(): { "code": format!("0x{code}") } });
    }
    let all = ["status", "gasUsed", "returnData", "error", "logs", "transfers", "stateDiff", "accessList", "coinbase"];
    let outputs: Vec<&str> = all.into_iter().filter(|_| rng.random_ratio(1, 2)).collect();
    let payload: Value = json!({ "blockStateCalls": [block], "outputs": outputs, "validation": validates });
    let params = json!([payload, "pending"]).to_string();
    parse_presim_simulation(&params, &PRESIM, &SHAPE).expect("a payload").simulation
}

/// Returns code that leaves one word, which follows from the state or from the block.
fn piece(rng: &mut SmallRng, senders: &[Address]) -> String {
    let accounts = [SOMEBODY, STORE, FEES, senders[rng.random_range(0..senders.len())]];
    let account = hex::encode(accounts[rng.random_range(0..accounts.len())]);
    match rng.random_range(0..12) {
        // BALANCE, EXTCODEHASH
        0 | 1 => format!("73{account}31"),
        2 => format!("73{account}3f"),
        // TIMESTAMP, NUMBER, BASEFEE, COINBASE, GASLIMIT, and the hash of the block before
        3 => "42".to_owned(),
        4 => "43".to_owned(),
        5 => "48".to_owned(),
        6 => "41".to_owned(),
        7 => "45".to_owned(),
        8 => "6001430340".to_owned(),
        // The gas that is left after slot 0 was stored by a call.
        9 => format!("5f5f60205f5f73{}5af1505a", hex::encode(STORE)),
        // Slot 0, and whether a transfer succeeds
        10 => "5f54".to_owned(),
        _ => format!("5f5f5f5f600173{account}5af1"),
    }
}
