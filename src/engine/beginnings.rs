//! Shared beginnings: blocks and calls that several simulations of a client begin with run once on a snapshot.

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
        BlockOverrides, CallIndex, Objective, Outputs, RequiredEnd, SimBlock, SimCall, Simulation, SimulationRules,
    },
    simulate::{Beginning, RunPoint, Simulated},
};
use crate::{
    ledger::{Snapshot, StateId},
    telemetry::{Counter, Metrics},
};

/// The beginnings of simulations, so that each runs once: the second and later simulations with the same beginning do
/// not run its blocks and calls again. Their answers are identical byte for byte.
///
/// A beginning belongs to one client, one state and one set of rules. It holds a simulation's first blocks, and the
/// first calls of the block after them. It is found by a hash, and compared in full.
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

/// A run of a simulation that may have a known beginning.
#[derive(Clone, Copy)]
struct RunToBegin<'a> {
    client: Option<&'a str>,
    state: StateId,
    rules: &'a SimulationRules,
    simulation: &'a Simulation,
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
    /// Whether more blocks follow, which need the hash of the last.
    is_last: bool,
    /// The blocks. The last one has only the calls that belong to the beginning. If it has none, it has only its
    /// number, because the blocks that fill the gap before it have run.
    blocks: Vec<SimBlock>,
    /// The required ends of the calls. `None` if they may end in any way.
    ends: Option<Vec<RequiredEnd>>,
}

