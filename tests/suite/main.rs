//! presim from outside: real nodes, real HTTP, real values.

mod contract;
mod import;
mod input;
mod limits;
mod process;
mod snapshots;
mod support;
mod tracing;
mod vectors;
mod websocket;
