//! Usage of processors and memory by the machine, the generator and the node during a run (proc(5)).

use std::{fs, net::IpAddr, path::Path, time::Instant};

use serde::Serialize;

/// Clock ticks per second of the times in `/proc`: every Linux has 100 (`USER_HZ`).
const TICKS: f64 = 100.0;
/// Bytes of a page in `/proc/PID/statm` on the platforms that the load test runs on.
const PAGE: u64 = 4096;

/// The process of a node on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeProcess(u32);

impl NodeProcess {
    /// Returns the process with this id, if it may be observed.
    pub fn by_id(id: u32) -> Option<Self> {
        processor_seconds(&id.to_string()).map(|_| Self(id))
    }

    /// Returns the process that listens on a port of a host that is loopback. `None` if there is none, or if it is another
    /// user's, whose open files may not be seen.
    pub fn listening_on(host: &str, port: u16) -> Option<Self> {
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let sockets = if is_here { listeners(port) } else { Vec::new() };
        if sockets.is_empty() {
            return None;
        }
        let ids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.map(Self).find(|process| process.holds(&sockets))
    }

    /// Returns the process that listens on a Unix socket. `None` if there is none.
    pub async fn listening_at(path: &str) -> Option<Self> {
        let stream = tokio::net::UnixStream::connect(path).await.ok()?;
        Some(Self(stream.peer_cred().ok()?.pid()?.try_into().ok()?))
    }

    fn holds(self, sockets: &[String]) -> bool {
        let Ok(files) = fs::read_dir(format!("/proc/{}/fd", self.0)) else { return false };
        files.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).any(|link| is_one_of(&link, sockets))
    }

    /// Returns the bytes of the process that are in memory.
    fn resident_bytes(self) -> Option<u64> {
        let sizes = fs::read_to_string(format!("/proc/{}/statm", self.0)).ok()?;
        Some(sizes.split(' ').nth(1)?.parse::<u64>().ok()? * PAGE)
    }
}

fn is_one_of(link: &Path, sockets: &[String]) -> bool {
    link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link))
}

/// Returns the sockets that listen on a port, as the links of open files show them.
fn listeners(port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    rows.filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let listens = u16::from_str_radix(local_port, 16) == Ok(port) && *fields.get(3)? == LISTEN;
        listens.then(|| Some(format!("socket:[{}]", fields.get(9)?))).flatten()
    })
    .collect()
}

/// Processor time since the start of the machine or of a process, in seconds. `None` where the system does not say.
#[derive(Clone, Copy, Debug)]
pub struct UsageSample {
    at: Instant,
    machine: Option<(f64, f64)>,
    generator: Option<f64>,
    node: Option<f64>,
}

impl UsageSample {
    pub fn now(node: Option<NodeProcess>) -> Self {
        Self {
            at: Instant::now(),
            machine: machine_seconds(),
            generator: processor_seconds("self"),
            node: node.and_then(|node| processor_seconds(&node.0.to_string())),
        }
    }
}

/// Seconds of processor time that were used in some time. `None` where the system does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub seconds: f64,
    /// Of all processes, this one and the node included.
    pub machine: Option<f64>,
    /// Time that a virtual machine was ready to run in, and its host did not let it.
    pub stolen: Option<f64>,
    pub generator: Option<f64>,
    pub node: Option<f64>,
    /// The most bytes of the node that were in memory.
    pub node_bytes: Option<u64>,
}

/// Usage in cores, as the report shows it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UsageCores {
    /// Cores that all processes of the machine used.
    pub machine: Option<f64>,
    /// Cores that the machine's host kept for others.
    pub stolen: Option<f64>,
    pub generator: Option<f64>,
    pub node: Option<f64>,
    /// Cores that processes other than the generator and the node used; `None` if the node's are unknown.
    pub others: Option<f64>,
    /// The most bytes of the node that were in memory.
    pub node_bytes: Option<u64>,
}

/// Measures usage from its creation on.
#[derive(Debug)]
pub struct UsageMeter {
    process: Option<NodeProcess>,
    began: UsageSample,
    node_bytes: Option<u64>,
}

impl UsageMeter {
    pub fn start(process: Option<NodeProcess>) -> Self {
        let mut meter = Self { process, began: UsageSample::now(process), node_bytes: None };
        meter.look();
        meter
    }

    /// Looks at the node's memory. To be called now and then.
    pub fn look(&mut self) {
        self.node_bytes = self.node_bytes.max(self.process.and_then(NodeProcess::resident_bytes));
    }

    pub fn end(mut self) -> Usage {
        self.look();
        let (began, now) = (self.began, UsageSample::now(self.process));
        let since = |before: Option<f64>, after: Option<f64>| Some((after? - before?).max(0.0));
        Usage {
            seconds: (now.at - began.at).as_secs_f64(),
            machine: since(began.machine.map(|(busy, _)| busy), now.machine.map(|(busy, _)| busy)),
            stolen: since(began.machine.map(|(_, stolen)| stolen), now.machine.map(|(_, stolen)| stolen)),
            generator: since(began.generator, now.generator),
            node: since(began.node, now.node),
            node_bytes: self.node_bytes,
        }
    }
}

impl Usage {
    /// Returns the sum of several, in which what one does not know is not known.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let add = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        all.into_iter().copied().reduce(|a, b| Self {
            seconds: a.seconds + b.seconds,
            machine: add(a.machine, b.machine),
            stolen: add(a.stolen, b.stolen),
            generator: add(a.generator, b.generator),
            node: add(a.node, b.node),
            node_bytes: a.node_bytes.max(b.node_bytes),
        })
    }

    /// Returns the same in cores.
    pub fn cores(&self) -> UsageCores {
        let cores = |seconds: Option<f64>| seconds.filter(|_| self.seconds > 0.0).map(|used| used / self.seconds);
        let (machine, generator, node) = (cores(self.machine), cores(self.generator), cores(self.node));
        let others = |machine: f64| Some((machine - generator? - node?).max(0.0));
        UsageCores {
            machine,
            stolen: cores(self.stolen),
            generator,
            node,
            others: machine.and_then(others),
            node_bytes: self.node_bytes,
        }
    }
}

/// Returns the time that all cores were busy, and the time that was stolen from them, since the machine's start.
fn machine_seconds() -> Option<(f64, f64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; a guest's time is in user and nice.
    let first = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = first.split_whitespace().filter_map(|ticks| ticks.parse().ok()).collect();
    let [user, nice, system, _, _, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some(((user + nice + system + irq + softirq) / TICKS, steal / TICKS))
}

/// Returns the processor time that a process has used, in seconds.
fn processor_seconds(process: &str) -> Option<f64> {
    // Clock ticks of user and system time, the 14th and 15th field. The name before them may contain spaces.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: f64 = fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?;
    Some(ticks / TICKS)
}
