//! The steps of a simulation, and how they follow from a seed.

use std::fmt;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::disk::Leaves;

/// The number of steps of a script.
const STEPS: std::ops::Range<usize> = 20..90;

/// The settings of a chain, and the steps that it goes through.
#[derive(Clone, Debug)]
pub struct Script {
    /// Whether the chain is one that tests change (`--testing`), which is in memory.
    pub testing: bool,
    /// The flags of the node.
    pub flags: Vec<String>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A step. Indices wrap around what there is, so that any selection of steps is a script.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A sub-block is due.
    Tick,
    /// The writer of the store commits a group.
    Commit,
    /// The system's clock jumps by seconds, backwards too.
    Jump(i64),
    /// Each look at the clock takes this many microseconds from now on.
    Slow(u64),
    /// A client sends a transaction that offers `tip` gwei.
    Send { account: usize, nonce: Nonce, tip: u64 },
    /// A transaction arrives again.
    Again(usize),
    /// A wallet's client sends a batch, with a new id or that of an earlier one.
    Admit { account: usize, calls: u64, atomic: bool, id: Option<usize> },
    /// An admitted batch is signed and sent.
    Submit(usize),
    /// An admitted batch is withdrawn.
    Withdraw(usize),
    /// The disk fails once, after some writes.
    Fail(usize),
    /// The disk is full after some writes.
    Fill(usize),
    /// The power fails after some writes.
    Cut(Cut),
    /// The power fails now. The next start may meet a power cut, too.
    Crash { cut: Cut, again: Option<Cut> },
    /// The process is killed. The disk keeps what was written.
    Kill,
    /// The node stops in order, and starts again.
    Stop,
    /// Blocks are mined, some seconds apart.
    Mine { blocks: u64, interval: Option<u64> },
    /// An account's balance is set.
    Edit(u64),
    /// The chain's state is saved.
    Save,
    /// The chain returns to a saved state.
    Return(u64),
    /// The chain's clock is moved.
    Forward(u64),
}

/// The nonce of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Nonce {
    /// The next that is free.
    Next,
    /// This many after the account's: that of a transaction in the pool, or behind a gap.
    After(u64),
}

/// A power cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The number of writes and syncs before it.
    pub after: usize,
    /// The unsynced writes that survive it.
    pub leaves: Leaves,
    /// The seed of what it tears.
    pub seed: u64,
}

/// A kind of step: its usual weight, and how to make one.
type Kind = (u32, fn(&mut SmallRng) -> Step);

impl Script {
    /// Returns the script of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let testing = rng.random_ratio(1, 8);
        let kept = rng.random_range(1..5);
        // A chain under test has its sub-blocks by the time of a block.
        let sub_blocks: u64 = rng.random_range(1..5);
        let (flag, value) = match testing {
            true => ("--block-time", format!("{}ms", 200 * sub_blocks)),
            false => ("--sub-blocks", sub_blocks.to_string()),
        };
        let mut flags = vec![flag.to_owned(), value];
        for (flag, value) in [
            ("--traffic", rng.random_range(0..2)),
            ("--keep-blocks", kept),
            ("--keep-history", kept + rng.random_range(0..4)),
            ("--keep-snapshots", rng.random_range(1..12)),
        ] {
            flags.extend([flag.to_owned(), value.to_string()]);
        }
        // Scripts differ in what they do most, which finds more than the same mixture in all of them.
        let weights: Vec<u32> =
            Self::kinds(testing).iter().map(|(weight, _)| weight * rng.random_range(0..4)).collect();
        let steps = rng.random_range(STEPS);
        let steps = (0..steps).map(|_| Self::step(testing, &weights, &mut rng)).collect();
        Self { testing, flags, steps }
    }

    fn step(testing: bool, weights: &[u32], rng: &mut SmallRng) -> Step {
        let kinds = Self::kinds(testing);
        let mut at = rng.random_range(0..=weights.iter().sum::<u32>());
        for (weight, (_, make)) in weights.iter().zip(kinds) {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return make(rng),
            }
        }
        Step::Tick
    }

    /// Returns the kinds of steps with their usual weights.
    fn kinds(testing: bool) -> &'static [Kind] {
        match testing {
            false => &[
                (8, |_| Step::Tick),
                (6, |_| Step::Commit),
                (1, |rng| Step::Jump(rng.random_range(-30..30))),
                (1, |rng| Step::Slow(rng.random_range(0..3) * 20_000)),
                (8, send),
                (2, |rng| Step::Again(rng.random_range(0..100))),
                (3, |rng| Step::Admit {
                    account: rng.random_range(0..10),
                    calls: rng.random_range(1..4),
                    atomic: rng.random_ratio(1, 4),
                    id: rng.random_ratio(1, 4).then(|| rng.random_range(0..10)),
                }),
                (3, |rng| Step::Submit(rng.random_range(0..10))),
                (1, |rng| Step::Withdraw(rng.random_range(0..10))),
                (1, |rng| Step::Fail(rng.random_range(0..30))),
                (1, |rng| Step::Fill(rng.random_range(0..30))),
                (2, |rng| Step::Cut(cut(rng))),
                (1, |rng| Step::Crash { cut: cut(rng), again: rng.random_ratio(1, 2).then(|| cut(rng)) }),
                (1, |_| Step::Kill),
                (1, |_| Step::Stop),
            ],
            true => &[
                (6, |_| Step::Tick),
                (1, |rng| Step::Jump(rng.random_range(-30..30))),
                (8, send),
                (2, |rng| Step::Again(rng.random_range(0..100))),
                (2, |rng| Step::Mine {
                    blocks: rng.random_range(0..5),
                    interval: rng.random_ratio(1, 2).then(|| rng.random_range(0..20)),
                }),
                (1, |rng| Step::Edit(rng.random_range(0..100))),
                (2, |_| Step::Save),
                (2, |rng| Step::Return(rng.random_range(0..4))),
                (1, |rng| Step::Forward(rng.random_range(0..100))),
            ],
        }
    }
}

fn send(rng: &mut SmallRng) -> Step {
    let nonce = if rng.random_ratio(1, 2) { Nonce::Next } else { Nonce::After(rng.random_range(0..5)) };
    Step::Send { account: rng.random_range(0..10), nonce, tip: rng.random_range(1..6) }
}

fn cut(rng: &mut SmallRng) -> Cut {
    Cut {
        after: rng.random_range(0..40),
        leaves: Leaves::ALL[rng.random_range(0..Leaves::ALL.len())],
        seed: rng.random(),
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.testing { " --testing" } else { "" };
        writeln!(f, "{} steps on{kind} {}", self.steps.len(), self.flags.join(" "))?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}
