//! presim from outside: real nodes, real HTTP, real values.

#[path = "../clients/alloy.rs"]
mod alloy;
mod bundles;
mod call_many;
mod contract;
mod estimates;
mod import;
mod input;
mod limits;
mod process;
mod sending;
mod snapshots;
mod support;
mod tracing;
mod vectors;
mod websocket;
