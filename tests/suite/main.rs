//! presim from outside: real nodes, real HTTP, real values.

#[path = "../clients/alloy.rs"]
mod alloy;
mod approvals;
mod batch_executor;
mod batch_nonces;
mod bundles;
mod call_many;
mod contract;
mod disk;
mod durability;
mod estimates;
mod fees;
mod filters;
mod import;
mod input;
mod keys;
mod limits;
mod logs;
mod memory;
mod pool_places;
mod power_loss;
mod process;
mod reads;
mod remote_state;
mod restart;
mod sending;
mod snapshots;
mod store_refusals;
mod subscriptions;
mod support;
mod tracing;
mod vectors;
mod wallet;
mod wallet_rules;
mod websocket;
mod witness;
