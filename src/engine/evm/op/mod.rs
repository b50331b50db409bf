//! The rules by which the OP stack runs blocks and transactions, where they differ from Ethereum's
//! (<https://specs.optimism.io>).

mod block;
mod gasless;
mod handler;
mod precompiles;
mod stack;

pub(in crate::engine) use block::OpBlock;
pub(in crate::engine) use precompiles::precompiles as op_precompiles;

pub use handler::{OpBlockFees, OpContext, OpHandler};
pub use stack::OpStack;
