//! Conditions on the figures of a run, such as `p99<5ms,errors=0`.

use std::{fmt, str::FromStr};

use crate::report::{Summary, Verdict, text::format_micros};

/// The metrics of assertions, with their units and help texts.
const METRICS: [(&str, MetricUnit, &str); 27] = [
    ("p50", MetricUnit::Time, "the latency that half of the answers do not exceed"),
    ("p90", MetricUnit::Time, "… 90 %"),
    ("p95", MetricUnit::Time, "… 95 %"),
    ("p99", MetricUnit::Time, "… 99 %"),
    ("p999", MetricUnit::Time, "… 99.9 %"),
    ("max", MetricUnit::Time, "the longest latency"),
    ("mean", MetricUnit::Time, "the mean latency"),
    ("refusal_p99", MetricUnit::Time, "p99 of the time to reject with -32005"),
    ("throughput", MetricUnit::Count, "right answers per second"),
    ("requests", MetricUnit::Count, "requests sent"),
    ("errors", MetricUnit::Count, "all errors, of every kind below"),
    ("error_rate", MetricUnit::Share, "the share of the arrivals that ended in an error"),
    ("http_status", MetricUnit::Count, "HTTP status other than 200"),
    ("not_json", MetricUnit::Count, "bodies that are not JSON-RPC answers"),
    ("wrong_ids", MetricUnit::Count, "answers with another id"),
    ("rpc_errors", MetricUnit::Count, "JSON-RPC errors other than -32005"),
    ("refused", MetricUnit::Count, "JSON-RPC errors -32005"),
    ("failed_calls", MetricUnit::Count, "answers with a simulated call that failed"),
    ("mismatches", MetricUnit::Count, "sampled answers that differ from the reference's"),
    ("timeouts", MetricUnit::Count, "requests without an answer in time"),
    ("disconnects", MetricUnit::Count, "requests whose connection ended, and failed connection attempts"),
    ("dropped", MetricUnit::Count, "arrivals not sent because --max-outstanding were waiting"),
    ("checked", MetricUnit::Count, "sampled answers compared with a reference"),
    ("stale", MetricUnit::Count, "pending answers from a snapshot older than one announced before"),
    ("age_p99", MetricUnit::Time, "age of the snapshots that pending answers came from: p99; also age_p50, age_max"),
    ("knee", MetricUnit::Count, "the knee, in requests per second (--steps, --connection-steps, --ramp)"),
    ("ratio", MetricUnit::Count, "throughput of the first target divided by the second's"),
];

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricUnit {
    Time,
    Count,
    Share,
}

/// A condition on the figures of the first target.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    metric: String,
    op: Op,
    /// A time in microseconds, a count, or a share between 0 and 1.
    limit: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
    Not,
}

impl Op {
    /// The operators. Those of two characters come first, because the first match counts.
    const ALL: [(&'static str, Self); 7] = [
        ("<=", Self::AtMost),
        (">=", Self::AtLeast),
        ("!=", Self::Not),
        ("==", Self::Equal),
        ("<", Self::Less),
        (">", Self::More),
        ("=", Self::Equal),
    ];

    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Less => value < limit,
            Self::AtMost => value <= limit,
            Self::More => value > limit,
            Self::AtLeast => value >= limit,
            Self::Equal => (value - limit).abs() < 1e-9,
            Self::Not => (value - limit).abs() >= 1e-9,
        }
    }
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let at = text.find(['<', '>', '=', '!']).ok_or_else(|| {
            format!("{text:?} is not an assertion: expected METRIC OP VALUE, as in p99<5ms; {}", metrics())
        })?;
        let name = text[..at].trim();
        let unit = unit_of(name).ok_or_else(|| format!("{name:?} is not a metric; {}", metrics()))?;
        let rest = &text[at..];
        let (sign, op) = Op::ALL
            .into_iter()
            .find(|(sign, _)| rest.starts_with(sign))
            .ok_or_else(|| format!("{text:?}: expected one of < <= > >= = != after {name}"))?;
        let value = rest[sign.len()..].trim();
        let limit =
            limit(value, unit).map_err(|expected| format!("{text:?}: {value:?} is invalid for {name}: {expected}"))?;
        Ok(Self { metric: name.to_owned(), op, limit, text: text.to_owned() })
    }
}

