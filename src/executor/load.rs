//! What requests take, and whether a lane is asked for more than it can serve.

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

/// What a request takes, in nanoseconds: a mean and a mean deviation with exponential weights, as TCP's round trips have them (RFC 6298).
#[derive(Debug, Default)]
pub struct Cost {
    mean: AtomicU64,
    deviation: AtomicU64,
}

impl Cost {
    /// Samples in a mean, about.
    const WEIGHT: u64 = 16;

    /// The mean: 0 while nothing is known.
    pub fn mean(&self) -> u64 {
        self.mean.load(Relaxed)
    }

    /// What hardly a request exceeds: the mean and twice the deviation.
    pub fn most(&self) -> u64 {
        self.mean().saturating_add(self.deviation.load(Relaxed).saturating_mul(2))
    }

    /// Learns what a request took. Of two at once one may be lost: it is a mean of many.
    pub fn learn(&self, took: Duration) {
        let (took, mean) = (nanos(took), self.mean());
        if mean == 0 {
            self.mean.store(took, Relaxed);
            return;
        }
        let weigh = |mean: u64, new: u64| mean - mean / Self::WEIGHT + new / Self::WEIGHT;
        self.deviation.store(weigh(self.deviation.load(Relaxed), took.abs_diff(mean)), Relaxed);
        self.mean.store(weigh(mean, took), Relaxed);
    }
}

/// What is known of a client's requests in one lane.
#[derive(Debug, Default)]
pub struct FlowLane {
    /// What one takes.
    pub cost: Cost,
    /// How many of them are too long to run inline, lately: of 65,536.
    too_long: AtomicU64,
    /// The client's use of the lane, weighed by its [`Load`].
    account: Mutex<Account>,
}

/// A client's use of an overloaded lane: a leaky bucket, which drains at the client's fair share of what the lane serves.
#[derive(Debug)]
pub struct Account {
    /// Nanoseconds of work.
    pub level: f64,
    /// When the level was that.
    pub at: Instant,
    /// The window in which the client was last counted.
    pub window: u64,
}

impl Default for Account {
    fn default() -> Self {
        Self { level: 0.0, at: Instant::now(), window: 0 }
    }
}

impl FlowLane {
    /// Samples in the mean, about.
    const WEIGHT: u64 = 16;
    /// A quarter.
    const LARGE: u64 = 1 << 14;

    /// Learns what a run inline took, and whether that was too long. Then what it takes is known of its runs on workers: where there was none yet, it is
    /// about the mean `on_workers`. Of two at once one may be lost: it is a mean of many.
    pub fn learn_inline(&self, took: Duration, too_long: bool, on_workers: &Cost) {
        let is_first = self.cost.mean() == 0;
        let share = self.too_long.load(Relaxed);
        let new = if too_long { 1 << 16 } else { 0 };
        self.too_long.store(if is_first { new } else { share - share / Self::WEIGHT + new / Self::WEIGHT }, Relaxed);
        if !too_long {
            self.cost.learn(took);
        } else if is_first {
            self.cost.learn(Duration::from_nanos(on_workers.mean()));
        }
    }

    /// Whether many are too long to run inline: then trying is a waste where there is no time to waste.
    pub fn is_often_too_long(&self) -> bool {
        self.too_long.load(Relaxed) > Self::LARGE
    }

    /// 0 if its requests are short, 1 if they are not, or may not be.
    fn class(&self) -> usize {
        usize::from(self.cost.mean() == 0 || self.is_often_too_long())
    }

