//! Immutable state: accounts and their tries in a structure-sharing world, snapshots of it with their block context,
//! their recent history, the cache of an upstream's state, and the overlay of a run.

mod account;
mod block;
mod caught_up;
mod code;
mod divergence;
mod log_numbers;
mod open_block;
mod overlay;
mod own_codes;
mod publication;
mod reads;
mod remote;
mod roots;
mod selector;
mod snapshot;
mod snapshots;
mod step;
mod touched;
mod trie;
mod world;

pub use account::{Account, AccountChange, Code, MergedChanges};
pub use block::{Block, Included, KnownBlock};
pub use caught_up::CaughtUp;
pub use code::{CodeCache, CodeStats};
pub use divergence::{Divergence, Divergences};
pub use log_numbers::{LogMark, LogNumbers, LogOrigin, TransferLogs};
pub use open_block::OpenBlock;
pub use overlay::{Overlay, SavedOverlay};
pub use publication::Publication;
pub use reads::{AccountRead, AccountReads, BlockReads, ReadSet};
pub use remote::{
    Fetched, ImageAccount, ImageHash, ImageSlot, Miss, Missed, RemoteImage, RemoteState, RemoteStats, RemoteView,
};
pub use roots::StateRoots;
pub use selector::{Selector, UnknownBlock};
pub use snapshot::{FeedLag, FeedProblem, FeedState, Snapshot, SnapshotId, StateId, Verified};
pub use snapshots::{
    BlockChanges, BlockLogs, LateBlock, LateBounds, Published, RetainedBlocks, Retention, Snapshots, Tags, Unfit,
};
pub use step::StateStep;
pub use touched::{Touched, TouchedAccount};
pub use trie::{Trie, TrieValue};
pub use world::{LocalWorld, Lookup, RemoteWorld, World};
