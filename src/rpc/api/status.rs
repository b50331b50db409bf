//! `presim_status`: the load of the node in the last seconds, read from its metrics when a client asks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::Address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{
    Example, Serve,
    node::CLIENT_VERSION,
    watch::{StandingSummary, Watches},
};
use crate::{
    ledger::{FeedLag, FeedProblem, FeedState},
    rpc::{
        json::{
            self, Json,
            hex::{Fixed, Quantity},
            shapes,
        },
        params,
        protocol::error::{Outcome, Result, RpcError},
        run::{request::Request, runner::RequestRunner},
    },
    scheduler::LaneName,
    telemetry::{Metrics, Sample},
};

/// The minimum time between two readings, regardless of the number of clients.
const READING_INTERVAL: Duration = Duration::from_millis(500);
/// The time to which rates and percentiles refer, if clients ask that often.
const WINDOW: Duration = Duration::from_secs(10);
/// The maximum number of standing bundles listed.
const STANDING_SHOWN: usize = 20;

/// The load of the node in the last seconds, by method and lane, its memory, the state of the feed, and the client's standing bundles
/// with the best objective.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct GetStatus {}

/// The readings of the last seconds. Nothing is read unless a client asks.
#[derive(Debug)]
pub struct StatusBoard {
    metrics: Metrics,
    watches: Watches,
    began: Instant,
    /// The contracts of the chain that the node knows by name.
    contracts: Vec<NamedContract>,
    /// Oldest first, at most [`WINDOW`] long and [`READING_INTERVAL`] apart.
    readings: Mutex<VecDeque<Arc<LoadReading>>>,
}

/// The part of the metrics that the status needs, at one moment.
#[derive(Clone, Debug)]
struct LoadReading {
    at: Instant,
    /// By method. Requests without a known method are `unknown`.
    methods: BTreeMap<String, MethodReading>,
    lanes: BTreeMap<String, LaneStatus>,
    subscriptions: u64,
    pool: u64,
    memory: MemoryStatus,
    cpu_seconds: Option<f64>,
}

/// The requests of a method since the start of the node.
#[derive(Clone, Debug, Default)]
struct MethodReading {
    ok: u64,
    /// Requests with an error, but the next.
    failed: u64,
    /// Requests beyond a limit.
    limited: u64,
    /// The answered requests that took at most so many seconds, by ascending bound.
    within: Vec<(f64, u64)>,
}

/// A contract of the chain that the node knows by name.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct NamedContract {
    name: &'static str,
    #[schemars(with = "Fixed<20>")]
    address: Address,
}

/// The load of a lane.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
struct LaneStatus {
    waiting: u64,
    running: u64,
    rejected: u64,
    overloaded: bool,
}

shapes! {
    /// The load of the node.
    pub NodeStatus: (&StatusBoard, &RequestRunner, [&LoadReading; 2], (usize, Vec<StandingSummary>))
    => |(board, runner, [first, newest], standing)| let {
        let window = newest.at.duration_since(first.at);
        let (requests, methods) = newest.requests_since(first, window);
        let cpu = newest.cpu_seconds.zip(first.cpu_seconds).map(|(now, then)| now - then).filter(|_| !window.is_zero());
    } {
        version: String = CLIENT_VERSION,
        chainId: Quantity<u64> = runner.backend.spec.chain_id(),
        uptimeMs: u64 = millis(board.began.elapsed()),
        /// The CPU workers.
        workers: usize = runner.host.executor.workers(),
        /// The part of one core that the process used in the window, in per cent.
        cpuPercent: Option<f64> = cpu.map(|used| Json((used / window.as_secs_f64() * 1000.0).round() / 10.0)),
        memory: MemoryStatus = Json(newest.memory),
        subscriptions: u64 = newest.subscriptions,
        pool: u64 = newest.pool,
        /// The time to which rates and percentiles refer.
        windowMs: u64 = millis(window),
        requests: RequestsStatus = Json(requests),
        methods: Vec<MethodStatus<'static>> = Json(methods),
        lanes: BTreeMap<String, LaneStatus> = Json(&newest.lanes),
        standing: StandingStatus = standing,
        contracts: Vec<NamedContract> = Json(&board.contracts),
        feed: FeedSummary = runner.published().feed(),
        /// The warning of `/health`.
        warning: Option<String> = runner.unknown_fork(),
    }

    /// The state of the feed.
    FeedSummary: FeedState => |feed| let {
        let every_ms = match feed {
            FeedState::Live { every_ms } | FeedState::Lagging(FeedLag { every_ms, .. }) => Some(every_ms),
            FeedState::Static | FeedState::Degraded(_) => None,
        };
    } {
        #[schemars(extend("enum" = ["live", "lagging", "static", "degraded"]))]
        state: String = feed.as_str(),
        /// The time between two sub-blocks, if the feed is live or late.
        everyMs: Option<u64> = every_ms,
        /// The cause in words, if the feed is late or degraded.
        meaning: Option<String> = feed.cause().map(FeedProblem::meaning),
    }

    StandingStatus: (usize, Vec<StandingSummary>) => |(count, best)| {
        count: usize = count,
        best: Vec<StandingSummary> = Json(best),
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MemoryStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    resident_bytes: Option<u64>,
    io_bytes: u64,
    code_bytes: u64,
}

/// Requests since the start, and a second.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RequestsStatus {
    total: u64,
    rejected: u64,
    per_second: f64,
    rejected_per_second: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MethodStatus<'a> {
    method: &'a str,
    total: u64,
    per_second: f64,
    failed_per_second: f64,
    rejected_per_second: f64,
    p50_us: u64,
    p99_us: u64,
}