impl Assertion {
    /// Returns the metric that the condition is about.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// Compares the figures of a run with the condition.
    pub fn verdict(&self, summary: &Summary) -> Verdict {
        let value = summary.metric(&self.metric);
        let unit = unit_of(&self.metric).unwrap_or(MetricUnit::Count);
        Verdict {
            assertion: self.text.clone(),
            measured: value.map(|value| match unit {
                MetricUnit::Time => format_micros(value),
                MetricUnit::Share => format!("{:.3} %", value * 100.0),
                MetricUnit::Count => format!("{}", (value * 1000.0).round() / 1000.0),
            }),
            holds: value.is_some_and(|value| self.op.holds(value, self.limit)),
        }
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unit_of(name: &str) -> Option<MetricUnit> {
    match name {
        "age_p50" | "age_max" => Some(MetricUnit::Time),
        _ => METRICS.iter().find(|(known, ..)| *known == name).map(|(_, unit, _)| *unit),
    }
}

fn limit(text: &str, unit: MetricUnit) -> Result<f64, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..digits], text[digits..].trim());
    let expected = match unit {
        MetricUnit::Time => "expected a number with us, ms or s, as in 5ms",
        MetricUnit::Count => "expected a number without a unit, as in 0",
        MetricUnit::Share => "expected a share, as in 0.1%",
    };
    let number: f64 = number.parse().map_err(|_| expected)?;
    let factor = match (unit, suffix) {
        (MetricUnit::Time, "us" | "µs") => 1.0,
        (MetricUnit::Time, "ms") => 1e3,
        (MetricUnit::Time, "s") => 1e6,
        (MetricUnit::Share, "%") => 0.01,
        (MetricUnit::Share | MetricUnit::Count, "") => 1.0,
        _ => return Err(expected),
    };
    Ok(number * factor)
}

fn metrics() -> String {
    let names: Vec<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
    format!("there are {}, age_p50, age_max", names.join(", "))
}

/// Returns the grammar of assertions with all metrics, for `--help`.
pub fn help() -> String {
    let mut text =
        "Conditions on the first target, METRIC OP VALUE, separated by commas; OP is one of < <= > >= = !=. Metrics:\n\n"
            .to_owned();
    for (name, unit, what) in METRICS {
        let unit = match unit {
            MetricUnit::Time => "us, ms, s",
            MetricUnit::Count => "number",
            MetricUnit::Share => "%",
        };
        text += &format!("  {name:12} {unit:10} {what}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assertion_is_read_with_its_unit() {
        for (text, op, limit) in [
            ("p99<5ms", Op::Less, 5_000.0),
            ("p999 <= 1.5 s", Op::AtMost, 1_500_000.0),
            ("errors=0", Op::Equal, 0.0),
            ("error_rate<0.1%", Op::Less, 0.001),
            ("throughput>=2000", Op::AtLeast, 2_000.0),
            ("age_max<400ms", Op::Less, 400_000.0),
        ] {
            let assertion: Assertion = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(assertion.op, op, "{text}");
            assert!((assertion.limit - limit).abs() < 1e-9, "{text}: {}", assertion.limit);
        }
    }

    #[test]
    fn a_wrong_assertion_says_what_there_is() {
        for (text, part) in [
            ("p98<5ms", "there are p50"),
            ("p99<5", "us, ms or s"),
            ("errors=0ms", "without a unit"),
            ("p99", "METRIC OP VALUE"),
            ("p99<fast", "us, ms or s"),
            ("p99!5ms", "expected one of"),
        ] {
            let error = text.parse::<Assertion>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
