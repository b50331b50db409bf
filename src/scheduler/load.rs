//! Measures the cost of requests, and whether a lane is asked for more than it can serve.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use super::constants::{
    BETWEEN_ARRIVALS, BUCKET_DEPTH, CLIENTS_WINDOW, DEVIATIONS, LEAST_RATE, OFTEN_TOO_LONG, QUOTA_DEPTH, QUOTA_RATE,
    QUOTA_REQUESTS, RATES, SAMPLES,
};

/// The run time of requests in nanoseconds: a mean and a mean deviation with exponential weights, as in RFC 6298.
#[derive(Debug, Default)]
pub struct Cost {
    mean: AtomicU64,
    deviation: AtomicU64,
}

impl Cost {
    /// Returns the mean; 0 before the first sample.
    pub fn mean(&self) -> u64 {
        self.mean.load(Relaxed)
    }

    /// Returns the mean plus twice the deviation, which few requests exceed.
    pub fn most(&self) -> u64 {
        self.mean().saturating_add(self.deviation.load(Relaxed).saturating_mul(DEVIATIONS))
    }

    /// Adds a sample. One of two concurrent samples may be lost, which does not matter to a mean of many.
    pub fn learn(&self, took: Duration) {
        let (took, mean) = (nanos(took), self.mean());
        if mean == 0 {
            self.mean.store(took, Relaxed);
            return;
        }
        let weigh = |mean: u64, new: u64| mean - mean / SAMPLES + new / SAMPLES;
        self.deviation.store(weigh(self.deviation.load(Relaxed), took.abs_diff(mean)), Relaxed);
        self.mean.store(weigh(mean, took), Relaxed);
    }
}

/// The statistics of a client's requests in one lane.
#[derive(Debug, Default)]
pub struct FlowLane {
    pub cost: Cost,
    /// The recent share of requests that were too long to run inline, in 65,536ths.
    too_long: AtomicU64,
    /// The client's use of the lane while it is overloaded; [`Load::weigh`] updates it.
    account: Mutex<ClientBucket>,
}

/// A client's use of an overloaded lane: a leaky bucket that drains at the client's fair share of the lane's rate.
#[derive(Debug)]
pub struct ClientBucket {
    /// Admitted run time that has not drained yet, in nanoseconds.
    pub level: f64,
    /// When the level was last updated.
    pub at: Instant,
    /// Number of the window in which the client was last counted.
    pub window: u64,
}

impl Default for ClientBucket {
    fn default() -> Self {
        Self { level: 0.0, at: Instant::now(), window: 0 }
    }
}

impl FlowLane {
    /// Adds an inline run. The cost of a run that was too long is learnt when it runs again on a worker; for a client
    /// without samples it is until then the mean `on_workers`. One of two concurrent samples may be lost.
    pub fn learn_inline(&self, took: Duration, too_long: bool, on_workers: &Cost) {
        let is_first = self.cost.mean() == 0;
        let share = self.too_long.load(Relaxed);
        let new = if too_long { 1 << 16 } else { 0 };
        self.too_long.store(if is_first { new } else { share - share / SAMPLES + new / SAMPLES }, Relaxed);
        if !too_long {
            self.cost.learn(took);
        } else if is_first {
            self.cost.learn(Duration::from_nanos(on_workers.mean()));
        }
    }

    /// Returns whether the client's requests are often too long to run inline, so that an overloaded lane does not try.
    pub fn is_often_too_long(&self) -> bool {
        self.too_long.load(Relaxed) > OFTEN_TOO_LONG
    }

    /// Returns 0 if the client's requests are short, 1 if they are often too long to run inline or have no samples yet.
    fn class(&self) -> usize {
        usize::from(self.cost.mean() == 0 || self.is_often_too_long())
    }

