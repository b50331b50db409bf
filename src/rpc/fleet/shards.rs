//! Work that is cut into shards, which the replicas of a fleet and this node do side by side.

use std::{
    collections::{BTreeSet, VecDeque},
    iter::repeat_n,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::future::{join, join_all};

use super::peers::FleetPeers;
use crate::{
    state::Published,
    telemetry::{Counter, Metrics},
};

/// The spreading of a node's work over the replicas of its fleet.
#[derive(Debug)]
pub struct WorkSpread {
    peers: FleetPeers,
    /// The most elements of a shard. Work with fewer is not spread.
    size: usize,
    /// The number of shards that this node does at once.
    own_at_once: usize,
    by_peers: Counter,
    by_self: Counter,
    again: Counter,
}

impl WorkSpread {
    /// Creates a spread over `peers` of work with more than `size` elements, on a node with so many workers.
    pub fn new(peers: FleetPeers, size: usize, workers: usize, metrics: &Metrics) -> Self {
        let counter =
            |outcome| metrics.counter("presim_shards_total", "Shards of spread work.", &[("outcome", outcome)]);
        Self {
            peers,
            size,
            own_at_once: workers.max(1),
            by_peers: counter("peer"),
            by_self: counter("self"),
            again: counter("again"),
        }
    }

    /// Returns whether there are replicas for a work of `count` elements on `published`.
    pub fn helps(&self, count: usize, published: &Published) -> bool {
        // On a feed that is degraded here, `pending` may mean another state than there.
        self.size > 0 && count > self.size && !published.feed().is_degraded() && !self.peers.there().is_empty()
    }

    /// Returns the names of the replicas that are there now, each with the number of shards that it does at once.
    pub fn there(&self) -> Vec<(Arc<str>, usize)> {
        self.peers.there()
    }

    /// Has a replica do a part of a work until `deadline`. Returns `None` if it does not.
    pub async fn ask(&self, peer: &str, headers: HeaderMap, body: Bytes, deadline: Instant) -> Option<Bytes> {
        let answer = self.peers.ask(peer, headers, body, deadline).await;
        if answer.is_some() {
            self.by_peers.increment(1)
        } else {
            self.again.increment(1)
        }
        answer
    }

    /// Cuts a work of `count` elements into shards.
    pub fn cut(&self, count: usize) -> Vec<Range<usize>> {
        (0..count).step_by(self.size.max(1)).map(|from| from..(from + self.size).min(count)).collect()
    }

    /// Has `count` shards done by the replicas and by this node, each of which takes the next when it has done one. A shard
    /// that a replica does not do is done by another, or here. Returns what each shard gave, in order.
    ///
    /// `ask` has a replica do a shard, and returns `None` if it does not; `own` does a shard here.
    pub async fn run<T, A, O>(
        &self,
        count: usize,
        ask: impl Fn(Arc<str>, usize) -> A,
        own: impl Fn(usize) -> O,
    ) -> Vec<T>
    where
        A: Future<Output = Option<T>>,
        O: Future<Output = T>,
    {
        let waiting = Mutex::new((0..count).collect::<VecDeque<usize>>());
        let done = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<T>>>());
        // The replicas that have not done a shard of this work. They get no other.
        let left_out = Mutex::new(BTreeSet::<Arc<str>>::new());
        let (waiting, done, left_out, ask, own) = (&waiting, &done, &left_out, &ask, &own);
        while !lock(waiting).is_empty() {
            let here = (0..self.own_at_once).map(|_| async move {
                while let Some(shard) = take(waiting) {
                    let result = own(shard).await;
                    lock(done)[shard] = Some(result);
                    self.by_self.increment(1);
                }
            });
            let there = self.peers.there();
            let there = there.into_iter().flat_map(|(peer, workers)| repeat_n(peer, workers)).map(|peer| async move {
                while !lock(left_out).contains(&peer)
                    && let Some(shard) = take(waiting)
                {
                    match ask(peer.clone(), shard).await {
                        Some(result) => {
                            lock(done)[shard] = Some(result);
                            self.by_peers.increment(1);
                        }
                        None => {
                            lock(left_out).insert(peer.clone());
                            lock(waiting).push_front(shard);
                            self.again.increment(1);
                        }
                    }
                }
            });
            join(join_all(here), join_all(there)).await;
        }
        lock(done).iter_mut().filter_map(Option::take).collect()
    }
}

fn take(waiting: &Mutex<VecDeque<usize>>) -> Option<usize> {
    lock(waiting).pop_front()
}

/// Locks what no code panics with.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
