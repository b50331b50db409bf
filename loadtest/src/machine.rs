//! The machine of the generator, without which the figures mean little.

use std::fs;

use serde::Serialize;

/// The machine of the generator, as far as the system describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    /// Number of threads that can run at once.
    pub cores: usize,
    pub memory_gib: Option<f64>,
    pub system: String,
}

impl Machine {
    pub fn this() -> Self {
        let line = |file: &str, name: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = line("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: line("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory.map(|kib| kib / f64::from(1 << 20)),
            system: format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned(),
        }
    }
}
