//! Progress bars for long work on the store.

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a bar of `steps` steps with the label `what`. Removed on drop.
pub fn bar(steps: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}
