//! The steps of a simulation of the live feed, and how they follow from a seed.

use std::fmt;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::node::UpstreamFault;

/// The number of steps of a script.
const STEPS: std::ops::Range<usize> = 20..80;

/// The steps that a live chain goes through.
#[derive(Clone, Debug)]
pub struct LiveScript {
    /// The seed of what the steps leave open.
    pub seed: u64,
    pub steps: Vec<LiveStep>,
}

/// A step. Time passes after each.
#[derive(Clone, Copy, Debug)]
pub enum LiveStep {
    /// The builder sends its next sub-block, and begins a block if it has none.
    Send(Delivery),
    /// The block that the builder makes becomes canonical, with what was not sent of it.
    Seal,
    /// Another block becomes canonical in the place of the builder's.
    Replace,
    /// The chain takes another branch, from so many blocks back.
    Reorg(usize),
    /// The builder gives up its block and begins another.
    ChangeMind,
    /// The upstream fails, for so many requests.
    Fail(UpstreamFault, usize),
    /// Answers of the upstream take so many milliseconds.
    Slow(u64),
    /// The newest block that the upstream tells is so many blocks behind.
    Lag(usize),
    /// The stream is cut, and comes back.
    Disconnect,
    /// The stream is silent.
    Silent,
    /// So many milliseconds pass.
    Wait(u64),
}

/// The way in which a sub-block arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As it is.
    Whole,
    /// Not at all.
    Lost,
    /// Twice.
    Twice,
    /// After the next one.
    Late,
    /// As something that is no sub-block.
    Garbage,
    /// With a balance that is wrong.
    WrongBalance,
    /// With gas and roots that are wrong.
    WrongGas,
    /// With another value in its last transfer, and no balances that tell it.
    Swapped,
}

impl LiveScript {
    /// Returns the script of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x11fe);
        // Scripts differ in how much goes wrong.
        let faults = rng.random_range(0..6);
        let steps = rng.random_range(STEPS);
        Self { seed, steps: (0..steps).map(|_| step(faults, &mut rng)).collect() }
    }
}

fn step(faults: u32, rng: &mut SmallRng) -> LiveStep {
    let goes_wrong = rng.random_ratio(faults, 12);
    match rng.random_range(0..17) {
        0..9 if !goes_wrong => LiveStep::Send(Delivery::Whole),
        9..13 if !goes_wrong => LiveStep::Seal,
        _ if !goes_wrong => LiveStep::Wait(rng.random_range(1..3000)),
        0 | 1 => LiveStep::Send(Delivery::Lost),
        2 => LiveStep::Send(Delivery::Twice),
        3 => LiveStep::Send(Delivery::Late),
        4 => LiveStep::Send(Delivery::Garbage),
        5 => LiveStep::Send(Delivery::WrongBalance),
        6 => LiveStep::Send(Delivery::WrongGas),
        7 => LiveStep::Replace,
        8 | 9 => LiveStep::Reorg(rng.random_range(0..4)),
        10 => LiveStep::ChangeMind,
        11 => {
            LiveStep::Fail(UpstreamFault::ALL[rng.random_range(0..UpstreamFault::ALL.len())], rng.random_range(1..12))
        }
        12 => LiveStep::Slow(rng.random_range(1..4000)),
        13 => LiveStep::Lag(rng.random_range(0..3)),
        14 => LiveStep::Disconnect,
        15 => LiveStep::Send(Delivery::Swapped),
        _ => LiveStep::Silent,
    }
}

impl fmt::Display for LiveScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} steps of a live chain, with the choices of seed {}", self.steps.len(), self.seed)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}
