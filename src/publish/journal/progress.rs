//! Progress bars for long work on the store.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time that work may take before its bar appears.
const HIDDEN_FOR: Duration = Duration::from_secs(2);

/// A progress bar that appears after two seconds. Removed on drop.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Creates a bar of `steps` steps with the label `what`.
    pub fn new(steps: u64, what: &'static str) -> Self {
        let bar = bar(steps, what);
        bar.set_draw_target(ProgressDrawTarget::hidden());
        Self { bar, began: Instant::now() }
    }

    /// Sets the number of steps that are done.
    pub fn at(&self, done: u64) {
        if self.bar.is_hidden() && self.began.elapsed() >= HIDDEN_FOR {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

/// Returns a bar of `steps` steps with the label `what`. Removed on drop.
pub fn bar(steps: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}
