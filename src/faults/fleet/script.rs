//! The steps of a simulation of a fleet, and how they follow from a seed.

use std::fmt;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::servers::{Corruption, NODES};

/// The nodes that publish: one leads, another stands by.
pub const INGESTERS: usize = 2;
/// The number of steps of a script.
const STEPS: std::ops::Range<usize> = 6..16;

/// The fault that a script is about, beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FleetFault {
    /// The ways to the servers, acknowledgements, clocks, kills, and leaders that lose the lease.
    Usual,
    /// The stream is deleted, and created again.
    DeletedStream,
    /// A network delays, while a replica joins.
    Late,
    /// Images are slow to write, or fail.
    FailingImages,
    /// A node's images are larger than readers take.
    LargeImages,
    /// Images fill the room of the stream.
    FullStore,
    /// Images, keys or buckets are lost.
    Lost,
    /// A leader cannot publish, and renews its lease.
    Refused,
    /// A data directory is older than the stream.
    OldDirectory,
    /// The fleet starts again while the other node runs.
    Anew,
    /// A message cannot be read, or cannot be applied.
    Garbage,
    /// A disk fails, also while a leader steps down.
    Disk,
}

impl FleetFault {
    pub const ALL: [Self; 12] = [
        Self::Usual,
        Self::DeletedStream,
        Self::Late,
        Self::FailingImages,
        Self::LargeImages,
        Self::FullStore,
        Self::Lost,
        Self::Refused,
        Self::OldDirectory,
        Self::Anew,
        Self::Garbage,
        Self::Disk,
    ];
}

/// The settings of a fleet, and the steps that it goes through.
#[derive(Clone, Debug)]
pub struct FleetScript {
    pub seed: u64,
    pub fault: FleetFault,
    /// The number of sub-blocks of a block, and the most transactions of each.
    pub sub_blocks: usize,
    pub traffic: usize,
    /// The flags of each node.
    pub flags: Vec<Vec<String>>,
    /// The most bytes of a part of a message.
    pub max_part: usize,
    pub steps: Vec<FleetStep>,
}

/// A step. Nodes are counted from those that publish on. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub enum FleetStep {
    /// Time passes.
    Wait(u64),
    /// Nothing goes over the way of a node.
    Cut {
        node: usize,
        for_ms: u64,
    },
    /// Nothing of the keys goes over the way of a node, so that another takes the lease from a leader that lives.
    CutKeys {
        node: usize,
        for_ms: u64,
    },
    /// Each message of a node takes time.
    Delay {
        node: usize,
        by_ms: u64,
        for_ms: u64,
    },
    /// The next acknowledgements of the stream to a node are lost.
    LoseAcks(usize, u32),
    /// The stream takes nothing from a node.
    Refuse {
        node: usize,
        for_ms: u64,
    },
    /// The disk of the servers is full.
    Fill(u64),
    /// The stream forgets the names of messages.
    Forget,
    /// The stream is deleted, and created again by somebody or by a node.
    DeleteStream {
        is_created: bool,
    },
    /// All but the newest parts are deleted.
    Purge(u64),
    /// The images, the keys `image` and `chain`, or a bucket is lost.
    LoseImages,
    LoseKey(&'static str),
    LoseFacts,
    LoseLease,
    /// The next images fail.
    FailImages(u32),
    /// An image takes so long to write.
    SlowImages(u64),
    /// A message comes to the stream that is none of presim's.
    Foreign,
    /// The next message of a leader comes to the stream with another content.
    Corrupt(Corruption),
    /// A node is killed, and starts again.
    Kill(usize),
    /// The same, with the disk of the beginning.
    KillToOld(usize),
    /// A node that publishes is started again with `--publish-anew`.
    Anew(usize),
    /// The disk of a node that publishes fails after so many operations, until that node starts again.
    FailDisk {
        node: usize,
        after: usize,
    },
    /// The clocks jump by seconds, backwards too.
    Jump(i64),
}

