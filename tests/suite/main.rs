//! presim from outside: real nodes, real HTTP, real values.

#[path = "../clients/alloy.rs"]
mod alloy;
mod batch_executor;
mod bundles;
mod call_many;
mod contract;
mod estimates;
mod fees;
mod filters;
mod import;
mod input;
mod limits;
mod logs;
mod process;
mod reads;
mod sending;
mod snapshots;
mod subscriptions;
mod support;
mod tracing;
mod vectors;
mod websocket;
