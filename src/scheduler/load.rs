//! The load of a lane and of its clients: buckets of run time, which requests fill and time drains.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    constants::{
        BETWEEN_ARRIVALS, BUCKET_DEPTH, LEAST_RATE, MEASUREMENTS, OFTEN_TOO_LONG, QUOTA_DEPTH, QUOTA_RATE,
        QUOTA_REQUESTS, SAMPLES,
    },
    cost::{Cost, nanos, weighted},
};
use crate::lock::Mutex;

/// A leaky bucket: run time that was requested, and has not drained yet.
#[derive(Debug)]
struct Bucket {
    /// In nanoseconds.
    level: f64,
    at: Instant,
}

impl Bucket {
    fn empty(now: Instant) -> Self {
        Self { level: 0.0, at: now }
    }

    /// Drains the bucket at `rate`, in run time per time, until `now`.
    fn drain(&mut self, now: Instant, rate: f64) {
        let drained = nanos(now.saturating_duration_since(self.at)) as f64 * rate;
        *self = Self { level: (self.level - drained).max(0.0), at: now };
    }
}

/// The load that one client puts on one lane.
#[derive(Debug)]
pub struct ClientLoad {
    pub cost: Cost,
    /// The part of the recent requests that were too long to run inline, in 65,536ths.
    too_long: AtomicU64,
    /// The client's requests below its quota, and the interval in which it was last counted.
    asked: Mutex<(Bucket, u64)>,
}

impl Default for ClientLoad {
    fn default() -> Self {
        let asked = Mutex::new((Bucket::empty(Instant::now()), 0));
        Self { cost: Cost::default(), too_long: AtomicU64::new(0), asked }
    }
}

impl ClientLoad {
    /// Adds an inline run. The cost of a run that was too long is learnt when it runs again on a worker; for a client
    /// without samples it is until then the mean `on_workers`. One of two concurrent samples may be lost.
    pub fn learn_inline(&self, took: Duration, too_long: bool, on_workers: &Cost) {
        let is_first = self.cost.mean() == 0;
        let new = if too_long { 1 << 16 } else { 0 };
        self.too_long.store(if is_first { new } else { weighted(self.too_long.load(Relaxed), new) }, Relaxed);
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
}

/// The load of a lane: the work that clients request, compared with what the lane can serve.
///
/// A lane is at ease until it must reject a request, or until a backlog builds up in the sockets of a thread that reads
/// requests. Then it is overloaded, and admits only requests that can begin soon. It is at ease again when the load has
/// fallen, not when rejections happen to stop: a lane that admits little rejects now and then even at 40 % of its
/// capacity, since requests come in clusters.
///
/// The load is the level of a bucket. Each arriving request, admitted or not, fills it by the request's cost, and it
/// drains at the rate that the lane has shown it can serve. It is full when the lane becomes overloaded, and stays full
/// while clients ask for more than can be served. When they ask for less, it drains at the difference, and the lane is
/// at ease when the bucket is empty.
///
/// The rate is the highest run time per second among the last measurements. It is measured because a core does not spend
/// all of its time on runs: if requests are short, most of the time goes to reading and writing them.
///
/// Each client of an overloaded lane has a bucket of the same kind. It drains at the client's quota, an equal part of
/// most of the rate; the rest of the rate empties the queue. A request that finds the bucket not yet full is below the
/// quota: it is admitted and fills the bucket, unless many such requests come at once. Clients without samples have one
/// bucket together, so that no client gains by appearing as a new one for each request.
#[derive(Debug)]
pub struct Load {
    workers: usize,
    is_overloaded: AtomicBool,
    began: Instant,
    /// The end of the lane's last overload, in nanoseconds from `began`; 0 for never.
    eased: AtomicU64,
    /// The run time of a request, on a worker or inline.
    cost: Cost,
    /// Total run time served, in nanoseconds.
    served: AtomicU64,
    /// Waiting or running requests below their quotas, by [`ClientLoad::class`], so that long requests do not hold up
    /// short ones.
    below_quota: [AtomicUsize; 2],
    /// The load of all clients without samples.
    newcomers: ClientLoad,
    /// Locked only while the lane is overloaded, and when the load is measured.
    asked: Mutex<LaneBucket>,
}

/// Counts a waiting or running request below its client's quota. Released on drop.
#[derive(Debug)]
pub struct QuotaPermit<'a>(&'a AtomicUsize);

impl Drop for QuotaPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The bucket of a lane, with the rate at which it drains, and the number of clients that fill it.
#[derive(Debug)]
struct LaneBucket {
    bucket: Bucket,
    /// The last measurement, and the run time served until then.
    measured: (Instant, u64),
    /// Number of the current interval between two measurements.
    interval: u64,
    /// Run time served per time in the last intervals, the newest first.
    rates: [f64; MEASUREMENTS],
    /// Number of clients in the current interval and the ones before.
    clients: [u32; MEASUREMENTS],
}

