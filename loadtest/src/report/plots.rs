//! The plots of a report.

use super::{
    Begin, Latency, Report, Row, Step, TargetReport,
    chart::{AxisUnit, Chart, Series},
    text::{format_micros, rate},
};

const TARGET_COLOURS: [&str; 6] = ["s1", "s2", "s3", "s4", "s5", "s6"];

/// Returns the colour of the target at this index: a class of the page's style.
pub fn colour(place: usize) -> &'static str {
    TARGET_COLOURS[place % TARGET_COLOURS.len()]
}

pub fn of_target(report: &Report, target: &TargetReport, class: &'static str) -> Vec<Chart> {
    let id = |name: &str| format!("{name}-{}", target.name);
    let over_time = |pick: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        target.timeline.iter().filter_map(|row| Some((row.at + row.width / 2.0, pick(row)?))).collect()
    };
    let latency = |pick: fn(&Latency) -> u64| {
        over_time(&|row| (row.latency.count > 0).then(|| (pick(&row.latency) as f64).max(1.0)))
    };
    let time = ("time of this target, s", AxisUnit::Seconds);
    let mut throughput = vec![Series::new("right answers", class, over_time(&|row| Some(row.right_per_second)))];
    if report.open {
        throughput.insert(0, Series::new("offered", "neutral", over_time(&|row| row.offered)).dashed());
    }
    if target.summary.errors > 0 {
        throughput.push(Series::new("errors", "wrong", over_time(&|row| Some(row.errors_per_second))));
    }
    let mut charts = vec![
        Chart {
            id: id("throughput"),
            title: "Throughput".to_owned(),
            note: "Right answers a second, by the moment they came.".to_owned(),
            x: time,
            y: ("per second", AxisUnit::PerSecond),
            series: throughput,
            mark: None,
            borders: borders(target),
        },
        Chart {
            id: id("latency"),
            title: "Latency over time".to_owned(),
            note: match report.open {
                true => "From the moment a request was due to its answer.",
                false => "From sending a request to its answer.",
            }
            .to_owned(),
            x: time,
            y: ("latency", AxisUnit::Latency),
            series: vec![
                Series::new("p50", "q1", latency(|latency| latency.p50)),
                Series::new("p90", "q2", latency(|latency| latency.p90)),
                Series::new("p99", "q3", latency(|latency| latency.p99)),
                Series::new("p99.9", "q4", latency(|latency| latency.p999)),
                Series::new("longest", "q5", latency(|latency| latency.max)),
            ],
            mark: None,
            borders: borders(target),
        },
    ];
    if !target.steps.is_empty() {
        charts.extend(knee_charts(report, target, class));
    }
    charts.push(distribution(std::iter::once((class, target)), &id("distribution")));
    let age = |pick: fn(&super::Age) -> u64| over_time(&|row| Some(pick(row.age.as_ref()?) as f64));
    charts.push(Chart {
        id: id("age"),
        title: "Snapshot age".to_owned(),
        note: "How old the snapshots were that pending answers came from, when they were answered.".to_owned(),
        x: time,
        y: ("age, ms", AxisUnit::Millis),
        series: vec![
            Series::new("p50", "q1", age(|age| age.p50)),
            Series::new("p99", "q3", age(|age| age.p99)),
            Series::new("oldest", "q5", age(|age| age.max)),
        ],
        mark: None,
        borders: borders(target),
    });
    charts
}

/// Most steps whose names have room over a plot.
const MAX_NAMED: usize = 12;

/// Returns the beginning of each of several loads, with its name.
fn borders(target: &TargetReport) -> Vec<(f64, String)> {
    let name = |begin: &Begin| match begin.offered {
        _ if target.begins.len() > MAX_NAMED => String::new(),
        Some(offered) => rate(offered),
        None => format!("{} conn.", begin.connections),
    };
    let begins = if target.steps.is_empty() || target.begins.len() < 2 { &[] } else { target.begins.as_slice() };
    begins.iter().map(|begin| (begin.at, name(begin))).collect()
}

