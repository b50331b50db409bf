//! The progress display: a bar on a terminal, else a line now and then.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    fault::Faults,
    report::{Row, text::format_micros},
};

/// Time between two lines if stderr is not a terminal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows the progress of a test on stderr.
pub struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    /// Expected duration of the whole test.
    total: Duration,
    told: Instant,
    what: String,
}

impl Progress {
    pub fn new(total: Duration) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total.as_millis() as u64);
            let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, begun: Instant::now(), total, told: Instant::now(), what: String::new() }
    }

    /// Sets the name of the run that begins.
    pub fn begin(&mut self, what: String) {
        self.what = what;
    }

    /// Shows the figures of the last interval.
    pub fn row(&mut self, row: &Row, faults: &Faults) {
        let left = self.total.saturating_sub(self.begun.elapsed()).as_secs();
        let latency = match row.latency.count {
            0 => "no answers".to_owned(),
            _ => {
                let [p50, p99] = [row.latency.p50, row.latency.p99].map(|micros| format_micros(micros as f64));
                format!("p50 {p50}, p99 {p99}")
            }
        };
        let (right, errors) = (row.right_per_second, faults.total());
        let line = format!("{}: {right:.0} right/s, {latency}, {errors} errors, {left} s left", self.what);
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if self.told.elapsed() >= PATIENCE => {
                self.told = Instant::now();
                eprintln!("{line}");
            }
            None => {}
        }
    }

    /// Moves the bar on with the time.
    pub fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.begun.elapsed().min(self.total).as_millis() as u64);
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
