//! The open connections: the data of each, the bounds on their number, and the choice of one to close for a new one.

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
    /// The number of HTTP connections, of WebSocket connections, and of connections of the Unix socket
    /// (`--max-connections`).
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
/// At a bound, a connection is closed for the new one, so that silent connections cannot lock others out. The first
/// choice is one of a peer that is not known yet ([`Progress::is_known`]), then one without a request in progress; of
/// several, the one that has been idle longest. A connection of another transport than HTTP, if its peer is known, is
/// never closed for another, because clients keep it open on purpose.
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
    gauges: [Gauge; TRANSPORTS],
}

#[derive(Debug, Default)]
struct Table {
    /// The connections in the order in which they were accepted.
    open: BTreeMap<u64, Open>,
    next: u64,
    /// The number of connections of each transport.
    counts: [usize; TRANSPORTS],
}

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Http,
    WebSocket,
    Ipc,
}

/// The number of transports.
const TRANSPORTS: usize = 3;

#[derive(Debug)]
struct Open {
    progress: Arc<Progress>,
    /// The peer's address; `None` on the Unix socket.
    address: Option<IpAddr>,
    transport: Transport,
}

/// An open connection, of any transport. It counts as open until it is dropped.
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
        let gauges = ["http", "websocket", "ipc"].map(gauge);
        let (alive, stopping) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { limits, memory, table: Mutex::default(), alive, stopping, gauges }
    }

    /// Adds an HTTP connection from `address`, which may stall for `timeout`, and closes an idle one if necessary. Returns `None`
    /// if there is no room.
    pub fn open(self: &Arc<Self>, address: IpAddr, timeout: Duration) -> Option<Arc<Connection>> {
        let address = network(address);
        let mut table = self.table.lock();
        let is_from_there = |open: &Open| open.address == Some(address);
        let of_address = table.open.values().filter(|open| is_from_there(open)).count();
        if of_address >= self.limits.of_address(address) && !table.evict(is_from_there) {
            return None;
        }
        self.add(&mut table, Progress::new(timeout), Some(address), Transport::Http)
    }

    /// Adds a connection of the Unix socket, which may stall for `timeout`, as [`open`](Self::open) does.
    pub fn open_ipc(self: &Arc<Self>, timeout: Duration) -> Option<Arc<Connection>> {
        let progress = Progress::new(timeout);
        // A client of the socket may be silent before its first request, too.
        progress.on_head(false);
        self.add(&mut self.table.lock(), progress, None, Transport::Ipc)
    }

    fn add(
        self: &Arc<Self>,
        table: &mut Table,
        progress: Progress,
        address: Option<IpAddr>,
        transport: Transport,
    ) -> Option<Arc<Connection>> {
        if !table.has_room(transport, self.limits.most) {
            return None;
        }
        let number = table.next;
        table.next += 1;
        let progress = Arc::new(progress);
        table.counts[transport as usize] += 1;
        table.open.insert(number, Open { progress: progress.clone(), address, transport });
        self.show(table);
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
                    tracing::debug!(
                        address = open.address.map(tracing::field::display),
                        problem,
                        "a connection is closed"
                    );
                    open.progress.close();
                }
            }
        }
    }

    /// Ends the connections once their requests in progress have been answered.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when no connection's task is left.
    pub async fn all_ended(&self) {
        let _ = self.alive.subscribe().wait_for(|alive| *alive == 0).await;
    }

    fn show(&self, table: &Table) {
        for (gauge, count) in self.gauges.iter().zip(table.counts) {
            gauge.set(count as f64);
        }
    }
}

impl Table {
    /// Returns whether there is room for one more connection of a transport of which `most` may be open, after closing one
    /// if necessary.
    fn has_room(&mut self, transport: Transport, most: usize) -> bool {
        self.counts[transport as usize] < most || self.evict(|open| open.transport == transport)
    }

    /// Removes a connection.
    fn remove(&mut self, number: u64) -> Option<Open> {
        let removed = self.open.remove(&number)?;
        self.counts[removed.transport as usize] -= 1;
        Some(removed)
    }

    /// Closes a connection for which `may` is true: of a peer that is not known if there is one, else an idle one, and of
    /// several the one that has been idle longest. Returns false if there is none.
    fn evict(&mut self, may: impl Fn(&Open) -> bool) -> bool {
        let goes =
            |open: &Open| !open.progress.is_known() || (open.progress.is_idle() && open.transport == Transport::Http);
        let candidates = self.open.iter().filter(|(_, open)| may(open) && goes(open));
        let first = candidates.min_by_key(|(_, open)| (open.progress.is_known(), open.progress.idle_since()));
        let number = first.map(|(number, _)| *number);
        let Some(evicted) = number.and_then(|number| self.remove(number)) else { return false };
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
        let has_room = table.has_room(Transport::WebSocket, self.connections.limits.most);
        match table.open.get_mut(&self.number) {
            Some(open) if has_room => {
                table.counts[open.transport as usize] -= 1;
                table.counts[Transport::WebSocket as usize] += 1;
                open.transport = Transport::WebSocket;
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
        table.remove(self.number);
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
