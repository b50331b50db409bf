//! Opening the store: its directory, its file, and the checks before the file is used.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crossbeam::channel::bounded;
use indicatif::ProgressBar;
use redb::{
    Builder, DatabaseError, StorageBackend, StorageError,
    backends::{FileBackend, InMemoryBackend},
};
use rustix::fs::OFlags;

use super::{
    Shared, Store, StoreError,
    directory::{DataDir, FileIdentity},
    error::WAITING,
    guard::Guarded,
    version::{FILE, FORMAT, read_version, write_version},
    writer::{Runner, Writer},
};
use crate::telemetry::Metrics;

/// Size of redb's cache in bytes.
const CACHE: usize = 64 << 20;

impl Store {
    /// Opens the store in a directory, and creates its file if it does not exist.
    ///
    /// The file is checked first, and repairs are held back until the first write, so that a rejected file stays as it
    /// was.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the file cannot be used, [`StoreError::InUse`] if another process has the store
    /// open, [`StoreError::Damaged`] if the file is damaged, and [`StoreError::OtherFormat`] if another version of presim
    /// wrote it.
    pub fn open(dir: &DataDir, metrics: &Metrics) -> Result<Self, StoreError> {
        let path = dir.path();
        let failed = |error: io::Error| StoreError::Open { path: path.to_owned(), problem: error.to_string() };
        if dir.identity(FILE).map_err(failed)?.is_none() {
            // The lock keeps a second node from replacing a file that was just created.
            let in_use = || StoreError::InUse { path: path.to_owned() };
            let _alone = dir.lock().map_err(failed)?.ok_or_else(in_use)?;
            if dir.identity(FILE).map_err(failed)?.is_none() {
                // Created under a temporary name, so that a file with the final name is always complete.
                let fresh = format!("{FILE}.new");
                let file = dir.create(&fresh).map_err(failed)?;
                drop(Self::on(backend(path, file)?, path, None, true, Runner::thread, metrics)?);
                dir.rename(&fresh, FILE).map_err(failed)?;
            }
        }
        let file = dir.open_file(FILE, OFlags::RDWR).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.len() == 0 {
            return Err(StoreError::Damaged { path: path.to_owned(), problem: "it is empty".to_owned() });
        }
        let opened = StoreFile { dir: dir.clone(), identity: (found.dev(), found.ino()) };
        let store = Self::on(backend(path, file)?, path, Some(opened), true, Runner::thread, metrics)?;
        if dir.is_open_to_others().map_err(failed)? {
            tracing::warn!("{} is accessible to users other than its owner: run chmod 700 on it", path.display());
        }
        Ok(store)
    }

    /// Opens a store on the given backend. Errors show `name` as its directory.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_on(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, None, true, Runner::thread, metrics)
    }

    /// Opens a store on the given backend like [`open_on`](Self::open_on), but without a thread that commits: writes
    /// wait for [`commit_waiting`](Self::commit_waiting), or for a [`write_now`](Self::write_now), which commits them
    /// too. Writes that still wait when the store is dropped are lost.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_stepped(backend: impl StorageBackend, name: &Path, metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(backend, name, None, true, Runner::owner, metrics)
    }

    /// Creates a store in memory, whose content is lost when the last clone is dropped.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the database or the writer's thread cannot be created.
    pub fn in_memory(metrics: &Metrics) -> Result<Self, StoreError> {
        Self::on(InMemoryBackend::new(), Path::new("memory"), None, false, Runner::thread, metrics)
    }

    fn on(
        backend: impl StorageBackend,
        path: &Path,
        file: Option<StoreFile>,
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
        if version != FORMAT {
            return Err(StoreError::OtherFormat { path: path.to_owned(), found: version });
        }
        let (writes, waiting) = bounded(WAITING);
        let (db, failure) = (Arc::new(db), Arc::new(OnceLock::new()));
        let dir = file.as_ref().map(|file| file.dir.clone());
        let writer = Writer {
            waiting,
            db: db.clone(),
            begin: Box::new(move || {
                file.as_ref().map_or(Ok(()), StoreFile::check)?;
                guarded.let_through()
            }),
            failure: failure.clone(),
            seconds: metrics.histogram(
                "presim_store_commit_seconds",
                "Time from the first write of a group to the end of its commit.",
            ),
        };
        let runner =
            runner(writer).map_err(|error| StoreError::Open { path: path.to_owned(), problem: error.to_string() })?;
        let (writes, runner, path) = (Some(writes), Some(runner), path.to_owned());
        Ok(Self { shared: Arc::new(Shared { db, writes, runner, failure, durable, path, dir }) })
    }
}

/// The file of a store. Another file may take its name while the store is open.
struct StoreFile {
    dir: DataDir,
    identity: FileIdentity,
}

impl StoreFile {
    /// Checks that the file still has its name, because writes to a deleted file are lost.
    fn check(&self) -> io::Result<()> {
        match self.dir.identity(FILE)? {
            Some(identity) if identity == self.identity => Ok(()),
            Some(_) => Err(io::Error::other(format!("{FILE} was replaced while the node ran"))),
            None => Err(io::Error::other(format!("{FILE} was deleted while the node ran"))),
        }
    }
}

fn backend(dir: &Path, file: File) -> Result<FileBackend, StoreError> {
    FileBackend::new(file).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: dir.to_owned() },
        other => StoreError::Open { path: dir.to_owned(), problem: other.to_string() },
    })
}