    /// The client's use of the lane. Whoever panicked while it held the account left it whole.
    pub fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much a lane is asked for, beside what it can serve.
///
/// A lane is at ease until it must reject a request, or until a queue stands in the sockets of a thread that reads. Then it is overloaded, and admits only what it can begin soon. It is at ease again when the
/// load has fallen, and not when rejections happen to stop: a lane that admits little rejects now and then even at 40 % of what it can serve,
/// since requests come in clusters.
///
/// So the load is measured: a leaky bucket is filled by what each arriving request takes, admitted or not, and drains at the rate that the lane has
/// shown it can serve. It is full when the lane becomes overloaded. While more is asked than can be served it stays full. When less is asked it
/// drains at the difference, and the lane is at ease when it is empty.
///
/// The rate is the most run time a second that was served in a window of the last seconds. It is measured because a core's time does not all go to
/// runs: where requests are short, most of it goes to reading and writing them.
///
/// While a lane is overloaded each client is weighed in the same way: its bucket is filled by what is admitted because it asks for less than its
/// share, and drains at its equal share of most of the rate. The rest empties the queue. A client whose bucket is nearly empty asks for less than
/// its share, and is admitted, unless many such requests came at once. Clients of whom nothing is known yet have one share together, because nobody
/// may get more by coming anew for each request.
#[derive(Debug)]
pub struct Load {
    workers: usize,
    is_overloaded: AtomicBool,
    began: Instant,
    /// When it was last at ease again, in nanoseconds from `began`; 0 if it always was.
    eased: AtomicU64,
    /// What a request takes, on a worker or inline.
    cost: Cost,
    /// Nanoseconds of run time that were served.
    served: AtomicU64,
    /// Requests of clients below their share that wait or run: of those whose requests are short, and of those whose are too long to run inline. The
    /// long ones let the short ones pass.
    shared: [AtomicUsize; 2],
    /// The clients of whom nothing is known yet.
    newcomers: FlowLane,
    bucket: Mutex<Bucket>,
}

/// A request of a client below its share, which waits or runs. Released on drop.
#[derive(Debug)]
pub struct SharePermit<'a>(&'a AtomicUsize);

impl Drop for SharePermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
struct Bucket {
    /// Nanoseconds of run time.
    level: f64,
    at: Instant,
    /// When the window of clients began, its number, the clients in it, and those in the one before.
    window_began: Instant,
    window: u64,
    clients: [u32; 2],
    /// Nanoseconds served a nanosecond: a hundredth at the least, so that the bucket drains where nothing is served; and in the last windows.
    rate: f64,
    rates: [f64; Load::WINDOWS],
    rate_window: usize,
    measured: (Instant, u64),
}

/// How a request stands to the load of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lane is at ease.
    AtEase,
    /// The lane is overloaded, and the client asks for less than its share.
    BelowShare,
    /// The lane is overloaded, and the client asks for its share or more, or many do who ask for less.
    AboveShare,
    /// The lane is overloaded, nothing is known of the client, and others of whom nothing is known ask for more than their share.
    Unknown,
}

impl Load {
    const LEAST_RATE: f64 = 0.01;
    /// Windows in which the rate is looked for.
    const WINDOWS: usize = 10;
    /// How long the lane's excess must have been served for it to be at ease, at the rate: that, or so many requests.
    const DEPTH: Duration = Duration::from_millis(75);
    const DEPTH_REQUESTS: u64 = 16;
    /// Requests that must have been served for a window's rate to say something.
    const WINDOW_REQUESTS: u64 = 16;
    /// How long clients are counted.
    const CLIENTS_WINDOW: Duration = Duration::from_millis(250);
    /// Parts of its bucket's depth that a client below its share may have used.
    const QUARTER: f64 = 4.0;
    /// The part of the rate that is shared out: the rest lets the queue drain, and is for whoever comes when it is short.
    const SHARED: f64 = 0.8;
    /// How long clients below their share may wait for one another: that, or for so many requests.
    const SHARED_WAIT: Duration = Duration::from_micros(200);
    const SHARED_REQUESTS: u64 = 2;