    /// Locks the client's account. A panic leaves it consistent, so a poisoned lock is taken all the same.
    pub fn account(&self) -> MutexGuard<'_, ClientBucket> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The load of a lane: the work that clients ask for, compared with what the lane can serve.
///
/// A lane is at ease until it must reject a request, or until a standing queue builds up in the sockets of a thread
/// that reads requests. Then it is overloaded, and admits only requests that can begin soon. It is at ease again when
/// the load has fallen, not when rejections happen to stop: a lane that admits little rejects now and then even at 40 %
/// of its capacity, since requests come in clusters.
///
/// The load is measured with a leaky bucket. Each arriving request, admitted or not, fills it by the request's cost,
/// and it drains at the rate that the lane has shown it can serve. It is full when the lane becomes overloaded, and
/// stays full while clients ask for more than can be served. When they ask for less, it drains at the difference, and
/// the lane is at ease when the bucket is empty.
///
/// The rate is the highest run time per second among the last windows. It is measured because a core does not spend all
/// of its time on runs: if requests are short, most of the time goes to reading and writing them.
///
/// An overloaded lane weighs each client in the same way. Requests that are admitted because the client asks for less
/// than its share fill the client's bucket, which drains at an equal share of most of the rate; the rest of the rate
/// empties the queue. A client whose bucket is nearly empty is admitted, unless many such requests come at once.
/// Clients without samples have one share together, so that no client gains by appearing as a new one for each request.
#[derive(Debug)]
pub struct Load {
    workers: usize,
    is_overloaded: AtomicBool,
    began: Instant,
    /// When the lane was last at ease again after an overload, in nanoseconds from `began`; 0 for never.
    eased: AtomicU64,
    /// The run time of a request, on a worker or inline.
    cost: Cost,
    /// Total run time served, in nanoseconds.
    served: AtomicU64,
    /// Waiting or running requests of clients below their share, by [`FlowLane::class`], so that long requests do not
    /// hold up short ones.
    shared: [AtomicUsize; 2],
    /// The share of all clients without samples.
    newcomers: FlowLane,
    bucket: Mutex<LaneBucket>,
}

/// Counts a waiting or running request of a client below its share. Released on drop.
#[derive(Debug)]
pub struct SharePermit<'a>(&'a AtomicUsize);

impl Drop for SharePermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
struct LaneBucket {
    /// Run time that has not drained yet, in nanoseconds.
    level: f64,
    at: Instant,
    /// The window in which clients are counted: its start, its number, the clients in it, and those in the one before.
    window_began: Instant,
    window: u64,
    clients: [u32; 2],
    /// Run time served per time, at least [`LEAST_RATE`] so that the bucket drains if nothing is served; and its
    /// values in the last windows.
    rate: f64,
    rates: [f64; RATES],
    rate_window: usize,
    measured: (Instant, u64),
}

/// The demand of a client when a request of it arrives, compared with the share of its lane that it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// The lane is at ease.
    AtEase,
    /// The lane is overloaded, and the client asks for less than its share.
    BelowShare,
    /// The lane is overloaded, and the client asks for its share or more, or too many others ask for less.
    AboveShare,
    /// The lane is overloaded, and the client is one of those without samples, who ask for more than their share.
    Unknown,
}

