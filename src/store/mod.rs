//! What survives a restart: one file, written by one thread, many writes to a commit.

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

/// The file in the data directory.
const FILE: &str = "presim.redb";
/// Writes that may wait for the writer; one more is refused.
const WAITING: usize = 16_384;
/// Writes that share a commit.
const GROUP: usize = 1_024;
/// Bytes of the file that are kept in memory.
const CACHE: usize = 64 << 20;

/// An embedded database. Cheap to clone; the last clone closes it.
///
/// A write is a closure over a transaction. One thread takes all that wait, runs them in the order of their coming in one transaction,
/// commits it to the disk, and only then tells each that it is done: so a thousand clients who wait for the disk wait for it once, together.
/// What came before a write is on the disk no later than the write itself.
///
/// Where a commit fails (a full disk), nothing more is written: every later write fails with the same error, until the node is started again.
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
    /// The version of its format when it was opened.
    version: u32,
    path: PathBuf,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("durable", &self.durable).field("failure", &self.failure.get()).finish()
    }
}

/// Why a store cannot be opened, read or written.
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
    /// Another process has it open.
    #[error("--data-dir {}: another node has it open: stop that one, or give this one a directory of its own", path.display())]
    InUse {
        #[doc = "The directory."]
        path: PathBuf,
    },
    /// What is in it is not what was written there. It is left as it is.
    #[error("--data-dir {}: {FILE} is damaged: {problem}. It has been left as it is: put a copy of it in its place, or move it away to begin anew", path.display())]
    Damaged {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "What was seen."]
        problem: String,
    },
    /// A program of after this one has written it. It is left as it is.
    #[error("--data-dir {}: {FILE} is in format {found}, and this presim knows those up to {FORMAT}: start the presim that wrote it, or give another --data-dir. It has been left as it is", path.display())]
    Newer {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "The version of its format."]
        found: u32,
    },
    /// It holds something else than what this node is to serve. It is left as it is.
    #[error("--data-dir {}: {problem}. It has been left as it is", path.display())]
    Foreign {
        #[doc = "The directory."]
        path: PathBuf,
        #[doc = "What it holds, and what to do."]
        problem: String,
    },
    /// A commit failed, with the system's words.
    #[error(
        "the store failed: {0}: nothing more is published or acknowledged until the disk is mended and the node is started again"
    )]
    Failed(String),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// Too much waits for the disk.
    #[error("too busy: {WAITING} writes wait for the disk already")]
    Busy,
}

/// What a write does to the tables.
pub type Change = Box<dyn FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send>;
/// What is to happen when it is known how a write went.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A write on its way.
struct Write {
    change: Change,
    done: Done,
}

/// The promise of a write: waiting for it is waiting for the disk.
#[derive(Debug)]
#[must_use = "nothing may be acknowledged before it is on the disk"]
pub struct Commit(Option<oneshot::Receiver<Result<(), StoreError>>>);

impl Commit {
    /// One that there is nothing to wait for.
    pub const fn done() -> Self {
        Self(None)
    }

