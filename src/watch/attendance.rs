//! Whether a client is there for whom bundles run.

use std::time::{Duration, Instant};

/// Tracks whether any client of the standing bundles is connected or polls, or when one last was. Bundles run while a
/// client is present and for [`Attendance::IDLE`] afterwards. They are kept for longer, in case a client returns.
#[derive(Debug)]
pub struct Attendance {
    /// The number of requests that poll now.
    polls: usize,
    /// Whether there was a connection or a poll at the last look.
    is_watched: bool,
    /// The last time at which a client was seen.
    last: Instant,
}

impl Attendance {
    /// The time without a connection or a poll after which bundles are not run.
    pub const IDLE: Duration = Duration::from_secs(30);
    /// The time after which bundles without an answer run again, unless a snapshot arrives first.
    pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

    /// Creates the attendance of newly registered bundles.
    pub const fn new(now: Instant) -> Self {
        Self { polls: 0, is_watched: false, last: now }
    }

    /// Notes that a client asks for news.
    pub const fn ask(&mut self, now: Instant) {
        self.last = now;
    }

    /// Notes that a request begins to poll.
    pub const fn begin_poll(&mut self) {
        self.polls += 1;
    }

    /// Notes that a request no longer polls.
    pub const fn end_poll(&mut self, now: Instant) {
        self.polls -= 1;
        self.last = now;
    }

    /// Notes whether a client has a connection.
    pub fn update(&mut self, has_connection: bool, now: Instant) {
        let is_watched = has_connection || self.polls > 0;
        // A connection has ended at some time since the last look.
        if std::mem::replace(&mut self.is_watched, is_watched) || is_watched {
            self.last = now;
        }
    }

    /// Returns whether bundles run.
    pub fn may_run(&self, now: Instant) -> bool {
        self.is_watched || now.saturating_duration_since(self.last) < Self::IDLE
    }

    /// Returns how long the watch may idle, or `None` if no client was present for the time `keep`. `is_behind` is
    /// whether any bundle must run again.
    pub fn idle_for(&self, keep: Duration, is_behind: bool, now: Instant) -> Option<Duration> {
        let left = match self.is_watched {
            true => keep.max(Self::RETRY_PAUSE),
            false => keep.saturating_sub(now.saturating_duration_since(self.last)),
        };
        let rest = if is_behind && self.may_run(now) { Self::RETRY_PAUSE } else { Self::IDLE };
        Some(rest.min(left)).filter(|rest| !rest.is_zero())
    }
}