impl Load {
    /// Creates the load of a lane at ease.
    pub fn new(workers: usize) -> Self {
        let now = Instant::now();
        Self {
            workers,
            is_overloaded: AtomicBool::new(false),
            began: now,
            eased: AtomicU64::new(0),
            cost: Cost::default(),
            served: AtomicU64::new(0),
            shared: Default::default(),
            newcomers: FlowLane::default(),
            bucket: Mutex::new(LaneBucket {
                level: 0.0,
                at: now,
                window_began: now,
                window: 1,
                clients: [0; 2],
                rate: LEAST_RATE,
                rates: [0.0; RATES],
                rate_window: 0,
                measured: (now, 0),
            }),
        }
    }

    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Acquire)
    }

    /// Returns the time since the lane's last overload ended; [`Duration::MAX`] if none has ended.
    pub fn at_ease_for(&self) -> Duration {
        match self.eased.load(Relaxed) {
            0 => Duration::MAX,
            eased => self.began.elapsed().saturating_sub(Duration::from_nanos(eased)),
        }
    }

    fn ease(&self, now: Instant) {
        self.eased.store(nanos(now.saturating_duration_since(self.began)).max(1), Relaxed);
        self.is_overloaded.store(false, Release);
    }

    /// Adds a run of length `took` to the run time served.
    pub fn serve(&self, took: Duration) {
        self.cost.learn(took);
        self.served.fetch_add(nanos(took), Relaxed);
    }

    /// Measures the rate, and ends the overload if the bucket is empty. Called about every tenth of a second.
    pub fn measure(&self, now: Instant) {
        let cost = self.cost.mean();
        let served = self.served.load(Relaxed);
        let mut bucket = self.bucket();
        let (began, before) = bucket.measured;
        let (time, work) = (nanos(now.saturating_duration_since(began)), served - before);
        // A run counts only when it ends, so windows must be long if requests are.
        if time < cost.saturating_mul(SAMPLES) / self.workers as u64 && work > 0 {
            return;
        }
        bucket.measured = (now, served);
        bucket.rate_window = (bucket.rate_window + 1) % RATES;
        let index = bucket.rate_window;
        bucket.rates[index] = work as f64 / time.max(1) as f64;
        bucket.rate = bucket.rates.iter().copied().fold(LEAST_RATE, f64::max);
        bucket.drain(now, cost);
        if self.is_overloaded() && bucket.level <= 0.0 {
            self.ease(now);
        }
    }

    /// Weighs an arriving request of the client whose statistics are `lane`.
    pub fn weigh(&self, lane: &FlowLane, now: Instant) -> Demand {
        if !self.is_overloaded() {
            return Demand::AtEase;
        }
        let cost = self.cost.mean();
        let mut bucket = self.bucket();
        bucket.drain(now, cost);
        if bucket.level <= 0.0 {
            self.ease(now);
            return Demand::AtEase;
        }
        let (lane, own, above) = match lane.cost.mean() {
            0 => (&self.newcomers, cost, Demand::Unknown),
            own => (lane, own, Demand::AboveShare),
        };
        let depth = bucket.depth(cost);
        bucket.level = (bucket.level + own as f64).min(depth);
        if now.saturating_duration_since(bucket.window_began) > CLIENTS_WINDOW {
            bucket.window_began = now;
            bucket.window += 1;
            bucket.clients = [0, bucket.clients[0]];
        }
        let mut account = lane.account();
        if account.window != bucket.window {
            account.window = bucket.window;
            bucket.clients[0] += 1;
        }
        let clients = f64::from(bucket.clients[0].max(bucket.clients[1]).max(1));
        // The depth of the client's bucket: a few of its own requests, or its part of the lane's depth.
        let most = (depth / clients).max(QUOTA_DEPTH * own as f64);
        let share = bucket.rate * QUOTA_RATE / clients;
        let drained = nanos(now.saturating_duration_since(account.at)) as f64 * share;
        account.level = (account.level - drained).max(0.0);
        account.at = now;
        let waiting = self.shared[lane.class()].load(Relaxed) as u64;
        let longest = nanos(BETWEEN_ARRIVALS).max(own.saturating_mul(QUOTA_REQUESTS));
        if account.level > most / QUOTA_DEPTH || waiting.saturating_mul(own) / self.workers as u64 > longest {
            return above;
        }
        account.level += own as f64;
        Demand::BelowShare
    }

    /// Counts a request among those of clients below their share, if that is its demand.
    pub fn share(&self, demand: Demand, lane: &FlowLane) -> Option<SharePermit<'_>> {
        (demand == Demand::BelowShare).then(|| {
            let shared = &self.shared[lane.class()];
            shared.fetch_add(1, Relaxed);
            SharePermit(shared)
        })
    }

    pub fn overload(&self, now: Instant) {
        if self.is_overloaded() {
            return;
        }
        let mut bucket = self.bucket();
        bucket.level = bucket.depth(self.cost.mean());
        bucket.at = now;
        self.is_overloaded.store(true, Release);
    }

    /// Locks the bucket. A panic leaves it consistent, so a poisoned lock is taken all the same.
    fn bucket(&self) -> MutexGuard<'_, LaneBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneBucket {
    fn depth(&self, cost: u64) -> f64 {
        (nanos(BUCKET_DEPTH) as f64 * self.rate).max(cost.saturating_mul(SAMPLES) as f64)
    }

    fn drain(&mut self, now: Instant, cost: u64) {
        let drained = nanos(now.saturating_duration_since(self.at)) as f64 * self.rate;
        self.level = (self.level - drained).clamp(0.0, self.depth(cost));
        self.at = now;
    }
}

