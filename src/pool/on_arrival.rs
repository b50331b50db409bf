//! Mining on arrival: the transactions that have become ready, and how far the chain's source has come with them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::watch;

/// The transactions that became ready to be mined, counted, on a chain that may mine them as they arrive.
#[derive(Debug)]
pub struct OnArrival {
    /// Whether the source mines on arrival now.
    mined_at_once: AtomicBool,
    ready: watch::Sender<u64>,
    mined: watch::Sender<u64>,
}

/// The moment from which all that is ready now is in a block, or can be in none yet.
#[derive(Debug)]
pub struct AwaitedBlock {
    number: u64,
    mined: watch::Receiver<u64>,
}

impl Default for OnArrival {
    fn default() -> Self {
        Self { mined_at_once: AtomicBool::new(false), ready: watch::Sender::new(0), mined: watch::Sender::new(0) }
    }
}

impl OnArrival {
    /// Counts transactions that are ready.
    pub(super) fn add(&self, count: usize) {
        if count > 0 {
            self.ready.send_modify(|ready| *ready += count as u64);
        }
    }

    /// Returns the count of those that are ready, and notifies of each change. For the source.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.ready.subscribe()
    }

    /// Sets whether the source mines transactions as they arrive.
    pub fn mine_at_once(&self, on: bool) {
        self.mined_at_once.store(on, Relaxed);
        // A source that no longer mines on arrival lets nobody wait.
        if !on {
            self.mined_to(*self.ready.borrow());
        }
    }

    /// Records that the source has mined what was ready when the count was `ready`, as far as it can be mined.
    pub fn mined_to(&self, ready: u64) {
        self.mined.send_if_modified(|mined| {
            let is_newer = ready > *mined;
            *mined = ready.max(*mined);
            is_newer
        });
    }

    /// Returns what a client waits for whose transaction has just been added; `None` if blocks are not mined on arrival.
    pub fn newest(&self) -> Option<AwaitedBlock> {
        let at_once = self.mined_at_once.load(Relaxed);
        at_once.then(|| AwaitedBlock { number: *self.ready.borrow(), mined: self.mined.subscribe() })
    }
}

impl AwaitedBlock {
    /// Waits until the source has come to the transaction.
    pub async fn mined(mut self) {
        // Fails if there is no pool any more, for which nobody waits.
        let _ = self.mined.wait_for(|mined| *mined >= self.number).await;
    }
}
