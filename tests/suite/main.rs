//! presim from outside: real nodes, real HTTP, real values.

mod bundles;
mod call_many;
#[path = "../clients/alloy.rs"]
mod alloy;
mod contract;
mod estimates;
mod import;
mod input;
mod limits;
mod process;
mod snapshots;
mod support;
mod tracing;
mod vectors;
mod websocket;
