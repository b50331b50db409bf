//! A spinner for operations that take longer than two seconds.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time that work may take before the spinner appears.
const HIDDEN_FOR: Duration = Duration::from_secs(2);
/// The time between two frames of the spinner.
const FRAME: Duration = Duration::from_millis(120);

/// A spinner on a terminal that appears after two seconds. Removed on drop.
pub struct Waiting {
    bar: ProgressBar,
    // The thread that shows the spinner ends when this is dropped.
    done: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Waiting {
    /// Creates a spinner with the label `what`.
    pub fn new(what: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let bar = bar.with_style(ProgressStyle::default_spinner()).with_message(what);
        let (done, ended) = channel::<()>();
        let shown = bar.clone();
        let thread = std::thread::Builder::new().name("presim-spinner".to_owned()).spawn(move || {
            if ended.recv_timeout(HIDDEN_FOR) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(FRAME);
            }
        });
        // Without a thread there is no spinner.
        Self { bar, done: Some(done), thread: thread.ok() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
