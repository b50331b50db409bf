//! The growth of memory and file while old blocks are pruned. A node in a process of its own builds twenty sub-blocks a
//! second with traffic; memory and file size are sampled each second. The verdict covers the last half, a plot all.
//!
//! `cargo bench --bench history -- run` takes ten minutes, `-- --hour` an hour. `-- --seconds N` is a short look whose
//! verdict means little. Without one of these arguments, nothing runs.

#[path = "world/process.rs"]
mod process;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The maximum by which the largest value of the last half may exceed the smallest, as a share of the smallest.
const SPREAD: f64 = 0.05;
/// The history is short enough that blocks are pruned during most of the run.
const FLAGS: [&str; 4] = ["--sub-block-ms", "50", "--keep-history", "256"];

/// The sizes at one moment.
struct Sample {
    seconds: f64,
    /// Resident memory in bytes.
    memory: f64,
    /// Size of the store's file in bytes.
    file: f64,
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let seconds = match asked.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["run"] => 600,
        ["--hour"] => 3_600,
        ["--seconds", seconds] => seconds.parse().expect("--seconds: expected a number of seconds"),
        [] => return println!("history: takes ten minutes: `-- run` for that, `-- --hour`, or `-- --seconds N`"),
        other => panic!("{other:?}: expected `run`, `--hour` or `--seconds N`"),
    };
    let samples = sample(seconds);
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("history.svg");
    fs::write(&svg, plot(&samples)).expect("the plot is written");
    let half = samples.len() / 2;
    verdict("memory", samples[half..].iter().map(|sample| sample.memory));
    verdict("file", samples[half..].iter().map(|sample| sample.file));
    println!("  plot: {}", svg.display());
}

/// Runs a node for this many seconds and samples it each second.
fn sample(seconds: u64) -> Vec<Sample> {
    let folder = tempfile::tempdir().expect("a directory");
    // The node creates the directory, with access for its own user only.
    let dir = folder.path().join("data");
    let data = ["--data-dir", dir.to_str().expect("the path is UTF-8")];
    let node = process::NodeProcess::start(&[&data, &FLAGS[..]].concat());
    let (began, mut samples) = (Instant::now(), Vec::new());
    for second in 1..=seconds {
        thread::sleep(Duration::from_secs(second).saturating_sub(began.elapsed()));
        let file = fs::metadata(dir.join("presim.redb")).expect("it has a store").len() as f64;
        let sample = Sample { seconds: began.elapsed().as_secs_f64(), memory: node.resident() as f64, file };
        if second % (seconds / 20).max(1) == 0 {
            println!("  {second:>5} of {seconds} s: memory {:.1} MiB, file {:.1} MiB", mib(sample.memory), mib(file));
        }
        samples.push(sample);
    }
    samples
}

fn verdict(what: &str, values: impl Iterator<Item = f64> + Clone) {
    let (least, most) = (values.clone().fold(f64::MAX, f64::min), values.fold(0., f64::max));
    let spread = most / least - 1.;
    let verdict = if spread <= SPREAD { "met" } else { "MISSED" };
    println!(
        "  {what} in the last half: {:.1} to {:.1} MiB, {:.1} %, at most {:.0} % ({verdict})",
        mib(least),
        mib(most),
        100. * spread,
        100. * SPREAD
    );
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// The size of a panel of the plot, and the margins.
const WIDTH: f64 = 720.;
const HEIGHT: f64 = 200.;
const LEFT: f64 = 70.;
const TOP: f64 = 40.;

/// A size in a sample, in MiB.
type Measure = fn(&Sample) -> f64;

/// Plots the samples as an SVG: a panel for memory and one for the file, with the last half shaded.
fn plot(samples: &[Sample]) -> String {
    let panels: [(&str, Measure); 2] = [("memory", |one| mib(one.memory)), ("file", |one| mib(one.file))];
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' font-size='12'>\
         <rect width='100%' height='100%' fill='white'/>\n",
        WIDTH + LEFT + 30.,
        2. * (HEIGHT + TOP) + 40.
    );
    let end = samples.last().map_or(1., |last| last.seconds);
    for (index, (name, value)) in panels.into_iter().enumerate() {
        let top = TOP + index as f64 * (HEIGHT + TOP);
        let most = 1.1 * samples.iter().map(value).fold(1., f64::max);
        let at = |seconds: f64, value: f64| (LEFT + WIDTH * seconds / end, top + HEIGHT * (1. - value / most));
        let points: Vec<String> =
            samples.iter().map(|one| at(one.seconds, value(one))).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<rect x='{}' y='{top}' width='{}' height='{HEIGHT}' fill='#eef'/>\
             <rect x='{LEFT}' y='{top}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#888'/>\
             <polyline points='{}' fill='none' stroke='#06c' stroke-width='1.5'/>\
             <text x='{LEFT}' y='{}'>{name}, MiB; the last half is shaded</text>",
            LEFT + WIDTH / 2.,
            WIDTH / 2.,
            points.join(" "),
            top - 8.
        );
        for part in 0..=4 {
            let (seconds, value) = (end * f64::from(part) / 4., most * f64::from(part) / 4.);
            let (x, y) = at(seconds, value);
            let _ = writeln!(
                svg,
                "<text x='{}' y='{y:.1}' text-anchor='end'>{value:.0}</text><text x='{x:.1}' y='{}' text-anchor='middle'>{seconds:.0} s</text>",
                LEFT - 6.,
                top + HEIGHT + 15.
            );
        }
    }
    svg + "</svg>\n"
}
