//! A node in a process of its own, so that its CPU time and memory are not the bench's.

#![allow(dead_code, reason = "each bench uses its part of it")]

use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use presim::{
    Config, Node,
    testing::{node::configure_memory, telemetry::PUBLISH_SECONDS},
};

/// The argument that makes this program a node. The node's own follow.
const NODE: &str = "--node";

/// Runs a node until its input ends, and returns true, if this process is to be one.
pub fn is_node() -> bool {
    let mut args = env::args_os().skip(1);
    if args.next().is_none_or(|first| first != NODE) {
        return false;
    }
    configure_memory();
    let flags = ["presim", "--listen", "127.0.0.1:0", "--log", "warn"].map(OsString::from);
    let config = Config::load(flags.into_iter().chain(args)).expect("the flags are right");
    let node = Node::start(config).expect("it starts");
    println!("{}", node.info().listen);
    std::io::stdout().flush().expect("a pipe");
    let _ = std::io::stdin().read_line(&mut String::new());
    true
}

/// The node's process, which is ended when dropped.
pub struct NodeProcess {
    child: Child,
    /// The address at which the node listens.
    pub listen: String,
}

impl NodeProcess {
    /// Starts a node with these flags.
    pub fn start(flags: &[&str]) -> Self {
        let program = env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg(NODE)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut listen = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut listen).expect("it says where it listens");
        Self { child, listen: listen.trim().to_owned() }
    }

    /// Returns the CPU time that the process has used.
    pub fn cpu(&self) -> Duration {
        cpu_of(&self.child)
    }

    /// Returns the resident memory in MiB.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
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
pub fn free_address() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    free.expect("a free port").to_string()
}

/// Returns the answer to a GET request, with its head.
pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it connects");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// Returns the seconds that publishing has taken so far, and the number of snapshots, by the metrics at an address.
pub fn publishing(metrics: &str) -> (f64, f64) {
    let text = get(metrics, "/metrics");
    let value = |suffix: &str| {
        let name = format!("{PUBLISH_SECONDS}_{suffix} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).expect("it is shown")
    };
    (value("sum"), value("count"))
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
