//! The lines that contracts under test log through `console.log`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{
    error::SimulationError,
    replay::trace_block,
    trace::{Trace, Tracer},
};
use crate::{
    abi::{CONSOLE, console_line},
    chain::ChainSpec,
    ledger::{Block, Snapshot},
    meter::Meter,
    shown::printable,
    state::Overlay,
};

/// The bytes that a transaction's trace may take.
const MOST: usize = 64 << 20;

/// The output of the lines of contracts under test: the node's log, as lines of `console.log`.
///
/// Runs are not inspected for them. Afterwards, an overlay shows whether the libraries' address was called, and only
/// then the run is repeated and traced.
#[derive(Clone, Debug)]
pub struct ConsoleOutput(Arc<AtomicBool>);

impl Default for ConsoleOutput {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl ConsoleOutput {
    /// Sets whether lines are printed.
    pub fn set(&self, on: bool) {
        self.0.store(on, Relaxed);
    }

    /// Returns whether the runs in `overlay` have logged something that is printed.
    pub fn awaits(&self, overlay: &Overlay) -> bool {
        self.0.load(Relaxed) && overlay.has_read(&CONSOLE)
    }

    /// Returns the tracer whose traces are [printed](Self::print).
    pub fn tracer() -> Tracer {
        Tracer::Calls(Default::default())
    }

    /// Prints the lines of a traced run.
    pub fn print(&self, trace: &Trace) {
        let Trace::Calls { frames, .. } = trace else { return };
        // The frames are in the order of their beginnings, and a call of the console has none within it.
        let calls = frames.iter().filter(|frame| frame.trace.address == CONSOLE);
        for line in calls.filter_map(|frame| console_line(&frame.trace.data)) {
            tracing::info!(target: "console.log", "{}", printable(&line));
        }
    }

    /// Prints the lines of the transactions of a block. `before` is the state of its parent.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the block cannot be traced.
    pub fn print_block(&self, spec: &ChainSpec, block: &Block, before: &Snapshot) -> Result<(), SimulationError> {
        if !self.0.load(Relaxed) {
            return Ok(());
        }
        let mut overlay = Overlay::default();
        overlay.reset(before.world.clone(), before.hashes.clone(), Meter::default());
        let all = 0..block.transactions().count();
        trace_block(spec, block, all, (&Self::tracer(), MOST), &mut overlay, |_, trace| {
            self.print(&trace);
            Ok(())
        })
    }
}
