//! Keeping cores awake while requests arrive fast.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    time::Duration,
};

use tokio::{runtime::RuntimeMetrics, time::MissedTickBehavior};

use crate::telemetry::{Gauge, Metrics};

/// While this file is open, idle cores take no longer to wake than the microseconds written to it. At 0 they poll
/// (<https://docs.kernel.org/power/pm_qos_interface.html>).
pub const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// The interval at which the pace of requests is measured.
const MEASURE_INTERVAL: Duration = Duration::from_millis(100);

/// When idle cores are kept from sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeepAwake {
    /// While requests arrive fast, if the system allows it.
    Load,
    /// As long as the node runs.
    Always,
    /// Never.
    Never,
}

/// Keeps the cores awake when [`KeepAwake`] says so.
///
/// An idle core sleeps, and takes 20 to 50 µs to wake on a virtual machine, where a sleeping core belongs to the host
/// until then. Many calls take less, and their clients sleep and wake as well. While a thread runs dry a thousand times
/// a second, sleeping is not worth it. With fewer requests, cores sleep as usual.
#[derive(Debug)]
pub struct Awake {
    when: KeepAwake,
    /// The open file, while the cores are kept awake.
    held: Option<File>,
}

impl Awake {
    /// Creates the watcher. Holds nothing yet, unless the cores are to be always awake.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the cores are to be always awake and the system does not allow it.
    pub fn new(when: KeepAwake) -> io::Result<Self> {
        let held = match when {
            KeepAwake::Always => Some(hold(CPU_DMA_LATENCY.as_ref())?),
            KeepAwake::Load | KeepAwake::Never => None,
        };
        Ok(Self { when, held })
    }

    /// Measures how often the threads behind `loops` run dry, for as long as the process lives.
    pub async fn watch(mut self, loops: Vec<RuntimeMetrics>, metrics: Metrics) {
        let gauge: Gauge = metrics.gauge(
            "presim_cores_awake",
            "Whether idle cores are kept from sleeping, as requests come fast.",
            &[],
        );
        gauge.set(f64::from(u8::from(self.held.is_some())));
        if self.when != KeepAwake::Load {
            // The file stays open while this future waits.
            return std::future::pending().await;
        }
        let mut pace = Pace::new();
        let mut ticks = tokio::time::interval(MEASURE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let dry = loops.iter().map(|event_loop| event_loop.worker_park_count(0)).sum();
            match (pace.is_fast(dry), &self.held) {
                (true, None) => match hold(CPU_DMA_LATENCY.as_ref()) {
                    Ok(file) => self.held = Some(file),
                    Err(error) => {
                        tracing::info!(%error, "idle cores sleep between two requests, and waking takes time: grant write access to {CPU_DMA_LATENCY} to keep them awake under load");
                        return;
                    }
                },
                (false, Some(_)) => self.held = None,
                _ => continue,
            }
            gauge.set(f64::from(u8::from(self.held.is_some())));
        }
    }
}

/// Keeps the cores awake until the returned file is dropped.
fn hold(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

/// The pace of requests, measured by how often threads ran dry.
#[derive(Debug)]
struct Pace {
    dry: u64,
    /// The number of measurements since the pace was fast.
    slow: u32,
}

impl Pace {
    /// The number of times in [`MEASURE_INTERVAL`] from which on the pace is fast.
    const FAST: u64 = 100;
    /// The number of measurements until the pace counts as slow again.
    const SLOW: u32 = 3;

    const fn new() -> Self {
        Self { dry: 0, slow: Self::SLOW }
    }

    /// Returns whether requests arrive fast. `dry` is how often the threads have run dry since they began.
    fn is_fast(&mut self, dry: u64) -> bool {
        let often = dry - self.dry >= Self::FAST;
        self.dry = dry;
        self.slow = if often { 0 } else { self.slow.saturating_add(1) };
        self.slow < Self::SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fast_at_once_and_slow_after_a_while() {
        let mut pace = Pace::new();
        let counts = [99, 198, 298, 299, 300, 400, 400, 400, 400, 400, 1_000];
        let fast: Vec<bool> = counts.iter().map(|dry| pace.is_fast(*dry)).collect();
        assert_eq!(fast, [false, false, true, true, true, true, true, true, false, false, true]);
    }

    #[test]
    fn what_is_held_says_zero_microseconds() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let held = hold(file.path()).expect("held");
        assert_eq!(std::fs::read(file.path()).expect("read"), 0_i32.to_ne_bytes());
        drop(held);
        assert_eq!(hold(Path::new("/nowhere/at/all")).expect_err("no such file").kind(), io::ErrorKind::NotFound);
    }
}