    /// A lane at ease.
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
            bucket: Mutex::new(Bucket {
                level: 0.0,
                at: now,
                window_began: now,
                window: 1,
                clients: [0; 2],
                rate: Self::LEAST_RATE,
                rates: [0.0; Self::WINDOWS],
                rate_window: 0,
                measured: (now, 0),
            }),
        }
    }

    /// Whether the lane is overloaded.
    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded.load(Acquire)
    }

    /// How long the lane has been at ease since it was overloaded.
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

    /// Counts what was served.
    pub fn serve(&self, took: Duration) {
        self.cost.learn(took);
        self.served.fetch_add(nanos(took), Relaxed);
    }

    /// Measures the rate. Called every tenth of a second or so.
    pub fn measure(&self, now: Instant) {
        let cost = self.cost.mean();
        let served = self.served.load(Relaxed);
        let mut bucket = self.bucket();
        let (began, before) = bucket.measured;
        let (time, work) = (nanos(now.saturating_duration_since(began)), served - before);
        // A long request counts when it ends: windows are long where requests are.
        if time < cost.saturating_mul(Self::WINDOW_REQUESTS) / self.workers as u64 && work > 0 {
            return;
        }
        bucket.measured = (now, served);
        bucket.rate_window = (bucket.rate_window + 1) % Self::WINDOWS;
        let index = bucket.rate_window;
        bucket.rates[index] = work as f64 / time.max(1) as f64;
        bucket.rate = bucket.rates.iter().copied().fold(Self::LEAST_RATE, f64::max);
        bucket.drain(now, cost);
        if self.is_overloaded() && bucket.level <= 0.0 {
            self.ease(now);
        }
    }

    /// Weighs a request that arrives, of a client that `lane` is about.
    pub fn weigh(&self, lane: &FlowLane, now: Instant) -> Standing {
        if !self.is_overloaded() {
            return Standing::AtEase;
        }
        let cost = self.cost.mean();
        let mut bucket = self.bucket();
        bucket.drain(now, cost);
        if bucket.level <= 0.0 {
            self.ease(now);
            return Standing::AtEase;
        }
        let (lane, own, above) = match lane.cost.mean() {
            0 => (&self.newcomers, cost, Standing::Unknown),
            own => (lane, own, Standing::AboveShare),
        };
        let depth = bucket.depth(cost);
        bucket.level = (bucket.level + own as f64).min(depth);
        if now.saturating_duration_since(bucket.window_began) > Self::CLIENTS_WINDOW {
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
        // A bucket that a few of its own requests fill, or its part of the lane's.
        let most = (depth / clients).max(Self::QUARTER * own as f64);
        let share = bucket.rate * Self::SHARED / clients;
        let drained = nanos(now.saturating_duration_since(account.at)) as f64 * share;
        account.level = (account.level - drained).max(0.0);
        account.at = now;
        let waiting = self.shared[lane.class()].load(Relaxed) as u64;
        let longest = nanos(Self::SHARED_WAIT).max(own.saturating_mul(Self::SHARED_REQUESTS));
        if account.level > most / Self::QUARTER || waiting.saturating_mul(own) / self.workers as u64 > longest {
            return above;
        }
        account.level += own as f64;
        Standing::BelowShare
    }

    /// Counts a request of this standing among those of clients below their share, if it is one.
    pub fn share(&self, standing: Standing, lane: &FlowLane) -> Option<SharePermit<'_>> {
        (standing == Standing::BelowShare).then(|| {
            let shared = &self.shared[lane.class()];
            shared.fetch_add(1, Relaxed);
            SharePermit(shared)
        })
    }

    /// More is asked than can be served: the lane is overloaded from now on.
    pub fn overload(&self, now: Instant) {
        if self.is_overloaded() {
            return;
        }
        let mut bucket = self.bucket();
        bucket.level = bucket.depth(self.cost.mean());
        bucket.at = now;
        self.is_overloaded.store(true, Release);
    }

    /// Whoever panicked while it held the bucket left it whole.
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn depth(&self, cost: u64) -> f64 {
        (nanos(Load::DEPTH) as f64 * self.rate).max(cost.saturating_mul(Load::DEPTH_REQUESTS) as f64)
    }

    fn drain(&mut self, now: Instant, cost: u64) {
        let drained = nanos(now.saturating_duration_since(self.at)) as f64 * self.rate;
        self.level = (self.level - drained).clamp(0.0, self.depth(cost));
        self.at = now;
    }
}

