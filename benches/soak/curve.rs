//! The curve of memory.

use std::{fmt::Write as _, fs, path::Path};

/// The time in seconds by which memory must have levelled off. A shorter run has a third of its own time.
const SETTLED: f64 = 600.;
/// The growth of memory after that time that is none, as a share.
const GROWTH: f64 = 0.05;
/// The size of the plot, and its margins.
const WIDTH: f64 = 720.;
const HEIGHT: f64 = 240.;
const LEFT: f64 = 70.;
const TOP: f64 = 40.;
/// The rows and the longest bar of the plot in text.
const ROWS: usize = 20;
const BAR: f64 = 60.;

/// The memory at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub seconds: f64,
    /// Resident memory in MiB.
    pub memory: f64,
}

/// The samples of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Curve(Vec<Sample>);

impl Curve {
    pub fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Prints the curve as bars.
    pub fn print(&self) {
        let most = self.most();
        println!("\n  resident memory, MiB");
        for part in self.0.chunks(self.0.len().div_ceil(ROWS).max(1)) {
            let (end, memory) = (part[part.len() - 1].seconds, median(part));
            println!("  {end:>6.0} s {memory:>6.0} {}", "#".repeat((BAR * memory / most) as usize));
        }
    }

    /// Writes the curve as a table and as a plot beside it.
    pub fn write(&self) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let rows: String =
            self.0.iter().map(|sample| format!("{:.1},{:.0}\n", sample.seconds, sample.memory)).collect();
        fs::write(folder.join("soak.csv"), format!("seconds,mib\n{rows}")).expect("the table is written");
        fs::write(folder.join("soak.svg"), self.plot()).expect("the plot is written");
        println!("\n  {0}/soak.csv, {0}/soak.svg", folder.display());
    }

    /// Prints whether memory stayed below the ceiling, and whether it had levelled off in time.
    pub fn judge(&self, ceiling: f64) {
        let word = |is_met: bool| if is_met { "met" } else { "MISSED" };
        let most = self.most();
        println!("  most memory: {most:.0} MiB, at most {ceiling:.0} MiB ({})", word(most <= ceiling));
        let settled = settled(self.end());
        let after = &self.0[self.0.partition_point(|sample| sample.seconds < settled)..];
        let fifth = (after.len() / 5).max(1);
        let (first, last) = (median(&after[..fifth]), median(&after[after.len() - fifth..]));
        let growth = last / first - 1.;
        println!(
            "  after {settled:.0} s: {first:.0} MiB to {last:.0} MiB, {:+.1} %, at most {:.0} % ({})",
            100. * growth,
            100. * GROWTH,
            word(growth <= GROWTH)
        );
        if settled < SETTLED {
            println!("  the run is too short to show that memory levels off within {SETTLED:.0} s");
        }
    }

    fn end(&self) -> f64 {
        self.0.last().map_or(1., |last| last.seconds)
    }

    fn most(&self) -> f64 {
        self.0.iter().map(|sample| sample.memory).fold(1., f64::max)
    }

    fn plot(&self) -> String {
        let (end, most) = (self.end(), 1.1 * self.most());
        let at = |seconds: f64, value: f64| (LEFT + WIDTH * seconds / end, TOP + HEIGHT * (1. - value / most));
        let points: Vec<String> =
            self.0.iter().map(|one| at(one.seconds, one.memory)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let shaded = at(settled(end), 0.).0;
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' font-size='12'>\
             <rect width='100%' height='100%' fill='white'/>\
             <rect x='{shaded:.1}' y='{TOP}' width='{:.1}' height='{HEIGHT}' fill='#eef'/>\
             <rect x='{LEFT}' y='{TOP}' width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='#888'/>\
             <polyline points='{}' fill='none' stroke='#06c' stroke-width='1.5'/>\
             <text x='{LEFT}' y='{}'>resident memory, MiB; it must not grow where it is shaded</text>\n",
            WIDTH + LEFT + 30.,
            HEIGHT + TOP + 40.,
            LEFT + WIDTH - shaded,
            points.join(" "),
            TOP - 8.
        );
        for part in 0..=4 {
            let (seconds, value) = (end * f64::from(part) / 4., most * f64::from(part) / 4.);
            let (x, y) = at(seconds, value);
            let _ = writeln!(
                svg,
                "<text x='{}' y='{y:.1}' text-anchor='end'>{value:.0}</text>\
                 <text x='{x:.1}' y='{}' text-anchor='middle'>{seconds:.0} s</text>",
                LEFT - 6.,
                TOP + HEIGHT + 15.
            );
        }
        svg + "</svg>\n"
    }
}

/// Returns the time by which memory must have levelled off in a run of so many seconds.
pub fn settled(seconds: f64) -> f64 {
    SETTLED.min(seconds / 3.)
}

/// Returns the median memory.
fn median(samples: &[Sample]) -> f64 {
    let mut memory: Vec<f64> = samples.iter().map(|sample| sample.memory).collect();
    memory.sort_unstable_by(f64::total_cmp);
    memory.get(memory.len() / 2).copied().unwrap_or_default()
}
