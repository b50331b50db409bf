//! The durable store: one redb file and one writer, which commits many writes at once.

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
        Arc, Mutex, OnceLock, PoisonError, Weak,
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

/// Name of the file in the data directory.
const FILE: &str = "presim.redb";
/// Maximum number of writes in the writer's queue. [`Store::write`] rejects further ones.
const WAITING: usize = 16_384;
/// Maximum number of writes in one commit.
const GROUP: usize = 1_024;
/// Size of redb's cache in bytes.
const CACHE: usize = 64 << 20;

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
    /// Version of the file's format when it was opened.
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
        #[doc = "The data directory."]
        path: PathBuf,
        #[doc = "The error of the system or of redb."]
        problem: String,
    },
    /// Another process has the store open.
    #[error("--data-dir {}: another node uses it: stop that node, or give this one another directory", path.display())]
    InUse {
        #[doc = "The data directory."]
        path: PathBuf,
    },
    /// The file does not hold what was written to it. It is left unchanged.
    #[error("--data-dir {}: {FILE} is damaged: {problem}. It was left unchanged: restore a copy of it, or move it away to start with an empty store", path.display())]
    Damaged {
        #[doc = "The data directory."]
        path: PathBuf,
        #[doc = "The damage that was found."]
        problem: String,
    },
    /// A later version of presim wrote the file. It is left unchanged.
    #[error("--data-dir {}: {FILE} is in format {found}, but this presim knows formats up to {FORMAT} only: start the presim that wrote it, or give another --data-dir. It was left unchanged", path.display())]
    Newer {
        #[doc = "The data directory."]
        path: PathBuf,
        #[doc = "The version of the file's format."]
        found: u32,
    },
    /// The store holds another chain or feed than this node is configured to serve. It is left unchanged.
    #[error("--data-dir {}: {problem}. It was left unchanged", path.display())]
    Foreign {
        #[doc = "The data directory."]
        path: PathBuf,
        #[doc = "What the store holds, and what to do."]
        problem: String,
    },
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

/// The closure of a write, which changes the tables. An error from it fails the commit, and with it the store.
pub type Change = Box<dyn FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send>;
/// A callback that receives the outcome of a write, on the thread that commits it.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

struct Write {
    change: Change,
    done: Done,
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

