//! The data that all methods share, and one run of a request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{ExecutedBy, filters::Filters};
use crate::{
    chain::ChainSpec,
    engine::{Beginnings, BlockOverrides, ConsoleOutput, Engine, SimulationRules},
    ledger::{Block, Chain, Divergences, KnownBlock, LateBounds, Selector, Snapshot},
    meter::{Meter, Stopped},
    pool::Pool,
    rpc::{
        params::ShapeLimits,
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
    state::{CodeCache, Overlay},
    store::Commit,
    telemetry::Counter,
    wallet::{Impersonated, Wallet},
};

/// The data that all methods share. The [`Attempt`] holds the snapshot of a request.
#[derive(Debug)]
pub struct Backend {
    /// The chain that the node is on.
    pub spec: Arc<ChainSpec>,
    /// The cache of analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// Name and version of this software, as `web3_clientVersion` returns them.
    pub client_version: &'static str,
    /// The beginnings of simulations that have run.
    pub beginnings: Beginnings,
    /// Transactions that were sent and are not in a block yet.
    pub pool: Arc<Pool>,
    /// The wallet, which signs for its accounts.
    pub wallet: Arc<Wallet>,
    /// The accounts that clients may send from without their keys.
    pub impersonated: Impersonated,
    /// The place where lines of contracts go, on a node for tests.
    pub console: Option<ConsoleOutput>,
    /// The filters that clients have installed.
    pub filters: Filters,
    /// The pre-confirmed values that were wrong.
    pub divergences: Arc<Divergences>,
    /// Limits on requests.
    pub limits: RequestLimits,
    /// Whether `pending` is refused while the feed is broken (`--strict-pending`).
    pub strict_pending: bool,
    /// Whether receipts wait for `latest` in the dialects that allow it (`--standard-receipts latest`).
    pub receipts_wait: bool,
    /// The metric of simulated gas.
    pub gas: Counter,
}

/// The timeouts of `eth_sendRawTransactionSync`.
#[derive(Clone, Copy, Debug)]
pub struct SyncTimeouts {
    /// The timeout if the client sets none.
    pub usual: Duration,
    /// The longest timeout. A client's longer one is cut, as in geth.
    pub most: Duration,
}

/// Limits on a request and its response.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Limits on the numbers of blocks and calls.
    pub shape: ShapeLimits,
    /// Maximum gas of a whole request.
    pub gas_cap: u64,
    /// Maximum number of blocks that a filter of logs or of traces may span.
    pub max_log_blocks: u64,
    /// Maximum number of logs that a request may return.
    pub max_logs: usize,
    /// The bounds within which logs of later blocks wait for a block whose receipts the upstream has not reported yet.
    pub late: LateBounds,
    /// Maximum bytes that the traces of a request may take while it runs.
    pub max_trace: usize,
    /// Limits on the time that a request waits for a receipt.
    pub sync: SyncTimeouts,
    /// Maximum bytes of a response.
    pub max_response: usize,
    /// Maximum number of entries of a batch.
    pub max_batch: usize,
}

/// A handler that is one run, from the parameters to the JSON of the result.
pub type RunHandler = fn(&Backend, &mut Attempt<'_>) -> Result<()>;

/// One run of a request: the handler's input, its working memory, and its output.
///
/// A request may run several times, because a run was too long to execute inline or missed state that an upstream has.
/// So a handler must cause no lasting effect before [`Attempt::ensure_complete`] succeeds.
#[derive(Debug)]
pub struct Attempt<'a> {
    /// The parameters, as JSON.
    pub params: &'a str,
    /// The chain's state when the request arrived.
    pub published: &'a Chain,
    /// The dialect that the client speaks.
    pub dialect: &'static Dialect,
    /// The client's name. `None` if clients have no tokens.
    pub client: Option<&'a str>,
    /// Whether the client may use the wallet.
    pub may_use_wallet: bool,
    /// The origin of the page that calls, if its browser names it.
    pub page: Option<&'a str>,
    /// Memory of the run, reused by the next run on the same thread.
    pub overlay: &'a mut Overlay,
    /// The bound on the run's time. [`Attempt::reset_to`] moves it into the overlay.
    pub meter: Meter,
    /// The response up to the value of its result. The handler appends this value as JSON.
    pub out: Vec<u8>,
    /// The rules by which the request runs.
    pub by: ExecutedBy,
    /// The commit that must be on disk before the response is sent, or the verdict of another node on a transaction.
    pub commit: Commit,
}

