//! presim: what would these calls do on top of the state that the chain has pre-confirmed right now?
//!
//! The floors of the house, from the top; each may use those below it and knows nothing of those above:
//!
//! - [`node`]: wires the actors together; start and shutdown order.
//! - [`rpc`]: the front. Servers, methods, wire types of the two dialects, error codes, limits.
//! - [`wallet`]: EIP-5792 batches. Rules, signing, approval, durable store.
//! - [`feed`]: the sources of state, and the one actor that turns what they give into snapshots.
//! - [`executor`]: the scheduler. Where each request runs, when, and which are rejected.
//! - [`store`]: what survives a restart. One file, many writes to a commit.
//! - [`engine`]: pure simulation. A snapshot and a request in, a result out.
//! - [`state`]: immutable worlds, snapshots, history, and the overlay of a run.
//! - [`chain`]: what a chain is. Forks, genesis, blocks.
//! - [`config`] and [`telemetry`] are used by all; [`command`] is what a command line asks for.

pub mod chain;
pub mod command;
pub mod config;
pub mod engine;
pub mod executor;
pub mod feed;
pub mod node;
pub mod rpc;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod wallet;

/// The README's Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
