//! The reads of requests, in random bundles on random snapshots.

mod read_sets;

#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../../../tests/suite/random_bundles.rs"]
mod random_bundles;
