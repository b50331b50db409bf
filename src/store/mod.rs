//! The durable store: one redb file and one writer, which commits many writes at once.

mod directory;
mod error;
mod guard;
mod image;
mod open;
mod row;
mod version;
mod writer;

pub use directory::DataDir;
pub use error::StoreError;
pub use image::{FILE as UPSTREAM_FILE, StoredImage, drop_old_forks, fork_file, read_image};
pub use row::{StoredTx, corrupted, decode, encode, open_if_there, problem_of};
pub use writer::{Change, Commit, Done};

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
    thread,
};

use crossbeam::channel::{Sender, TrySendError};
use redb::{Database, ReadTransaction, ReadableDatabase, WriteTransaction};
use tokio::sync::oneshot;

use self::{
    version::FILE,
    writer::{Runner, Write},
};

/// Returns the files in a data directory by name, with their bytes; 0 for a file that is not there.
pub fn stored_bytes(dir: &Path) -> [(&'static str, u64); 2] {
    [FILE, image::FILE].map(|name| (name, fs::metadata(dir.join(name)).map_or(0, |file| file.len())))
}

/// An embedded database. Cheap to clone; dropping the last clone closes it.
///
/// A write is a closure over a transaction. The writer takes all waiting writes, runs them in the order of arrival in
/// one transaction, commits it to the disk, and only then reports to each caller, so that a thousand clients share one
/// wait for the disk. Every write is on the disk no later than the writes that arrived after it.
///
/// The writer is a value that a thread runs. In a store without the thread ([`open_stepped`](Self::open_stepped)) its
/// owner runs it, a group at a time.
///
/// If a commit fails, as on a full disk, every later write fails with the same error until the node is restarted.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    db: Arc<Database>,
    writes: Option<Sender<Write>>,
    runner: Option<Runner>,
    failure: Arc<OnceLock<StoreError>>,
    durable: bool,
    path: PathBuf,
    /// The directory of the file; `None` for a store that was opened on a backend.
    dir: Option<DataDir>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("durable", &self.durable).field("failure", &self.failure.get()).finish()
    }
}

/// A reference to a store that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakStore(Weak<Shared>);

impl WeakStore {
    /// Returns the store, or `None` if it has been closed.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|shared| Store { shared })
    }
}

impl Store {
    /// Returns a reference that does not keep the store open.
    pub fn weak(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.shared))
    }

    /// Commits a group of the waiting writes, and reports their outcomes. Returns whether there were any. Always false
    /// in a store with a thread, which commits them itself.
    pub fn commit_waiting(&self) -> bool {
        let Some(Runner::Owner(writer)) = &self.shared.runner else { return false };
        let writer = writer.lock();
        writer.waiting.try_recv().map(|first| writer.commit_group(first)).is_ok()
    }

    /// Returns the directory of the store; `None` for a store that was opened on a backend.
    pub fn directory(&self) -> Option<&DataDir> {
        self.shared.dir.as_ref()
    }

    /// Whether data in this store outlives the process.
    pub fn is_durable(&self) -> bool {
        self.shared.durable
    }

    /// Returns the error of the commit that failed, or `None` while the store can be written.
    pub fn failure(&self) -> Option<&StoreError> {
        self.shared.failure.get()
    }

    /// Runs `read` on the committed data.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] if `read` finds a corrupted row, [`StoreError::Failed`] if the disk has failed, and
    /// [`StoreError::Open`] for any other error.
    pub fn read<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let begun = self.shared.db.begin_read().map_err(redb::Error::from);
        begun.and_then(|transaction| read(&transaction)).map_err(|error| {
            let path = self.shared.path.clone();
            match error {
                redb::Error::Corrupted(problem) => StoreError::Damaged { path, problem },
                // After an error of the disk, nothing can be read or written any more.
                redb::Error::Io(_) | redb::Error::PreviousIo => self.fail(&error),
                other => StoreError::Open { path, problem: other.to_string() },
            }
        })
    }

    /// Notes that the disk has failed, and returns the failure: an earlier one if there was one.
    fn fail(&self, error: &redb::Error) -> StoreError {
        let failure = self.shared.failure.get_or_init(|| {
            tracing::error!(%error, "the store cannot be read: restart the node to read again");
            StoreError::Failed(error.to_string())
        });
        failure.clone()
    }

    /// Returns the error for a store that this node must not serve. `problem` describes its content and how to proceed.
    pub fn foreign(&self, problem: impl Into<String>) -> StoreError {
        StoreError::Foreign { path: self.shared.path.clone(), problem: problem.into() }
    }

    /// Queues a write without blocking. Wait for the returned [`Commit`] before acknowledging it.
    ///
    /// # Errors
    /// Returns [`StoreError::Busy`] if the queue is full, [`StoreError::Failed`] if an earlier commit failed, and
    /// [`StoreError::Stopping`] if the writer has ended.
    pub fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<Commit, StoreError> {
        self.write_then(change, |_| ())
    }

    /// Queues a write like [`write`](Self::write), and calls `then` with its outcome on the thread that commits.
    ///
    /// # Errors
    ///
    /// Returns an error as [`write`](Self::write) does.
    pub fn write_then(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
        then: impl FnOnce(Result<(), StoreError>) + Send + 'static,
    ) -> Result<Commit, StoreError> {
        let (tell, told) = oneshot::channel();
        let done = move |how: Result<(), StoreError>| {
            then(how.clone());
            let _ = tell.send(how);
        };
        self.writes()?.try_send(Write { change: Box::new(change), done: Box::new(done) }).map_err(
            |error| match error {
                TrySendError::Full(_) => StoreError::Busy,
                TrySendError::Disconnected(_) => StoreError::Stopping,
            },
        )?;
        Ok(Commit::when(told))
    }

    /// Writes, and blocks the calling thread until the write is on the disk.
    ///
    /// # Errors
    /// Returns the errors of [`Commit::wait`].
    pub fn write_now(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<(), StoreError> {
        let (tell, told) = std::sync::mpsc::channel();
        let done = move |how| {
            let _ = tell.send(how);
        };
        let write = Write { change: Box::new(change), done: Box::new(done) };
        let writes = self.writes()?;
        while writes.is_full() && self.commit_waiting() {}
        writes.send(write).map_err(|_| StoreError::Stopping)?;
        while self.commit_waiting() {}
        told.recv().map_err(|_| StoreError::Stopping)?
    }

    fn writes(&self) -> Result<&Sender<Write>, StoreError> {
        match (&self.shared.writes, self.failure()) {
            (_, Some(failure)) => Err(failure.clone()),
            (Some(writes), None) => Ok(writes),
            (None, None) => Err(StoreError::Stopping),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing the queue ends the thread once the waiting writes are committed.
        drop(self.writes.take());
        if let Some(Runner::Thread(writer)) = self.runner.take()
            && writer.thread().id() != thread::current().id()
        {
            let _ = writer.join();
        }
    }
}
