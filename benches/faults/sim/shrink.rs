//! Shrinks a script that breaks an invariant.

use super::{Mutant, Script, Violation, run};

/// The maximum number of runs.
const RUNS: usize = 400;

/// Returns a script with as few steps as can be found of `script` that breaks the same invariant, and how it does.
pub fn shrink(mut script: Script, mut broken: Violation, mutant: Mutant) -> (Script, Violation) {
    // Nothing after the violation matters.
    script.steps.truncate(broken.step + 1);
    let (mut chunk, mut runs) = (script.steps.len().div_ceil(2), 0);
    while chunk > 0 {
        let mut from = 0;
        while from < script.steps.len() && runs < RUNS {
            let mut shorter = script.clone();
            shorter.steps.drain(from..(from + chunk).min(script.steps.len()));
            runs += 1;
            match run(&shorter, mutant) {
                Err(violation) if violation.invariant == broken.invariant => (script, broken) = (shorter, violation),
                _ => from += chunk,
            }
        }
        chunk /= 2;
    }
    (script, broken)
}
