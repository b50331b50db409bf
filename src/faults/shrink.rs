//! Scripts that break an invariant, and how they are shrunk.

use std::fmt;

/// The script of a simulation.
pub trait Simulated: Clone + fmt::Display {
    /// A defect of the machinery around the state machines, which the invariants must find.
    type Mutant: Copy + fmt::Debug;
    type Step;
    /// The counts of a run.
    type Counts: Default + fmt::Debug + fmt::Display + PartialEq + Send;

    /// The machinery as it is in production.
    const SOUND: Self::Mutant;
    /// The seeds that have found a bug. They run again with all others.
    const FOUND: &[u64];

    fn of(seed: u64) -> Self;

    fn steps(&mut self) -> &mut Vec<Self::Step>;

    fn run(&self, mutant: Self::Mutant) -> Result<Self::Counts, Violation>;

    fn add(total: &mut Self::Counts, ran: &Self::Counts);
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub text: String,
    /// The index of the step after which it was seen.
    pub step: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (after step {})", self.invariant, self.text, self.step + 1)
    }
}

/// The maximum number of runs of a script that is shrunk.
const RUNS: usize = 400;

/// Returns a script with as few steps as can be found of `script` that breaks the same invariant, and how it does.
pub fn shrink<S: Simulated>(mut script: S, mut broken: Violation, mutant: S::Mutant) -> (S, Violation) {
    // Nothing after the violation matters.
    script.steps().truncate(broken.step + 1);
    let (mut chunk, mut runs) = (script.steps().len().div_ceil(2), 0);
    while chunk > 0 {
        let mut from = 0;
        while from < script.steps().len() && runs < RUNS {
            let mut shorter = script.clone();
            let until = (from + chunk).min(shorter.steps().len());
            shorter.steps().drain(from..until);
            runs += 1;
            match shorter.run(mutant) {
                Err(violation) if violation.invariant == broken.invariant => (script, broken) = (shorter, violation),
                _ => from += chunk,
            }
        }
        chunk /= 2;
    }
    (script, broken)
}
