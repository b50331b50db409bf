//! The data directory: who may own it, and its files, which are opened relative to its descriptor.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, statat, unlinkat},
    process::{getegid, geteuid, getgroups},
};

use super::StoreError;
use crate::secrets::open_problem;

/// An open data directory. Cheap to clone.
///
/// No other user can make presim read or write another file than its own: the directory is checked before anything in it
/// is opened, no link in it is followed, and each file must belong to presim's user or to the directory's owner.
#[derive(Clone, Debug)]
pub struct DataDir {
    open: Arc<OpenDir>,
}

#[derive(Debug)]
struct OpenDir {
    path: PathBuf,
    dir: File,
    owner: u32,
}

/// Device and inode of a file.
pub(super) type FileIdentity = (u64, u64);

impl DataDir {
    /// Opens the directory, and creates it if it does not exist. `accepts_others` accepts one that belongs to another user
    /// than presim's or root (`--data-dir-shared`).
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the directory cannot be used, belongs to another user, or may be written by users
    /// other than its owner and presim's groups.
    pub fn open(path: &Path, accepts_others: bool) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Open { path: path.to_owned(), problem };
        let failed = |error: io::Error| wrong(open_problem(&error));
        // Mode 0700, because the directory holds signed transactions and the approver's socket.
        if !path.try_exists().map_err(failed)? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
            // Synced, so that the directory's own entry survives a power failure.
            if let Some(parent) = path.canonicalize().map_err(failed)?.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
        }
        let dir = open_dir(CWD, path).map_err(failed)?;
        let found = dir.metadata().map_err(failed)?;
        let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o7777);
        let user = geteuid().as_raw();
        if ![user, 0].contains(&owner) && !accepts_others {
            return Err(wrong(format!(
                "it belongs to user {owner}, and presim runs as user {user}: run presim as its owner, give it to user {user}, or accept its owner with --data-dir-shared"
            )));
        }
        if mode & 0o002 != 0 {
            return Err(wrong(format!(
                "every user may write to it (mode {mode:o}, owner {owner}): run chmod o-w on it, or give a directory inside it, which presim creates"
            )));
        }
        let is_own = || {
            let others = getgroups().unwrap_or_default();
            others.into_iter().chain([getegid()]).any(|own| own.as_raw() == group)
        };
        if mode & 0o020 != 0 && !is_own() {
            return Err(wrong(format!(
                "group {group}, which is none of presim's, may write to it (mode {mode:o}, owner {owner}): run chmod g-w on it"
            )));
        }
        Ok(Self { open: Arc::new(OpenDir { path: path.to_owned(), dir, owner }) })
    }

    /// Returns the path under which the directory was opened, for errors.
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    /// Returns whether users other than the owner may read the directory or write to it.
    pub(super) fn is_open_to_others(&self) -> io::Result<bool> {
        Ok(self.open.dir.metadata()?.mode() & 0o077 != 0)
    }

    /// Returns device and inode of a file; `None` if there is none of this name.
    pub(super) fn identity(&self, name: &str) -> io::Result<Option<FileIdentity>> {
        match statat(&self.open.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some((found.st_dev, found.st_ino))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens an existing file.
    pub(super) fn open_file(&self, name: &str, access: OFlags) -> io::Result<File> {
        // Opening a pipe must not wait.
        self.open_with(name, access | OFlags::NONBLOCK)
    }

    /// Creates a file under a temporary name. One that was left behind under this name is deleted, and never written to.
    pub(super) fn create(&self, name: &str) -> io::Result<File> {
        match unlinkat(&self.open.dir, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        self.open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// Gives a file another name, and replaces one that has that name.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        renameat(&self.open.dir, from, &self.open.dir, to)?;
        // Synced, so that the name survives a power failure.
        self.open.dir.sync_all()
    }

    /// Locks the directory against other nodes, until the returned file is dropped. Returns `None` if another one has the
    /// lock.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let dir = open_dir(&self.open.dir, ".")?;
        match dir.try_lock() {
            Ok(()) => Ok(Some(dir)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn open_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.open.dir, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => {
                return Err(io::Error::other(format!("{name} is a link, and none is followed there: move it away")));
            }
            Err(error) => return Err(error.into()),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other(format!("{name} is no regular file: move it away")));
        }
        let user = geteuid().as_raw();
        if ![user, self.open.owner].contains(&found.uid()) {
            let text = format!(
                "{name} belongs to user {}: expected user {user} or the owner of the directory, {}",
                found.uid(),
                self.open.owner
            );
            return Err(io::Error::other(text));
        }
        Ok(file)
    }
}

fn open_dir(at: impl std::os::fd::AsFd, path: impl rustix::path::Arg) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?.into())
}
