//! The writer: the queue of writes, group commits, and the outcome that each caller waits for.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
    time::Instant,
};

use crossbeam::channel::Receiver;
use redb::{Database, WriteTransaction};
use tokio::sync::oneshot;

use super::StoreError;
use crate::lock::Mutex;
use crate::telemetry::Histogram;

/// Maximum number of writes in one commit.
const GROUP: usize = 1_024;

/// The closure of a write. It changes the tables. An error from it fails the commit, and with it the store.
pub type Change = Box<dyn FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send>;
/// A callback that receives the outcome of a write, on the thread that commits it.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A write in the queue.
pub(super) struct Write {
    /// The closure that changes the tables.
    pub change: Change,
    /// The callback that receives the outcome.
    pub done: Done,
}

/// The pending outcome of a write.
#[derive(Debug)]
#[must_use = "nothing may be acknowledged before it is on the disk"]
pub struct Commit(Option<oneshot::Receiver<Result<(), StoreError>>>);

impl Commit {
    /// Returns a commit with nothing to wait for, for data that is not stored.
    pub const fn done() -> Self {
        Self(None)
    }

    /// Returns a commit that is done when `written` says so, for data that is also stored elsewhere.
    pub const fn when(written: oneshot::Receiver<Result<(), StoreError>>) -> Self {
        Self(Some(written))
    }

    /// Whether the commit was created by [`done`](Self::done).
    pub const fn is_done(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until the write is on the disk.
    ///
    /// # Errors
    /// Returns [`StoreError::Failed`] if a commit failed, and [`StoreError::Stopping`] if the writer ended before.
    pub async fn wait(self) -> Result<(), StoreError> {
        match self.0 {
            None => Ok(()),
            Some(told) => told.await.unwrap_or(Err(StoreError::Stopping)),
        }
    }
}

/// The one who runs the writer.
pub(super) enum Runner {
    /// A thread, for as long as the queue is open.
    Thread(JoinHandle<()>),
    /// The owner of the store, by [`Store::commit_waiting`].
    Owner(Mutex<Writer>),
}

impl Runner {
    /// Starts a thread that runs the writer.
    pub fn thread(writer: Writer) -> io::Result<Self> {
        let run = move || {
            while let Ok(first) = writer.waiting.recv() {
                writer.commit_group(first);
            }
        };
        thread::Builder::new().name("presim-store".to_owned()).spawn(run).map(Self::Thread)
    }

    /// Leaves the writer to the owner of the store.
    pub fn owner(writer: Writer) -> io::Result<Self> {
        Ok(Self::Owner(Mutex::new(writer)))
    }
}

/// The side of the queue that commits.
pub(super) struct Writer {
    /// The queue.
    pub waiting: Receiver<Write>,
    /// The database.
    pub db: Arc<Database>,
    /// Called before each commit. Releases the writes that [`Guarded`](super::guard::Guarded) holds back.
    pub begin: Box<dyn Fn() -> io::Result<()> + Send>,
    /// The error of the commit that failed.
    pub failure: Arc<OnceLock<StoreError>>,
    /// The time of each commit.
    pub seconds: Histogram,
}

impl Writer {
    /// Commits a group of the writes that wait, and reports their outcome.
    pub fn commit_group(&self, first: Write) {
        let began = Instant::now();
        let group = std::iter::once(first).chain(self.waiting.try_iter()).take(GROUP);
        let (changes, dones): (Vec<_>, Vec<_>) = group.map(|Write { change, done }| (change, done)).unzip();
        let how = match self.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => self.commit(changes).map_err(|problem| {
                tracing::error!(problem, "the store cannot be written: restart the node to write again");
                self.failure.get_or_init(|| StoreError::Failed(problem)).clone()
            }),
        };
        self.seconds.record(began.elapsed());
        for done in dones {
            let how = how.clone();
            if catch_unwind(AssertUnwindSafe(|| done(how))).is_err() {
                tracing::error!("the callback of a write panicked");
            }
        }
    }

    /// Commits changes, or returns the problem. A panic is one too, because this thread must still report to callers.
    fn commit(&self, changes: Vec<Change>) -> Result<(), String> {
        let committed = catch_unwind(AssertUnwindSafe(|| {
            (self.begin)()?;
            let transaction = self.db.begin_write()?;
            // A transaction that is dropped without a commit changes nothing.
            changes.into_iter().try_for_each(|change| change(&transaction))?;
            Ok::<_, redb::Error>(transaction.commit()?)
        }));
        match committed {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err("a write panicked: the log has more".to_owned()),
        }
    }
}
