//! The figures of a bench, printed with their goals.

use std::time::Duration;

/// Prints a measured value, and whether it is at most `most`.
pub fn verdict(claim: &str, value: f64, most: f64) {
    let verdict = if value <= most { "met" } else { "MISSED" };
    println!("  {claim}: {value:.3}, at most {most:.3} ({verdict})");
}

/// Prints a measured value, and whether it is at least `least`.
pub fn at_least(claim: &str, value: f64, least: f64) {
    let verdict = if value >= least { "met" } else { "MISSED" };
    println!("  {claim}: {value:.3}, at least {least:.3} ({verdict})");
}

/// Prints the percentiles of times, and returns the 99th in milliseconds.
pub fn percentiles(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
    println!("  p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms of {}", at(0.5), at(0.99), at(1.0), times.len());
    at(0.99)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
