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
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style()).with_message(what), began: Instant::now() }
    }

    /// Sets the number of steps that are done.
    pub fn at(&self, done: u64) {
        if self.bar.is_hidden() && self.began.elapsed() >= HIDDEN_FOR {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the style of the progress bars.
pub fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").unwrap_or_else(|_| ProgressStyle::default_bar())
}
