//! Observability: structured logs, and metrics in the Prometheus format.

pub use metrics::{Counter, Gauge, Histogram};

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use actix::Message;
use metrics::HistogramFn;
use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt,
    fmt::{
        FormatFields,
        format::{self, Writer},
    },
};

use crate::lock::Mutex;
use crate::shown;

/// The upper bounds of the buckets of time histograms, in seconds: 50 µs to 10 s.
const SECONDS: [f64; 17] =
    [5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// The name of the histogram of the time to publish. Its buckets are finer than the others'.
pub const PUBLISH_SECONDS: &str = "presim_publish_seconds";

/// Returns finer buckets for the time to publish, in which a few per cent can be seen: from 50 µs on, each a tenth
/// above the one before, to about 2 s.
fn fine_seconds() -> Vec<f64> {
    std::iter::successors(Some(5e-5), |bound| Some(bound * 1.1)).take_while(|bound| *bound < 2.0).collect()
}

/// Starts logging. `filter` is a level, or directives. Called once by the program; a second call changes nothing.
///
/// # Errors
///
/// Returns the parser's error if `filter` is invalid.
pub fn init_logs(filter: &str, json: bool) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = tracing_subscriber::EnvFilter::builder().parse(filter)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails if a program that uses presim as a library has started logging before.
    let _ = if json { logs.json().try_init() } else { logs.fmt_fields(escaped_fields()).try_init() };
    Ok(())
}

/// Formats the fields of an event on one line, with hidden characters as escapes. The library alone escapes no line breaks,
/// by which a text from elsewhere, such as an upstream's error, could look like a line of the log.
fn escaped_fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let text = shown::printable(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{text}"),
            // The line of the source, of events of the `log` crate.
            name if name.starts_with("log.") => Ok(()),
            name => write!(writer, "{name}={text}"),
        }
    };
    format::debug_fn(write).delimited(" ")
}

/// A node's metrics. Each node has its own, so that several can run in one process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// By name.
    families: Arc<Mutex<BTreeMap<&'static str, Family>>>,
    began: Instant,
}

/// The metrics of one name.
#[derive(Debug)]
struct Family {
    help: &'static str,
    series: BTreeMap<LabelSet, Series>,
}

/// The names and values of a metric's labels.
type LabelSet = Vec<(&'static str, Cow<'static, str>)>;

/// A metric with one set of labels.
#[derive(Clone, Debug)]
enum Series {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

/// The values of a histogram, in seconds.
#[derive(Debug)]
struct Buckets {
    /// The upper bounds, ascending.
    bounds: Vec<f64>,
    /// The number of values up to each bound and above the one before, and beyond the last.
    counts: Vec<AtomicU64>,
    /// The sum of the values, in nanoseconds.
    sum: AtomicU64,
}

/// A metric, as the node itself reads it.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'static str,
    help: &'static str,
    labels: &'a LabelSet,
    series: &'a Series,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self { families: Arc::default(), began: Instant::now() };
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("arch", std::env::consts::ARCH),
            ("os", std::env::consts::OS),
            ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
        ];
        let help = "1, with the program's version, its target, and whether it was built with optimisations.";
        metrics.gauge_with("presim_build_info", help, &labels).set(1.0);
        metrics
    }
}

/// The names and values of labels.
type Labels<'a> = &'a [(&'static str, &'static str)];

impl Metrics {
    /// The interval at which the node sets the gauges of its sizes.
    pub const SIZE_INTERVAL: Duration = Duration::from_secs(5);

