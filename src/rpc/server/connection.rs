//! The open connections: what belongs to one, the bounds on their number, and the choice of one to close for a new one.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;

use crate::lock::Mutex;
use crate::rpc::limits::{
    memory::{IoMemory, MemoryQuota},
    stalls::Progress,
};
use crate::telemetry::{Gauge, Metrics};

/// Bounds on the number of open connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The number of HTTP connections, and of WebSocket connections (`--max-connections`).
    pub most: usize,
    /// The number of connections per address, HTTP and WebSocket together (`--max-connections-per-address`); `None` for
    /// [`ConnectionLimits::PER_FOREIGN_ADDRESS`].
    pub per_address: Option<usize>,
}

impl ConnectionLimits {
    /// The default number of connections per address that is not loopback.
    const PER_FOREIGN_ADDRESS: usize = 128;

    fn of_address(&self, address: IpAddr) -> usize {
        let default = if address.is_loopback() { usize::MAX } else { Self::PER_FOREIGN_ADDRESS };
        self.per_address.unwrap_or(default)
    }
}

/// The open connections.
///
/// At a bound, a connection is closed for the new one, so that silent connections cannot lock others out: one of a peer
/// that is not known yet ([`Progress::is_known`]), else one without a request under way, and of several the one that has been
/// idle longest. A WebSocket connection of a known peer is never closed for another, because clients keep it open on purpose.
/// The table is used when a connection opens, closes or is upgraded, and by no request.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    memory: Arc<IoMemory>,
    table: Mutex<Table>,
    /// The number of connections whose tasks have not ended.
    alive: watch::Sender<usize>,
    /// Turns true when the node stops.
    stopping: watch::Sender<bool>,
    http: Gauge,
    web_socket: Gauge,
}

#[derive(Debug, Default)]
struct Table {
    /// The connections in the order in which they were accepted.
    open: BTreeMap<u64, Open>,
    next: u64,
    web_sockets: usize,
}

#[derive(Debug)]
struct Open {
    progress: Arc<Progress>,
    address: IpAddr,
    is_web_socket: bool,
}

/// An open connection, of either transport. It counts as open until it is dropped.
#[derive(Debug)]
pub struct Connection {
    connections: Arc<Connections>,
    number: u64,
    /// The bytes that the connection makes the node hold.
    pub memory: Arc<MemoryQuota>,
    /// Whether the connection stalls, or is to be closed.
    pub progress: Arc<Progress>,
}

impl Connections {
    /// Creates an empty table. The bytes that connections hold count in `memory`.
    pub fn new(limits: ConnectionLimits, memory: Arc<IoMemory>, metrics: &Metrics) -> Self {
        let gauge = |kind| metrics.gauge_with("presim_connections", "Open connections, by kind.", &[("kind", kind)]);
        let (http, web_socket) = (gauge("http"), gauge("websocket"));
        let (alive, stopping) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { limits, memory, table: Mutex::default(), alive, stopping, http, web_socket }
    }

    /// Adds a connection from `address`, which may stall for `timeout`, and closes an idle one if necessary. Returns `None`
    /// if there is no room.
    pub fn open(self: &Arc<Self>, address: IpAddr, timeout: Duration) -> Option<Arc<Connection>> {
        let address = network(address);
        let mut table = self.table.lock();
        let of_address = table.open.values().filter(|open| open.address == address).count();
        if of_address >= self.limits.of_address(address) && !table.evict(|open| open.address == address) {
            return None;
        }
        if table.open.len() - table.web_sockets >= self.limits.most && !table.evict(|open| !open.is_web_socket) {
            return None;
        }
        let number = table.next;
        table.next += 1;
        let progress = Arc::new(Progress::new(timeout));
        table.open.insert(number, Open { progress: progress.clone(), address, is_web_socket: false });
        self.show(&table);
        self.alive.send_modify(|alive| *alive += 1);
        Some(Arc::new(Connection { connections: self.clone(), number, memory: self.memory.quota(), progress }))
    }

    /// Closes stalled connections, at intervals.
    pub async fn close_stalled(self: Arc<Self>, timeout: Duration) {
        let mut ticks = tokio::time::interval((timeout / 4).max(Duration::from_millis(1)));
        loop {
            ticks.tick().await;
            for open in self.table.lock().open.values() {
                if let Some(problem) = open.progress.problem() {
                    tracing::debug!(address = %open.address, problem, "a connection is closed");
                    open.progress.close();
                }
            }
        }
    }

    /// Has the connections end when their requests under way have been answered.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when no connection's task is left.
    pub async fn all_ended(&self) {
        let _ = self.alive.subscribe().wait_for(|alive| *alive == 0).await;
    }

    fn show(&self, table: &Table) {
        self.http.set((table.open.len() - table.web_sockets) as f64);
        self.web_socket.set(table.web_sockets as f64);
    }
}

impl Table {
    /// Closes a connection for which `may` is true: of a peer that is not known if there is one, else an idle one, and of
    /// several the one that has been idle longest. Returns false if there is none.
    fn evict(&mut self, may: impl Fn(&Open) -> bool) -> bool {
        let goes = |open: &Open| !open.progress.is_known() || (open.progress.is_idle() && !open.is_web_socket);
        let candidates = self.open.iter().filter(|(_, open)| may(open) && goes(open));
        let first = candidates.min_by_key(|(_, open)| (open.progress.is_known(), open.progress.idle_since()));
        let number = first.map(|(number, _)| *number);
        let Some(evicted) = number.and_then(|number| self.open.remove(&number)) else { return false };
        self.web_sockets -= usize::from(evicted.is_web_socket);
        evicted.progress.close();
        true
    }
}

impl Connection {
    /// Returns when the node stops.
    pub async fn stopped(&self) {
        let _ = self.connections.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Counts the connection among the WebSocket connections from now on. At the bound on their number, closes one that has
    /// brought no request. Returns false if there is none.
    pub fn upgrade(&self) -> bool {
        let mut table = self.connections.table.lock();
        let table = &mut *table;
        let has_room = table.web_sockets < self.connections.limits.most || table.evict(|open| open.is_web_socket);
        match table.open.get_mut(&self.number) {
            Some(open) if has_room => {
                table.web_sockets += 1;
                open.is_web_socket = true;
                self.connections.show(table);
                true
            }
            // The connection was just evicted, or there is no room.
            _ => false,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        if table.open.remove(&self.number).is_some_and(|open| open.is_web_socket) {
            table.web_sockets -= 1;
        }
        self.connections.show(&table);
        drop(table);
        self.connections.alive.send_modify(|alive| *alive -= 1);
    }
}

/// Returns the address by which connections are counted: for IPv6 the network of 64 bits that one customer has (RFC
/// 6177).
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}