/// Converts a time to nanoseconds, saturating at [`u64::MAX`].
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Flow, LaneName};

    const COST: Duration = Duration::from_millis(4);

    /// A lane of one worker, on a simulated clock.
    struct SimulatedLane {
        load: Load,
        now: Instant,
        /// When the worker finishes the requests that it was given.
        free: Instant,
        measured: Instant,
    }

    impl SimulatedLane {
        fn new() -> Self {
            let now = Instant::now();
            Self { load: Load::new(1), now, free: now, measured: now }
        }

        /// Sends a request of `flow` after some time and returns its demand. A request above its share is served only
        /// if it waits for at most one other.
        fn ask(&mut self, flow: &Flow, after: Duration) -> Demand {
            self.now += after;
            while self.now - self.measured > Duration::from_millis(100) {
                self.measured += Duration::from_millis(100);
                self.load.measure(self.measured);
            }
            let known = flow.lane(LaneName::Bundle);
            known.cost.learn(COST);
            let demand = self.load.weigh(known, self.now);
            if demand != Demand::AboveShare || self.free <= self.now + COST {
                self.free = self.free.max(self.now) + COST;
                self.load.serve(COST);
            }
            demand
        }

        /// Asks for this share of what the worker can do, for some time.
        fn run(&mut self, flow: &Flow, share: f64, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.ask(flow, COST.div_f64(share));
            }
        }

        fn overload(&mut self, flow: &Flow) {
            self.run(flow, 0.9, Duration::from_secs(1));
            self.load.overload(self.now);
        }
    }

    #[test]
    fn a_lane_is_overloaded_as_long_as_more_is_asked_than_it_can_do() {
        let (mut lane, flow) = (SimulatedLane::new(), Flow::new());
        lane.overload(&flow);
        for _ in 0..100 {
            lane.run(&flow, 1.5, Duration::from_millis(100));
            assert!(lane.load.is_overloaded());
        }
    }

    #[test]
    fn a_lane_is_at_ease_soon_after_the_load_has_fallen() {
        for (share, within) in [(0.4, 300), (0.8, 1_000)] {
            let (mut lane, flow) = (SimulatedLane::new(), Flow::new());
            lane.overload(&flow);
            lane.run(&flow, 3.0, Duration::from_millis(1_500));
            assert!(lane.load.is_overloaded());
            lane.run(&flow, share, Duration::from_millis(within));
            assert!(!lane.load.is_overloaded(), "{share}");
        }
    }

    #[test]
    fn a_client_below_its_share_is_told_from_one_above() {
        let (mut lane, greedy, modest) = (SimulatedLane::new(), Flow::new(), Flow::new());
        lane.overload(&greedy);
        let mut demands = [Vec::new(), Vec::new()];
        for round in 0..2_000 {
            demands[0].push(lane.ask(&greedy, COST / 3));
            // A fifth of what the worker can do.
            if round % 15 == 0 {
                demands[1].push(lane.ask(&modest, Duration::ZERO));
            }
        }
        let [greedy, modest] = demands.map(|all| {
            let late = &all[all.len() / 4..];
            late.iter().filter(|one| **one == Demand::AboveShare).count() as f64 / late.len() as f64
        });
        assert!(greedy > 0.8, "{greedy} of the greedy client's requests are above its share");
        assert_eq!(modest, 0.0);
    }

    #[test]
    fn who_comes_anew_for_each_request_has_the_share_of_one() {
        let (mut lane, flow) = (SimulatedLane::new(), Flow::new());
        lane.overload(&flow);
        let newcomers = (0..1_000).map(|_| {
            lane.ask(&flow, COST / 3);
            lane.load.weigh(Flow::new().lane(LaneName::Bundle), lane.now)
        });
        // Two clients, each of which asks for three times the rate, share four fifths of it.
        let admitted = newcomers.filter(|demand| *demand == Demand::BelowShare).count();
        assert!((110..160).contains(&admitted), "{admitted} of 1,000");
    }
}
