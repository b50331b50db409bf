//! The subscriptions of connections, and the delivery of notifications to them.
//!
//! Delivery never waits for a connection: bytes that a connection has not taken are counted, and a connection beyond its bound loses its
//! subscriptions and is closed with the reason.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::{
    U256,
    map::{AddressSet, HashSet},
};
use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::subscriber::{Notification, Subscriber};
use crate::rpc::{
    limits::memory::IoMemory,
    params::LogFilter,
    protocol::{
        dialect::Dialect,
        error::{Result, RpcError},
    },
};
use crate::{
    ledger::SnapshotId,
    lock::{Mutex, MutexGuard},
    telemetry::{Counter, Gauge, Metrics},
    watch::WatchId,
};

/// All subscriptions of a node.
pub struct Subscriptions {
    list: Mutex<Vec<Subscription>>,
    /// The most subscriptions of one connection.
    most: usize,
    /// The memory in which notifications count until they are sent.
    memory: Arc<IoMemory>,
    open: Gauge,
    /// Counts connections closed because they did not take their notifications.
    pub dropped: Counter,
    /// Wakes tasks that wait for a subscription to begin or to end.
    pub moved: Notify,
}

impl std::fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriptions").field("open", &self.list().len()).finish_non_exhaustive()
    }
}

/// The subject of a subscription, which determines the notifications that it sends.
#[derive(Clone, Debug)]
pub enum Subject {
    /// The header of each sealed block.
    NewHeads,
    /// The logs of sealed blocks that match the filter.
    Logs(LogFilter),
    /// Each transaction that enters the pool.
    NewPendingTransactions {
        /// Whether the transaction is sent in full instead of as its hash.
        full: bool,
    },
    /// The begin and the end of a synchronisation. presim never synchronises, because the published state is complete,
    /// so nothing is sent.
    Syncing,
    /// The block being built, in full, after each sub-block.
    NewFlashblocks,
    /// Each pre-confirmed transaction.
    NewFlashblockTransactions(Shown),
    /// The logs of pre-confirmed transactions that match the filter.
    PendingLogs(LogFilter),
    /// Each snapshot: its position, its new transactions, and the accounts that it touches.
    Snapshots,
    /// The changes of the state with each snapshot.
    StateChanges(ChangeFilter),
    /// The state of the feed: at once, and on each change.
    Feed,
    /// The answers of standing bundles.
    Watch(WatchId),
}

/// The changes of the state that a client asks for.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    /// The accounts. All, if it names none.
    pub addresses: AddressSet,
    /// The slots whose changes are sent. If empty, changes of all slots and of the accounts are sent.
    pub slots: HashSet<U256>,
    /// The snapshot from which the first notification reports the changes.
    pub from: Option<SnapshotId>,
}

/// The form in which a pre-confirmed transaction is shown.
#[derive(Clone, Debug)]
pub enum Shown {
    /// The hash of a transaction.
    Hash,
    /// The full transaction, with the fields of its receipt.
    Full,
    /// The full transaction, only if one of its logs matches the filter.
    Matching(Box<LogFilter>),
}

/// One subscription.
pub struct Subscription {
    pub id: u64,
    pub subject: Subject,
    pub dialect: &'static Dialect,
    pub subscriber: Arc<Subscriber>,
    /// The notification up to its result.
    pub prefix: Bytes,
    /// Whether the answer with its id was passed to the writer. Nothing is sent before.
    pub has_begun: bool,
}

/// The subscriptions that one message requests. They begin when its answer is on its way, so that no notification
/// overtakes the answer with its id.
#[derive(Debug)]
pub struct PendingSubscriptions {
    subscriptions: Arc<Subscriptions>,
    subscriber: Arc<Subscriber>,
    dialect: &'static Dialect,
    /// The ids that were promised but have not begun.
    ids: Mutex<Vec<u64>>,
    /// The message's permit to be in progress.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Subscriptions {
    /// Creates an empty list. A connection may have up to `most` subscriptions.
    pub fn new(most: usize, memory: Arc<IoMemory>, metrics: &Metrics) -> Self {
        Self {
            list: Mutex::default(),
            most,
            memory,
            open: metrics.gauge("presim_subscriptions", "Open subscriptions."),
            dropped: metrics.counter(
                "presim_subscribers_dropped_total",
                "Connections closed because their peer read notifications too slowly.",
            ),
            moved: Notify::new(),
        }
    }

    /// Ends a connection's subscriptions, including any that requests in progress still ask for.
    pub fn forget(&self, subscriber: &Subscriber) {
        self.change(|list| {
            subscriber.end();
            list.retain(|one| one.subscriber.id() != subscriber.id());
        });
    }

    fn unsubscribe(&self, id: u64, subscriber: &Subscriber) -> bool {
        self.change(|list| {
            let found = list.iter().position(|one| one.id == id && one.subscriber.id() == subscriber.id());
            found.map(|index| list.swap_remove(index)).is_some()
        })
    }

    /// Returns the subscription by which a connection receives the news of standing bundles.
    pub fn watcher(&self, watch: WatchId) -> Option<u64> {
        self.list().iter().find(|one| one.is_about(watch)).map(|one| one.id)
    }

