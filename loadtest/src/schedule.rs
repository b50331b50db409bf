//! The times at which requests arrive.

use std::time::Duration;

use rand::{Rng, rngs::SmallRng};

/// The rate of arrivals over a run, in requests per second. It changes linearly from the first to the last value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub from: f64,
    pub to: f64,
}

impl Rate {
    pub fn constant(rate: f64) -> Self {
        Self { from: rate, to: rate }
    }

    /// Returns the rate of one of `of` generators that share the load.
    pub fn share(self, of: usize) -> Self {
        let of = of as f64;
        Self { from: self.from / of, to: self.to / of }
    }

    /// Returns how many requests arrive between two moments of a run that lasts `total`.
    pub fn arrivals(self, start: Duration, end: Duration, total: Duration) -> f64 {
        let until = |t: f64| self.from * t + (self.to - self.from) * t * t / (2.0 * total.as_secs_f64());
        until(end.min(total).as_secs_f64()) - until(start.min(total).as_secs_f64())
    }
}

/// The times at which requests arrive, from the beginning of the warm-up, which has the first rate.
///
/// With N(t) requests having arrived by the time t, the n-th arrives at the inverse of N. Evenly spaced arrivals are at
/// n = 1, 2, 3, …; a Poisson process of the same rate has them at sums of exponentially distributed steps of mean 1.
pub struct Arrivals {
    rate: Rate,
    warmup: f64,
    duration: f64,
    count: f64,
    poisson: Option<SmallRng>,
}

impl Arrivals {
    /// Creates arrivals. `offset`, from 0 to 1, shifts even ones by part of their distance, so generators take turns.
    pub fn new(rate: Rate, warmup: Duration, duration: Duration, offset: f64, poisson: Option<SmallRng>) -> Self {
        Self { rate, warmup: warmup.as_secs_f64(), duration: duration.as_secs_f64(), count: offset, poisson }
    }

    fn at(&self, count: f64) -> Option<f64> {
        let Rate { from, to } = self.rate;
        let in_warmup = from * self.warmup;
        if count < in_warmup {
            return Some(count / from);
        }
        let count = count - in_warmup;
        // from·t + slope/2·t² = count
        let slope = (to - from) / self.duration;
        let at = if slope.abs() < f64::EPSILON {
            count / from
        } else {
            let under_root = from * from + 2.0 * slope * count;
            (under_root.max(0.0).sqrt() - from) / slope
        };
        // The root also exists for counts past the last arrival of a falling ramp.
        let ends = count >= (from + to) / 2.0 * self.duration || at >= self.duration;
        (!ends).then_some(self.warmup + at)
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let at = self.at(self.count)?;
        self.count += match &mut self.poisson {
            Some(rng) => -(1.0 - rng.random::<f64>()).ln(),
            None => 1.0,
        };
        Some(Duration::from_secs_f64(at))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn arrivals(from: f64, to: f64, warmup: Duration, poisson: bool) -> Vec<f64> {
        let rng = poisson.then(|| SmallRng::seed_from_u64(1));
        Arrivals::new(Rate { from, to }, warmup, SECOND * 10, 0.0, rng).map(|at| at.as_secs_f64()).collect()
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced_through_warm_up_and_run() {
        let at = arrivals(100.0, 100.0, SECOND, false);
        assert_eq!(at.len(), 1100);
        assert!(at.windows(2).all(|pair| (pair[1] - pair[0] - 0.01).abs() < 1e-6));
    }

    #[test]
    fn a_ramp_has_the_rate_of_its_moment() {
        for (from, to) in [(100.0, 300.0), (300.0, 100.0)] {
            let at = arrivals(from, to, Duration::ZERO, false);
            assert_eq!(at.len(), 2000);
            let first_second = at.iter().filter(|at| **at < 1.0).count() as f64;
            let expected = Rate { from, to }.arrivals(Duration::ZERO, SECOND, SECOND * 10);
            assert!((first_second - expected).abs() <= 1.0, "{first_second} and not {expected}");
        }
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_vary() {
        let at = arrivals(1000.0, 1000.0, Duration::ZERO, true);
        assert!((9_700..=10_300).contains(&at.len()), "{}", at.len());
        let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!(
            (deviation / mean - 1.0).abs() < 0.1,
            "an exponential distribution's deviation is its mean: {deviation}, {mean}"
        );
    }
}
