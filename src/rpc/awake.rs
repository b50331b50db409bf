//! Cores that do not sleep while requests come fast.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    time::Duration,
};

use tokio::{runtime::RuntimeMetrics, time::MissedTickBehavior};

use crate::{
    config::KeepAwake,
    telemetry::{Gauge, Metrics},
};

/// As long as somebody has it open, idle cores take no longer to wake than the microseconds written there. At 0 they poll
/// (<https://docs.kernel.org/power/pm_qos_interface.html>).
pub const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// How often it is looked at how fast requests come.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Keeps the cores awake when [`KeepAwake`] says so.
///
/// A core with nothing to do sleeps, and takes 20 to 50 µs to wake on a virtual machine, where a sleeping core is the host's until then.
/// Many a call takes less, and its client sleeps and wakes as well. While a thousand times a second a thread runs dry, the sleep is not
/// worth it. With fewer requests than that, or none, cores sleep as they like.
#[derive(Debug)]
pub struct Awake {
    when: KeepAwake,
    /// What keeps them awake, when they are.
    held: Option<File>,
}

impl Awake {
    /// Nothing is held yet, unless it is for good.
    ///
    /// # Errors
    /// That the cores are to be awake always, and the system does not let us.
    pub fn new(when: KeepAwake) -> io::Result<Self> {
        let held = match when {
            KeepAwake::Always => Some(hold(CPU_DMA_LATENCY.as_ref())?),
            KeepAwake::Load | KeepAwake::Never => None,
        };
        Ok(Self { when, held })
    }

    /// Watches how often the threads behind `loops` run dry, for as long as the process lives.
    pub async fn watch(mut self, loops: Vec<RuntimeMetrics>, metrics: Metrics) {
        let gauge: Gauge = metrics.gauge(
            "presim_cores_awake",
            "Whether idle cores are kept from sleeping, as requests come fast.",
            &[],
        );
        gauge.set(f64::from(u8::from(self.held.is_some())));
        if self.when != KeepAwake::Load {
            // What is held is held while this waits.
            return std::future::pending().await;
        }
        let mut pace = Pace::new();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let dry = loops.iter().map(|event_loop| event_loop.worker_park_count(0)).sum();
            match (pace.is_fast(dry), &self.held) {
                (true, None) => match hold(CPU_DMA_LATENCY.as_ref()) {
                    Ok(file) => self.held = Some(file),
                    Err(error) => {
                        tracing::info!(%error, "idle cores sleep between two requests, and waking takes time: write access to {CPU_DMA_LATENCY} lets presim keep them awake under load");
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

/// Has the cores awake until what it returns is dropped.
fn hold(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

/// Whether requests come fast, told from how often threads had nothing left to do.
#[derive(Debug)]
struct Pace {
    dry: u64,
    /// Looks since it was fast.
    slow: u32,
}

impl Pace {
    /// Times in [`LOOK_EVERY`].
    const FAST: u64 = 100;
    /// Looks until it counts as slow again.
    const SLOW: u32 = 3;

    const fn new() -> Self {
        Self { dry: 0, slow: Self::SLOW }
    }

    /// `dry`: how often they had nothing left, since they began.
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
