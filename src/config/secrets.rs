//! Files with secrets in them: keys, passwords, tokens.

use std::{fs::File, io, os::unix::fs::PermissionsExt, path::Path};

/// Returns whether others than the owner of `file` may read or change it.
///
/// # Errors
/// Returns the system's error if the file's permissions cannot be read.
pub fn is_open_to_others(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.permissions().mode() & 0o077 != 0)
}

/// Warns in the log that others may read the file at `path`, which has `what` in it, and says how to keep them out.
pub fn warn_of_others(path: &Path, what: &str) {
    let path = path.display();
    tracing::warn!("{path} has {what} in it, and others than its owner can read it: chmod 600 {path}");
}
