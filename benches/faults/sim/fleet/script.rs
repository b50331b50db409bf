//! The steps of a simulation of a fleet, and how they follow from a seed.

use std::fmt;

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// The nodes that publish: one leads, another stands by.
pub const INGESTERS: usize = 2;
/// All nodes: those that publish, and replicas.
pub const NODES: usize = 4;
/// The number of steps of a script.
const STEPS: std::ops::Range<usize> = 20..80;

/// The settings of a fleet, and the steps that it goes through.
#[derive(Clone, Debug)]
pub struct FleetScript {
    /// The flags of the nodes that publish.
    pub flags: Vec<String>,
    /// The most bytes of a part of a message.
    pub max_part: usize,
    pub steps: Vec<FleetStep>,
}

/// A step. Nodes are counted from those that publish on.
#[derive(Clone, Copy, Debug)]
pub enum FleetStep {
    /// The node that leads, or believes so, builds and publishes a sub-block; the other one reads everything.
    Tick(usize),
    /// A node gets so many parts of the stream.
    Read(usize, usize),
    /// A node gets parts that it has had already, and then goes on.
    ReadAgain(usize),
    /// A node that stands by takes the lease, even if the leader lives but renews it too late. The leader may publish once
    /// more in between.
    TakeOver { node: usize, steals: bool, races: bool },
    /// The way of a node is cut for so many tries. Another may take the lease meanwhile.
    Cut { node: usize, tries: u32, loses_lease: bool },
    /// The next answers of the stream to a node are lost.
    LoseAcks(usize, u32),
    /// The stream takes nothing for so many tries: its disk is full.
    Fill(u32),
    /// The stream forgets the names of messages.
    Forget,
    /// The leader writes an image.
    Image,
    /// All but the newest parts are deleted, and the leader writes an image.
    Purge(u64),
    /// A node is killed, and starts again with the image.
    Kill(usize),
    /// The clocks jump by seconds, backwards too.
    Jump(i64),
}

impl FleetScript {
    /// Returns the script of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xf1ee7);
        let mut flags = Vec::new();
        for (flag, value) in [
            ("--sub-blocks", rng.random_range(1..4)),
            ("--traffic", rng.random_range(0..3)),
            ("--keep-blocks", rng.random_range(1..6)),
            ("--keep-snapshots", rng.random_range(4..40)),
        ] {
            flags.extend([flag.to_owned(), value.to_string()]);
        }
        let faults = rng.random_range(0..6);
        let steps = rng.random_range(STEPS);
        let max_part = rng.random_range(150..3_000);
        Self { flags, max_part, steps: (0..steps).map(|_| step(faults, &mut rng)).collect() }
    }
}

fn step(faults: u32, rng: &mut SmallRng) -> FleetStep {
    let ingester = rng.random_range(0..INGESTERS);
    let node = rng.random_range(0..NODES);
    if !rng.random_ratio(faults, 12) {
        return match rng.random_range(0..8) {
            0..4 => FleetStep::Tick(ingester),
            4..7 => FleetStep::Read(node, rng.random_range(1..12)),
            _ => FleetStep::Image,
        };
    }
    match rng.random_range(0..12) {
        0 | 1 => FleetStep::TakeOver { node: ingester, steals: rng.random(), races: rng.random() },
        2 | 3 => FleetStep::Cut { node, tries: rng.random_range(1..6), loses_lease: rng.random() },
        4 | 5 => FleetStep::LoseAcks(ingester, rng.random_range(1..4)),
        6 => FleetStep::Fill(rng.random_range(1..6)),
        7 => FleetStep::Forget,
        8 => FleetStep::Purge(rng.random_range(1..8)),
        9 => FleetStep::Kill(node),
        10 => FleetStep::ReadAgain(node),
        _ => FleetStep::Jump(rng.random_range(-30..30)),
    }
}

impl fmt::Display for FleetScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, flags) = (self.steps.len(), self.flags.join(" "));
        writeln!(f, "{steps} steps of a fleet with parts of {} bytes and {flags}", self.max_part)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}
