//! The rules by which the OP stack runs blocks and transactions, where they differ from Ethereum's
//! (<https://specs.optimism.io>).

mod block;
mod handler;
mod stack;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no user writes what tests read")]
mod tests;

pub(in crate::engine) use block::OpBlock;

pub use handler::{OpBlockFees, OpHandler};
pub use stack::OpStack;
