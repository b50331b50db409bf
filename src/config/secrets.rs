//! Files with secrets: keys, passwords, tokens.

use std::{fs::File, io, os::unix::fs::PermissionsExt, path::Path};

/// Returns whether others than the owner of `file` may read or change it.
///
/// # Errors
///
/// Returns the system's error if the file's permissions cannot be read.
pub fn is_open_to_others(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.permissions().mode() & 0o077 != 0)
}

/// Logs a warning that other users may read the file at `path`, which holds `what`, and says how to prevent it.
pub fn warn_of_others(path: &Path, what: &str) {
    let path = path.display();
    tracing::warn!("{path} contains {what} and can be read by other users: run `chmod 600 {path}`");
}