/// Weighs known beginnings by their bytes.
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
    /// The maximum number of first lengths at which a beginning may end. It may also end at the last two.
    const ENDS: usize = 64;
    /// About how many bytes a beginning takes, from which the cache guesses its number of entries.
    const USUAL: usize = 4 << 10;

    /// Creates a cache of at most `bytes`; none if that is 0.
    pub fn new(bytes: usize, metrics: &Metrics) -> Self {
        let known = (bytes > 0).then(|| Cache::with_weighter(bytes / Self::USUAL, bytes as u64, BeginningWeight));
        let help = "Simulations that reused a shared beginning.";
        let shared = metrics.counter("presim_shared_beginnings_total", help);
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
        let run = RunToBegin { client, state: snapshot.state, rules: engine.rules, simulation };
        let Some(known) = self.known.as_ref().filter(|_| !simulation.blocks.is_empty()) else {
            return engine.simulate(snapshot, simulation);
        };
        let hashes = self.hashes(run);
        let mut from: Option<Arc<(BeginningKey, Beginning)>> = None;
        let mut seen = None;
        for (end, hash) in hashes.iter().rev() {
            match known.get(hash) {
                Some(KnownBeginning::Ran(ran)) if ran.0.is_of(*end, run) => {
                    from = Some(ran);
                    break;
                }
                Some(KnownBeginning::Seen) => seen = seen.or(Some((*end, *hash))),
                // Two beginnings share a hash: the newer one runs without reuse.
                Some(KnownBeginning::Ran(_)) => {}
                None => known.insert(*hash, KnownBeginning::Seen),
            }
        }
        if from.is_some() {
            self.shared.increment(1);
        }
        if let Some((end, hash)) = seen {
            let beginning = engine.begin(snapshot, simulation, from.as_ref().map(|ran| &ran.1), end)?;
            let ran = Arc::new((BeginningKey::of(end, run), beginning));
            // The result of a run on unknown state is not valid.
            if !engine.overlay.has_missed() {
                known.insert(hash, KnownBeginning::Ran(ran.clone()));
            }
            from = Some(ran);
        }
        match from {
            Some(ran) => engine.resume(snapshot, simulation, &ran.1),
            None => engine.simulate(snapshot, simulation),
        }
    }

    /// Returns the beginnings of a simulation, as the points at which they end and as hashes, the shortest first. A
    /// beginning ends after a call, or before a block.
    fn hashes(&self, run: RunToBegin<'_>) -> Vec<(RunPoint, u64)> {
        let RunToBegin { client, state, rules, simulation } = run;
        let blocks = &simulation.blocks;
        let last = blocks.len() - 1;
        let mut hash = self.hasher.build_hasher();
        (client, state, simulation.outputs, simulation.objective).hash(&mut hash);
        (simulation.trace_transfers, simulation.validation, rules.state_roots, rules.block_time).hash(&mut hash);
        simulation.when.is_some().hash(&mut hash);
        let mut hashes = Vec::new();
        // The tries after a block are not saved.
        let shared = if rules.state_roots { 1 } else { blocks.len() };
        for (index, SimBlock { state, block, calls }) in blocks.iter().enumerate().take(shared) {
            (block.number, &block.fork).hash(&mut hash);
            // Of many blocks without calls, few are ends, because each end costs a look-up.
            if index.is_power_of_two() || index > 0 && index == last {
                hashes.push((RunPoint { block: index, calls: None }, hash.finish()));
            }
            (index == last, block.time, state.len()).hash(&mut hash);
            for (address, account) in state {
                (address, account.balance, account.nonce, &account.code).hash(&mut hash);
            }
            for (call, one) in calls.iter().enumerate() {
                match one {
                    SimCall::Unsigned(call) => {
                        (call.from, call.to, call.value, call.gas, call.nonce, &call.data).hash(&mut hash);
                    }
                    SimCall::Signed(tx) => tx.tx_hash().hash(&mut hash),
                }
                hashes.push((RunPoint { block: index, calls: Some(call + 1) }, hash.finish()));
            }
            calls.len().hash(&mut hash);
        }
        let count = hashes.len();
        if count > Self::ENDS + 2 {
            hashes.drain(Self::ENDS..count - 2);
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
    fn of(end: RunPoint, run: RunToBegin<'_>) -> Self {
        let simulation = run.simulation;
        let SimBlock { state, block, calls } = &simulation.blocks[end.block];
        let partial = match end.calls {
            None => {
                // The number and the fork also decide the blocks that fill the gap before it.
                let BlockOverrides { number, fork, .. } = block.clone();
                SimBlock { block: BlockOverrides { number, fork, ..Default::default() }, ..Default::default() }
            }
            Some(count) => SimBlock { state: state.clone(), block: block.clone(), calls: calls[..count].to_vec() },
        };
        let mut blocks = Vec::with_capacity(end.block + 1);
        blocks.extend_from_slice(&simulation.blocks[..end.block]);
        blocks.push(partial);
        Self {
            client: run.client.map(str::to_owned),
            state: run.state,
            rules: *run.rules,
            outputs: simulation.outputs,
            objective: simulation.objective,
            trace_transfers: simulation.trace_transfers,
            validation: simulation.validation,
            is_last: is_last(end, simulation),
            blocks,
            ends: ends(end, simulation).map(Iterator::collect),
        }
    }

    /// Returns whether this equals the result of [`BeginningKey::of`] for the same arguments.
    fn is_of(&self, end: RunPoint, run: RunToBegin<'_>) -> bool {
        let simulation = run.simulation;
        let SimBlock { state, block, calls } = &simulation.blocks[end.block];
        let Some((partial, whole)) = self.blocks.split_last() else { return false };
        let same_ends = match (&self.ends, ends(end, simulation)) {
            (Some(own), Some(ends)) => own.iter().copied().eq(ends),
            (None, None) => true,
            _ => false,
        };
        same_ends
            && self.client.as_deref() == run.client
            && self.state == run.state
            && self.rules == *run.rules
            && (self.outputs, self.objective) == (simulation.outputs, simulation.objective)
            && (self.trace_transfers, self.validation) == (simulation.trace_transfers, simulation.validation)
            && self.is_last == is_last(end, simulation)
            && *whole == simulation.blocks[..end.block]
            && match end.calls {
                None => (partial.block.number, &partial.block.fork) == (block.number, &block.fork),
                Some(count) => partial.calls == calls[..count] && partial.block == *block && partial.state == *state,
            }
    }

    /// Returns about how many bytes it takes.
    fn size(&self) -> usize {
        size_of::<Self>() + self.blocks.iter().map(SimBlock::size).sum::<usize>()
    }
}

/// Returns whether the block in which a beginning ends is the last, once it has begun.
const fn is_last(end: RunPoint, simulation: &Simulation) -> bool {
    end.calls.is_some() && end.block + 1 == simulation.blocks.len()
}

/// Returns how the calls before `end` must end, if the simulation requires it.
fn ends(end: RunPoint, simulation: &Simulation) -> Option<impl Iterator<Item = RequiredEnd>> {
    let when = simulation.when.as_ref()?;
    let whole = simulation.blocks[..end.block].iter().map(|block| block.calls.len());
    let lengths = whole.chain([end.calls.unwrap_or_default()]).enumerate();
    let calls = lengths.flat_map(|(block, calls)| (0..calls).map(move |call| CallIndex { block, call }));
    Some(calls.map(|index| when.0.get(&index).copied().unwrap_or(RequiredEnd::Success)))
}
