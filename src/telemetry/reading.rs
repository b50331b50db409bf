//! The node's own reading of its metrics, in Prometheus' text format.

/// A value of a counter, a gauge, or a part of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricSample<'a> {
    /// Name of the metric, with the suffix of a histogram's part.
    pub name: &'a str,
    /// The labels as the format has them, without braces.
    labels: &'a str,
    /// The value.
    pub value: f64,
}

impl<'a> MetricSample<'a> {
    /// Returns the samples of a text. Lines of another form are passed over.
    pub fn all(text: &'a str) -> impl Iterator<Item = Self> {
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            Some(Self { name, labels: labels.trim_end_matches('}'), value: value.parse().ok()? })
        })
    }

    /// Returns the value of a label. Values with quotes, which no label of presim has, are not read.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        self.labels.split("\",").find_map(|label| {
            let (key, value) = label.split_once("=\"")?;
            (key == name).then(|| value.trim_end_matches('"'))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn what_metrics_render_is_read_back() {
        let metrics = Metrics::default();
        metrics.counter("presim_one_total", "One.", &[]).increment(3);
        metrics.gauge("presim_two", "Two.", &[("lane", "short")]).set(1.5);
        let labels = [("method", "eth_call"), ("outcome", "ok")];
        metrics.histogram("presim_three_seconds", "Three.", &labels).record(Duration::from_micros(150));
        let text = metrics.render();
        let find = |name: &str, label: &str, value: &str| {
            MetricSample::all(&text).find(|sample| sample.name == name && sample.label(label) == Some(value))
        };
        let one = MetricSample::all(&text).find(|sample| sample.name == "presim_one_total").unwrap();
        assert_eq!((one.value, one.label("lane")), (3.0, None));
        assert_eq!(find("presim_two", "lane", "short").unwrap().value, 1.5);
        for (bound, count) in [("0.0001", 0.0), ("0.0002", 1.0), ("+Inf", 1.0)] {
            let bucket = find("presim_three_seconds_bucket", "le", bound).unwrap();
            assert_eq!((bucket.value, bucket.label("method")), (count, Some("eth_call")), "{bound}: {text}");
        }
    }
}