    /// Returns a counter. Create it once and keep it, because creating it looks it up.
    pub fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.counter_with(name, help, &[])
    }

    /// Returns a counter with labels.
    pub fn counter_with(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Counter {
        match self.series(name, help, owned(labels), || Series::Counter(Arc::default())) {
            Series::Counter(value) => Counter::from_arc(value),
            _ => Counter::noop(),
        }
    }

    /// Returns a gauge.
    pub fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.gauge_with(name, help, &[])
    }

    /// Returns a gauge with labels.
    pub fn gauge_with(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Gauge {
        self.gauge_of(name, help, owned(labels))
    }

    /// Returns a gauge whose label is known only at run time. The caller bounds the number of labels.
    pub fn named_gauge(&self, name: &'static str, help: &'static str, label: (&'static str, String)) -> Gauge {
        self.gauge_of(name, help, vec![(label.0, label.1.into())])
    }

    fn gauge_of(&self, name: &'static str, help: &'static str, labels: LabelSet) -> Gauge {
        match self.series(name, help, labels, || Series::Gauge(Arc::default())) {
            Series::Gauge(value) => Gauge::from_arc(value),
            _ => Gauge::noop(),
        }
    }

    /// Returns a histogram of seconds.
    pub fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.histogram_with(name, help, &[])
    }

    /// Returns a histogram of seconds with labels.
    pub fn histogram_with(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Histogram {
        let bounds = || if name == PUBLISH_SECONDS { fine_seconds() } else { SECONDS.to_vec() };
        match self.series(name, help, owned(labels), || Series::Histogram(Arc::new(Buckets::new(bounds())))) {
            Series::Histogram(buckets) => Histogram::from_arc(buckets),
            _ => Histogram::noop(),
        }
    }

    fn series(
        &self,
        name: &'static str,
        help: &'static str,
        labels: LabelSet,
        create: impl FnOnce() -> Series,
    ) -> Series {
        let mut families = self.families.lock();
        let family = families.entry(name).or_insert_with(|| Family { help, series: BTreeMap::new() });
        family.series.entry(labels).or_insert_with(create).clone()
    }

    /// Sets the metrics of the process, and the time since its start.
    fn measure(&self) {
        let uptime = self.gauge("presim_uptime_seconds", "Time since the node began to start.");
        uptime.set(self.began.elapsed().as_secs_f64());
        let process = metrics_process::collector::collect();
        if let Some(seconds) = process.cpu_seconds_total {
            let help = "Total user and system CPU time spent in seconds.";
            self.counter("process_cpu_seconds_total", help).absolute(seconds as u64);
        }
        for (name, help, value) in [
            ("process_open_fds", "Number of open file descriptors.", process.open_fds),
            ("process_max_fds", "Maximum number of open file descriptors.", process.max_fds),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_memory_bytes),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
                process.virtual_memory_max_bytes,
            ),
            ("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_memory_bytes),
            (
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                process.start_time_seconds,
            ),
            ("process_threads", "Number of OS threads in the process.", process.threads),
        ] {
            if let Some(value) = value {
                self.gauge(name, help).set(value as f64);
            }
        }
    }

    /// Passes each metric to `read`.
    pub fn read(&self, mut read: impl FnMut(Sample<'_>)) {
        self.measure();
        for (name, family) in &*self.families.lock() {
            family.series.iter().for_each(|(labels, series)| read(Sample { name, help: family.help, labels, series }));
        }
    }

    /// Returns all metrics in Prometheus' text format
    /// (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).
    pub fn render(&self) -> String {
        let (mut text, mut last) = (String::new(), "");
        self.read(|sample| {
            let Sample { name, help, .. } = sample;
            if std::mem::replace(&mut last, name) != name {
                text += &format!("# HELP {name} {help}\n# TYPE {name} {}\n", sample.kind());
            }
            sample.write(&mut text);
        });
        text
    }
}

fn owned(labels: Labels<'_>) -> LabelSet {
    labels.iter().map(|(name, value)| (*name, Cow::Borrowed(*value))).collect()
}

impl Buckets {
    fn new(bounds: Vec<f64>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::default()).collect();
        Self { bounds, counts, sum: AtomicU64::default() }
    }
}

impl HistogramFn for Buckets {
    fn record(&self, seconds: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)].fetch_add(1, Relaxed);
        self.sum.fetch_add((seconds * 1e9).round() as u64, Relaxed);
    }
}

