//! Files and settings with secrets: keys, passwords, tokens.

use std::{ffi::OsStr, fs::File, io, os::unix::fs::PermissionsExt, path::Path};

use clap::{Arg, Command, builder::TypedValueParser, error::ErrorKind};
use rustix::process::geteuid;
use url::Url;

use crate::shown;

/// Parses a setting that may hold a secret. Its errors do not show the value, as clap's own do.
#[derive(Clone, Debug)]
pub struct SecretParser<T>(pub fn(&str) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for SecretParser<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        let parsed = value.to_str().ok_or_else(|| "expected UTF-8".to_owned()).and_then(self.0);
        parsed.map_err(|problem| {
            let name = arg.map(Arg::to_string).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, format!("{name}: {problem}\n")).with_cmd(command)
        })
    }
}

/// Parses a URL with a host and one of these schemes.
///
/// # Errors
///
/// Returns a description of the problem. It shows only scheme, host and port of a URL, and nothing of other text.
pub fn secret_url(text: &str, schemes: &[&str], example: &str) -> Result<Url, String> {
    let expected = match schemes {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        one => one.concat(),
    };
    match Url::parse(text.trim()) {
        Ok(url) if url.has_host() && schemes.contains(&url.scheme()) => Ok(url),
        Ok(url) if url.has_host() => Err(format!("{}: scheme {}: expected {expected}", shown::url(&url), url.scheme())),
        _ => Err(format!("no URL with a host: expected a URL like {example}")),
    }
}

/// The form of a bearer token, for errors.
pub const TOKEN_SYNTAX: &str = "expected ASCII characters without spaces";

/// Returns whether a text can be sent as a bearer token: visible ASCII characters, of which RFC 6750 allows some.
pub fn is_bearer_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether others than the owner of `file` may read or change it.
///
/// # Errors
///
/// Returns the system's error if the file's permissions cannot be read.
pub fn is_open_to_others(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.permissions().mode() & 0o077 != 0)
}

/// Describes why a file or directory that a flag names cannot be opened, and how to change that.
pub fn open_problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(
                "{error}: presim runs as user {}: give the file to that user, or change its mode",
                geteuid().as_raw()
            )
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}: mount it for writing, or name a place that may be written to")
        }
        _ => error.to_string(),
    }
}

/// Logs a warning that other users may read the file at `path`, which contains `what`, and how to prevent it.
pub fn warn_of_others(path: &Path, what: &str) {
    let path = path.display();
    tracing::warn!("{path} contains {what} and can be read by other users: run `chmod 600 {path}`");
}
