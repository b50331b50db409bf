//! Who may wait in a lane, and when the lane is overloaded.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant},
};

/// Admits requests to a lane, so that those which are admitted are answered in time.
///
/// A lane has two bounds. As long as it keeps up, `most` requests may wait, and those behind the first [`Admission::FEW`] a worker as long
/// as their wait is no longer than `longest`: clients that send their next request when they have the
/// answer to the last are served, each at its turn. A client that sends on a clock does not wait for answers, and when it sends
/// more than the workers can do, that many would always be waiting: each answer would be as late as the queue is long. So once one had
/// to be refused the lane counts as overloaded, and a request is admitted only where its expected wait is in proportion to what a
/// request takes. The rest is refused at once. The lane has recovered when nothing had to be refused for [`Admission::RECOVERY`].
///
/// The expected wait follows from how many are before it and from the mean of what requests have taken. What "a request takes" is the
/// mean and twice the mean deviation, so that where few requests take long, as long as those may be waited for. Means are weighted
/// exponentially, as those of TCP's round trips are (RFC 6298).
#[derive(Debug)]
pub struct Admission {
    workers: usize,
    /// Requests that may wait while the lane keeps up.
    most: usize,
    /// The longest expected wait while the lane keeps up, where more than a few wait.
    longest: Duration,
    /// The longest expected wait of an overloaded lane, in per cent of what a request takes.
    wait_percent: u64,
    /// A wait that is never refused for while fewer than [`Admission::most`] wait.
    short: Duration,
    /// Requests that wait or run.
    inside: AtomicUsize,
    /// Nanoseconds.
    mean: AtomicU64,
    deviation: AtomicU64,
    began: Instant,
    /// Nanoseconds from `began`.
    overloaded_until: AtomicU64,
}

/// A request's place in a lane, given back when dropped.
#[derive(Debug)]
pub struct Place(Arc<Admission>);

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// As many wait as may.
    Full,
    /// The wait would be this long.
    TooLong(Duration),
}

impl Admission {
    /// How long nothing must have been refused before an overloaded lane has recovered.
    pub const RECOVERY: Duration = Duration::from_secs(1);

    /// For `short`, where those who run must be woken for what arrives: less and they would run dry between two arrivals.
    pub const BETWEEN_ARRIVALS: Duration = Duration::from_micros(200);

    /// Requests a worker that may always wait while the lane keeps up: a handful of clients is served, however long what they ask takes.
    const FEW: usize = 8;

    /// Samples in a mean, about.
    const WEIGHT: u64 = 16;

    /// `most` requests may wait for `workers`; `longest` and `wait_percent` are `queue_wait` and `overload_wait` of
    /// [`ExecutorConfig`](super::ExecutorConfig), and a wait of `short` is not refused for.
    pub fn new(workers: usize, most: usize, longest: Duration, wait_percent: u32, short: Duration) -> Self {
        Self {
            workers: workers.max(1),
            most: most.max(1),
            longest,
            wait_percent: wait_percent.into(),
            short,
            inside: AtomicUsize::new(0),
            mean: AtomicU64::new(0),
            deviation: AtomicU64::new(0),
            began: Instant::now(),
            overloaded_until: AtomicU64::new(0),
        }
    }

    /// A place for one more request.
    pub fn enter(self: &Arc<Self>) -> Result<Place, NoPlace> {
        self.enter_if(self.is_overloaded())
    }

    /// A place for one more request as an overloaded lane gives it: where more than this lane is overloaded.
    pub fn enter_overloaded(self: &Arc<Self>) -> Result<Place, NoPlace> {
        self.enter_if(true)
    }

    fn enter_if(self: &Arc<Self>, overloaded: bool) -> Result<Place, NoPlace> {
        // Taken first, so that two at once never share the last one.
        let place = Place(self.clone());
        let before = self.inside.fetch_add(1, AcqRel);
        let waiting = (before + 1).saturating_sub(self.workers);
        let refused = if waiting > self.most {
            NoPlace::Full
        } else if waiting > 0 && self.wait(waiting) > self.longest_wait(waiting, overloaded) {
            NoPlace::TooLong(self.wait(waiting))
        } else {
            return Ok(place);
        };
        self.has_refused();
        Err(refused)
    }

    /// Something had to be refused: from now on the lane is overloaded.
    pub fn has_refused(&self) {
        self.overloaded_until.store(nanos(self.began.elapsed() + Self::RECOVERY), Relaxed);
    }

    /// How many wait or run.
    pub fn inside(&self) -> usize {
        self.inside.load(Acquire)
    }

    /// How many may wait while the lane keeps up.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// Whether something had to be refused lately.
    pub fn is_overloaded(&self) -> bool {
        let until = self.overloaded_until.load(Relaxed);
        until > 0 && nanos(self.began.elapsed()) < until
    }

