//! Traces of calls and of the transactions of blocks, in the formats of geth and of Parity, and the storage in the middle of a
//! block.

pub mod frames;
pub mod geth;
mod options;
pub mod parity;
mod run;
mod schema;
mod storage;

pub use self::{
    run::{before, find_block, replay, trace_calls},
    storage::StorageRange,
};
