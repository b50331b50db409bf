//! Who may run on the thread that read the request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use super::io;
use crate::executor::{Admission, LaneName, NoPlace, Place};

/// Admits requests to the threads that connections live on, and learns how many of them prove too long for that.
///
/// Each thread has an account of its own: it runs one request at a time, and what waits for it is what came over its connections.
#[derive(Debug)]
pub struct InPlace {
    threads: Vec<Arc<Admission>>,
    short: Share,
    bundle: Share,
}

impl InPlace {
    /// Requests that may wait for a thread, and how long where they are more than a few.
    const MOST: usize = 1024;
    const LONGEST: Duration = Duration::from_millis(2);

    /// The places of so many threads; `overload_wait` as in [`ExecutorConfig`](crate::executor::ExecutorConfig).
    pub fn new(threads: usize, overload_wait: u32) -> Self {
        // A wait of no time: what arrives wakes nobody here, the thread reads it itself when it has ended what it runs.
        let thread = |_| Arc::new(Admission::new(1, Self::MOST, Self::LONGEST, overload_wait, Duration::ZERO));
        Self { threads: (0..threads.max(1)).map(thread).collect(), short: Share::default(), bundle: Share::default() }
    }

    /// A place on the calling thread. Where the request's lane is `overloaded`, so is the thread.
    pub fn enter(&self, overloaded: bool) -> Result<Place, NoPlace> {
        let thread = self.here();
        if overloaded { thread.enter_overloaded() } else { thread.enter() }
    }

    /// How many threads there are.
    pub const fn threads(&self) -> usize {
        self.threads.len()
    }

    /// How many of the threads run something, or are about to.
    pub fn busy(&self) -> usize {
        self.threads.iter().filter(|thread| thread.inside() > 0).count()
    }

    fn here(&self) -> &Arc<Admission> {
        &self.threads[io::index() % self.threads.len()]
    }

    /// Gives the place back after a run that took this long, and maybe too long.
    pub fn ended(&self, place: Place, lane: LaneName, took: Duration, too_long: bool) {
        place.served(took);
        self.share(lane).learn(too_long);
    }

    /// Whether many of a lane's requests prove too long. Then trying is a waste where there is no time to waste.
    pub fn often_too_long(&self, lane: LaneName) -> bool {
        self.share(lane).is_large()
    }

    const fn share(&self, lane: LaneName) -> &Share {
        match lane {
            LaneName::Short => &self.short,
            LaneName::Bundle => &self.bundle,
        }
    }
}

/// How often something was so lately: a mean with exponential weights, of 65,536.
#[derive(Debug, Default)]
struct Share(AtomicU32);

impl Share {
    /// Samples in the mean, about.
    const WEIGHT: u32 = 16;
    /// A quarter.
    const LARGE: u32 = 1 << 14;

    /// Of two at once one may be lost: it is a mean of many.
    fn learn(&self, so: bool) {
        let share = self.0.load(Relaxed);
        let new = if so { (1 << 16) / Self::WEIGHT } else { 0 };
        self.0.store(share - share / Self::WEIGHT + new, Relaxed);
    }

    fn is_large(&self) -> bool {
        self.0.load(Relaxed) > Self::LARGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(400);

    /// How many get a place on this thread.
    fn places(in_place: &InPlace, overloaded: bool) -> usize {
        std::iter::from_fn(|| in_place.enter(overloaded).ok()).collect::<Vec<_>>().len()
    }

    #[test]
    fn under_overload_nobody_waits_for_longer_than_his_share_of_a_run() {
        for took in [TOOK, TOOK / 20] {
            let in_place = InPlace::new(2, 100);
            for _ in 0..100 {
                let place = in_place.enter(false).expect("a place");
                in_place.ended(place, LaneName::Bundle, took, false);
            }
            assert_eq!(places(&in_place, true), 2);
            // It was refused, so the thread is overloaded by itself.
            assert_eq!(places(&in_place, false), 2);
        }
    }

    #[test]
    fn a_thread_is_busy_while_somebody_has_a_place_on_it() {
        let in_place = InPlace::new(2, 100);
        let places: Vec<Place> = (0..2).map(|_| in_place.enter(false).expect("a place")).collect();
        assert_eq!(in_place.busy(), 1);
        drop(places);
        assert_eq!(in_place.busy(), 0);
    }

    #[test]
    fn a_thread_that_keeps_up_lets_a_few_wait() {
        let in_place = InPlace::new(2, 100);
        let place = in_place.enter(false).expect("a place");
        in_place.ended(place, LaneName::Bundle, TOOK, false);
        assert_eq!(places(&in_place, false), 1 + 8);
    }

    #[test]
    fn what_is_often_too_long_is_known_by_lane() {
        let in_place = InPlace::new(1, 100);
        let run = |too_long| {
            let place = in_place.enter(false).expect("a place");
            in_place.ended(place, LaneName::Short, TOOK, too_long);
        };
        (0..3).for_each(|_| run(true));
        assert!(!in_place.often_too_long(LaneName::Short));
        (0..3).for_each(|_| run(true));
        assert!(in_place.often_too_long(LaneName::Short) && !in_place.often_too_long(LaneName::Bundle));
        (0..20).for_each(|_| run(false));
        assert!(!in_place.often_too_long(LaneName::Short));
    }
}
