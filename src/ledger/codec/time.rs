//! The clock with which a leader dates its changes.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// A time on the clock of a leader, in microseconds since 1970. The clock takes the time of its machine once, when its process
/// first reads it, and is monotonic from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaderTime(pub u64);

/// The moment at which this process's clock began, and its time then.
static BEGUN: LazyLock<(Instant, u64)> = LazyLock::new(|| {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    (Instant::now(), u64::try_from(unix).unwrap_or(u64::MAX))
});

impl LeaderTime {
    /// Returns the time of a moment on this process's own clock.
    pub fn of(moment: Instant) -> Self {
        let (begun, unix) = *BEGUN;
        // Rounded down on both sides, so that moments are as far apart as their times.
        let micros = |micros: u128| u64::try_from(micros).unwrap_or(u64::MAX);
        Self(match moment.checked_duration_since(begun) {
            Some(after) => unix.saturating_add(micros(after.as_micros())),
            None => unix.saturating_sub(micros(begun.duration_since(moment).as_nanos().div_ceil(1000))),
        })
    }

    /// Returns the microseconds from `earlier` to this time, negative if it is the later one.
    pub fn since(self, earlier: Self) -> i64 {
        let micros = i128::from(self.0) - i128::from(earlier.0);
        i64::try_from(micros).unwrap_or(if micros < 0 { i64::MIN } else { i64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_before_and_after_the_clock_began_are_as_far_apart_as_their_times() {
        let now = Instant::now();
        let (before, after) =
            (now.checked_sub(Duration::from_secs(5)).expect("a moment"), now + Duration::from_secs(7));
        let [before, now, after] = [before, now, after].map(LeaderTime::of);
        assert_eq!((now.since(before), after.since(now), before.since(after)), (5_000_000, 7_000_000, -12_000_000));
    }
}