/// The demand of a client when a request of it arrives, compared with its quota in the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// The lane is at ease.
    AtEase,
    /// The lane is overloaded, and the client asks for less than its quota.
    BelowQuota,
    /// The lane is overloaded, and the client asks for its quota or more, or too many others ask for less.
    AboveQuota,
    /// The lane is overloaded, and the client has no samples yet. All such clients together exceed their quota.
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
            below_quota: Default::default(),
            newcomers: ClientLoad::default(),
            asked: Mutex::new(LaneBucket {
                bucket: Bucket::empty(now),
                measured: (now, 0),
                interval: 1,
                rates: [0.0; MEASUREMENTS],
                clients: [0; MEASUREMENTS],
            }),
        }
    }

    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Relaxed)
    }

    /// Returns the time since the lane's last overload ended; [`Duration::MAX`] if none has ended.
    pub fn at_ease_for(&self) -> Duration {
        match self.eased.load(Relaxed) {
            0 => Duration::MAX,
            eased => self.began.elapsed().saturating_sub(Duration::from_nanos(eased)),
        }
    }

    /// Adds a run of length `took` to the run time served.
    pub fn serve(&self, took: Duration) {
        self.cost.learn(took);
        self.served.fetch_add(nanos(took), Relaxed);
    }

    /// Measures the rate, and ends the overload if the bucket is empty. Called at each `MEASURE_INTERVAL`.
    pub fn measure(&self, now: Instant) {
        let (cost, served) = (self.cost.mean(), self.served.load(Relaxed));
        let mut asked = self.asked.lock();
        let (began, before) = asked.measured;
        let (time, work) = (nanos(now.saturating_duration_since(began)), served - before);
        // A run counts only when it ends, so the time between measurements must be long if requests are.
        if time < cost.saturating_mul(SAMPLES) / self.workers as u64 && work > 0 {
            return;
        }
        asked.measured = (now, served);
        asked.interval += 1;
        asked.clients.rotate_right(1);
        asked.clients[0] = 0;
        asked.rates.rotate_right(1);
        asked.rates[0] = work as f64 / time.max(1) as f64;
        if self.is_overloaded() {
            self.drain(&mut asked, now);
        }
    }

    /// Drains the bucket of an overloaded lane. Returns its depth; `None` if it is empty, which ends the overload.
    fn drain(&self, asked: &mut LaneBucket, now: Instant) -> Option<f64> {
        let depth = asked.depth(&self.cost);
        let rate = asked.rate();
        asked.bucket.drain(now, rate);
        asked.bucket.level = asked.bucket.level.min(depth);
        if asked.bucket.level > 0.0 {
            return Some(depth);
        }
        self.eased.store(nanos(now.saturating_duration_since(self.began)).max(1), Relaxed);
        self.is_overloaded.store(false, Relaxed);
        None
    }

    /// Weighs an arriving request of `client`. Reads the clock only if the lane is overloaded.
    pub fn weigh(&self, client: &ClientLoad, now: impl FnOnce() -> Instant) -> Demand {
        if !self.is_overloaded() {
            return Demand::AtEase;
        }
        let now = now();
        let mut asked = self.asked.lock();
        let Some(depth) = self.drain(&mut asked, now) else { return Demand::AtEase };
        let (client, cost, above) = match client.cost.mean() {
            0 => (&self.newcomers, self.cost.mean(), Demand::Unknown),
            own => (client, own, Demand::AboveQuota),
        };
        asked.bucket.level = (asked.bucket.level + cost as f64).min(depth);
        let mut own = client.asked.lock();
        let (bucket, interval) = &mut *own;
        let clients = asked.count_client(interval);
        bucket.drain(now, asked.rate() * QUOTA_RATE / clients);
        let quota = (depth / clients / QUOTA_DEPTH).max(cost as f64);
        let waiting = self.below_quota[client.class()].load(Relaxed) as u64;
        let longest = nanos(BETWEEN_ARRIVALS).max(cost.saturating_mul(QUOTA_REQUESTS));
        if bucket.level > quota || waiting.saturating_mul(cost) / self.workers as u64 > longest {
            return above;
        }
        bucket.level += cost as f64;
        Demand::BelowQuota
    }

    /// Counts a request with the demand `BelowQuota`. Returns `None` for other demands.
    pub fn count_below_quota(&self, demand: Demand, client: &ClientLoad) -> Option<QuotaPermit<'_>> {
        (demand == Demand::BelowQuota).then(|| {
            let count = &self.below_quota[client.class()];
            count.fetch_add(1, Relaxed);
            QuotaPermit(count)
        })
    }

    /// Makes the lane overloaded, if it is not.
    pub fn overload(&self, now: Instant) {
        if self.is_overloaded() {
            return;
        }
        let mut asked = self.asked.lock();
        asked.bucket = Bucket { level: asked.depth(&self.cost), at: now };
        self.is_overloaded.store(true, Relaxed);
    }
}

