//! presim from outside: real nodes, real HTTP, real values.

#[path = "../clients/alloy.rs"]
mod alloy;
mod approvals;
mod batch_executor;
mod bundles;
mod call_many;
mod contract;
mod estimates;
mod fees;
mod filters;
mod import;
mod input;
mod keys;
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
mod wallet;
mod wallet_rules;
mod websocket;
