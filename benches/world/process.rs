//! A node in a process of its own, so that its CPU time and memory are not the bench's.

#![allow(dead_code, reason = "each bench uses its part of it")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// The histogram of the time from taking a sub-block to its snapshot being published.
pub const PUBLISHING: &str = "presim_publish_seconds";

/// The node's process, which is ended when dropped.
pub struct NodeProcess {
    child: Child,
    /// The address at which the node listens.
    pub listen: SocketAddr,
    metrics: SocketAddr,
}

impl NodeProcess {
    /// Starts a node with these flags, on the cores that the calling thread may use. Returns once it answers.
    pub fn start(flags: &[&str]) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_presim")), flags)
    }

    /// As [`Self::start`], with another program than the one that cargo has compiled with this bench.
    pub fn of(program: &Path, flags: &[&str]) -> Self {
        let (listen, metrics) = (free_address(), free_address());
        let mut child = Command::new(program)
            .args(["--log", "warn", "--listen", &listen.to_string(), "--metrics", &metrics.to_string()])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        // The node listens from the start and prints its banner once it answers requests.
        let banner = output.read_line(&mut String::new()).expect("its banner");
        assert!(banner > 0, "the node has ended");
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Self { child, listen, metrics }
    }

    /// Suspends the node's process until the returned value is dropped.
    pub fn rest(&self) -> Resting {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("it runs");
        Resting(pid)
    }

    /// Returns the CPU time that the process has used.
    pub fn cpu(&self) -> Duration {
        cpu_of(&self.child)
    }

    /// Returns the resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Returns the seconds that publishing has taken so far, and the number of snapshots.
    pub fn publishing(&self) -> (f64, f64) {
        let text = get(self.metrics, "/metrics");
        let value = |suffix: &str| {
            let name = format!("{PUBLISHING}_{suffix} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).expect("it is shown")
        };
        (value("sum"), value("count"))
    }

    /// Returns a histogram, summed over its labels.
    pub fn histogram(&self, name: &str) -> Histogram {
        let (text, name) = (get(self.metrics, "/metrics"), format!("{name}_bucket{{"));
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for line in text.lines().filter(|line| line.starts_with(&name)) {
            let Some((_, rest)) = line.split_once("le=\"") else { continue };
            let Some((bound, count)) = rest.split_once("\"} ") else { continue };
            let (bound, count) = (bound.parse().unwrap_or(f64::INFINITY), count.parse::<f64>().expect("a count"));
            match buckets.iter_mut().find(|bucket| bucket.0 == bound) {
                Some(bucket) => bucket.1 += count,
                None => buckets.push((bound, count)),
            }
        }
        Histogram(buckets)
    }
}

/// A cumulative histogram: upper bounds in seconds, and the number of samples at or below each.
#[derive(Clone, Default)]
pub struct Histogram(Vec<(f64, f64)>);

impl Histogram {
    /// Adds the samples between two moments.
    pub fn add(&mut self, after: &Self, before: &Self) {
        if self.0.is_empty() {
            self.0 = after.0.iter().map(|(bound, _)| (*bound, 0.0)).collect();
        }
        let before = |at: usize| before.0.get(at).map_or(0.0, |(_, count)| *count);
        for (at, (sum, (_, count))) in self.0.iter_mut().zip(&after.0).enumerate() {
            sum.1 += count - before(at);
        }
    }

    /// Returns the number of samples.
    pub fn total(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Returns a percentile in seconds, interpolated within its bucket as Prometheus does.
    pub fn percentile(&self, part: f64) -> f64 {
        let rank = self.total() * part;
        let (mut low, mut under) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank {
                return low + (bound.min(f64::MAX) - low) * (rank - under) / (count - under).max(1.0);
            }
            (low, under) = (bound, count);
        }
        low
    }
}

/// Returns the CPU time that a process has used.
pub fn cpu_of(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Returns the address of a port that no program has.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port")
}

/// Returns the answer to a GET request, with its head.
pub fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it connects");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// A suspended node, which resumes on drop.
pub struct Resting(Pid);

impl Drop for Resting {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("it is stopped");
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
