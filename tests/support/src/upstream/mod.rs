//! The services of a live chain, in memory and on loopback: an upstream node and a Flashblocks server.
//!
//! - [`SmallUpstream`] serves blocks and state, shows every fault of a real upstream, and counts the requests.
//! - [`BalancedUpstream`] is several of them behind one address.
//! - [`UpstreamChain`] and [`UpstreamBlock`] are the data it serves; [`Fixture`] makes both of a recorded block.
//! - [`FlashblocksServer`] sends the messages that a test gives it; [`cut`] makes sub-blocks of a block.
//! - [`StreamedDevnet`] is a devnet of presim as an upstream, whose sub-blocks are streamed.

mod balanced;
mod chain;
mod cut;
mod devnet;
#[allow(dead_code, reason = "the tests of the stream use the rest of it")]
mod flashblocks;
mod node;

pub use balanced::BalancedUpstream;
pub use chain::{Fixture, State, UpstreamBlock, UpstreamChain};
pub use cut::{Cumulative, base_of, cut};
pub use devnet::{KEEPER, StreamedDevnet};
pub use flashblocks::{FlashblocksServer, compress};
pub use node::{Fault, Manner, SmallUpstream};
