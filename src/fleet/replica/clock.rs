//! Bounds on the clocks of a fleet's leaders, as a following node can prove them.
//!
//! A node that sends a question at the moment `t` and gets the reply `T` knows that the leader's clock showed at most
//! `T` at `t`, regardless of how long the reply took. So `T` plus the time since `t` is an upper bound on what that
//! clock shows now. This bound minus the leader's date of an event is therefore an upper bound on the event's age.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::lock::Mutex;
use crate::{clock::now, ledger::codec::LeaderTime};

/// The time after which a bound is dropped if there are newer ones, because clocks drift.
const BOUND_MAX_AGE: Duration = Duration::from_secs(60);
/// The leaders whose clocks are remembered.
const MAX_LEADERS: usize = 4;

/// The bounds of the leaders' clocks, each by the epoch of its leader. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LeaderClock(Arc<Mutex<BTreeMap<u64, ClockBounds>>>);

/// The bounds of one clock: the moment of each question, and an upper bound on how far the leader's clock is ahead of
/// this process's clock, in microseconds. The first is the tightest; each later one is looser.
type ClockBounds = VecDeque<(Instant, i64)>;

impl LeaderClock {
    /// Records that the leader of this epoch has replied `announced` to a question that was sent at the moment `asked`.
    pub fn note(&self, epoch: u64, asked: Instant, announced: LeaderTime) {
        let mut clocks = self.0.lock();
        let bounds = clocks.entry(epoch).or_default();
        let ahead = announced.since(LeaderTime::of(asked));
        while bounds.back().is_some_and(|(_, looser)| *looser >= ahead) {
            bounds.pop_back();
        }
        bounds.push_back((asked, ahead));
        while bounds.len() > 1 && bounds.front().is_some_and(|(since, _)| now().duration_since(*since) > BOUND_MAX_AGE)
        {
            bounds.pop_front();
        }
        while clocks.len() > MAX_LEADERS {
            clocks.pop_first();
        }
    }

    /// Returns whether there is a bound of the clock of this epoch's leader.
    pub fn knows(&self, epoch: u64) -> bool {
        self.0.lock().contains_key(&epoch)
    }

    /// Returns the earliest possible moment of an event that the leader of this epoch has dated. `None` if there is no
    /// bound on its clock.
    pub fn earliest(&self, epoch: u64, dated: LeaderTime) -> Option<Instant> {
        let (_, ahead) = self.0.lock().get(&epoch).and_then(|bounds| bounds.front().copied())?;
        Some(moment(dated, ahead))
    }

    /// Returns the earliest possible moment of `dated`. Without a bound, the leader's clock counts as equal to this
    /// process's, because both started with their machines' time of day.
    pub fn earliest_or_own(&self, epoch: u64, dated: LeaderTime) -> Instant {
        self.earliest(epoch, dated).unwrap_or_else(|| moment(dated, 0))
    }
}

/// Returns the moment at which a clock that is this many microseconds ahead of this process's own shows a time, at most
/// now.
fn moment(dated: LeaderTime, ahead: i64) -> Instant {
    let now = now();
    let age = LeaderTime::of(now).since(dated).saturating_add(ahead);
    now.checked_sub(Duration::from_micros(u64::try_from(age).unwrap_or(0))).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that shows 1,000 seconds more than this process's own.
    fn shown(at: Instant) -> LeaderTime {
        LeaderTime(LeaderTime::of(at).0 + 1_000_000_000)
    }

    #[test]
    fn the_tightest_bound_counts_and_says_too_much_and_never_too_little() {
        let (clock, now) = (LeaderClock::default(), Instant::now());
        let before = |ms| now.checked_sub(Duration::from_millis(ms)).expect("a moment");
        let happened = before(3_000);
        assert_eq!(clock.earliest(7, shown(happened)), None);
        // The leader has read its clock 400, 100 and 200 ms after it was asked.
        for (asked, late, slack) in [(2_000, 400, 400), (1_500, 100, 100), (1_000, 200, 100)] {
            clock.note(7, before(asked), shown(before(asked - late)));
            let earliest = clock.earliest(7, shown(happened)).expect("a bound");
            let early = happened.duration_since(earliest);
            assert!(early.abs_diff(Duration::from_millis(slack)) < Duration::from_millis(1), "{early:?}");
        }
        assert_eq!(clock.earliest(8, shown(happened)), None, "another leader has another clock");
    }

    #[test]
    fn a_bound_is_dropped_after_a_minute_if_there_is_a_newer_one() {
        let (clock, now) = (LeaderClock::default(), Instant::now());
        let old = now.checked_sub(Duration::from_secs(61)).expect("a moment");
        clock.note(1, old, shown(old));
        let early = now.duration_since(clock.earliest(1, shown(now)).expect("a bound"));
        assert!(early < Duration::from_millis(1), "{early:?}");
        clock.note(1, now, shown(now + Duration::from_secs(2)));
        let early = now.duration_since(clock.earliest(1, shown(now)).expect("a bound"));
        assert!(early.abs_diff(Duration::from_secs(2)) < Duration::from_millis(1), "{early:?}");
    }
}
