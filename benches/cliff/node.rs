//! A node in a process of its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A node that runs until it is dropped.
pub struct Node {
    child: Child,
    /// The address on which the node serves requests.
    pub address: SocketAddr,
    metrics: SocketAddr,
}

impl Node {
    /// Starts a devnet on the genesis of `folder` with further flags, on the cores that the calling thread may use.
    /// Returns once it answers.
    pub fn start(folder: &Path, flags: &[&str]) -> Self {
        let genesis = folder.join("genesis.json");
        let genesis = ["--genesis", genesis.to_str().expect("the path is UTF-8"), "--feed", "devnet"];
        Self::devnet(&[&genesis, flags].concat())
    }

    /// Starts a devnet on its own genesis with these flags.
    pub fn devnet(flags: &[&str]) -> Self {
        let (address, metrics) = (free(), free());
        let mut child = Command::new(env!("CARGO_BIN_EXE_presim"))
            .args(["--log", "error", "--listen", &address.to_string()])
            .args(["--metrics", &metrics.to_string()])
            // Each request runs as a whole in what is measured here.
            .args(["--prefix-cache-mb", "0"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        // The node listens from the start and prints its banner once it answers requests.
        let banner = output.read_line(&mut String::new()).expect("its banner");
        assert!(banner > 0, "the node has ended");
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Self { child, address, metrics }
    }

    /// Suspends the node's process until the returned value is dropped.
    pub fn rest(&self) -> Resting {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("it runs");
        Resting(pid)
    }

    /// Returns the node's resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// Returns a histogram's upper bounds in seconds and cumulative counts, summed over the lines with `label`.
    pub fn histogram(&self, name: &str, label: &str) -> Vec<(f64, u64)> {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for line in self.scrape().lines().filter(|line| line.starts_with(name) && line.contains(label)) {
            let Some((_, rest)) = line.split_once("le=\"") else { continue };
            let Some((bound, count)) = rest.split_once("\"} ") else { continue };
            let (bound, count) = (bound.parse().unwrap_or(f64::INFINITY), count.parse::<u64>().expect("a count"));
            match buckets.iter_mut().find(|bucket| bucket.0 == bound) {
                Some(bucket) => bucket.1 += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics).expect("it serves metrics");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("it is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it is answered");
        text
    }
}

/// A suspended node, which resumes on drop.
pub struct Resting(Pid);

impl Drop for Resting {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("it is stopped");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}
