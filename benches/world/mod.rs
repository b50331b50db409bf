//! The world of `../shared/bench`: its chain, static at its genesis, and the requests of its workloads.

#![allow(dead_code, reason = "each bench uses its part of it")]

pub mod bare;
pub mod client;
pub mod process;

use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_genesis::Genesis;
use presim::testing::{
    chain::{BlockHashes, ChainSpec, genesis_block},
    engine::{BaseFeeRule, Beginnings, Engine, Simulated, Simulation, SimulationError, SimulationRules},
    ledger::{Chain, FeedState, Retention, Snapshot, Snapshots},
    meter::{Meter, Stopped},
    pool::{self, Pool},
    rpc::{
        Backend, CLIENT_VERSION, ExecutedBy, Filters, Handler, MethodRoute, RequestLimits, Run, ShapeLimits,
        SyncTimeouts, dialect::PRESIM, table,
    },
    state::{CodeCache, LocalWorld, Overlay},
    store::{Commit, Store},
    telemetry::Metrics,
    wallet::{Accounts, AheadStates, Approvals, Fees, Ledger, Policy, Wallet},
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The folder of the genesis and the workloads.
pub const BODIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");
/// The gas limit of a whole request.
pub const GAS_CAP: u64 = 1 << 40;
/// The limits of a request's shape.
pub const SHAPE: ShapeLimits =
    ShapeLimits { max_blocks: 256, max_block_calls: 5_000, max_calls: 10_000, max_search_runs: 10_000 };
/// The maximum size of an answer in bytes.
pub const MAX_RESPONSE: usize = 1 << 28;

/// The chain of the bodies, static at its genesis.
pub struct BodiesChain {
    pub backend: Backend,
    pub rules: SimulationRules,
    pub snapshot: Arc<Snapshot>,
    pub published: Arc<Chain>,
}

/// A request of a workload.
pub struct Body {
    /// The whole request, as a client sends it.
    pub text: String,
    pub method: &'static MethodRoute,
    pub params: Box<RawValue>,
}

/// Reads the requests of a workload. If they do not exist, prints a line and returns `None`.
pub fn bodies(workload: &str) -> Option<Vec<Body>> {
    let path = Path::new(BODIES).join(workload).with_extension("ndjson");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("{workload}: skipped: no {}", path.display());
        return None;
    };
    Some(text.lines().map(parse_body).collect())
}

/// Reads a request.
pub fn parse_body(text: &str) -> Body {
    #[derive(Deserialize)]
    struct Envelope {
        method: String,
        params: Box<RawValue>,
    }
    let Envelope { method, params } = serde_json::from_str(text).expect("a request");
    Body { text: text.to_owned(), method: table::by_name(&method).expect("a method"), params }
}

