//! Immutable state: accounts and their tries in a structure-sharing world, the cache of an upstream's state, and the overlay of
//! a run.

mod account;
mod code;
mod listed;
mod log_numbers;
mod overlay;
mod own_codes;
mod parallel;
mod reads;
mod remote;
mod roots;
mod source;
mod touched;
mod trie;
mod world;

pub use account::{Account, AccountChange, Code, merged_changes};
pub use code::CodeCache;
pub use listed::listed_changes;
pub use log_numbers::{LogMark, LogNumbers, LogOrigin, TransferLogs};
pub use overlay::{Overlay, SavedOverlay};
pub use reads::{AccountRead, AccountReads, BlockReads, ReadSet};
pub use remote::{
    Fetched, Held, Miss, Missed, NumberedHash, RemoteImage, RemoteSettings, RemoteState, RemoteView, StoredSlot,
};
pub use roots::StateRoots;
pub use source::{FetchError, StateSource};
pub use touched::Touched;
pub use world::{LocalWorld, Lookup, World};