    /// Whether there is nothing to wait for.
    pub const fn is_done(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until it is on the disk.
    ///
    /// # Errors
    /// That it is not, and never will be.
    pub async fn wait(self) -> Result<(), StoreError> {
        match self.0 {
            None => Ok(()),
            Some(told) => told.await.unwrap_or(Err(StoreError::Stopping)),
        }
    }
}

/// A store that may have been closed: holding this does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakStore(Weak<Shared>);

impl WeakStore {
    /// The store, while it is open.
    pub fn upgrade(&self) -> Option<Store> {
        self.0.upgrade().map(|shared| Store { shared })
    }
}

impl Store {
    /// What knows the store and does not keep it open.
    pub fn weak(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.shared))
    }

    /// Opens the store in a directory, which is made where it is not there.
    ///
    /// The whole file is checked before a byte of it is changed, and none is before something is written: what is damaged, or is not what the
    /// node is to serve, stays as it was found.
    ///
    /// # Errors
    /// That the directory cannot be used, that another node has the store open, or that it is damaged.
    pub fn open(dir: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        let failed = |error: io::Error| StoreError::Open { path: dir.to_owned(), problem: error.to_string() };
        // Nobody else has business with it: it holds signed transactions, and the approver's socket.
        if !dir.try_exists().map_err(failed)? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            // Its own name is to outlive a power failure, too.
            if let Some(parent) = dir.canonicalize().map_err(failed)?.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
        }
        let path = dir.join(FILE);
        if !path.try_exists().map_err(failed)? {
            // One at a time: nobody may begin anew what somebody else has just begun.
            let alone = File::open(dir).map_err(failed)?;
            alone.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => StoreError::InUse { path: dir.to_owned() },
                TryLockError::Error(error) => failed(error),
            })?;
            if !path.try_exists().map_err(failed)? {
                // Made under another name, so that a file under its own is always a whole one.
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
            tracing::warn!("others than its owner may look into {}: chmod 700 it", dir.display());
        }
        Ok(store)
    }

    /// A store on a backend of one's own, which is shown as `name` in errors.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, true, metrics)
    }

    /// A store in memory, which ends with the process.
    ///
    /// # Errors
    /// That there is no memory.
    pub fn in_memory(metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(InMemoryBackend::new(), Path::new("memory"), false, metrics)
    }

    fn on(backend: impl StorageBackend, path: &Path, durable: bool, metrics: &Metrics) -> Result<Self, StoreError> {
        let damaged = |problem: String| StoreError::Damaged { path: path.to_owned(), problem };
        let guarded = Guarded::new(backend);
        let fresh = guarded.is_empty().map_err(|error| damaged(error.to_string()))?;
        let spinner = ProgressBar::new_spinner().with_message(format!("checking {}", path.join(FILE).display()));
        spinner.enable_steady_tick(Duration::from_millis(100));
        // A database that is not what it should be may make its reader panic: that is damage too.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let repaired = Arc::new(AtomicBool::new(false));
            let seen = repaired.clone();
            let mut db = Builder::new()
                .set_cache_size(CACHE)
                .set_repair_callback(move |_| seen.store(true, Relaxed))
                .create_with_backend(guarded.clone())?;
            // After a kill it has been checked already, on the way to being opened.
            let sound = fresh || repaired.load(Relaxed) || db.check_integrity()?;
            Ok::<_, DatabaseError>((db, sound))
        }));
        spinner.finish_and_clear();
        let db = match opened {
            Ok(Ok((db, true))) => db,
            Ok(Ok((_, false))) => return Err(damaged("its checksums do not agree with what it holds".to_owned())),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(StoreError::InUse { path: path.to_owned() }),
            Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
                // The system's own words: the rest redb says of what it has read.
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

    /// The version of its format when it was opened: at most [`FORMAT`].
    pub fn version(&self) -> u32 {
        self.shared.version
    }

    /// Whether what is written here outlives the process.
    pub fn is_durable(&self) -> bool {
        self.shared.durable
    }

    /// Why nothing can be written any more, if so.
    pub fn failure(&self) -> Option<&StoreError> {
        self.shared.failure.get()
    }

    /// Reads from what has been committed.
    ///
    /// # Errors
    /// What `read` says, and that the file cannot be read.
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

    /// Refuses what it holds: it is something else than what this node is to serve. `problem` tells what, and what to do.
    pub fn foreign(&self, problem: impl Into<String>) -> StoreError {
        StoreError::Foreign { path: self.shared.path.clone(), problem: problem.into() }
    }

    /// Hands a write to the writer. Never waits itself: the promise does.
    ///
    /// # Errors
    /// That too many wait, or that nothing can be written any more.
    pub fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<Commit, StoreError> {
        self.write_then(change, |_| ())
    }

    /// The same, and `then` is called with how it went, on the writer's thread, before the promise is kept.
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

    /// Writes, and blocks the calling thread until it is on the disk.
    ///
    /// # Errors
    /// That it is not.
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
        // The writer ends when nobody can write any more, what waits still done.
        drop(self.writes.take());
        if let Some(writer) = self.writer.take().filter(|writer| writer.thread().id() != thread::current().id()) {
            let _ = writer.join();
        }
    }
}

/// The one who writes.
struct Writer {
    db: Arc<Database>,
    /// To be called before anything is written.
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
                    tracing::error!(problem, "the store cannot be written: nothing more will be");
                    self.failure.get_or_init(|| StoreError::Failed(problem)).clone()
                }),
            };
            self.seconds.record(began.elapsed());
            for done in dones {
                let how = how.clone();
                if catch_unwind(AssertUnwindSafe(|| done(how))).is_err() {
                    tracing::error!("who waited for a write panicked when it was told");
                }
            }
        }
    }

    /// Commits changes, or tells what the problem is: a panic is one like any other, as this thread must go on to tell who waits.
    fn commit(&self, changes: Vec<Change>) -> Result<(), String> {
        let committed = catch_unwind(AssertUnwindSafe(|| {
            (self.begin)()?;
            let transaction = self.db.begin_write()?;
            // Dropped without a commit, it leaves nothing behind.
            changes.into_iter().try_for_each(|change| change(&transaction))?;
            Ok::<_, redb::Error>(transaction.commit()?)
        }));
        match committed {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err("a panic while it was written: the log has more".to_owned()),
        }
    }
}
