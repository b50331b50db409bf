//! presim: what would these calls do on top of the state that the chain has pre-confirmed right now?
//!
//! The floors of the house, from the top; each may use those below it and knows nothing of those above:
//!
//! - [`node`]: wires the actors together; start and shutdown order.
//! - [`rpc`]: the front. Servers, methods, wire types of the two dialects, error codes, limits.
//! - [`wallet`]: EIP-5792 batches. Rules, signing, approval, durable store.
//! - [`command`]: what a command line asks for.
//! - [`feed`]: the sources of state, and the one actor that turns what they give into snapshots.
//! - [`pool`]: what was sent and is in no block yet.
//! - [`executor`]: the scheduler. Where each request runs, when, and which are rejected.
//! - [`engine`]: pure simulation. A snapshot and a request in, a result out.
//! - [`store`]: what survives a restart. One file, many writes to a commit.
//! - [`config`]: the settings, from flags, environment and file.
//! - [`state`]: immutable worlds, snapshots, history, and the overlay of a run.
//! - [`chain`]: what a chain is. Forks, genesis, blocks.
//! - [`meter`]: how long a run may go on.
//! - [`telemetry`]: logs and metrics.

pub mod chain;
pub mod command;
pub mod config;
pub mod engine;
pub mod executor;
pub mod feed;
pub mod meter;
pub mod node;
pub mod pool;
pub mod rpc;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod wallet;

/// The README's Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