impl Sample<'_> {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_ref())
    }

    /// Returns the value of a counter or a gauge; the sum of a histogram's values.
    pub fn value(&self) -> f64 {
        match self.series {
            Series::Counter(value) => value.load(Relaxed) as f64,
            Series::Gauge(value) => f64::from_bits(value.load(Relaxed)),
            Series::Histogram(buckets) => buckets.sum.load(Relaxed) as f64 / 1e9,
        }
    }

    /// Returns the upper bounds of a histogram's buckets, the last one infinite, each with the number of values up to it.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let Series::Histogram(buckets) = self.series else { return Vec::new() };
        let mut sum = 0;
        let up_to = |(bound, count): (f64, &AtomicU64)| {
            sum += count.load(Relaxed);
            (bound, sum)
        };
        buckets.bounds.iter().copied().chain([f64::INFINITY]).zip(&buckets.counts).map(up_to).collect()
    }

    const fn kind(&self) -> &'static str {
        match self.series {
            Series::Counter(_) => "counter",
            Series::Gauge(_) => "gauge",
            Series::Histogram(_) => "histogram",
        }
    }

    fn write(&self, text: &mut String) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = self.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels: Vec<String> = labels.collect();
        let mut line = |part: &str, bound: Option<String>, value: f64| {
            let all: Vec<String> = labels.iter().cloned().chain(bound).collect();
            let braces = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
            *text += &format!("{}{part}{braces} {value}\n", self.name);
        };
        if !matches!(self.series, Series::Histogram(_)) {
            return line("", None, self.value());
        }
        let buckets = self.buckets();
        for (bound, count) in &buckets {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            line("_bucket", Some(format!("le=\"{bound}\"")), *count as f64);
        }
        line("_sum", None, self.value());
        line("_count", None, buckets.last().map_or(0, |(_, count)| *count) as f64);
    }
}

/// A question to an actor whether it works, for a watchdog. An actor that hangs does not answer.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub struct Pulse;

#[cfg(test)]
mod tests {
    use std::io;

    use tracing::subscriber::with_default;

    use super::*;

    /// The lines of a log.
    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_text_from_elsewhere_is_no_line_of_the_log() {
        let lines = LogLines::default();
        let writer = lines.clone();
        let logs = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(escaped_fields());
        let told = "no\n2026 INFO forged\r\u{1b}[2J\u{202e}";
        with_default(logs.finish(), || tracing::warn!(error = %told, count = 3, "the upstream said {told}"));
        let log = String::from_utf8(lines.0.lock().clone()).expect("UTF-8");
        let shown = r"no\n2026 INFO forged\r\u{1b}[2J\u{202e}";
        let target = module_path!();
        assert_eq!(log, format!(" WARN {target}: the upstream said {shown} error={shown} count=3\n"));
    }

    #[test]
    fn metrics_are_read_and_rendered() {
        let metrics = Metrics::default();
        metrics.counter("presim_one_total", "One.").increment(3);
        metrics.named_gauge("presim_two", "Two.", ("name", "a\"b".to_owned())).set(1.5);
        let labels = [("method", "eth_call"), ("outcome", "ok")];
        metrics.histogram_with("presim_three_seconds", "Three.", &labels).record(Duration::from_micros(150));
        let text = metrics.render();
        for line in [
            "# HELP presim_one_total One.",
            "# TYPE presim_one_total counter",
            "presim_one_total 3",
            r#"presim_two{name="a\"b"} 1.5"#,
            "# TYPE presim_three_seconds histogram",
            r#"presim_three_seconds_bucket{method="eth_call",outcome="ok",le="0.0001"} 0"#,
            r#"presim_three_seconds_bucket{method="eth_call",outcome="ok",le="0.0002"} 1"#,
            r#"presim_three_seconds_bucket{method="eth_call",outcome="ok",le="+Inf"} 1"#,
            r#"presim_three_seconds_sum{method="eth_call",outcome="ok"} 0.00015"#,
            r#"presim_three_seconds_count{method="eth_call",outcome="ok"} 1"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
        }
        let mut found = 0;
        metrics.read(|sample| match sample.name {
            "presim_one_total" => found += usize::from(sample.value() == 3.0 && sample.label("method").is_none()),
            "presim_three_seconds" => {
                assert_eq!((sample.label("method"), sample.buckets()[2]), (Some("eth_call"), (2e-4, 1)));
                found += 1;
            }
            _ => {}
        });
        assert_eq!(found, 2);
    }
}
