//! Filters that are asked again and again: `eth_newFilter` and its kin, for clients that cannot subscribe.
//!
//! A filter is a place to go on from. What nobody has asked for a while is forgotten, as geth does, and there are only so many.

use std::{
    collections::HashMap,
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
#[derive(Debug)]
pub struct Filters {
    most: usize,
    list: Mutex<HashMap<u64, Arc<Mutex<Installed>>>>,
}

/// A filter that a client has installed.
#[derive(Debug)]
pub struct Installed {
    /// What it is about.
    pub subject: Watched,
    used: Instant,
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
    /// No filters yet; there may be up to `most`.
    pub fn new(most: usize) -> Self {
        Self { most, list: Mutex::default() }
    }

    /// Installs a filter, and returns its id.
    pub fn install(&self, subject: Watched) -> Result<u64, RpcError> {
        let mut list = lock(&self.list);
        if list.len() >= self.most {
            // One that is locked is in use.
            list.retain(|_, one| one.try_lock().map_or(true, |one| one.used.elapsed() < KEPT));
        }
        if list.len() >= self.most {
            return Err(RpcError::limit(format!(
                "{} filters are installed already: uninstall those that are done with, or raise --max-filters",
                self.most
            )));
        }
        // Whoever knows an id may ask and uninstall its filter: so nobody can guess one, as in geth.
        let id = loop {
            let id = rand::random();
            if !list.contains_key(&id) {
                break id;
            }
        };
        list.insert(id, Arc::new(Mutex::new(Installed { subject, used: Instant::now() })));
        Ok(id)
    }

    /// Forgets a filter. False where there is none.
    pub fn uninstall(&self, id: u64) -> bool {
        lock(&self.list).remove(&id).is_some()
    }

    /// Does something with a filter; others wait only where they ask for the same one.
    pub fn with<T>(&self, id: u64, act: impl FnOnce(&mut Watched) -> Result<T, RpcError>) -> Result<T, RpcError> {
        let found = lock(&self.list).get(&id).cloned();
        let missing = || RpcError::new(-32000, format!("params[0]: filter not found: {id:#x} is none, or no longer"));
        let found = found.ok_or_else(missing)?;
        let mut installed = lock(&found);
        if installed.used.elapsed() >= KEPT {
            drop(installed);
            self.uninstall(id);
            return Err(missing());
        }
        installed.used = Instant::now();
        act(&mut installed.subject)
    }
}

/// Whoever panicked while it held a filter left it whole: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
