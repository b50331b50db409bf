//! Durable storage: one file, written by one thread, with many writes per commit.

mod guard;
mod image;
mod row;
mod version;

pub use image::{read_image, write_image};
pub use row::{StoredTx, corrupted, decode, encode, open_if_there};
pub use version::{FORMAT, write_version};

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use indicatif::ProgressBar;
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageBackend, StorageError,
    WriteTransaction,
    backends::{FileBackend, InMemoryBackend},
};
use tokio::sync::oneshot;

use self::{guard::Guarded, version::read_version};
use crate::telemetry::{Histogram, Metrics};

/// The file's name in the data directory.
const FILE: &str = "presim.redb";
/// The number of writes that may wait for the writer.
const WAITING: usize = 16_384;
/// The number of writes that share a commit.
const GROUP: usize = 1_024;
/// Bytes of the file that are cached in memory.
const CACHE: usize = 64 << 20;

/// An embedded database. Cheap to clone; dropping the last clone closes it.
///
/// A write is a closure over a transaction. One thread takes all waiting writes, runs them in order of arrival in one
/// transaction, commits it to the disk, and then notifies each of them. So a thousand clients that wait for the disk
/// wait for one commit. A write is never on disk before an earlier one.
///
/// After a failed commit (a full disk), nothing more is written: every later write fails with the same error, until the
/// node is restarted.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    db: Arc<Database>,
    writes: Option<Sender<Write>>,
    writer: Option<JoinHandle<()>>,
    failure: Arc<OnceLock<StoreError>>,
    durable: bool,
    /// The version of the format at the time of opening.
    version: u32,
    path: PathBuf,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("durable", &self.durable).field("failure", &self.failure.get()).finish()
    }
}

/// The reason why a store cannot be opened, read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The directory or the file cannot be used.
    #[error("--data-dir {}: {problem}", path.display())]
    Open {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "What the system said."]
        problem: String,
    },
    /// Another process has the store open.
    #[error("--data-dir {}: another node uses it: stop that node, or give this one another directory", path.display())]
    InUse {
        #[doc = "The directory."]
        path: PathBuf,
    },
    /// The content is not what was written. It is left as it is.
    #[error("--data-dir {}: {FILE} is damaged: {problem}. The file was not changed: replace it by a copy, or move it away to begin anew", path.display())]
    Damaged {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "What was seen."]
        problem: String,
    },
    /// A newer program has written the store. It is left as it is.
    #[error("--data-dir {}: {FILE} is in format {found}, and this presim supports formats up to {FORMAT}: start the presim that wrote it, or give another --data-dir. The file was not changed", path.display())]
    Newer {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "The version of its format."]
        found: u32,
    },
    /// The store holds something else than this node is to serve. It is left as it is.
    #[error("--data-dir {}: {problem}. The file was not changed", path.display())]
    Foreign {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "What it holds, and what to do."]
        problem: String,
    },
    /// A commit failed, with the system's error.
    #[error(
        "the store failed: {0}: nothing more is published or acknowledged until the disk is mended and the node is started again"
    )]
    Failed(String),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// Too many writes wait for the disk.
    #[error("too busy: {WAITING} writes wait for the disk already")]
    Busy,
}

/// The change of the tables by a write.
pub type Change = Box<dyn FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send>;
/// A callback for the outcome of a write.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A waiting write.
struct Write {
    change: Change,
    done: Done,
}

/// The pending outcome of a write, which resolves when the write is on disk.
#[derive(Debug)]
#[must_use = "nothing may be acknowledged before it is on the disk"]
pub struct Commit(Option<oneshot::Receiver<Result<(), StoreError>>>);

impl Commit {
    /// Returns a commit that has succeeded already.
    pub const fn done() -> Self {
        Self(None)
    }

    /// Returns whether there is nothing to wait for.
    pub const fn is_done(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until the write is on disk.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the write failed.
    pub async fn wait(self) -> Result<(), StoreError> {
        match self.0 {
            None => Ok(()),
            Some(told) => told.await.unwrap_or(Err(StoreError::Stopping)),
        }
    }
}

/// A reference to a store that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakStore(Weak<Shared>);

impl WeakStore {
    /// Returns the store, while it is open.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|shared| Store { shared })
    }
}