    /// How long the last of `waiting` requests will wait.
    fn wait(&self, waiting: usize) -> Duration {
        let rounds = u64::try_from(waiting).unwrap_or(u64::MAX).saturating_mul(self.mean.load(Relaxed));
        Duration::from_nanos(rounds / u64::try_from(self.workers).unwrap_or(u64::MAX))
    }

    fn longest_wait(&self, waiting: usize, overloaded: bool) -> Duration {
        if !overloaded {
            return if waiting > Self::FEW * self.workers { self.longest } else { Duration::MAX };
        }
        let one = self.mean.load(Relaxed).saturating_add(self.deviation.load(Relaxed).saturating_mul(2));
        Duration::from_nanos(one.saturating_mul(self.wait_percent) / 100).max(self.short)
    }

    /// Learns what a request took. Of two at once one may be lost: it is a mean of many.
    fn learn(&self, took: Duration) {
        let (took, mean) = (nanos(took), self.mean.load(Relaxed));
        if mean == 0 {
            self.mean.store(took, Relaxed);
            return;
        }
        let weigh = |mean: u64, new: u64| mean - mean / Self::WEIGHT + new / Self::WEIGHT;
        self.deviation.store(weigh(self.deviation.load(Relaxed), took.abs_diff(mean)), Relaxed);
        self.mean.store(weigh(mean, took), Relaxed);
    }
}

impl Place {
    /// Gives the place back after a run that took this long.
    pub fn served(self, took: Duration) {
        self.0.learn(took);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, AcqRel);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_millis(50);

    /// A lane of two workers whose requests take [`TOOK`], and in which 8 may wait.
    fn lane() -> Arc<Admission> {
        let lane = Arc::new(Admission::new(2, 8, LONGEST, 100, Admission::BETWEEN_ARRIVALS));
        (0..100).for_each(|_| lane.enter().expect("a place").served(TOOK));
        lane
    }

    #[test]
    fn a_lane_that_keeps_up_takes_all_that_may_wait() {
        let lane = lane();
        let places: Vec<Place> = (0..10).map(|_| lane.enter().expect("a place")).collect();
        assert!(!lane.is_overloaded());
        assert_eq!(lane.enter().err(), Some(NoPlace::Full));
        drop(places);
        assert_eq!(lane.inside(), 0);
    }

    #[test]
    fn an_overloaded_lane_takes_what_waits_no_longer_than_one_takes() {
        let lane = lane();
        let mut places: Vec<Place> = (0..10).map(|_| lane.enter().expect("a place")).collect();
        assert!(lane.enter().is_err());
        assert!(lane.is_overloaded());
        places.truncate(4);
        assert_eq!(lane.enter().err(), Some(NoPlace::TooLong(TOOK * 3 / 2)));
        // Two run, and one waits: the next is behind it, and is next when both workers have ended.
        places.truncate(3);
        places.push(lane.enter().expect("a place"));
        assert!(lane.enter().is_err());
    }

    #[test]
    fn where_few_requests_take_long_as_long_as_those_may_be_waited_for() {
        let lane = lane();
        for round in 0..400 {
            lane.enter().expect("a place").served(if round % 4 == 0 { TOOK * 10 } else { TOOK });
        }
        let places: Vec<_> = std::iter::from_fn(|| lane.enter().ok()).collect();
        drop(places);
        assert!(lane.longest_wait(1, true) > TOOK * 6, "{:?}", lane.longest_wait(1, true));
    }

    #[test]
    fn a_lane_that_keeps_up_lets_a_few_wait_for_long_and_many_for_a_moment() {
        for (took, admitted) in [(TOOK, 2 + 16), (TOOK / 5, 2 + 50), (TOOK / 1_000, 2 + 500)] {
            let lane = Arc::new(Admission::new(2, 500, LONGEST, 100, Admission::BETWEEN_ARRIVALS));
            (0..100).for_each(|_| lane.enter().expect("a place").served(took));
            let places: Vec<_> = std::iter::from_fn(|| lane.enter().ok()).collect();
            assert_eq!(places.len(), admitted, "{took:?}");
        }
    }

    #[test]
    fn many_short_requests_may_wait_so_that_workers_do_not_run_dry() {
        let lane = Arc::new(Admission::new(2, 100, LONGEST, 100, Admission::BETWEEN_ARRIVALS));
        (0..100).for_each(|_| lane.enter().expect("a place").served(Duration::from_micros(50)));
        let places: Vec<_> = std::iter::from_fn(|| lane.enter().ok()).collect();
        assert_eq!(places.len(), 102);
        drop(places);
        let places: Vec<_> = std::iter::from_fn(|| lane.enter().ok()).collect();
        assert_eq!(places.len(), 10);
    }
}
