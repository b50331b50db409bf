//! The world of `../shared/bench`: a node on its genesis, whose chain is static, and the requests of its workloads.

#![allow(dead_code, reason = "each bench uses its part of it")]

pub mod bare;
pub mod client;
pub mod computations;
pub mod pools;
pub mod process;

use std::{
    ffi::OsString,
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use presim::testing::{self, Config, Node, engine::Simulation, meter::Meter, rpc::dialect::PRESIM, state::Overlay};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The folder of the genesis and the workloads.
pub const BODIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");

/// A node on the chain of the bodies, whose requests run on the threads of the bench.
pub struct BodiesChain {
    pub node: Node,
}

/// A request of a workload.
pub struct Body {
    /// The whole request, as a client sends it.
    pub text: String,
    pub method: String,
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
    Body { text: text.to_owned(), method, params }
}

impl BodiesChain {
    /// Starts the node with further flags. If the genesis does not exist, prints a line and returns `None`.
    pub fn start(flags: &[&str]) -> Option<Self> {
        let genesis = Path::new(BODIES).join("genesis.json");
        if !genesis.exists() {
            println!("skipped: no genesis.json in {BODIES}");
            return None;
        }
        // Nothing is shared, so that each run is measured whole.
        let always = ["presim", "--listen", "127.0.0.1:0", "--log", "error", "--prefix-cache-mb", "0"];
        let limits = ["--feed", "static", "--gas-cap", "1099511627776", "--max-response", "268435456", "--genesis"];
        let flags = always.iter().chain(flags).chain(&limits).map(OsString::from).chain([genesis.into()]);
        let node = Node::start(Config::load(flags).expect("the flags are right")).expect("the node starts");
        Some(Self { node })
    }

    /// Runs a simulation in a reused overlay, until it ends or `meter` stops it: a run in a pause of another one has a bound, past which it
    /// runs again by itself.
    pub fn simulate(&self, simulation: &Simulation, overlay: &mut Overlay, meter: Meter) {
        let (backend, snapshot) = (&self.node.runner().backend, self.node.snapshots().newest());
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let rules = backend.rules(&PRESIM);
        let simulated = black_box(backend.engine(&rules, overlay).simulate(&snapshot, simulation));
        assert!(simulated.is_ok() || overlay.meter.stopped().is_some(), "a simulation");
    }

    /// Does a worker's part of a request: parse, run, encode. The result is in `out`.
    pub fn answer(&self, body: &Body, overlay: &mut Overlay, out: &mut Vec<u8>) {
        testing::answer(&self.node, &body.method, body.params.get(), overlay, out).expect("an answer");
        black_box(out);
    }
}

/// Returns a meter that is far from its limits.
pub fn meter() -> Meter {
    Meter::until(Instant::now() + Duration::from_secs(60), Arc::default(), None)
}
