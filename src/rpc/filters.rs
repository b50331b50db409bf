//! Filters that are asked again and again: `eth_newFilter` and its kin, for clients that cannot subscribe.
//!
//! A filter is a place to go on from. One that has not been asked for a while is forgotten, as geth does, and there are only so many.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use tokio::sync::broadcast;

use super::{
    error::RpcError,
    wire::{LogFilter, LogRange},
};

/// How long a filter is kept that nobody asks: geth's.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// The filters of a node.
///
/// Where there are as many as there may be, a new one takes the place of another: of one that nobody has asked for [`KEPT`], else of the
/// one that has gone unasked for longest among those of the client that has most. So no client keeps another from having filters, and
/// finding the one to evict takes a look at each client, not at each filter.
#[derive(Debug)]
pub struct Filters {
    most: usize,
    list: Mutex<FilterList>,
}

#[derive(Debug, Default)]
struct FilterList {
    installed: HashMap<u64, Installed>,
    /// The clients that have installed filters: one for each name, and one for all without a name.
    owners: Vec<Owner>,
}

/// A filter that a client has installed.
#[derive(Debug)]
struct Installed {
    /// Its client's position in [`FilterList::owners`].
    owner: usize,
    /// When it was installed or last asked.
    asked: Instant,
    subject: Arc<Mutex<Watched>>,
}

/// A client that has installed filters.
#[derive(Debug)]
struct Owner {
    /// The client's name; `None` for all clients that have none.
    name: Option<Box<str>>,
    /// When each of its filters was last asked, and which one it is: the longest unasked first.
    filters: BTreeSet<(Instant, u64)>,
}

/// What a filter is about, and how far its client knows it.
#[derive(Debug)]
pub enum Watched {
    /// The hashes of sealed blocks.
    Blocks {
        /// The first that its client does not know.
        next: u64,
    },
    /// The logs that pass, of sealed blocks.
    Logs {
        /// Which logs.
        filter: Box<LogFilter>,
        /// Which blocks.
        range: LogRange,
        /// The first block that its client does not know.
        next: u64,
    },
    /// The hashes of transactions that enter the pool.
    Pending(broadcast::Receiver<Arc<Recovered<TxEnvelope>>>),
}

impl Filters {
    /// No filters yet; there may be up to `most`, and always one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), list: Mutex::default() }
    }

    /// Installs a filter for the client of this name, and returns its id.
    pub fn install(&self, client: Option<&str>, subject: Watched) -> u64 {
        // Declared before the lock is taken, so that it is dropped after the lock is released.
        let _evicted;
        let mut list = lock(&self.list);
        let owner = list.owner(client);
        if list.installed.len() >= self.most {
            _evicted = list.evict_for(owner);
        }
        // Whoever knows an id may ask and uninstall its filter: so nobody can guess one, as in geth.
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

    /// Forgets a filter. False where there is none.
    pub fn uninstall(&self, id: u64) -> bool {
        let removed = lock(&self.list).remove(id);
        removed.is_some()
    }

    /// Does something with a filter; others wait only where they ask for the same one.
    pub fn with<T>(&self, id: u64, act: impl FnOnce(&mut Watched) -> Result<T, RpcError>) -> Result<T, RpcError> {
        let subject = lock(&self.list).ask(id);
        let subject = subject.ok_or_else(|| {
            RpcError::new(-32000, format!("params[0]: filter not found: {id:#x} is none, or no longer"))
        })?;
        act(&mut lock(&subject))
    }
}

impl FilterList {
    /// Returns the position of the client of this name.
    fn owner(&mut self, name: Option<&str>) -> usize {
        let known = self.owners.iter().position(|owner| owner.name.as_deref() == name);
        known.unwrap_or_else(|| {
            self.owners.push(Owner { name: name.map(Box::from), filters: BTreeSet::new() });
            self.owners.len() - 1
        })
    }

    /// Returns what a filter is about, which now counts as asked; `None` where there is no such filter, or it has just been forgotten.
    fn ask(&mut self, id: u64) -> Option<Arc<Mutex<Watched>>> {
        let installed = self.installed.get_mut(&id)?;
        if installed.asked.elapsed() >= KEPT {
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

    /// Forgets one filter, so that the client at position `newcomer` can install another.
    fn evict_for(&mut self, newcomer: usize) -> Option<Installed> {
        let oldest = self.owners.iter().filter_map(|owner| owner.filters.first()).min();
        let expired = oldest.filter(|(asked, _)| asked.elapsed() >= KEPT);
        let evicted = expired.or_else(|| {
            let owners = self.owners.iter().enumerate();
            // Of those that have as many as any other, the newcomer loses its own.
            let (_, most) = owners.max_by_key(|(at, owner)| (owner.filters.len(), *at == newcomer))?;
            most.filters.first()
        });
        let &(_, id) = evicted?;
        self.remove(id)
    }
}

/// Whoever panicked while it held a filter left it whole: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
