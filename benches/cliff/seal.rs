//! The cost of publishing and sealing 1,000 changed slots on a million accounts, including the state root.

use std::{hint::black_box, time::Instant};

use crate::{load::quantile, verdict, world};

const ACCOUNTS: u64 = 1_000_000;
const CHANGED: u64 = 1_000;
const ROUNDS: u64 = 50;
/// The maximum median in seconds.
const TARGET: f64 = 10e-3;

pub fn run() {
    let base = world::build(ACCOUNTS);
    black_box(base.state_root());
    let shapes =
        [("one contract", world::one_contract as fn(u64, u64) -> _), ("1,000 contracts", world::many_contracts)];
    for (name, changes) in shapes {
        let mut world = base.clone();
        let times: Vec<f64> = (0..ROUNDS)
            .map(|round| {
                let changes = changes(CHANGED, 10 + round);
                let before = world.clone();
                let began = Instant::now();
                world.apply_many(&changes);
                black_box(world.state_root_in_parallel());
                let took = began.elapsed().as_secs_f64();
                drop(before);
                took
            })
            .collect();
        println!("  {name}: median {:.2} ms, p99 {:.2} ms", quantile(&times, 0.5) * 1e3, quantile(&times, 0.99) * 1e3);
        verdict(&format!("{CHANGED} slots of {name} on {ACCOUNTS} accounts, s"), quantile(&times, 0.5), TARGET);
    }
}
