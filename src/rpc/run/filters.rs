//! Filters for polling: `eth_newFilter` and similar methods, for clients that cannot subscribe.
//!
//! A filter has a position: the state known to its client. A poll copies the position, finds the news since without
//! holding a lock, and moves the position once the bytes of its answer are granted, if it is still the copied one. So
//! an answer that is rejected loses nothing, and two concurrent polls never report the same thing twice.
//!
//! A filter that is not polled for a while is dropped, as in geth, and their number is bounded.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::BlockNumHash;
use alloy_primitives::B256;
use arc_swap::ArcSwap;
use tokio::sync::broadcast::{self, error::TryRecvError};

use crate::{
    lock::Mutex,
    pool::BROADCAST_CAPACITY,
    rpc::{
        params::{LogFilter, LogRange},
        protocol::error::{Result, RpcError},
    },
};

/// The time after which a filter that is not polled is dropped, as in geth.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The filters of a node.
///
/// At the bound, a new filter evicts one that was not polled for [`IDLE_TIMEOUT`], else the longest unpolled one of the client
/// that has most filters. So no client can keep another from having filters, and choosing the filter to evict takes one
/// look per client, not per filter.
#[derive(Debug)]
pub struct Filters {
    most: usize,
    list: Mutex<FilterList>,
}

#[derive(Debug, Default)]
struct FilterList {
    installed: HashMap<u64, Installed>,
    /// The filters of each client: one entry for each name, and one for all clients without a name.
    owners: Vec<ClientFilters>,
}

/// A filter of a client.
#[derive(Debug)]
struct Installed {
    /// The client's index in [`FilterList::owners`].
    owner: usize,
    /// The time of the installation or of the last poll.
    asked: Instant,
    filter: Arc<Filter>,
}

/// The filters of a client.
#[derive(Debug)]
struct ClientFilters {
    /// The client's name; `None` for all clients without one.
    name: Option<Box<str>>,
    /// The filters by the time of the last poll, the longest unpolled first.
    filters: BTreeSet<(Instant, u64)>,
}

/// A filter: its subject, and the position up to which its client knows it.
#[derive(Debug)]
pub enum Filter {
    /// Hashes of sealed blocks. The position is the newest block that the client knows.
    Blocks(Position<BlockNumHash>),
    /// Matching logs of sealed blocks.
    Logs {
        /// The conditions on logs.
        filter: Box<LogFilter>,
        /// The range of blocks.
        range: LogRange,
        /// The blocks whose logs the client knows.
        position: Position<KnownLogs>,
    },
    /// Hashes of transactions that enter the pool.
    Pending(PendingHashes),
}

/// A position that polls move.
#[derive(Clone, Debug)]
pub struct Position<P>(Arc<ArcSwap<P>>);

/// The move of a filter's position.
pub struct Move(Box<dyn FnOnce() -> bool + Send>);

/// The blocks whose logs the client of a filter knows.
#[derive(Clone, Debug)]
pub struct KnownLogs {
    /// The newest of them.
    pub newest: BlockNumHash,
    /// The hashes of earlier blocks whose logs the upstream has not reported yet, by number.
    pub late: BTreeMap<u64, B256>,
}

/// The hashes of transactions that have entered the pool since a filter was installed. Each has a sequence number, and the
/// position is the number of the first one that the client does not know.
#[derive(Debug)]
pub struct PendingHashes {
    queue: Mutex<HashQueue>,
    position: Position<u64>,
}

/// The hashes that were received and that a client may not know.
#[derive(Debug)]
struct HashQueue {
    received: broadcast::Receiver<Arc<Recovered<TxEnvelope>>>,
    hashes: VecDeque<B256>,
    /// The sequence number of the first hash.
    first: u64,
}

impl<P: Send + Sync + 'static> Position<P> {
    /// Creates a position.
    pub fn new(first: P) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(first)))
    }

    /// Returns the position now.
    pub fn get(&self) -> Arc<P> {
        self.0.load_full()
    }

    /// Returns the move from a position that was read before to another one.
    pub fn moved(&self, from: Arc<P>, to: P) -> Move {
        let position = self.0.clone();
        Move(Box::new(move || Arc::ptr_eq(&position.compare_and_swap(&from, Arc::new(to)), &from)))
    }
}

impl Move {
    /// Moves the position. Returns false if another poll has moved it since it was read.
    #[must_use]
    pub fn store(self) -> bool {
        (self.0)()
    }
}

impl std::fmt::Debug for Move {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Move")
    }
}

impl KnownLogs {
    /// Returns the position of a client that knows all logs up to `newest`.
    pub const fn up_to(newest: BlockNumHash) -> Self {
        Self { newest, late: BTreeMap::new() }
    }
}

