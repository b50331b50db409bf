//! What the methods answer from, and one run of a request.

use std::sync::Arc;

use super::SyncTimeouts;
use crate::{
    chain::ChainSpec,
    engine::{Engine, SimulationRules},
    meter::{Meter, Stopped},
    pool::Pool,
    rpc::{dialect::Dialect, error::RpcError, filters::Filters, wire::ShapeLimits},
    state::{Block, CodeCache, KnownBlock, Overlay, Published, Selector, Snapshot},
    store::Commit,
    telemetry::Counter,
    wallet::Wallet,
};

/// What the methods answer from, besides the snapshot that a request brings along.
#[derive(Debug)]
pub struct Backend {
    /// The chain.
    pub spec: ChainSpec,
    /// Analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// What was sent and is in no block yet.
    pub pool: Arc<Pool>,
    /// Signs for its accounts.
    pub wallet: Wallet,
    /// The filters that clients have installed.
    pub filters: Filters,
    /// Limits on requests.
    pub limits: RequestLimits,
    /// Refuse `pending` while the feed is broken.
    pub strict_pending: bool,
    /// Gas simulated, for the metrics.
    pub gas: Counter,
}

/// Limits on a request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Of its shape.
    pub shape: ShapeLimits,
    /// Gas for a whole request.
    pub gas_cap: u64,
    /// Blocks that one filter of logs may span.
    pub max_log_blocks: u64,
    /// Logs that one request may return.
    pub max_logs: usize,
    /// Bytes that the traces of a request may take while it runs.
    pub max_trace: usize,
    /// How long a request may wait for a receipt.
    pub sync: SyncTimeouts,
    /// Bytes of an answer.
    pub max_response: usize,
}

/// One run of a request: what its handler reads, what it works in, and what it makes.
///
/// A request may be run several times, because a run was too long for its thread or because it missed state that an upstream has. So a
/// handler does nothing that lasts before [`Run::be_complete`] lets it.
#[derive(Debug)]
pub struct Run<'a> {
    /// The parameters, as JSON.
    pub params: &'a str,
    /// The chain as it was when the request arrived.
    pub published: &'a Published,
    /// How the client speaks.
    pub dialect: &'static Dialect,
    /// The client's name, where clients have tokens.
    pub client: Option<&'a str>,
    /// Whether the client may use the wallet.
    pub may_use_wallet: bool,
    /// Memory for the run, reused by the next one on the same thread.
    pub overlay: &'a mut Overlay,
    /// Bounds the run. Spent where the overlay has it.
    pub meter: Meter,
    /// The answer, up to the value of its result. The handler appends that value, as JSON.
    pub out: Vec<u8>,
    /// What must be on the disk before the answer goes out.
    pub commit: Commit,
}

impl Run<'_> {
    /// Returns the overlay, over the state of `snapshot` and bounded by the meter.
    pub fn stand_on(&mut self, snapshot: &Snapshot) -> &mut Overlay {
        self.overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), std::mem::take(&mut self.meter));
        self.overlay
    }

    /// Lets a handler go on to what lasts.
    ///
    /// # Errors
    /// Returns an error that no client sees if the run has missed state: the request is run again.
    pub fn be_complete(&self) -> Result<(), RpcError> {
        match self.overlay.has_missed() {
            true => Err(RpcError::new(-32603, "the state is not complete")),
            false => Ok(()),
        }
    }

    /// Stops a run that must be short, because the request is seen to be long: it is run again on a worker.
    pub fn give_up(&mut self) -> RpcError {
        self.overlay.meter.stop(Stopped::TooLong);
        RpcError::from(Stopped::TooLong)
    }
}

impl Backend {
    /// The snapshot that `selector` names.
    pub(super) fn select(&self, published: &Published, selector: Selector) -> Result<Arc<Snapshot>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.select(selector)?)
    }

    /// Refuses `pending` while the feed is broken, where that was asked for.
    pub(super) fn admit(&self, published: &Published, selector: Selector) -> Result<(), RpcError> {
        if self.strict_pending
            && selector == Selector::Pending
            && let Some(problem) = published.feed.problem()
        {
            return Err(RpcError::new(
                -32000,
                format!(
                    "pending is refused: the feed is broken ({}: {}), and --strict-pending is set",
                    problem.as_str(),
                    problem.meaning()
                ),
            ));
        }
        Ok(())
    }

    /// The block that `selector` names, if there is one, by its header at least.
    pub(super) fn find(&self, published: &Published, selector: Selector) -> Result<Option<KnownBlock>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.find(selector)?)
    }

    /// The block that `selector` names, if there is one.
    pub(super) fn block(&self, published: &Published, selector: Selector) -> Result<Option<Block>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.block(selector)?)
    }

    /// What runs in `overlay`, under `rules`, go by.
    pub(super) fn engine<'a>(&'a self, rules: &'a SimulationRules, overlay: &'a mut Overlay) -> Engine<'a> {
        Engine { spec: &self.spec, rules, codes: &self.codes, overlay }
    }

    pub(super) fn rules(&self, dialect: &Dialect) -> SimulationRules {
        SimulationRules {
            base_fee: dialect.base_fee,
            block_time: (dialect.block_time)(&self.spec),
            state_roots: dialect.state_roots,
            gas_cap: self.limits.gas_cap,
            max_blocks: self.limits.shape.max_blocks as u64,
            estimate_tolerance: dialect.estimate_tolerance,
        }
    }
}