/// A time in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Flow, LaneName};

    const COST: Duration = Duration::from_millis(4);

    /// A lane of one worker, as it is on a clock of its own.
    struct Lane {
        load: Load,
        now: Instant,
        /// When the worker has done what it was given.
        free: Instant,
        measured: Instant,
    }

    impl Lane {
        fn new() -> Self {
            let now = Instant::now();
            Self { load: Load::new(1), now, free: now, measured: now }
        }

        /// A request of `flow`, after some time. Returns its standing; it is served if it need not wait for more than one other.
        fn ask(&mut self, flow: &Flow, after: Duration) -> Standing {
            self.now += after;
            while self.now - self.measured > Duration::from_millis(100) {
                self.measured += Duration::from_millis(100);
                self.load.measure(self.measured);
            }
            let known = flow.lane(LaneName::Bundle);
            known.cost.learn(COST);
            let standing = self.load.weigh(known, self.now);
            if standing != Standing::AboveShare || self.free <= self.now + COST {
                self.free = self.free.max(self.now) + COST;
                self.load.serve(COST);
            }
            standing
        }

        /// A load of this part of what the worker can do, for some time.
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
        let (mut lane, flow) = (Lane::new(), Flow::new());
        lane.overload(&flow);
        for _ in 0..100 {
            lane.run(&flow, 1.5, Duration::from_millis(100));
            assert!(lane.load.is_overloaded());
        }
    }

    #[test]
    fn a_lane_is_at_ease_soon_after_the_load_has_fallen() {
        for (share, within) in [(0.4, 300), (0.8, 1_000)] {
            let (mut lane, flow) = (Lane::new(), Flow::new());
            lane.overload(&flow);
            lane.run(&flow, 3.0, Duration::from_millis(1_500));
            assert!(lane.load.is_overloaded());
            lane.run(&flow, share, Duration::from_millis(within));
            assert!(!lane.load.is_overloaded(), "{share}");
        }
    }

    #[test]
    fn a_client_below_its_share_is_told_from_one_above() {
        let (mut lane, greedy, modest) = (Lane::new(), Flow::new(), Flow::new());
        lane.overload(&greedy);
        let mut standings = [Vec::new(), Vec::new()];
        for round in 0..2_000 {
            standings[0].push(lane.ask(&greedy, COST / 3));
            // A fifth of what the worker can do.
            if round % 15 == 0 {
                standings[1].push(lane.ask(&modest, Duration::ZERO));
            }
        }
        let [greedy, modest] = standings.map(|all| {
            let late = &all[all.len() / 4..];
            late.iter().filter(|one| **one == Standing::AboveShare).count() as f64 / late.len() as f64
        });
        assert!(greedy > 0.8, "{greedy} of the greedy client's requests are above its share");
        assert_eq!(modest, 0.0);
    }

    #[test]
    fn who_comes_anew_for_each_request_has_the_share_of_one() {
        let (mut lane, flow) = (Lane::new(), Flow::new());
        lane.overload(&flow);
        let anew = (0..1_000).map(|_| {
            lane.ask(&flow, COST / 3);
            lane.load.weigh(Flow::new().lane(LaneName::Bundle), lane.now)
        });
        // Four fifths of the rate for two clients, of whom each asks for three times the rate.
        let admitted = anew.filter(|standing| *standing == Standing::BelowShare).count();
        assert!((110..160).contains(&admitted), "{admitted} of 1,000");
    }
}
