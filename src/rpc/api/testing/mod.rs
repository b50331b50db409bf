//! The methods of `--testing`: some change a devnet, the others run on a snapshot.

pub mod build;
pub mod changes;
pub mod describe;
pub mod detailed;
pub mod drop;
pub mod impersonate;
mod payload;
pub mod reorg;
pub mod state;
pub mod tokens;
