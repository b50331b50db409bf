//! Observability: structured logs, and metrics in the Prometheus format.

mod reading;

pub use metrics::{Counter, Gauge, Histogram};
pub use reading::MetricSample;

use std::{
    fmt,
    io::IsTerminal,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Message;
use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt,
    fmt::{
        FormatFields,
        format::{self, Writer},
    },
};

use crate::shown;

/// The upper bounds of the buckets of time histograms, in seconds: 50 µs to 10 s.
const SECONDS: [f64; 17] =
    [5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// The name of the histogram of the time to publish, which has finer buckets than the others.
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
            name => write!(writer, "{name}={text}"),
        }
    };
    format::debug_fn(write).delimited(" ")
}

/// A node's metrics. Each node has its own, so that several can run in one process.
#[derive(Clone)]
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    /// Processor time, memory, threads and files of the process, which are read when the metrics are rendered.
    process: metrics_process::Collector,
    began: Instant,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(PUBLISH_SECONDS.into()), &fine_seconds()));
        // Only an empty list of buckets is rejected.
        let builder = builder.unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let recorder = Arc::new(recorder);
        let process = metrics_process::Collector::default();
        metrics::with_local_recorder(&*recorder, || process.describe());
        let metrics = Self { recorder, handle, process, began: Instant::now() };
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("arch", std::env::consts::ARCH),
            ("os", std::env::consts::OS),
            ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
        ];
        let help = "1, with the program's version, its target, and whether it was built with optimisations.";
        metrics.gauge("presim_build_info", help, &labels).set(1.0);
        metrics
    }
}

/// The names and values of labels.
type Labels<'a> = &'a [(&'static str, &'static str)];

impl Metrics {
    /// Returns a counter. Create it once and keep it, because creating it looks it up.
    pub fn counter(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Counter {
        self.recorder.describe_counter(KeyName::from(name), None::<Unit>, SharedString::from(help));
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    /// Returns a gauge.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Gauge {
        self.recorder.describe_gauge(KeyName::from(name), None::<Unit>, SharedString::from(help));
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    /// Returns a gauge whose label is known only when the node runs. The caller bounds the number of labels.
    pub fn named_gauge(&self, name: &'static str, help: &'static str, label: (&'static str, String)) -> Gauge {
        self.recorder.describe_gauge(KeyName::from(name), None::<Unit>, SharedString::from(help));
        let key = Key::from_parts(name, vec![Label::new(label.0, label.1)]);
        self.recorder.register_gauge(&key, &METADATA)
    }

    /// Returns a histogram of seconds.
    pub fn histogram(&self, name: &'static str, help: &'static str, labels: Labels<'_>) -> Histogram {
        self.recorder.describe_histogram(KeyName::from(name), Some(Unit::Seconds), SharedString::from(help));
        self.recorder.register_histogram(&key(name, labels), &METADATA)
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        let uptime = self.gauge("presim_uptime_seconds", "Time since the node began to start.", &[]);
        uptime.set(self.began.elapsed().as_secs_f64());
        metrics::with_local_recorder(&*self.recorder, || self.process.collect());
        self.handle.render()
    }

    /// The interval at which [`Metrics::upkeep`] must be called.
    pub const UPKEEP: Duration = Duration::from_secs(5);

    /// Merges recorded samples into their buckets. Without it, they accumulate between two scrapes.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// A question to an actor whether it works, for a watchdog. An actor that hangs does not answer.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "bool")]
pub struct Pulse;

static METADATA: Metadata<'static> = Metadata::new("presim", Level::INFO, Some(module_path!()));

fn key(name: &'static str, labels: Labels<'_>) -> Key {
    Key::from_parts(name, labels.iter().map(|(name, value)| Label::new(*name, *value)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Mutex, PoisonError},
    };

    use tracing::subscriber::with_default;

    use super::*;

    /// The lines of a log.
    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
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
        let log = String::from_utf8(lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).expect("UTF-8");
        let shown = r"no\n2026 INFO forged\r\u{1b}[2J\u{202e}";
        let target = module_path!();
        assert_eq!(log, format!(" WARN {target}: the upstream said {shown} error={shown} count=3\n"));
    }
}
