//! Shared beginnings: calls that several simulations of a client begin with run once on a snapshot.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use alloy_primitives::map::DefaultHashBuilder;
use quick_cache::{Weighter, sync::Cache};

use super::{
    Engine,
    error::SimulationError,
    request::{
        BlockOverrides, CallPlace, Objective, Outputs, RequiredEnd, SimCall, Simulation, SimulationRules,
        StateOverrides,
    },
    simulate::{Beginning, Simulated, Until},
    size::size_of_accounts,
};
use crate::{
    state::{Snapshot, StateId},
    telemetry::{Counter, Metrics},
};

/// The beginnings of simulations, so that each runs once: from the second simulation on that has it, the calls of a
/// beginning are not run again. Answers are the same to the byte.
///
/// A beginning is of one client, one state and one set of rules, and holds the first calls of a simulation's first
/// block. It is found by a hash, and compared in full.
pub struct Beginnings {
    /// `None` if beginnings are not shared.
    known: Option<Cache<u64, KnownBeginning, BeginningWeight>>,
    hasher: DefaultHashBuilder,
    /// Counts simulations that have continued a beginning.
    shared: Counter,
}

/// The knowledge of a beginning.
#[derive(Clone, Debug)]
enum KnownBeginning {
    /// A simulation has had it.
    Seen,
    /// The beginning has run.
    Ran(Arc<(BeginningKey, Beginning)>),
}

/// All that the results of a beginning follow from.
#[derive(Debug, PartialEq)]
struct BeginningKey {
    client: Option<String>,
    state: StateId,
    rules: SimulationRules,
    outputs: Outputs,
    objective: Option<Objective>,
    trace_transfers: bool,
    validation: bool,
    /// Whether more blocks follow, which need the hash of the first.
    is_last: bool,
    block: BlockOverrides,
    overrides: StateOverrides,
    calls: Vec<SimCall>,
    /// The required ends of the calls. `None` if they may end in any way.
    ends: Option<Vec<RequiredEnd>>,
}

/// Weighs what is known by its bytes.
#[derive(Clone, Debug)]
struct BeginningWeight;

impl Weighter<u64, KnownBeginning> for BeginningWeight {
    fn weight(&self, _: &u64, known: &KnownBeginning) -> u64 {
        const SEEN: usize = 64;
        let bytes = match known {
            KnownBeginning::Seen => SEEN,
            KnownBeginning::Ran(ran) => SEEN + ran.0.size() + ran.1.size(),
        };
        bytes as u64
    }
}

impl Beginnings {
    /// The number of first calls after each of which a beginning may end. It may also end after the last call, and
    /// before the last call.
    const ENDS: usize = 64;
    /// About how many bytes a beginning takes, from which the cache guesses its number of entries.
    const USUAL: usize = 4 << 10;

    /// Creates a cache of at most `bytes`; none if that is 0.
    pub fn new(bytes: usize, metrics: &Metrics) -> Self {
        let known = (bytes > 0).then(|| Cache::with_weighter(bytes / Self::USUAL, bytes as u64, BeginningWeight));
        let help = "Simulations whose first calls were not run again.";
        let shared = metrics.counter("presim_shared_beginnings_total", help, &[]);
        Self { known, hasher: DefaultHashBuilder::default(), shared }
    }

