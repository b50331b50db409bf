//! The reasons why the store cannot be used.

use std::path::PathBuf;

use super::version::{FILE, FORMAT};

/// Maximum number of writes that wait for the disk. The store rejects further ones.
pub(super) const WAITING: usize = 16_384;

/// The reason why a store cannot be opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The directory or the file cannot be used.
    #[error("--data-dir {}: {problem}", path.display())]
    Open { path: PathBuf, problem: String },
    /// Another process has the store open.
    #[error("--data-dir {}: another node uses it: stop that node, or give this one another directory", path.display())]
    InUse { path: PathBuf },
    /// The file's content is damaged. It is left unchanged.
    #[error("--data-dir {}: {FILE} is damaged: {problem}. It was left unchanged: restore a copy of it, or move it away to start with an empty store", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// Another version of presim wrote the file. It is left unchanged.
    #[error("--data-dir {}: {FILE} is in format {found}, but this presim knows format {FORMAT} only: start the presim that wrote it, or give another --data-dir. It was left unchanged", path.display())]
    OtherFormat { path: PathBuf, found: u32 },
    /// The store holds another chain or feed than this node is configured to serve. It is left unchanged.
    #[error("--data-dir {}: {problem}. It was left unchanged", path.display())]
    Foreign { path: PathBuf, problem: String },
    /// A commit failed with this problem. No later write succeeds until the node is restarted.
    #[error(
        "the store failed: {0}: nothing more is published or acknowledged until the disk is repaired and the node is restarted"
    )]
    Failed(String),
    /// The writer has ended because the node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// The writer's queue is full.
    #[error("too busy: {WAITING} writes already wait for the disk: try again later")]
    Busy,
}
