//! A live chain: an upstream's canonical blocks, and the sub-blocks of the blocks after them.
//!
//! `canonical` follows the upstream's blocks, which `import` requests and executes. `ahead` applies the sub-blocks of
//! Flashblocks, `verify` compares them with their builder's values, and `queue` holds the sub-blocks that wait for
//! their turn or for state. `lookahead` finds the state that waiting blocks and sub-blocks will read, and has it
//! fetched. All write the same snapshots, so one task, in `run`, does everything: it waits only for the next event, so
//! that a slow upstream delays neither sub-blocks nor canonical blocks that do not need it.

mod ahead;
mod canonical;
mod catch_up;
mod counts;
mod difference;
mod error;
pub mod flashblocks;
mod import;
mod late;
mod lookahead;
mod parts;
mod preconfirmed;
mod queue;
mod run;
mod state;
mod unread;
mod verify;

pub use self::{
    import::canonical_snapshot,
    parts::{FlashblockSource, LiveLimits, LiveSource},
};