    /// Returns a commit that is done when `told` says so, for data that is also stored elsewhere.
    pub const fn told(told: oneshot::Receiver<Result<(), StoreError>>) -> Self {
        Self(Some(told))
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

    /// Opens the store in a directory, and creates both if they do not exist.
    ///
    /// The file is checked first, and repairs are held back until the first write, so that a rejected file stays as it
    /// was.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the directory or the file cannot be used, [`StoreError::InUse`] if another
    /// process has the store open, [`StoreError::Damaged`] if the file is damaged, and [`StoreError::Newer`] if a later
    /// version of presim wrote it.
    pub fn open(dir: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        let failed = |error: io::Error| StoreError::Open { path: dir.to_owned(), problem: error.to_string() };
        // Mode 0700, because the directory holds signed transactions and the approver's socket.
        if !dir.try_exists().map_err(failed)? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            // Synced, so that the directory's own entry survives a power failure.
            if let Some(parent) = dir.canonicalize().map_err(failed)?.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
        }
        let path = dir.join(FILE);
        if !path.try_exists().map_err(failed)? {
            // The lock keeps a second node from replacing a file that was just created.
            let alone = File::open(dir).map_err(failed)?;
            alone.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => StoreError::InUse { path: dir.to_owned() },
                TryLockError::Error(error) => failed(error),
            })?;
            if !path.try_exists().map_err(failed)? {
                // Created under a temporary name, so that a file with the final name is always complete.
                let fresh = dir.join(format!("{FILE}.new"));
                let file = file_options().create(true).truncate(true).open(&fresh).map_err(failed)?;
                drop(Self::on(backend(dir, file)?, dir, true, Runner::thread, metrics)?);
                fs::rename(&fresh, &path).and_then(|()| alone.sync_all()).map_err(failed)?;
            }
        }
        let file = file_options().open(&path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(StoreError::Damaged { path: dir.to_owned(), problem: "it is empty".to_owned() });
        }
        let store = Self::on(backend(dir, file)?, dir, true, Runner::thread, metrics)?;
        if fs::metadata(dir).map_err(failed)?.permissions().mode() & 0o077 != 0 {
            tracing::warn!("{} is accessible to users other than its owner: run chmod 700 on it", dir.display());
        }
        Ok(store)
    }

    /// Opens a store on the given backend. Errors show `name` as its directory.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn open_on(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, true, Runner::thread, metrics)
    }

    /// Opens a store on the given backend like [`open_on`](Self::open_on), but without a thread that commits: writes
    /// wait for [`commit_waiting`](Self::commit_waiting), or for a [`write_now`](Self::write_now), which commits them
    /// too. Writes that still wait when the store is dropped are lost.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn open_stepped(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, true, Runner::owner, metrics)
    }

    /// Creates a store in memory, whose content is lost when the last clone is dropped.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the database or the writer's thread cannot be created.
    pub fn in_memory(metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(InMemoryBackend::new(), Path::new("memory"), false, Runner::thread, metrics)
    }

    fn on(
        backend: impl StorageBackend,
        path: &Path,
        durable: bool,
        runner: impl FnOnce(Writer) -> io::Result<Runner>,
        metrics: &Metrics,
    ) -> Result<Self, StoreError> {
        let damaged = |problem: String| StoreError::Damaged { path: path.to_owned(), problem };
        let guarded = Guarded::new(backend);
        let fresh = guarded.is_empty().map_err(|error| damaged(error.to_string()))?;
        let spinner = ProgressBar::new_spinner().with_message(format!("checking {}", path.join(FILE).display()));
        spinner.enable_steady_tick(Duration::from_millis(100));
        // redb may panic on a malformed file, which counts as damage.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let repaired = Arc::new(AtomicBool::new(false));
            let seen = repaired.clone();
            let mut db = Builder::new()
                .set_cache_size(CACHE)
                .set_repair_callback(move |_| seen.store(true, Relaxed))
                .create_with_backend(guarded.clone())?;
            // The repair after an unclean shutdown has checked the file already.
            let sound = fresh || repaired.load(Relaxed) || db.check_integrity()?;
            Ok::<_, DatabaseError>((db, sound))
        }));
        spinner.finish_and_clear();
        let db = match opened {
            Ok(Ok((db, true))) => db,
            Ok(Ok((_, false))) => return Err(damaged("its checksums do not match its content".to_owned())),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(StoreError::InUse { path: path.to_owned() }),
            Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
                // Only the system's errors have a code. The others are redb's, about the content that it has read.
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
            waiting,
            db: db.clone(),
            begin: Box::new(move || guarded.let_through()),
            failure: failure.clone(),
            seconds: metrics.histogram(
                "presim_store_commit_seconds",
                "From the first write of a group to the end of its commit.",
                &[],
            ),
        };
        let runner =
            runner(writer).map_err(|error| StoreError::Open { path: path.to_owned(), problem: error.to_string() })?;
        let (writes, runner, path) = (Some(writes), Some(runner), path.to_owned());
        Ok(Self { shared: Arc::new(Shared { db, writes, runner, failure, durable, version, path }) })
    }

    /// Commits a group of the writes that wait, and reports their outcome. Returns whether there were any: never in a
    /// store with a thread, which commits them itself.
    pub fn commit_waiting(&self) -> bool {
        let Some(Runner::Owner(writer)) = &self.shared.runner else { return false };
        let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.waiting.try_recv().map(|first| writer.commit_group(first)).is_ok()
    }

    /// Returns the version of the file's format when it was opened, at most [`FORMAT`].
    pub fn version(&self) -> u32 {
        self.shared.version
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
    /// Returns [`StoreError::Damaged`] if `read` finds a corrupted row, and [`StoreError::Open`] for any other error.
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

    /// Returns the error for a store that this node is not to serve. `problem` says what it holds and what to do.
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
        Ok(Commit(Some(told)))
    }

    /// Writes, and blocks the calling thread until the write is on the disk.
    ///
    /// # Errors
    /// Returns the same errors as [`Commit::wait`].
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
        // Closing the queue ends the thread once the waiting writes are committed.
        drop(self.writes.take());
        if let Some(Runner::Thread(writer)) = self.runner.take()
            && writer.thread().id() != thread::current().id()
        {
            let _ = writer.join();
        }
    }
}

/// The one who runs the writer.
enum Runner {
    /// A thread, for as long as the queue is open.
    Thread(JoinHandle<()>),
    /// The owner of the store, by [`Store::commit_waiting`].
    Owner(Mutex<Writer>),
}

impl Runner {
    /// Starts a thread that runs the writer.
    fn thread(writer: Writer) -> io::Result<Self> {
        let run = move || {
            while let Ok(first) = writer.waiting.recv() {
                writer.commit_group(first);
            }
        };
        thread::Builder::new().name("presim-store".to_owned()).spawn(run).map(Self::Thread)
    }

    fn owner(writer: Writer) -> io::Result<Self> {
        Ok(Self::Owner(Mutex::new(writer)))
    }
}

/// The side of the queue that commits.
struct Writer {
    waiting: Receiver<Write>,
    db: Arc<Database>,
    /// Called before each commit. Lets through the writes that [`Guarded`] holds back.
    begin: Box<dyn Fn() -> io::Result<()> + Send>,
    failure: Arc<OnceLock<StoreError>>,
    seconds: Histogram,
}

impl Writer {
    /// Commits a group of the writes that wait, and reports their outcome.
    fn commit_group(&self, first: Write) {
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
