//! Filters for polling: `eth_newFilter` and its kin, for clients that cannot subscribe.
//!
//! A filter holds a position in the chain. A filter that is not polled for a while is dropped, as in geth, and their
//! number is bounded.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::B256;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::rpc::{
    params::{LogFilter, LogRange},
    protocol::error::{Result, RpcError},
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
    subject: Arc<Mutex<FilterSubject>>,
}

/// The filters of a client.
#[derive(Debug)]
struct ClientFilters {
    /// The client's name; `None` for all clients without one.
    name: Option<Box<str>>,
    /// The filters by the time of the last poll, the longest unpolled first.
    filters: BTreeSet<(Instant, u64)>,
}

/// The subject of a filter, and the position up to which its client knows it.
#[derive(Debug)]
pub enum FilterSubject {
    /// Hashes of sealed blocks.
    Blocks {
        /// The first block that the client does not know.
        next: u64,
    },
    /// Matching logs of sealed blocks.
    Logs {
        /// The conditions on logs.
        filter: Box<LogFilter>,
        /// The range of blocks.
        range: LogRange,
        /// The first block that the client does not know.
        next: u64,
        /// The hashes of earlier blocks whose logs the upstream has not told yet, by number.
        late: BTreeMap<u64, B256>,
    },
    /// Hashes of transactions that enter the pool.
    Pending(broadcast::Receiver<Arc<Recovered<TxEnvelope>>>),
}

impl Filters {
    /// Creates an empty list of up to `most` filters, at least one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), list: Mutex::default() }
    }

    /// Installs a filter for the client of this name, and returns its id.
    pub fn install(&self, client: Option<&str>, subject: FilterSubject) -> u64 {
        // Declared before the lock is taken, so that it is dropped after the lock is released.
        let _evicted;
        let mut list = self.list.lock();
        let owner = list.owner(client);
        if list.installed.len() >= self.most {
            _evicted = list.evict_for(owner);
        }
        // Anybody who knows an id may poll and uninstall its filter, so ids cannot be guessed, as in geth.
        let id = loop {
            let id = rand::random();
            if !list.installed.contains_key(&id) {
                break id;
            }
        };
        let asked = Instant::now();
        list.owners[owner].filters.insert((asked, id));
        list.installed.insert(id, Installed { owner, asked, subject: Arc::new(Mutex::new(subject)) });
        id
    }

    /// Removes a filter. Returns false if there is none.
    pub fn uninstall(&self, id: u64) -> bool {
        let removed = self.list.lock().remove(id);
        removed.is_some()
    }

    /// Applies `act` to a filter. Only requests for the same filter wait for one another.
    ///
    /// # Errors
    ///
    /// Returns -32000 if there is no such filter, or the error of `act`.
    pub fn with<T>(&self, id: u64, act: impl FnOnce(&mut FilterSubject) -> Result<T>) -> Result<T> {
        let subject = self.list.lock().ask(id);
        let subject = subject.ok_or_else(|| {
            RpcError::new(-32000, format!("params[0]: filter not found: {id:#x}: no such filter, or it has expired"))
        })?;
        act(&mut subject.lock())
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

    /// Returns the subject of a filter, and counts as a poll; `None` if there is no such filter, or it has just
    /// expired.
    fn ask(&mut self, id: u64) -> Option<Arc<Mutex<FilterSubject>>> {
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
        Some(installed.subject.clone())
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
            // If several clients have most filters, the newcomer loses one of its own.
            let (_, most) = owners.max_by_key(|(at, owner)| (owner.filters.len(), *at == newcomer))?;
            most.filters.first()
        });
        let &(_, id) = evicted?;
        self.remove(id)
    }
}
