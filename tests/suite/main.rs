//! presim from outside: real nodes, real HTTP, real values.

mod contract;
mod fees;
mod import;
mod input;
mod limits;
mod logs;
mod process;
mod reads;
mod snapshots;
mod subscriptions;
mod support;
mod vectors;
mod websocket;
