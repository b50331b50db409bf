//! The constants by which the scheduler decides, each with its unit and its reason. Bounds that depend on how a node
//! is used are settings (`ExecutorConfig`).
//!
//! The constants for waits and load satisfy the checks of `cargo bench --bench cliff -- fairness bursts recovery
//! overload`. Run it before and after changing one.

use std::time::Duration;

// Runs.

/// Bound of an inline run, in strides of the meter: some hundreds of microseconds at most, because all other connections
/// of the thread wait meanwhile.
pub const INLINE_STRIDES: u32 = 10;
/// Bound of a run in the pause of another, in strides: some milliseconds at most, because the paused run waits meanwhile.
pub const PAUSE_STRIDES: u32 = 64;
/// Most bytes of parameters of a request that runs inline, because one with more takes long to run, or to parse.
pub const INLINE_BYTES: usize = 8 << 10;
/// The same for parameters of few objects, which name few calls. Most of their bytes are data, such as code, which is
/// parsed fast.
pub const INLINE_DATA_BYTES: usize = 64 << 10;
/// Most objects of such parameters.
pub const INLINE_OBJECTS: usize = 16;
/// Most bytes of parameters of a request that runs in the pause of another, for the same reason.
pub const PAUSE_BYTES: usize = 64 << 10;
/// Entries of a batch per worker that may be in the lanes: several, so that no worker idles until the front submits the
/// next.
pub const BATCH_ENTRIES: usize = 4;

// The cost of requests.

/// Number of requests on which a mean or a rate is based, and which a lane's bucket holds at least. Of fewer, a single
/// long one would decide.
pub const SAMPLES: u64 = 16;
/// Mean deviations above the mean cost which few requests exceed. RFC 6298 has 4, for a bound that hardly any exceeds.
pub const DEVIATIONS: u64 = 2;
/// Part of a client's requests, in 65,536ths, above which they are often too long to run inline: a quarter. An
/// overloaded lane has no time for abandoned inline runs.
pub const OFTEN_TOO_LONG: u64 = 1 << 14;

// Waits and backlogs.

/// Requests per worker, or for a thread of connections, that may always wait while their lane is at ease, so that a few
/// clients with long requests are served.
pub const ALWAYS_ADMITTED: usize = 8;
/// A wait for which no request is rejected, because workers would otherwise run dry between two arrivals.
pub const BETWEEN_ARRIVALS: Duration = Duration::from_micros(200);
/// Longest expected wait for a thread of connections, if more than [`ALWAYS_ADMITTED`] wait for it. From then on the
/// workers help.
pub const INLINE_WAIT: Duration = Duration::from_millis(2);
/// Divisor of `--queue-wait-ms`: the expected wait above which a backlog counts, because clients that wait for their
/// answers cause a shorter one.
pub const BACKLOG_WAIT: u32 = 4;
/// Divisor of `--queue-wait-ms`: the expected wait above which a backlog of many requests counts.
pub const LONG_BACKLOG_WAIT: u32 = 80;
/// Waiting requests per worker that are many.
pub const LONG_QUEUE: usize = 64;
/// Waiting requests in the sockets of one thread that are many. They are fewer than in a lane, because the connections are
/// distributed among the threads.
pub const LONG_SOCKET_QUEUE: f64 = 32.0;
/// Time between two samples of the queue in a thread's sockets: a sixteenth of the default of `--queue-wait-ms`.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);
/// Divisor of the time for which a lane has been at ease: the age that a backlog in the sockets may have. A lane loaded
/// near its capacity is at ease now and then, with the same queue in the sockets.
pub const AT_EASE_PART: u32 = 4;

// Load.

/// Time between two measurements of a lane's load, when its gauges are set, too.
pub const MEASURE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of measurements (one second) over which the highest rate and the highest number of clients are taken: a lane
/// serves less than it can while demand is low, and not every client sends a request in each interval.
pub const MEASUREMENTS: usize = 10;
/// Least rate of a lane, in run time per time, so that its bucket drains even if nothing is served.
pub const LEAST_RATE: f64 = 0.01;
/// Depth of a lane's bucket in time at the lane's rate: for so long at least, an overload outlasts its cause.
pub const BUCKET_DEPTH: Duration = Duration::from_millis(75);
/// Part of a lane's rate that is divided among the clients. The rest drains the queue.
pub const QUOTA_RATE: f64 = 0.8;
/// Divisor of a client's part of the lane's bucket: the depth of the client's own bucket.
pub const QUOTA_DEPTH: f64 = 4.0;
/// Requests of clients below their quota that may wait for each worker, so that they begin soon, too.
pub const QUOTA_REQUESTS: u64 = 2;

// Supervision.

/// Time between two looks at lanes and workers that are drained, because requests that end need not report to a node that
/// stops.
pub const DRAIN_POLL: Duration = Duration::from_millis(10);
/// Time between two warnings about the rejections of a lane.
pub const WARNING_INTERVAL: Duration = Duration::from_secs(60);