impl Store {
    /// Returns a reference that does not keep the store open.
    pub fn weak(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.shared))
    }

    /// Opens the store in a directory, which is created if it does not exist.
    ///
    /// The whole file is checked before a byte of it changes, and it changes only when something is written. A damaged
    /// file, or one that the node is not to serve, stays as it was found.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Open`] if the directory cannot be used, [`StoreError::InUse`] if another node has the
    /// store open, and [`StoreError::Damaged`] or [`StoreError::Newer`] if it cannot be read.
    pub fn open(dir: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        let failed = |error: io::Error| StoreError::Open { path: dir.to_owned(), problem: error.to_string() };
        // Private to the user, because it holds signed transactions and the approver's socket.
        if !dir.try_exists().map_err(failed)? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            // The directory's own entry has to survive a power failure, too.
            if let Some(parent) = dir.canonicalize().map_err(failed)?.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
        }
        let path = dir.join(FILE);
        if !path.try_exists().map_err(failed)? {
            // Locked, so that only one process at a time can create the file.
            let alone = File::open(dir).map_err(failed)?;
            alone.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => StoreError::InUse { path: dir.to_owned() },
                TryLockError::Error(error) => failed(error),
            })?;
            if !path.try_exists().map_err(failed)? {
                // Created under another name, so that a file under its own name is always complete.
                let fresh = dir.join(format!("{FILE}.new"));
                let file = file_options().create(true).truncate(true).open(&fresh).map_err(failed)?;
                drop(Self::on(backend(dir, file)?, dir, true, metrics)?);
                fs::rename(&fresh, &path).and_then(|()| alone.sync_all()).map_err(failed)?;
            }
        }
        let file = file_options().open(&path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(StoreError::Damaged { path: dir.to_owned(), problem: "it is empty".to_owned() });
        }
        let store = Self::on(backend(dir, file)?, dir, true, metrics)?;
        if fs::metadata(dir).map_err(failed)?.permissions().mode() & 0o077 != 0 {
            tracing::warn!("other users can read {}: run `chmod 700` on it", dir.display());
        }
        Ok(store)
    }

    /// Creates a store on another backend, which errors call `name`.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] as [`open`](Self::open) does.
    pub fn open_on(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, true, metrics)
    }

    /// Creates a store in memory, which ends with the process.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Open`] if the database cannot be created.
    pub fn in_memory(metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(InMemoryBackend::new(), Path::new("memory"), false, metrics)
    }

    fn on(backend: impl StorageBackend, path: &Path, durable: bool, metrics: &Metrics) -> Result<Self, StoreError> {
        let damaged = |problem: String| StoreError::Damaged { path: path.to_owned(), problem };
        let guarded = Guarded::new(backend);
        let fresh = guarded.is_empty().map_err(|error| damaged(error.to_string()))?;
        let spinner = ProgressBar::new_spinner().with_message(format!("checking {}", path.join(FILE).display()));
        spinner.enable_steady_tick(Duration::from_millis(100));
        // A damaged database may make its reader panic, which counts as damage, too.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let repaired = Arc::new(AtomicBool::new(false));
            let seen = repaired.clone();
            let mut db = Builder::new()
                .set_cache_size(CACHE)
                .set_repair_callback(move |_| seen.store(true, Relaxed))
                .create_with_backend(guarded.clone())?;
            // After a kill the file was checked while it was opened.
            let sound = fresh || repaired.load(Relaxed) || db.check_integrity()?;
            Ok::<_, DatabaseError>((db, sound))
        }));
        spinner.finish_and_clear();
        let db = match opened {
            Ok(Ok((db, true))) => db,
            Ok(Ok((_, false))) => return Err(damaged("its checksums do not agree with what it holds".to_owned())),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(StoreError::InUse { path: path.to_owned() }),
            Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
                // The system's own error. redb's other errors are about the content.
                if error.raw_os_error().is_some() =>
            {
                return Err(StoreError::Open { path: path.to_owned(), problem: error.to_string() });
            }
            Ok(Err(error)) => return Err(damaged(error.to_string())),
            Err(_) => return Err(damaged("it cannot be read as a database".to_owned())),
        };
        let failed = |error: redb::Error| StoreError::Open { path: path.to_owned(), problem: error.to_string() };
        if fresh {
            guarded.let_through().map_err(|error| failed(error.into()))?;
            let written = db.begin_write().map_err(redb::Error::from).and_then(|transaction| {
                write_version(&transaction)?;
                Ok(transaction.commit()?)
            });
            written.map_err(failed)?;
        }
        let version = read_version(&db).map_err(failed)?;
        if version > FORMAT {
            return Err(StoreError::Newer { path: path.to_owned(), found: version });
        }
        let (writes, waiting) = bounded(WAITING);
        let (db, failure) = (Arc::new(db), Arc::new(OnceLock::new()));
        let writer = Writer {
            db: db.clone(),
            begin: Box::new(move || guarded.let_through()),
            failure: failure.clone(),
            seconds: metrics.histogram(
                "presim_store_commit_seconds",
                "From the first write of a group to its being on the disk.",
                &[],
            ),
        };
        let writer = thread::Builder::new()
            .name("presim-store".to_owned())
            .spawn(move || writer.run(&waiting))
            .map_err(|error| StoreError::Open { path: path.to_owned(), problem: error.to_string() })?;
        Ok(Self {
            shared: Arc::new(Shared {
                db,
                writes: Some(writes),
                writer: Some(writer),
                failure,
                durable,
                version,
                path: path.to_owned(),
            }),
        })
    }

    /// Returns the version of its format when it was opened: at most [`FORMAT`].
    pub fn version(&self) -> u32 {
        self.shared.version
    }

    /// Returns whether the store outlives the process.
    pub fn is_durable(&self) -> bool {
        self.shared.durable
    }

    /// Returns the reason why nothing can be written any more, if there is one.
    pub fn failure(&self) -> Option<&StoreError> {
        self.shared.failure.get()
    }

    /// Reads the committed data.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the file cannot be read, or `read` fails.
    pub fn read<T>(&self, read: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let begun = self.shared.db.begin_read().map_err(redb::Error::from);
        begun.and_then(|transaction| read(&transaction)).map_err(|error| {
            let path = self.shared.path.clone();
            match error {
                redb::Error::Corrupted(problem) => StoreError::Damaged { path, problem },
                other => StoreError::Open { path, problem: other.to_string() },
            }
        })
    }

    /// Returns an error that rejects the content, because this node is to serve something else. `problem` says what,
    /// and what to do.
    pub fn foreign(&self, problem: impl Into<String>) -> StoreError {
        StoreError::Foreign { path: self.shared.path.clone(), problem: problem.into() }
    }

    /// Queues a write and returns at once.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Busy`] if too many writes wait, and the reason if nothing can be written any more.
    pub fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<Commit, StoreError> {
        self.write_then(change, |_| ())
    }

    /// Queues a write as [`write`](Self::write) does. `then` is called with the outcome, on the writer's thread, before the
    /// [`Commit`] resolves.
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
        Ok(Commit(Some(told)))
    }

    /// Writes, and blocks the calling thread until the write is on disk.
    ///
    /// # Errors
    ///
    /// Returns a [`StoreError`] if the write failed.
    pub fn write_now(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<(), StoreError> {
        let (tell, told) = std::sync::mpsc::channel();
        let done = move |how| {
            let _ = tell.send(how);
        };
        let write = Write { change: Box::new(change), done: Box::new(done) };
        self.writes()?.send(write).map_err(|_| StoreError::Stopping)?;
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

fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn backend(dir: &Path, file: File) -> Result<FileBackend, StoreError> {
    FileBackend::new(file).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: dir.to_owned() },
        other => StoreError::Open { path: dir.to_owned(), problem: other.to_string() },
    })
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The writer ends when the last sender is dropped, after the waiting writes.
        drop(self.writes.take());
        if let Some(writer) = self.writer.take().filter(|writer| writer.thread().id() != thread::current().id()) {
            let _ = writer.join();
        }
    }
}

