//! The published chain at one moment: its snapshots with their block context, the blocks before and after its canonical
//! head, and the records of its changes. `README.md` in this directory describes the design.

mod block;
mod caught_up;
mod cell;
mod chain;
pub(crate) mod codec;
mod divergence;
pub mod epoch;
mod open_block;
mod record;
mod selector;
mod snapshot;
mod step;

pub use block::{Block, Included, KnownBlock};
pub use caught_up::CaughtUp;
pub use cell::Snapshots;
pub use chain::{BlockChanges, BlockLogs, Chain, LateBounds, Past, RetainedBlocks, Retention, Tags, Unfit};
#[cfg(test)]
pub use codec::{Frame, LeaderTime, StreamMessage};
pub use codec::{frames, join};
pub use divergence::{Divergence, Divergences};
pub use open_block::OpenBlock;
pub use record::{Record, SubBlockStart};
pub use selector::{Selector, UnknownBlock};
pub use snapshot::{FeedLag, FeedProblem, FeedState, Snapshot, SnapshotId, Stamp, Verified};
pub use step::{StateId, StateStep};