impl Serve for GetStatus {
    type Part = StatusBoard;
    type Answer = NodeStatus;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#"{"version": "presim/v0.1.0", "chainId": "0x7a69", "uptimeMs": 60000, "workers": 4, "cpuPercent": 1.5, "memory": {"residentBytes": 73400320, "ioBytes": 0, "codeBytes": 4096}, "subscriptions": 1, "pool": 0, "windowMs": 10000, "requests": {"total": 100, "rejected": 0, "perSecond": 10.0, "rejectedPerSecond": 0.0}, "methods": [{"method": "eth_call", "total": 100, "perSecond": 10.0, "failedPerSecond": 0.0, "rejectedPerSecond": 0.0, "p50Us": 75, "p99Us": 199}], "lanes": {"short": {"waiting": 0, "running": 0, "rejected": 0, "overloaded": false}}, "standing": {"count": 0, "best": []}, "contracts": [], "feed": {"state": "live", "everyMs": 200}}"#,
    };

    async fn serve<'a>(board: &'a StatusBoard, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        params::parse::<Self>(&request.params, request.caller.dialect)?;
        let (first, newest) = board.read().await;
        let (watches, client) = (board.watches.clone(), request.caller.client.clone());
        // A client may have thousands of standing bundles, and no connection may wait until they are sorted.
        let standing = spawn_blocking(move || watches.best(client.name(), STANDING_SHOWN)).await;
        let standing = standing.map_err(|error| RpcError::internal(&error.to_string()))?;
        let out = request.answer::<NodeStatus, _>((board, &**runner, [&*first, &*newest], standing));
        json::check_length(&out, runner.backend.limits.max_response)?;
        Ok(out)
    }
}

impl StatusBoard {
    /// Creates a board that reads `metrics`, and names the `contracts` of the chain.
    pub fn new(metrics: &Metrics, watches: Watches, contracts: Vec<(&'static str, Address)>) -> Self {
        let contracts = contracts.into_iter().map(|(name, address)| NamedContract { name, address }).collect();
        Self { metrics: metrics.clone(), watches, began: Instant::now(), contracts, readings: Mutex::default() }
    }

    /// Returns the newest reading, and the first one of the window. Takes a new reading if one is due.
    async fn read(&self) -> (Arc<LoadReading>, Arc<LoadReading>) {
        let mut readings = self.readings.lock().await;
        if readings.back().is_none_or(|newest| newest.at.elapsed() >= READING_INTERVAL) {
            let metrics = self.metrics.clone();
            // Reading the files of the process takes some hundreds of microseconds, and no connection should wait for
            // that.
            let reading = spawn_blocking(move || Arc::new(LoadReading::of(&metrics))).await;
            readings.extend(reading);
        }
        // A reading from before a pause would make the window long.
        let is_over = |readings: &VecDeque<Arc<LoadReading>>| {
            readings
                .get(1)
                .is_some_and(|second| second.at.elapsed() >= WINDOW || readings[0].at.elapsed() >= 2 * WINDOW)
        };
        while is_over(&readings) {
            readings.pop_front();
        }
        let newest = readings.back().cloned().unwrap_or_else(|| Arc::new(LoadReading::new()));
        (readings.front().cloned().unwrap_or_else(|| newest.clone()), newest)
    }
}

impl LoadReading {
    fn of(metrics: &Metrics) -> Self {
        let mut reading = Self::new();
        metrics.read(|sample| reading.add(sample));
        reading
    }

    fn new() -> Self {
        Self {
            at: Instant::now(),
            methods: BTreeMap::new(),
            lanes: LaneName::ALL.iter().map(|lane| (lane.to_string(), LaneStatus::default())).collect(),
            subscriptions: 0,
            pool: 0,
            memory: MemoryStatus::default(),
            cpu_seconds: None,
        }
    }

