//! Messages of the stream that cannot be read: one warning a minute, with their number.

use std::time::Duration;

use tokio::time::Instant;

use super::flashblocks::DecodeError;

/// The pause between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The messages that could not be read since the last warning.
#[derive(Debug, Default)]
pub(super) struct UnreadMessages {
    /// The time of the last warning.
    warned: Option<Instant>,
    count: u64,
    /// The problem of the last one.
    problem: Option<DecodeError>,
}

impl UnreadMessages {
    /// Counts a message, and logs a warning if that is due.
    pub fn add(&mut self, problem: DecodeError) {
        self.count += 1;
        self.problem = Some(problem);
        self.warn();
    }

    /// Returns the time at which the counted messages are to be reported.
    pub fn due(&self) -> Option<Instant> {
        self.warned.filter(|_| self.count > 0).map(|warned| warned + WARNING_INTERVAL)
    }

    /// Logs a warning if there are messages to report, and the last warning is a minute old.
    pub fn warn(&mut self) {
        let is_due = self.warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL);
        let Some(problem) = self.problem.as_ref().filter(|_| is_due) else {
            return;
        };
        tracing::warn!(count = self.count, error = %problem, "the stream sent messages that are not Flashblocks");
        *self = Self { warned: Some(Instant::now()), ..Self::default() };
    }
}
