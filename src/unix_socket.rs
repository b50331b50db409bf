//! Unix sockets in the file system that only the user of the process may open.

use std::{
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener as Listener, UnixStream as Stream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::net::{UnixListener, UnixStream};

/// Maximum length of a Unix socket's path in bytes (`sun_path` without its last byte, a zero).
const MAX_PATH: usize = 107;
/// Bytes of the path from its directory on while the socket is made: `/.wXXXXXX/s`.
const PRIVATE_NAME: usize = 11;
/// Maximum number of sockets without a listener that are removed for one new socket.
const MAX_REMOVALS: usize = 8;
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A bound socket. Its connections wait to be accepted.
#[derive(Debug)]
pub struct BoundSocket {
    listener: Listener,
    file: SocketFile,
}

/// The file of a socket. Removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

/// The reason why a socket cannot be created. `setting` is the flag that chooses its path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path is too long for the address of a socket.
    #[error(
        "{}: {bytes} bytes: a Unix socket's path may have at most {MAX_PATH}, of which a file name counts for at least 10: \
         give a shorter {setting}",
        path.display()
    )]
    TooLong { path: PathBuf, bytes: usize, setting: &'static str },
    /// Another kind of file has the path.
    #[error("{}: a file that is not a socket is in the place of the socket: move it away", path.display())]
    Taken { path: PathBuf },
    /// A socket of another user has the path.
    #[error("{}: a socket of another user (uid {owner}) has this path: give another {setting}", path.display())]
    Foreign { path: PathBuf, owner: u32, setting: &'static str },
    /// Another node listens on the socket.
    #[error("{}: another node listens on this socket: give each node its own {setting}", path.display())]
    InUse { path: PathBuf, setting: &'static str },
    /// An operation of the system failed.
    #[error("{}: {problem}: {cause}", path.display())]
    System { path: PathBuf, problem: &'static str, cause: io::Error },
}

impl BoundSocket {
    /// Binds a socket at `path`, which at no moment another user than the process's may open. An unused socket of this
    /// user is replaced.
    ///
    /// # Errors
    ///
    /// Returns a [`SocketError`] that names `setting` if the path is too long or taken, or if the system fails.
    pub fn bind(path: &Path, setting: &'static str) -> Result<Self, SocketError> {
        let fail = |problem| move |cause| SocketError::System { path: path.into(), problem, cause };
        // The file is removed even if the working directory changes.
        let path = std::path::absolute(path).map_err(fail("cannot find the working directory"))?;
        let fail = |problem| {
            let path = path.clone();
            move |cause| SocketError::System { path, problem, cause }
        };
        check_length(&path, setting)?;
        // The socket is bound in a private directory, and gets its name when it has its mode.
        let private = tempfile::Builder::new()
            .prefix(".w")
            .rand_bytes(6)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(path.parent().unwrap_or(&path))
            .map_err(fail("cannot create a directory beside it"))?;
        let first = private.path().join("s");
        let listener = Listener::bind(&first).map_err(fail("cannot bind a socket"))?;
        std::fs::set_permissions(&first, std::fs::Permissions::from_mode(0o600))
            .map_err(fail("cannot set its mode"))?;
        listener.set_nonblocking(true).map_err(fail("cannot listen"))?;
        let identity = identity(&first);
        for _ in 0..MAX_REMOVALS {
            // Unlike a rename, a link replaces nothing.
            match std::fs::hard_link(&first, &path) {
                Ok(()) => return Ok(Self { listener, file: SocketFile { path, identity } }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    remove_unused(&path, &private.path().join("old"), setting)?;
                }
                Err(cause) => return Err(fail("cannot create the socket there")(cause)),
            }
        }
        Err(SocketError::InUse { path, setting })
    }

    /// Returns the listener, registered with the current Tokio runtime, and the file.
    ///
    /// # Errors
    ///
    /// Returns a [`SocketError`] if the runtime cannot register the listener.
    pub fn listen(self) -> Result<(UnixListener, SocketFile), SocketError> {
        let Self { listener, file } = self;
        match UnixListener::from_std(listener) {
            Ok(listener) => Ok((listener, file)),
            Err(cause) => Err(SocketError::System { path: file.path.clone(), problem: "cannot listen", cause }),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another node's socket may be in its place, if the directory was deleted and created again.
        if identity(&self.path) != self.identity {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a socket cannot be deleted");
        }
    }
}

/// Checks that a path fits in the address of a socket.
///
/// # Errors
///
/// Returns [`SocketError::TooLong`], which names `setting`, if it does not.
pub fn check_length(path: &Path, setting: &'static str) -> Result<(), SocketError> {
    let directory = path.parent().map_or(0, |directory| directory.as_os_str().len());
    let bytes = path.as_os_str().len().max(directory + PRIVATE_NAME);
    if bytes > MAX_PATH { Err(SocketError::TooLong { path: path.into(), bytes, setting }) } else { Ok(()) }
}

/// Checks that a socket can be created at `path`: there is no file, or an unused socket of this user.
///
/// # Errors
///
/// Returns a [`SocketError`] that names `setting` if it cannot.
pub fn check(path: &Path, setting: &'static str) -> Result<(), SocketError> {
    check_length(path, setting)?;
    let path = || path.to_owned();
    match std::fs::symlink_metadata(path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(SocketError::System { path: path(), problem: "cannot look at the file there", cause }),
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::Taken { path: path() }),
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            Err(SocketError::Foreign { path: path(), owner: found.uid(), setting })
        }
        Ok(_) if may_be_used(&path()) => Err(SocketError::InUse { path: path(), setting }),
        Ok(_) => Ok(()),
    }
}

/// Accepts the next connection.
pub async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // Most often there are no file descriptors left, and connections that end free some.
                tracing::warn!(%error, "cannot accept a connection of a Unix socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns device and inode of a file, or `None` if it does not exist.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Moves an unused socket of this user from `path` to `aside`.
fn remove_unused(path: &Path, aside: &Path, setting: &'static str) -> Result<(), SocketError> {
    let fail = |problem| move |cause| SocketError::System { path: path.into(), problem, cause };
    check(path, setting)?;
    match std::fs::rename(path, aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed.map_err(fail("cannot remove the old socket"))?,
    }
    // Another node may have replaced the old socket since it was checked.
    if may_be_used(aside) {
        std::fs::hard_link(aside, path).map_err(fail("cannot put another node's socket back"))?;
        return Err(SocketError::InUse { path: path.into(), setting });
    }
    Ok(())
}

/// Returns whether a process listens on a socket, or the system does not report it.
fn may_be_used(path: &Path) -> bool {
    let refused = |error: io::Error| matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
    !Stream::connect(path).is_err_and(refused)
}