    /// Passes news of standing bundles to the connection with this subscription, once the answer that names them is on
    /// its way. Returns whether there is one.
    pub async fn notify_watcher(&self, subscription: u64, news: &Bytes) -> bool {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            let full = {
                let list = self.list();
                let Some(one) = list.iter().find(|one| one.id == subscription) else { return false };
                if !one.has_begun {
                    None
                } else if one.subscriber.notify(Notification { prefix: one.prefix.clone(), result: news.clone() }) {
                    return true;
                } else {
                    Some(one.subscriber.id())
                }
            };
            match full {
                None => moved.await,
                Some(full) => {
                    self.dropped.increment(1);
                    self.change(|list| list.retain(|one| one.subscriber.id() != full));
                    return false;
                }
            }
        }
    }

    /// Ends the notifications of standing bundles.
    pub fn end_watch(&self, watch: WatchId) {
        self.change(|list| list.retain(|one| !one.is_about(watch)));
    }

    /// Returns the memory in which notifications count until they are sent.
    pub const fn memory(&self) -> &Arc<IoMemory> {
        &self.memory
    }

    /// Changes the list of subscriptions, and wakes tasks that wait for a change.
    pub fn change<T>(&self, change: impl FnOnce(&mut Vec<Subscription>) -> T) -> T {
        let mut list = self.list();
        let changed = change(&mut list);
        self.open.set(list.len() as f64);
        drop(list);
        self.moved.notify_waiters();
        changed
    }

    /// Locks the list.
    pub fn list(&self) -> MutexGuard<'_, Vec<Subscription>> {
        self.list.lock()
    }
}

impl PendingSubscriptions {
    /// Creates the subscriptions of a message of `subscriber`.
    pub fn new(
        subscriptions: Arc<Subscriptions>,
        subscriber: Arc<Subscriber>,
        dialect: &'static Dialect,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { subscriptions, subscriber, dialect, ids: Mutex::default(), permit: Mutex::new(permit) }
    }

    /// Releases the message's permit to be in progress, because it waits for something with its own bound.
    pub fn release(&self) -> Option<OwnedSemaphorePermit> {
        self.permit.lock().take()
    }

    /// Subscribes the connection to standing bundles, in place of another one.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the connection has too many subscriptions.
    pub fn watch(&self, watch: WatchId) -> Result<()> {
        self.subscriptions.end_watch(watch);
        self.start(Subject::Watch(watch)).map(drop)
    }

    /// Returns whether the connection receives the news of these standing bundles.
    pub fn is_told_of(&self, watch: WatchId) -> bool {
        let is_here = |one: &Subscription| one.subscriber.id() == self.subscriber.id();
        self.subscriptions.list().iter().any(|one| one.is_about(watch) && is_here(one))
    }

    /// Returns all subscriptions of the node.
    pub const fn subscriptions(&self) -> &Arc<Subscriptions> {
        &self.subscriptions
    }

    /// Ends a subscription of the connection. Returns whether there was one with this id.
    pub fn unsubscribe(&self, id: u64) -> bool {
        self.subscriptions.unsubscribe(id, self.subscriber.as_ref())
    }

    /// Promises a subscription, and returns its id.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the connection has too many subscriptions, and -32000 if it is being closed.
    pub fn start(&self, subject: Subject) -> Result<u64> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let most = self.subscriptions.most;
        let connection = self.subscriber.id();
        let id = self.subscriptions.change(|list| {
            if self.subscriber.has_ended() {
                return Err(RpcError::new(-32000, "the connection is being closed"));
            }
            // Subscriptions promised to other messages count, too.
            if list.iter().filter(|one| one.subscriber.id() == connection).count() >= most {
                return Err(RpcError::limit(format!(
                    "this connection has {most} subscriptions already: unsubscribe first"
                )));
            }
            let id = NEXT.fetch_add(1, Relaxed);
            list.push(Subscription::new(id, subject, self.dialect, self.subscriber.clone()));
            Ok(id)
        })?;
        self.ids.lock().push(id);
        Ok(id)
    }

    /// Sends the answer with `send`, which is given the message's permit, and begins the promised subscriptions if that
    /// succeeds.
    ///
    /// # Errors
    ///
    /// Returns the error of `send`.
    pub fn begin<E>(&self, send: impl FnOnce(Option<OwnedSemaphorePermit>) -> Result<(), E>) -> Result<(), E> {
        let permit = self.release();
        if self.ids.lock().is_empty() {
            return send(permit);
        }
        self.subscriptions.change(|list| {
            // Nothing is announced while the list is locked.
            send(permit)?;
            let ids = std::mem::take(&mut *self.ids.lock());
            list.iter_mut().filter(|one| ids.contains(&one.id)).for_each(|one| one.has_begun = true);
            Ok(())
        })
    }

    /// Drops the promised subscriptions, because the answer that names them is not sent.
    pub fn abandon(&self) {
        let ids = std::mem::take(&mut *self.ids.lock());
        if !ids.is_empty() {
            self.subscriptions.change(|list| list.retain(|one| !ids.contains(&one.id)));
        }
    }
}

impl Drop for PendingSubscriptions {
    /// Drops the promised subscriptions if the connection has ended before the answer.
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Subscription {
    fn new(id: u64, subject: Subject, dialect: &'static Dialect, subscriber: Arc<Subscriber>) -> Self {
        let name = match subject {
            Subject::Watch(watch) => watch.to_string(),
            _ => format!("{id:#x}"),
        };
        let prefix =
            format!(r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"{name}","result":"#);
        Self { id, subject, dialect, subscriber, prefix: prefix.into(), has_begun: false }
    }

    fn is_about(&self, watch: WatchId) -> bool {
        matches!(self.subject, Subject::Watch(own) if own == watch)
    }
}