/// Returns the plots of the knee, by offered rate or by number of connections.
fn knee_charts(report: &Report, target: &TargetReport, class: &'static str) -> [Chart; 2] {
    let open = target.steps.iter().all(|step| step.offered.is_some());
    let load = |step: &Step| step.offered.unwrap_or(step.connections as f64);
    let mut steps = target.steps.clone();
    steps.sort_by(|a, b| load(a).total_cmp(&load(b)));
    let points =
        |pick: fn(&Step) -> f64| -> Vec<(f64, f64)> { steps.iter().map(|step| (load(step), pick(step))).collect() };
    let mark = target.knee.map(|knee| {
        let at = knee.connections.map_or(knee.rate, |connections| connections as f64);
        (at, format!("knee {knee}"))
    });
    let limit = format_micros(report.knee_p99_us);
    let (x, against, note) = match open {
        true => (
            ("offered requests / s", AxisUnit::PerSecond),
            "offered",
            format!(
                "The knee is the highest rate up to which at least 99 % was answered right, with a p99 of at most {limit}."
            ),
        ),
        false => (
            ("connections", AxisUnit::Connections),
            "connections",
            format!(
                "The knee is at the fewest connections that bring 95 % of the highest throughput at which at least 99 % was answered right, with a \
                 p99 of at most {limit}."
            ),
        ),
    };
    let offered = Series::new(
        "offered",
        "neutral",
        steps.iter().filter_map(|step| Some((step.offered?, step.offered?))).collect(),
    );
    let mut throughput = if open { vec![offered.dashed()] } else { Vec::new() };
    throughput.push(Series::new("right answers", class, points(|step| step.achieved)).dots());
    let id = |name: &str| format!("{name}-{}", target.name);
    [
        Chart {
            id: id("knee"),
            title: format!("The knee: throughput against {against}"),
            note,
            x,
            y: ("right answers / s", AxisUnit::PerSecond),
            series: throughput,
            mark: mark.clone(),
            borders: Vec::new(),
        },
        Chart {
            id: id("knee-latency"),
            title: format!("The knee: latency against {against}"),
            note: "Where the queue begins to grow, latency leaves the level it had.".to_owned(),
            x,
            y: ("latency", AxisUnit::Latency),
            series: vec![
                Series::new("p50", "q1", points(|step| (step.p50 as f64).max(1.0))).dots(),
                Series::new("p99", "q3", points(|step| (step.p99 as f64).max(1.0))).dots(),
                Series::new(
                    "limit of p99",
                    "neutral",
                    steps.iter().map(|step| (load(step), report.knee_p99_us)).collect(),
                )
                .dashed(),
            ],
            mark,
            borders: Vec::new(),
        },
    ]
}

pub fn distribution<'a>(targets: impl Iterator<Item = (&'static str, &'a TargetReport)>, id: &str) -> Chart {
    let series = targets.map(|(class, target)| {
        let most = (target.summary.latency.count as f64).log10();
        let points = target.distribution.iter().map(|point| {
            let nines = if point.quantile < 1.0 { -(1.0 - point.quantile).log10() } else { most };
            (nines, (point.latency_us as f64).max(1.0))
        });
        Series::new(format!("{} {}", target.name, target.url), class, points.collect())
    });
    Chart {
        id: id.to_owned(),
        title: "Latency distribution".to_owned(),
        note: "Share of answers within a latency; the scale gives each further nine the same room. The right end is the longest.".to_owned(),
        x: ("share of answers", AxisUnit::Nines),
        y: ("latency", AxisUnit::Latency),
        series: series.collect(),
        mark: None,
        borders: Vec::new(),
    }
}

/// Returns the plot of each target's throughput in each of its turns.
pub fn rounds(report: &Report) -> Chart {
    let rounds = |pick: fn(&super::Round) -> f64| {
        let series = report.targets.iter().enumerate().map(|(place, target)| {
            let points = target.rounds.iter().enumerate().map(|(round, figures)| ((round + 1) as f64, pick(figures)));
            Series::new(format!("{} {}", target.name, target.url), colour(place), points.collect()).dots()
        });
        series.collect()
    };
    Chart {
        id: "rounds".to_owned(),
        title: "Throughput by round".to_owned(),
        note: "Each target's turns, one after another. What moves all of them is the machine.".to_owned(),
        x: ("round", AxisUnit::Round),
        y: ("right answers / s", AxisUnit::PerSecond),
        series: rounds(|round| round.throughput),
        mark: None,
        borders: Vec::new(),
    }
}
