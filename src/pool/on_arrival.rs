//! Counts the transactions that have become ready or have left, and how many of them the chain's source has processed.
//! The source mines them or drafts the next block.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::watch;

/// The transactions that became ready to be mined or left, counted, on a chain that may mine them as they arrive.
#[derive(Debug)]
pub struct OnArrival {
    /// Whether the source follows now.
    followed: AtomicBool,
    ready: watch::Sender<u64>,
    mined: watch::Sender<Mined>,
}

/// The progress of the source.
#[derive(Debug, Default)]
struct Mined {
    /// The count up to which every transaction is in a block or a draft, or cannot be in one.
    to: u64,
    /// The highest count that cannot be mined now, and the reason.
    stuck: Option<(u64, String)>,
}

/// The moment from which every transaction that is ready now is in a block or a draft, or cannot be in one yet.
#[derive(Debug)]
pub struct AwaitedBlock {
    number: u64,
    mined: watch::Receiver<Mined>,
}

impl Default for OnArrival {
    fn default() -> Self {
        Self { followed: AtomicBool::new(false), ready: watch::Sender::new(0), mined: watch::Sender::default() }
    }
}

impl OnArrival {
    /// Counts transactions that are ready, or that a client has removed.
    pub(super) fn add(&self, count: usize) {
        if count > 0 {
            self.ready.send_modify(|ready| *ready += count as u64);
        }
    }

    /// Returns the count, and notifies of each change. For the source.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.ready.subscribe()
    }

    /// Sets whether the source mines transactions as they arrive, or drafts the next block of them.
    pub fn follow(&self, on: bool) {
        self.followed.store(on, Relaxed);
        // Waiting clients are released, because the source no longer follows.
        if !on {
            self.mined_to(*self.ready.borrow());
        }
    }

    /// Records that the source has mined or drafted, as far as possible, the transactions that were ready at the count
    /// `ready`.
    pub fn mined_to(&self, ready: u64) {
        self.mined.send_if_modified(|mined| {
            let is_newer = ready > mined.to;
            (mined.to, mined.stuck) = (ready.max(mined.to), None);
            is_newer
        });
    }

    /// Records that the transactions up to the count `ready` cannot be mined now, and why. They keep waiting.
    pub fn stuck(&self, ready: u64, reason: &impl ToString) {
        self.mined.send_modify(|mined| mined.stuck = Some((ready, reason.to_string())));
    }

    /// Returns what the sender of the transaction just added waits for, or `None` if the source does not follow.
    pub fn newest(&self) -> Option<AwaitedBlock> {
        let followed = self.followed.load(Relaxed);
        followed.then(|| AwaitedBlock { number: *self.ready.borrow(), mined: self.mined.subscribe() })
    }
}

impl AwaitedBlock {
    /// Waits until the source has processed the transaction. Returns the reason if the transaction still waits.
    pub async fn mined(mut self) -> Option<String> {
        let is_stuck = |mined: &Mined| mined.stuck.as_ref().is_some_and(|(to, _)| *to >= self.number);
        // Fails if the pool is gone. Then there is nothing to wait for.
        let mined = self.mined.wait_for(|mined| mined.to >= self.number || is_stuck(mined)).await.ok()?;
        if mined.to >= self.number {
            return None;
        }
        mined.stuck.as_ref().map(|(_, reason)| reason.clone())
    }
}
