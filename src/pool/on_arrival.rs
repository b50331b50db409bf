//! Transactions as they arrive: how many have become ready, or have left, and how far the chain's source has come with them, which
//! mines them or drafts the next block.

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
    /// The count up to which all is in a block or a draft, or can be in none.
    to: u64,
    /// The count up to which nothing can be mined now, and the reason.
    stuck: Option<(u64, String)>,
}

/// The moment from which all that is ready now is in a block or a draft, or can be in none yet.
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
    /// Counts transactions that are ready, or have left because a client has asked for it.
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
        // A source that no longer follows lets nobody wait.
        if !on {
            self.mined_to(*self.ready.borrow());
        }
    }

    /// Records that the source has mined, or drafted, what was ready when the count was `ready`, as far as it can be mined.
    pub fn mined_to(&self, ready: u64) {
        self.mined.send_if_modified(|mined| {
            let is_newer = ready > mined.to;
            (mined.to, mined.stuck) = (ready.max(mined.to), None);
            is_newer
        });
    }

    /// Records that what was ready when the count was `ready` cannot be mined now, for this reason. It waits.
    pub fn stuck(&self, ready: u64, reason: &impl ToString) {
        self.mined.send_modify(|mined| mined.stuck = Some((ready, reason.to_string())));
    }

    /// Returns what a client waits for whose transaction has just been added; `None` if the source does not follow.
    pub fn newest(&self) -> Option<AwaitedBlock> {
        let followed = self.followed.load(Relaxed);
        followed.then(|| AwaitedBlock { number: *self.ready.borrow(), mined: self.mined.subscribe() })
    }
}

impl AwaitedBlock {
    /// Waits until the source has come to the transaction. Returns the reason if the transaction still waits.
    pub async fn mined(mut self) -> Option<String> {
        let is_stuck = |mined: &Mined| mined.stuck.as_ref().is_some_and(|(to, _)| *to >= self.number);
        // Fails if there is no pool any more, for which nobody waits.
        let mined = self.mined.wait_for(|mined| mined.to >= self.number || is_stuck(mined)).await.ok()?;
        if mined.to >= self.number {
            return None;
        }
        mined.stuck.as_ref().map(|(_, reason)| reason.clone())
    }
}