    /// Runs `simulation` as [`Engine::simulate`] does, from the longest beginning that is known.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if a block or a call is refused, or if the meter stopped the run.
    pub fn simulate(
        &self,
        engine: &mut Engine<'_>,
        client: Option<&str>,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Result<Simulated, SimulationError> {
        let Some(known) = self.known.as_ref().filter(|_| !simulation.blocks.is_empty()) else {
            return engine.simulate(snapshot, simulation);
        };
        let hashes = self.hashes(engine.rules, client, snapshot, simulation);
        let mut from: Option<(usize, Arc<(BeginningKey, Beginning)>)> = None;
        let mut seen = None;
        for (calls, hash) in hashes.iter().rev() {
            match known.get(hash) {
                Some(KnownBeginning::Ran(ran)) if ran.0.is_of(*calls, engine.rules, client, snapshot, simulation) => {
                    from = Some((*calls, ran));
                    break;
                }
                Some(KnownBeginning::Seen) => seen = seen.max(Some((*calls, *hash))),
                // Two beginnings with one hash: the newer one is run as if it were alone.
                Some(KnownBeginning::Ran(_)) => {}
                None => known.insert(*hash, KnownBeginning::Seen),
            }
        }
        if from.is_some() {
            self.shared.increment(1);
        }
        if let Some((calls, hash)) = seen {
            let until = Until::Call(CallPlace { block: 0, call: calls });
            let shorter = from.as_ref().map(|(_, ran)| &ran.1);
            let beginning = engine.begin(snapshot, simulation, shorter, until)?;
            let key = BeginningKey::of(calls, engine.rules, client, snapshot, simulation);
            let ran = Arc::new((key, beginning));
            // The result of a run on unknown state is not valid.
            if !engine.overlay.has_missed() {
                known.insert(hash, KnownBeginning::Ran(ran.clone()));
            }
            from = Some((calls, ran));
        }
        match from {
            Some((_, ran)) => engine.resume(snapshot, simulation, &ran.1),
            None => engine.simulate(snapshot, simulation),
        }
    }

    /// Returns the beginnings of a simulation, as numbers of calls and hashes, the shortest first.
    fn hashes(
        &self,
        rules: &SimulationRules,
        client: Option<&str>,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Vec<(usize, u64)> {
        let block = &simulation.blocks[0];
        let mut hash = self.hasher.build_hasher();
        (client, snapshot.state, simulation.outputs, simulation.objective).hash(&mut hash);
        (simulation.trace_transfers, simulation.validation, rules.state_roots, rules.block_time).hash(&mut hash);
        (simulation.blocks.len() > 1, simulation.when.is_some(), block.state.len(), block.block.number).hash(&mut hash);
        for (address, account) in &block.state {
            (address, account.balance, account.nonce, &account.code).hash(&mut hash);
        }
        let count = block.calls.len();
        let mut hashes = Vec::with_capacity(count.min(Self::ENDS + 2));
        for (index, call) in block.calls.iter().enumerate() {
            match call {
                SimCall::Unsigned(call) => {
                    (call.from, call.to, call.value, call.gas, call.nonce, &call.data).hash(&mut hash);
                }
                SimCall::Signed(tx) => tx.tx_hash().hash(&mut hash),
            }
            let calls = index + 1;
            if calls <= Self::ENDS || calls + 1 >= count {
                hashes.push((calls, hash.finish()));
            }
        }
        hashes
    }
}

impl fmt::Debug for Beginnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beginnings").field("known", &self.known.as_ref().map(Cache::len)).finish_non_exhaustive()
    }
}

impl BeginningKey {
    fn of(
        calls: usize,
        rules: &SimulationRules,
        client: Option<&str>,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> Self {
        let block = &simulation.blocks[0];
        Self {
            client: client.map(str::to_owned),
            state: snapshot.state,
            rules: *rules,
            outputs: simulation.outputs,
            objective: simulation.objective,
            trace_transfers: simulation.trace_transfers,
            validation: simulation.validation,
            is_last: simulation.blocks.len() == 1,
            block: block.block.clone(),
            overrides: block.state.clone(),
            calls: block.calls[..calls].to_vec(),
            ends: ends(calls, simulation).map(Iterator::collect),
        }
    }

    /// Returns whether this is what [`BeginningKey::of`] returns for the same arguments.
    fn is_of(
        &self,
        calls: usize,
        rules: &SimulationRules,
        client: Option<&str>,
        snapshot: &Snapshot,
        simulation: &Simulation,
    ) -> bool {
        let block = &simulation.blocks[0];
        let same_ends = match (&self.ends, ends(calls, simulation)) {
            (Some(own), Some(ends)) => own.iter().copied().eq(ends),
            (None, None) => true,
            _ => false,
        };
        same_ends
            && self.client.as_deref() == client
            && self.state == snapshot.state
            && self.rules == *rules
            && (self.outputs, self.objective) == (simulation.outputs, simulation.objective)
            && (self.trace_transfers, self.validation) == (simulation.trace_transfers, simulation.validation)
            && self.is_last == (simulation.blocks.len() == 1)
            && self.calls == block.calls[..calls]
            && self.block == block.block
            && self.overrides == block.state
    }

    /// Returns about how many bytes it takes.
    fn size(&self) -> usize {
        let calls: usize = self.calls.iter().map(SimCall::size).sum();
        size_of::<Self>() + calls + size_of_accounts(&self.overrides) + self.block.size()
    }
}

/// Returns how the first calls must end, if the simulation says so.
fn ends(calls: usize, simulation: &Simulation) -> Option<impl Iterator<Item = RequiredEnd>> {
    let when = simulation.when.as_ref()?;
    Some((0..calls).map(move |call| when.0.get(&CallPlace { block: 0, call }).copied().unwrap_or(RequiredEnd::Success)))
}
