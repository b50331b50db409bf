//! Shrinks a script that breaks an invariant.

use super::{LiveMutant, LiveScript, Mutant, Script, Violation, run, run_live};

/// The maximum number of runs.
const RUNS: usize = 400;

/// A script, and how it runs.
pub trait Shrinks: Clone {
    /// A defect that a run may be given.
    type Defect: Copy;
    /// A step of the script.
    type OneStep;

    fn steps(&mut self) -> &mut Vec<Self::OneStep>;

    /// Runs the script. Returns how it breaks an invariant, if it does.
    fn broken(&self, defect: Self::Defect) -> Option<Violation>;
}

impl Shrinks for Script {
    type Defect = Mutant;
    type OneStep = super::script::Step;

    fn steps(&mut self) -> &mut Vec<Self::OneStep> {
        &mut self.steps
    }

    fn broken(&self, defect: Mutant) -> Option<Violation> {
        run(self, defect).err()
    }
}

impl Shrinks for LiveScript {
    type Defect = LiveMutant;
    type OneStep = super::live::LiveStep;

    fn steps(&mut self) -> &mut Vec<Self::OneStep> {
        &mut self.steps
    }

    fn broken(&self, defect: LiveMutant) -> Option<Violation> {
        run_live(self, defect).err()
    }
}

/// Returns a script with as few steps as can be found of `script` that breaks the same invariant, and how it does.
pub fn shrink<S: Shrinks>(mut script: S, mut broken: Violation, defect: S::Defect) -> (S, Violation) {
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
            match shorter.broken(defect) {
                Some(violation) if violation.invariant == broken.invariant => (script, broken) = (shorter, violation),
                _ => from += chunk,
            }
        }
        chunk /= 2;
    }
    (script, broken)
}