impl FleetStep {
    /// Returns the name of the step, without its numbers.
    pub fn name(&self) -> String {
        format!("{self:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
    }
}

impl FleetScript {
    /// Returns the script of a seed. Each fault has its turn.
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0xf1ee7);
        let fault = FleetFault::ALL[(seed % FleetFault::ALL.len() as u64) as usize];
        let (mut sub_blocks, traffic) = (rng.random_range(1..4), rng.random_range(0..3));
        let mut image_every = rng.random_range(3..60);
        if fault == FleetFault::FullStore {
            // Images grow with the chain, and two of them must have room beside the stream.
            (sub_blocks, image_every) = (3, 1);
        }
        let flags = (0..NODES).map(|node| {
            let mut flags = Vec::new();
            let mut add = |flag: &str, value: u32| flags.extend([flag.to_owned(), value.to_string()]);
            add("--keep-blocks", rng.random_range(if node < INGESTERS { 6 } else { 1 }..10));
            add("--keep-snapshots", rng.random_range(4..40));
            if node < INGESTERS {
                add("--image-every", image_every);
            }
            flags
        });
        let flags = flags.collect();
        let others = rng.random_range(0..3);
        let count = rng.random_range(STEPS);
        let max_part = rng.random_range(150..3_000);
        let mut steps = Vec::new();
        for _ in 0..count {
            let is_usual = fault == FleetFault::Usual || rng.random_ratio(others, 6);
            steps.push(if is_usual { usual(&mut rng) } else { of(fault, &mut rng) });
            steps.push(FleetStep::Wait(rng.random_range(50..2_500)));
        }
        Self { seed, fault, sub_blocks, traffic, flags, max_part, steps }
    }
}

fn usual(rng: &mut SmallRng) -> FleetStep {
    let (ingester, node) = (rng.random_range(0..INGESTERS), rng.random_range(0..NODES));
    let for_ms = rng.random_range(50..4_000);
    match rng.random_range(0..11) {
        0 | 1 => FleetStep::Cut { node, for_ms },
        2 | 3 => FleetStep::CutKeys { node: ingester, for_ms },
        4 | 5 => FleetStep::LoseAcks(ingester, rng.random_range(1..4)),
        6 => FleetStep::Fill(rng.random_range(100..3_000)),
        7 => FleetStep::Forget,
        8 => FleetStep::Purge(rng.random_range(1..8)),
        9 => FleetStep::Kill(node),
        _ => FleetStep::Jump(rng.random_range(-30..30)),
    }
}

/// Returns a step of a fault.
fn of(fault: FleetFault, rng: &mut SmallRng) -> FleetStep {
    let (ingester, node) = (rng.random_range(0..INGESTERS), rng.random_range(0..NODES));
    let replica = rng.random_range(INGESTERS..NODES);
    match (fault, rng.random_range(0..6)) {
        (FleetFault::DeletedStream, 0..3) => FleetStep::DeleteStream { is_created: rng.random() },
        (FleetFault::Late, 0..=4) => {
            FleetStep::Delay { node, by_ms: rng.random_range(1..2_001), for_ms: rng.random_range(1_000..20_000) }
        }
        (FleetFault::FailingImages, 0..2) => FleetStep::FailImages(rng.random_range(1..4)),
        (FleetFault::FailingImages, 2..=4) => FleetStep::SlowImages(rng.random_range(100..8_000)),
        (FleetFault::Lost, 0) => FleetStep::LoseImages,
        (FleetFault::Lost, 1) => FleetStep::LoseKey("image"),
        (FleetFault::Lost, 2) => FleetStep::LoseKey("chain"),
        (FleetFault::Lost, 3) => FleetStep::LoseFacts,
        (FleetFault::Lost, 4) => FleetStep::LoseLease,
        (FleetFault::Refused, 0..=4) => FleetStep::Refuse { node: ingester, for_ms: rng.random_range(3_000..20_000) },
        (FleetFault::OldDirectory, 0..3) => FleetStep::KillToOld(ingester),
        (FleetFault::Anew, 0..2) => FleetStep::Anew(ingester),
        (FleetFault::Garbage, 0) => FleetStep::Foreign,
        (FleetFault::Garbage, 1) => FleetStep::Corrupt(Corruption::Unreadable),
        (FleetFault::Garbage, 2) => FleetStep::Corrupt(Corruption::Unfit),
        (FleetFault::Disk, 0) => FleetStep::FailDisk { node: ingester, after: rng.random_range(0..40) },
        (FleetFault::Disk, 1 | 2) => FleetStep::CutKeys { node: ingester, for_ms: rng.random_range(1_000..4_000) },
        (FleetFault::Disk | FleetFault::Garbage, 3) => FleetStep::Kill(ingester),
        (_, 5) => FleetStep::Kill(replica),
        _ => FleetStep::Wait(rng.random_range(100..4_000)),
    }
}

impl fmt::Display for FleetScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, fault) = (self.steps.len(), self.fault);
        writeln!(f, "{steps} steps of a fleet about {fault:?}, with parts of {} bytes", self.max_part)?;
        self.flags.iter().try_for_each(|flags| writeln!(f, "  {}", flags.join(" ")))?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}
