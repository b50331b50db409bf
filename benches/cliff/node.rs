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
    /// Where it listens.
    pub address: SocketAddr,
    metrics: SocketAddr,
}

impl Node {
    /// A devnet on the genesis of `folder`, with these flags besides, on the cores that the calling thread may use. Returns when it
    /// answers.
    pub fn start(folder: &Path, flags: &[&str]) -> Self {
        let genesis = folder.join("genesis.json");
        let genesis = ["--genesis", genesis.to_str().expect("the path is UTF-8"), "--feed", "devnet"];
        Self::devnet(&[&genesis, flags].concat())
    }

    /// A devnet of its own with these flags.
    pub fn devnet(flags: &[&str]) -> Self {
        let (address, metrics) = (free(), free());
        let mut child = Command::new(env!("CARGO_BIN_EXE_presim"))
            .args(["--log", "error", "--listen", &address.to_string()])
            .args(["--metrics", &metrics.to_string()])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        // It has its port from the beginning, and prints its banner when it answers requests.
        let banner = output.read_line(&mut String::new()).expect("its banner");
        assert!(banner > 0, "the node has ended");
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Self { child, address, metrics }
    }

    /// Stops it, as if it were not there, until what is returned is dropped.
    pub fn rest(&self) -> Resting {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("it runs");
        Resting(pid)
    }

    /// Bytes that it has resident.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// The buckets of a histogram: upper bounds in seconds, and how many samples are at most that. Of all labels whose line has `label`.
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

/// A node that is stopped.
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
