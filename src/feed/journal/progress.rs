//! How far work on the store is, shown where it takes long.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long work may take before it is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// A bar that appears after two seconds. Gone when dropped.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// A bar of so many steps.
    pub fn new(steps: u64, what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style()).with_message(what), began: Instant::now() }
    }

    /// So many steps are done.
    pub fn at(&self, done: u64) {
        if self.bar.is_hidden() && self.began.elapsed() >= PATIENCE {
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

/// How the bars over the store look.
pub fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").unwrap_or_else(|_| ProgressStyle::default_bar())
}
