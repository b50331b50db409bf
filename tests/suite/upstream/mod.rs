//! What a live chain's node stands on, in memory and on loopback: an upstream node, and a Flashblocks server.
//!
//! - [`SmallUpstream`] serves blocks and state over HTTP and WebSocket, with every fault that a real one shows, and counts what it is asked.
//! - [`Chain`] and [`UpstreamBlock`] are what it serves; [`Fixture`] makes both of a recorded block.
//! - [`FlashblocksServer`] sends what a test tells it to; [`cut`] makes sub-blocks of a block.

mod chain;
mod cut;
mod flashblocks;
mod node;
mod tests;

pub use chain::{Chain, Fixture, State, UpstreamBlock};
pub use cut::{Cumulative, cut};
pub use flashblocks::{FlashblocksServer, compress};
pub use node::{Fault, SmallUpstream};
