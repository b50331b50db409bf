//! The time that a devnet sees, and the clock of its blocks.

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Returns the current instant of the runtime's clock, which a simulation may have paused.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A source of time.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since the Unix epoch. It may jump, backwards too.
    fn unix(&self) -> Duration;

    /// Returns the time since some moment in the past. Never decreases.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the system.
#[derive(Debug)]
pub struct SystemClock {
    /// The zero of the monotonic time.
    began: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { began: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn unix(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn monotonic(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The clock of a devnet's blocks: its source's time, offset by a number of seconds.
#[derive(Clone, Debug)]
pub struct BlockClock {
    source: Arc<dyn Clock>,
    /// Seconds that the clock is ahead of its source.
    pub ahead: i64,
    /// The timestamp of the next block, if it is fixed.
    fixed: Option<u64>,
    /// The timestamp of the block being built, if it was fixed.
    opened: Option<u64>,
    /// Seconds between two blocks whose timestamps are not fixed. `None` to use the time of the clock.
    pub interval: Option<u64>,
}

impl BlockClock {
    /// Creates a clock that shows the time of `source`.
    pub const fn new(source: Arc<dyn Clock>) -> Self {
        Self { source, ahead: 0, fixed: None, opened: None, interval: None }
    }

    /// Returns the source of the time.
    pub fn source(&self) -> Arc<dyn Clock> {
        self.source.clone()
    }

    /// Returns the time, in Unix seconds.
    pub fn now(&self) -> u64 {
        self.source.unix().as_secs().saturating_add_signed(self.ahead)
    }

    /// Sets the clock to `timestamp`, which the next block gets.
    pub fn set(&mut self, timestamp: u64) {
        self.move_to(timestamp);
        self.fixed = Some(timestamp);
    }

    /// Moves the clock to `timestamp`, and forgets the timestamp that was fixed for the next block.
    pub fn move_to(&mut self, timestamp: u64) {
        self.ahead = self.ahead.saturating_add_unsigned(timestamp).saturating_sub_unsigned(self.now());
        (self.fixed, self.opened) = (None, None);
    }

    /// Prepares for opening the block being built again: a timestamp that was fixed for it stays fixed.
    pub const fn reopen(&mut self) {
        if self.fixed.is_none() {
            self.fixed = self.opened;
        }
    }

    /// Returns the timestamp of the next block, which is later than its parent's, `parent`.
    pub fn next(&mut self, parent: u64) -> u64 {
        self.opened = self.fixed.take();
        let after = |interval| parent.saturating_add(interval);
        self.opened.unwrap_or_else(|| self.interval.map_or_else(|| self.now(), after)).max(parent.saturating_add(1))
    }
}