/// The thread that writes.
struct Writer {
    db: Arc<Database>,
    /// Called before the first write.
    begin: Box<dyn Fn() -> io::Result<()> + Send>,
    failure: Arc<OnceLock<StoreError>>,
    seconds: Histogram,
}

impl Writer {
    fn run(self, waiting: &Receiver<Write>) {
        while let Ok(first) = waiting.recv() {
            let began = Instant::now();
            let group = std::iter::once(first).chain(waiting.try_iter()).take(GROUP);
            let (changes, dones): (Vec<_>, Vec<_>) = group.map(|Write { change, done }| (change, done)).unzip();
            let how = match self.failure.get() {
                Some(failure) => Err(failure.clone()),
                None => self.commit(changes).map_err(|problem| {
                    tracing::error!(problem, "the store cannot be written: nothing more is written until a restart");
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
    }

    /// Commits changes, or returns the problem. A panic is a problem like any other, because this thread must go on to
    /// notify those who wait.
    fn commit(&self, changes: Vec<Change>) -> Result<(), String> {
        let committed = catch_unwind(AssertUnwindSafe(|| {
            (self.begin)()?;
            let transaction = self.db.begin_write()?;
            // On an error the transaction is dropped without a commit, and leaves nothing behind.
            changes.into_iter().try_for_each(|change| change(&transaction))?;
            Ok::<_, redb::Error>(transaction.commit()?)
        }));
        match committed {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err("a panic while it was written: the log has more".to_owned()),
        }
    }
}