    /// Returns the requests by method since an earlier reading, with their rates in the time between the two.
    fn requests_since(&self, first: &Self, window: Duration) -> (RequestsStatus, Vec<MethodStatus<'_>>) {
        let nothing = MethodReading::default();
        let rate = |now: u64, then: u64| match window.as_secs_f64() {
            seconds if seconds > 0.0 => (now.saturating_sub(then) as f64 / seconds * 10.0).round() / 10.0,
            _ => 0.0,
        };
        let mut requests = RequestsStatus::default();
        let mut methods: Vec<_> = self
            .methods
            .iter()
            .filter(|(_, now)| now.total() > 0)
            .map(|(method, now)| {
                let then = first.methods.get(method).unwrap_or(&nothing);
                requests.total += now.total();
                requests.rejected += now.limited;
                requests.per_second += rate(now.total(), then.total());
                requests.rejected_per_second += rate(now.limited, then.limited);
                MethodStatus {
                    method,
                    total: now.total(),
                    per_second: rate(now.total(), then.total()),
                    failed_per_second: rate(now.failed, then.failed),
                    rejected_per_second: rate(now.limited, then.limited),
                    p50_us: now.quantile(then, 0.5),
                    p99_us: now.quantile(then, 0.99),
                }
            })
            .collect();
        methods.sort_by(|one, other| other.per_second.total_cmp(&one.per_second).then(other.total.cmp(&one.total)));
        (requests, methods)
    }

    fn add(&mut self, sample: Sample<'_>) {
        // Counts are small enough to be exact, and a negative value does not occur.
        let count = sample.value() as u64;
        match sample.name {
            "presim_requests_total" => {
                let Some((method, outcome)) = sample.label("method").zip(sample.label("outcome")) else { return };
                let method = self.methods.entry(method.to_owned()).or_default();
                match outcome {
                    _ if outcome == Outcome::Ok.as_str() => method.ok += count,
                    _ if outcome == Outcome::Limited.as_str() => method.limited += count,
                    _ => method.failed += count,
                }
            }
            "presim_request_seconds" => {
                let Some((method, outcome)) = sample.label("method").zip(sample.label("outcome")) else { return };
                // Rejections take no time, and would hide the other requests' time.
                if outcome != Outcome::Limited.as_str() {
                    let method = self.methods.entry(method.to_owned()).or_default();
                    sample.buckets().into_iter().for_each(|(bound, count)| method.add(bound, count));
                }
            }
            "presim_queue_depth" => self.lane(sample, |lane| lane.waiting = count),
            "presim_jobs_running" => self.lane(sample, |lane| lane.running = count),
            "presim_queue_rejected_total" => self.lane(sample, |lane| lane.rejected = count),
            "presim_queue_overloaded" => self.lane(sample, |lane| lane.overloaded = count > 0),
            "presim_subscriptions" => self.subscriptions += count,
            "presim_pool_transactions" => self.pool += count,
            "presim_io_memory_bytes" => self.memory.io_bytes = count,
            "presim_code_cache_bytes" => self.memory.code_bytes += count,
            "process_resident_memory_bytes" => self.memory.resident_bytes = Some(count),
            "process_cpu_seconds_total" => self.cpu_seconds = Some(sample.value()),
            _ => {}
        }
    }

    fn lane(&mut self, sample: Sample<'_>, set: impl FnOnce(&mut LaneStatus)) {
        if let Some(lane) = sample.label("lane").and_then(|lane| self.lanes.get_mut(lane)) {
            set(lane);
        }
    }
}

impl MethodReading {
    fn add(&mut self, bound: f64, count: u64) {
        match self.within.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += count,
            None => self.within.push((bound, count)),
        }
    }

    const fn total(&self) -> u64 {
        self.ok + self.failed + self.limited
    }

    /// Returns about how many microseconds a share of the requests since `before` took at most. Between the bounds of a
    /// bucket, the requests count as spread evenly.
    fn quantile(&self, before: &Self, share: f64) -> u64 {
        let since = |at: usize| {
            let (bound, count) = self.within[at];
            let known = before.within.iter().find(|(other, _)| *other == bound).map_or(0, |(_, count)| *count);
            (bound, count.saturating_sub(known) as f64)
        };
        let counts: Vec<(f64, f64)> = (0..self.within.len()).map(since).collect();
        let wanted = counts.last().map_or(0.0, |(_, all)| all * share);
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in counts {
            if count >= wanted && count > below {
                // Requests beyond the last bound count as that bound.
                let high = if bound.is_finite() { bound } else { low };
                return ((low + (high - low) * (wanted - below) / (count - below)) * 1e6).round() as u64;
            }
            (low, below) = (if bound.is_finite() { bound } else { low }, count);
        }
        0
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(counts: &[(f64, u64)]) -> MethodReading {
        MethodReading { within: counts.to_vec(), ..MethodReading::default() }
    }

    #[test]
    fn a_percentile_is_that_of_the_window() {
        let then = reading(&[(0.001, 1_000), (0.01, 1_000), (f64::INFINITY, 1_000)]);
        let now = reading(&[(0.001, 1_000), (0.01, 1_100), (f64::INFINITY, 1_100)]);
        // All hundred of the window took between one and ten milliseconds.
        assert_eq!(now.quantile(&then, 0.5), 5_500);
        assert_eq!(now.quantile(&now, 0.5), 0, "nothing was asked in the window");
        let slow = reading(&[(0.001, 0), (0.01, 0), (f64::INFINITY, 10)]);
        assert_eq!(slow.quantile(&MethodReading::default(), 0.99), 10_000, "beyond the last bound");
    }
}