impl BodiesChain {
    /// Loads the chain. If its genesis does not exist, prints a line and returns `None`.
    pub fn load() -> Option<Self> {
        let Ok(text) = std::fs::read(Path::new(BODIES).join("genesis.json")) else {
            println!("skipped: no genesis.json in {BODIES}");
            return None;
        };
        let genesis: Genesis = serde_json::from_slice(&text).expect("a genesis");
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(1)).expect("a chain");
        let codes = CodeCache::new(1 << 26);
        let world = LocalWorld::of_genesis(&genesis, &codes);
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(block.number(), block.hash());
        let first = Snapshot::at_head(world, Arc::new(block), hashes);
        let snapshots = Arc::new(Snapshots::new(
            first,
            FeedState::Static,
            Retention { blocks: 1, snapshots: 1, history: 1, history_bytes: u64::MAX },
        ));
        let rules = SimulationRules {
            base_fee: BaseFeeRule::Block,
            keeps_prev_randao: true,
            block_time: None,
            state_roots: false,
            gas_cap: GAS_CAP,
            max_blocks: SHAPE.max_blocks as u64,
            max_trace: 1 << 20,
            estimate_tolerance: 0.0,
        };
        let (pool, codes) =
            (Arc::new(Pool::new(spec.clone(), pool::Settings::default(), snapshots.clone(), None)), Arc::new(codes));
        let metrics = Metrics::default();
        let policy = Policy {
            ask: false,
            deny: true,
            max_calls: 0,
            max_bytes: 0,
            allow_upgrade: false,
            refuse_reverts: true,
            gas_margin: 0,
            fee_margin: 0,
            executor: None,
        };
        let wallet = Wallet {
            spec: spec.clone(),
            codes: codes.clone(),
            pool: pool.clone(),
            accounts: Accounts::default(),
            fees: Fees::new(spec.clone(), pool::Settings::default().min_tip.into()),
            approvals: Arc::new(Approvals::new(0, Duration::ZERO, &metrics)),
            ledger: Ledger::new(Store::in_memory(&metrics).expect("memory"), 0),
            policy,
            rules,
            ahead: AheadStates::new(spec.clone(), pool.clone()),
            sending: None,
        };
        let backend = Backend {
            client_version: CLIENT_VERSION,
            // Off, so that each run is measured whole.
            beginnings: Beginnings::new(0, &metrics),
            impersonated: presim::testing::wallet::Impersonated::new(0, false),
            pool,
            wallet: Arc::new(wallet),
            console: None,
            filters: Filters::new(0),
            divergences: snapshots.divergences.clone(),
            spec: Arc::new(spec),
            codes,
            limits: RequestLimits {
                shape: SHAPE,
                gas_cap: GAS_CAP,
                max_response: MAX_RESPONSE,
                max_batch: 10,
                max_log_blocks: 1,
                max_logs: 1,
                late: presim::testing::ledger::LateBounds { wait: Duration::ZERO, bytes: 0 },
                max_trace: 1,
                sync: SyncTimeouts { usual: Duration::ZERO, most: Duration::ZERO },
            },
            strict_pending: false,
            receipts_wait: true,
            gas: Metrics::default().counter("gas", ""),
        };
        Some(Self { backend, rules, snapshot: snapshots.newest(), published: snapshots.load() })
    }

    /// Runs a simulation in a reused overlay.
    pub fn simulate(&self, simulation: &Simulation, overlay: &mut Overlay) -> Simulated {
        self.simulate_within(simulation, overlay, meter()).expect("a simulation")
    }

    /// Runs a simulation until it ends or `meter` stops it: a run in a pause of another one has a bound, past which it runs
    /// again by itself.
    ///
    /// # Errors
    ///
    /// Returns [`Stopped`] if the meter stopped it.
    pub fn simulate_within(
        &self,
        simulation: &Simulation,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Simulated, Stopped> {
        let Backend { spec, codes, .. } = &self.backend;
        overlay.reset(self.snapshot.world.clone(), self.snapshot.hashes.clone(), meter);
        let mut engine = Engine { spec, rules: &self.rules, codes, overlay };
        engine.simulate(&self.snapshot, simulation).map_err(|error| match error {
            SimulationError::Stopped(stopped) => stopped,
            error => panic!("a simulation: {error}"),
        })
    }

    /// Does a worker's part of a request: parse, run, encode. The result is in `out`.
    pub fn answer(&self, body: &Body, overlay: &mut Overlay, out: &mut Vec<u8>) {
        out.clear();
        let Handler::Run(handler) = body.method.handler else { panic!("{} does not run", body.method.info.name) };
        let mut run = Run {
            params: body.params.get(),
            published: &self.published,
            dialect: &PRESIM,
            client: None,
            may_use_wallet: false,
            page: None,
            overlay,
            meter: meter(),
            out: std::mem::take(out),
            by: ExecutedBy::Node,
            commit: Commit::done(),
        };
        handler(&self.backend, &mut run).expect("an answer");
        *out = black_box(run.out);
    }
}

/// Returns a meter that is far from its limits.
pub fn meter() -> Meter {
    Meter::until(Instant::now() + Duration::from_secs(60), Arc::default(), None)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