impl LaneBucket {
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(LEAST_RATE, f64::max)
    }

    /// Returns the depth of the bucket, in nanoseconds. `cost` is the cost of the lane's requests.
    fn depth(&self, cost: &Cost) -> f64 {
        (nanos(BUCKET_DEPTH) as f64 * self.rate()).max(cost.mean().saturating_mul(SAMPLES) as f64)
    }

    /// Counts a client that was last counted in the interval `counted`. Returns the number of clients.
    fn count_client(&mut self, counted: &mut u64) -> f64 {
        if std::mem::replace(counted, self.interval) != self.interval {
            self.clients[0] += 1;
        }
        self.clients.iter().copied().fold(1, u32::max).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{ClientShare, LaneName};

    const COST: Duration = Duration::from_millis(4);

    /// A lane of one worker, on a simulated clock.
    struct SimulatedLane {
        load: Load,
        now: Instant,
        /// The time at which the worker finishes the requests assigned to it.
        free: Instant,
        measured: Instant,
    }

    impl SimulatedLane {
        fn new() -> Self {
            let now = Instant::now();
            Self { load: Load::new(1), now, free: now, measured: now }
        }

        /// Sends a request of `flow` after some time and returns its demand. A request above its quota is served only
        /// if it waits for at most one other.
        fn ask(&mut self, flow: &ClientShare, after: Duration) -> Demand {
            self.now += after;
            while self.now - self.measured > Duration::from_millis(100) {
                self.measured += Duration::from_millis(100);
                self.load.measure(self.measured);
            }
            let client = flow.load(LaneName::Bundle);
            client.cost.learn(COST);
            let demand = self.load.weigh(client, || self.now);
            if demand != Demand::AboveQuota || self.free <= self.now + COST {
                self.free = self.free.max(self.now) + COST;
                self.load.serve(COST);
            }
            demand
        }

        /// Requests this fraction of the worker's capacity for some time.
        fn run(&mut self, flow: &ClientShare, part: f64, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.ask(flow, COST.div_f64(part));
            }
        }

        fn overload(&mut self, flow: &ClientShare) {
            self.run(flow, 0.9, Duration::from_secs(1));
            self.load.overload(self.now);
        }
    }

    #[test]
    fn a_lane_is_overloaded_as_long_as_more_is_asked_than_it_can_do() {
        let (mut lane, flow) = (SimulatedLane::new(), ClientShare::new());
        lane.overload(&flow);
        for _ in 0..100 {
            lane.run(&flow, 1.5, Duration::from_millis(100));
            assert!(lane.load.is_overloaded());
        }
    }

    #[test]
    fn a_lane_is_at_ease_soon_after_the_load_has_fallen() {
        for (part, within) in [(0.4, 300), (0.8, 1_000)] {
            let (mut lane, flow) = (SimulatedLane::new(), ClientShare::new());
            lane.overload(&flow);
            lane.run(&flow, 3.0, Duration::from_millis(1_500));
            assert!(lane.load.is_overloaded());
            lane.run(&flow, part, Duration::from_millis(within));
            assert!(!lane.load.is_overloaded(), "{part}");
        }
    }

    #[test]
    fn a_client_below_its_quota_is_told_from_one_above() {
        let (mut lane, greedy, modest) = (SimulatedLane::new(), ClientShare::new(), ClientShare::new());
        lane.overload(&greedy);
        let mut demands = [Vec::new(), Vec::new()];
        for round in 0..2_000 {
            demands[0].push(lane.ask(&greedy, COST / 3));
            // A fifth of the worker's capacity.
            if round % 15 == 0 {
                demands[1].push(lane.ask(&modest, Duration::ZERO));
            }
        }
        let [greedy, modest] = demands.map(|all| {
            let late = &all[all.len() / 4..];
            late.iter().filter(|one| **one == Demand::AboveQuota).count() as f64 / late.len() as f64
        });
        assert!(greedy > 0.8, "{greedy} of the greedy client's requests are above its quota");
        assert_eq!(modest, 0.0);
    }

    #[test]
    fn who_comes_anew_for_each_request_has_the_quota_of_one() {
        let (mut lane, flow) = (SimulatedLane::new(), ClientShare::new());
        lane.overload(&flow);
        let newcomers = (0..1_000).map(|_| {
            lane.ask(&flow, COST / 3);
            lane.load.weigh(ClientShare::new().load(LaneName::Bundle), || lane.now)
        });
        // Two clients, each of which asks for three times the rate, divide four fifths of it.
        let admitted = newcomers.filter(|demand| *demand == Demand::BelowQuota).count();
        assert!((110..160).contains(&admitted), "{admitted} of 1,000");
    }
}