impl PendingHashes {
    /// Begins with the next transaction that is received.
    pub fn new(received: broadcast::Receiver<Arc<Recovered<TxEnvelope>>>) -> Self {
        let queue = HashQueue { received, hashes: VecDeque::new(), first: 0 };
        Self { queue: Mutex::new(queue), position: Position::new(0) }
    }

    /// Returns up to `most` hashes that the client does not know, and the move beyond them.
    pub fn next(&self, most: usize) -> (Vec<B256>, Move) {
        let from = self.position.get();
        let mut queue = self.queue.lock();
        queue.receive();
        let known = usize::try_from(from.saturating_sub(queue.first)).unwrap_or(usize::MAX).min(queue.hashes.len());
        queue.drop_first(known);
        let fresh: Vec<B256> = queue.hashes.iter().take(most).copied().collect();
        let to = queue.first + fresh.len() as u64;
        drop(queue);
        (fresh, self.position.moved(from, to))
    }
}

impl HashQueue {
    /// Receives arrived hashes. At the bound, which is the channel's, the oldest hashes are dropped.
    fn receive(&mut self) {
        loop {
            match self.received.try_recv() {
                Ok(tx) => self.hashes.push_back(*tx.tx_hash()),
                // The channel has dropped the oldest transactions. The remaining ones follow.
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.drop_first(self.hashes.len().saturating_sub(BROADCAST_CAPACITY));
    }

    fn drop_first(&mut self, count: usize) {
        self.hashes.drain(..count);
        self.first += count as u64;
    }
}

impl Filters {
    /// Creates an empty list of up to `most` filters, at least one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), list: Mutex::default() }
    }

    /// Installs a filter for the client of this name, and returns its id.
    pub fn install(&self, client: Option<&str>, filter: Filter) -> u64 {
        // Declared before the lock is taken, so that it is dropped after the lock is released.
        let _evicted;
        let mut list = self.list.lock();
        let owner = list.owner(client);
        if list.installed.len() >= self.most {
            _evicted = list.evict_for(owner);
        }
        // Any client that knows an id may poll and uninstall its filter, so ids cannot be guessed, as in geth.
        let id = loop {
            let id = rand::random();
            if !list.installed.contains_key(&id) {
                break id;
            }
        };
        let asked = Instant::now();
        list.owners[owner].filters.insert((asked, id));
        list.installed.insert(id, Installed { owner, asked, filter: Arc::new(filter) });
        id
    }

    /// Removes a filter. Returns false if there is none.
    pub fn uninstall(&self, id: u64) -> bool {
        let removed = self.list.lock().remove(id);
        removed.is_some()
    }

    /// Returns a filter, and counts as a poll.
    ///
    /// # Errors
    ///
    /// Returns -32000 if there is no such filter, or it has just expired.
    pub fn ask(&self, id: u64) -> Result<Arc<Filter>> {
        let filter = self.list.lock().ask(id);
        filter.ok_or_else(|| {
            RpcError::new(-32000, format!("params[0]: filter not found: {id:#x}: no such filter, or it has expired"))
        })
    }
}

impl FilterList {
    /// Returns the position of the client of this name.
    fn owner(&mut self, name: Option<&str>) -> usize {
        let known = self.owners.iter().position(|owner| owner.name.as_deref() == name);
        known.unwrap_or_else(|| {
            self.owners.push(ClientFilters { name: name.map(Box::from), filters: BTreeSet::new() });
            self.owners.len() - 1
        })
    }

    /// Returns a filter, and counts as a poll; `None` if there is no such filter, or it has just expired.
    fn ask(&mut self, id: u64) -> Option<Arc<Filter>> {
        let installed = self.installed.get_mut(&id)?;
        if installed.asked.elapsed() >= IDLE_TIMEOUT {
            self.remove(id);
            return None;
        }
        let (before, now) = (installed.asked, Instant::now());
        installed.asked = now;
        let filters = &mut self.owners[installed.owner].filters;
        filters.remove(&(before, id));
        filters.insert((now, id));
        Some(installed.filter.clone())
    }

    fn remove(&mut self, id: u64) -> Option<Installed> {
        let removed = self.installed.remove(&id)?;
        self.owners[removed.owner].filters.remove(&(removed.asked, id));
        Some(removed)
    }

    /// Evicts one filter, so that the client at index `newcomer` can install another.
    fn evict_for(&mut self, newcomer: usize) -> Option<Installed> {
        let oldest = self.owners.iter().filter_map(|owner| owner.filters.first()).min();
        let expired = oldest.filter(|(asked, _)| asked.elapsed() >= IDLE_TIMEOUT);
        let evicted = expired.or_else(|| {
            let owners = self.owners.iter().enumerate();
            // If several clients have the most filters, the newcomer loses one of its own.
            let (_, most) = owners.max_by_key(|(at, owner)| (owner.filters.len(), *at == newcomer))?;
            most.filters.first()
        });
        let &(_, id) = evicted?;
        self.remove(id)
    }
}
