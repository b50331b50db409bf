//! Files beside the project, and what a test prints.

use std::{io::Write, path::PathBuf};

/// Prints a line even if the test passes: the harness captures only the output of the printing macros.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns the path of a file beside the project. If it does not exist, prints that the test is skipped and returns `None`.
pub fn shared(path: &str) -> Option<PathBuf> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if file.exists() {
        return Some(file);
    }
    say_missing(path);
    None
}

/// Prints that the test is skipped because there is no `path` next to the project.
pub fn say_missing(path: &str) {
    say_skipped(&format!("../shared/{path} is not here"));
}

/// Prints that the test is skipped because this machine lacks something.
///
/// # Panics
///
/// Panics if the variable `CI` is `true`, because what the tests need is installed there.
pub fn skip(reason: &str) {
    say_skipped(reason);
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "skipped although CI=true: {reason}");
}

fn say_skipped(reason: &str) {
    // The harness names the thread of a test after it.
    say(&format!("SKIPPED {}: {reason}", std::thread::current().name().unwrap_or("a test")));
}