impl Attempt<'_> {
    /// Resets the overlay to the state of `snapshot`, bounds it by the meter, and returns it.
    pub fn reset_to(&mut self, snapshot: &Snapshot) -> &mut Overlay {
        self.overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), std::mem::take(&mut self.meter));
        self.overlay
    }

    /// Moves the deadline to `timeout` from now, if that is earlier and the request has its own time limit.
    pub fn limit_time(&mut self, timeout: Option<Duration>) {
        if let Some(deadline) = timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
            self.meter.limit_time(deadline);
        }
    }

    /// Checks that the run has missed no state, so that the handler may cause lasting effects.
    ///
    /// # Errors
    ///
    /// Returns -32603 if the run has missed state. No client sees this error, because the request runs again.
    pub fn ensure_complete(&self) -> Result<()> {
        match self.overlay.has_missed() {
            true => Err(RpcError::new(-32603, "the state is not complete")),
            false => Ok(()),
        }
    }

    /// Stops an inline run of a long request and returns the run's error. The request runs again on a worker.
    pub fn move_to_worker(&mut self) -> RpcError {
        self.overlay.meter.stop(Stopped::TooLong);
        RpcError::from(Stopped::TooLong)
    }
}

impl Backend {
    /// Checks that `selector` may be asked.
    ///
    /// # Errors
    ///
    /// Returns -32000 if it is `pending`, the feed is broken, and `--strict-pending` is set.
    pub fn admit(&self, published: &Chain, selector: Selector) -> Result<()> {
        if self.strict_pending
            && selector == Selector::Pending
            && let Some(problem) = published.feed().problem()
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

    /// Returns the block that `selector` names, if it is known. Only its header may be known.
    pub(in crate::rpc) fn find(&self, published: &Chain, selector: Selector) -> Result<Option<KnownBlock>> {
        self.admit(published, selector)?;
        Ok(published.find(selector)?)
    }

    /// Returns the block that `selector` names, if it is known.
    pub(in crate::rpc) fn block(&self, published: &Chain, selector: Selector) -> Result<Option<Block>> {
        self.admit(published, selector)?;
        Ok(published.block(selector)?)
    }

    /// Returns the rules that the overrides of a block ask for, if they name a fork that the chain has.
    pub(in crate::rpc) fn by(&self, block: Option<&BlockOverrides>) -> ExecutedBy {
        let fork = block.and_then(|block| self.spec.under(block.fork.as_deref()?).ok()?.fork_override());
        fork.map_or(ExecutedBy::Node, ExecutedBy::Under)
    }

    /// Returns an engine that runs in `overlay` under `rules`.
    pub fn engine<'a>(&'a self, rules: &'a SimulationRules, overlay: &'a mut Overlay) -> Engine<'a> {
        Engine { spec: &self.spec, rules, codes: &self.codes, overlay }
    }

    /// Returns the rules of simulations in `dialect`.
    pub fn rules(&self, dialect: &Dialect) -> SimulationRules {
        SimulationRules {
            base_fee: dialect.base_fee,
            keeps_prev_randao: dialect.keeps_prev_randao,
            block_time: dialect.block_time,
            state_roots: dialect.state_roots,
            gas_cap: self.limits.gas_cap,
            max_blocks: self.limits.shape.max_blocks as u64,
            max_trace: self.limits.max_trace,
            estimate_tolerance: dialect.estimate_tolerance,
        }
    }
}
