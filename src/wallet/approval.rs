//! The batches that wait for somebody to say yes or no.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, Bytes, U256};
use metrics::Gauge;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{BatchId, WalletError};
use crate::telemetry::Metrics;

/// Bytes of an id that are enough of a beginning: `0x` alone would be that of the wrong one sooner or later.
const SHORTEST_BEGINNING: usize = 6;

/// The batches that wait for approval.
///
/// A batch waits as long as somebody holds the future of [`ask`](Self::ask), and at most for a time that is set. Decisions and withdrawals
/// happen under one lock, so that an approver who is told that a batch is approved has approved one that still waited.
#[derive(Debug)]
pub struct Approvals {
    questions: Mutex<Questions>,
    most: usize,
    timeout: Duration,
    gauge: Gauge,
}

/// What an approver is asked: a batch as it is to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The batch.
    pub id: BatchId,
    /// The account that sends it.
    pub from: Address,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// All calls or none.
    pub atomic: bool,
    /// The code that the account is to be delegated to (EIP-7702), where the batch needs that.
    pub upgrade: Option<Address>,
    /// How many transactions are to be signed, one that deploys the batch executor included.
    pub transactions: usize,
    /// The most that they can cost in fees for gas as it was simulated, in wei.
    pub most_fees: U256,
    /// Its calls, in order.
    pub calls: Vec<AskedCall>,
}

/// A call that an approver is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedCall {
    /// The callee; none creates a contract.
    pub to: Option<Address>,
    /// Wei.
    pub value: U256,
    /// Call data.
    pub data: Bytes,
    /// What the simulation said of it.
    pub outcome: String,
}

/// A batch that waits.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is asked.
    pub asked: Asked,
    /// How long it has waited.
    pub waited: Duration,
    /// How long it may still wait.
    pub left: Duration,
}

/// An id, or a beginning of one, that does not name one waiting batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchBatch {
    /// None has it.
    #[error(
        "no batch that waits has the id {0:?}, or one that begins so (six characters at least): `presim wallet list` shows those that do wait"
    )]
    Unknown(String),
    /// Several are it, or begin with it.
    #[error(
        "the ids of {1} waiting batches are or begin with {0:?}: give more of the one you mean, or decide on the others first"
    )]
    Ambiguous(String, usize),
}

#[derive(Debug, Default)]
struct Questions {
    /// By the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    stopped: bool,
}

#[derive(Debug)]
struct Waiting {
    asked: Asked,
    since: Instant,
    decision: oneshot::Sender<Decision>,
}

#[derive(Clone, Copy, Debug)]
enum Decision {
    Approved,
    Rejected,
}

impl Approvals {
    /// For at most `most` batches at once, each of which waits for `timeout` at most.
    pub fn new(most: usize, timeout: Duration, metrics: &Metrics) -> Self {
        let gauge = metrics.gauge("presim_wallet_waiting", "Batches that wait for approval.", &[]);
        Self { questions: Mutex::default(), most, timeout, gauge }
    }

    /// Waits until the batch is approved. Dropping the future withdraws the question at once.
    ///
    /// # Errors
    /// [`WalletError::Rejected`]: the approver says no, or nothing in time, or the node stops. [`WalletError::Limit`]: too many wait
    /// already. [`WalletError::Duplicate`]: one with the same id waits.
    pub async fn ask(&self, asked: Asked) -> Result<(), WalletError> {
        let (place, mut decision) = self.enter(asked)?;
        let decided = match tokio::time::timeout(self.timeout, &mut decision).await {
            Ok(decided) => decided.ok(),
            Err(_) if place.withdraw() => {
                return Err(WalletError::Rejected(format!(
                    "nobody approved or rejected it within {:?}: --wallet-approval-timeout-ms",
                    self.timeout
                )));
            }
            // Decided at the last moment.
            Err(_) => decision.try_recv().ok(),
        };
        match decided {
            Some(Decision::Approved) => Ok(()),
            Some(Decision::Rejected) => Err(WalletError::Rejected("the approver rejected it".to_owned())),
            None => Err(stopping()),
        }
    }

    /// Approves the batch with this id, or with the only id that begins so. Returns its id.
    pub fn approve(&self, id: &str) -> Result<BatchId, NoSuchBatch> {
        self.decide(id, Decision::Approved)
    }

    /// Rejects the batch with this id, or with the only id that begins so. Returns its id.
    pub fn reject(&self, id: &str) -> Result<BatchId, NoSuchBatch> {
        self.decide(id, Decision::Rejected)
    }

    /// The batches that wait, from the one that has waited longest.
    pub fn waiting(&self) -> Vec<Question> {
        let waiting = |one: &Waiting| {
            let waited = one.since.elapsed();
            Question { asked: one.asked.clone(), waited, left: self.timeout.saturating_sub(waited) }
        };
        self.lock().waiting.values().map(waiting).collect()
    }

    /// The node stops: rejects all that wait, and all that come.
    pub fn stop(&self) {
        let waiting = {
            let mut questions = self.lock();
            questions.stopped = true;
            std::mem::take(&mut questions.waiting)
        };
        self.gauge.set(0);
        // Who waits hears that nobody can decide any more.
        drop(waiting);
    }

    fn enter(&self, asked: Asked) -> Result<(Place<'_>, oneshot::Receiver<Decision>), WalletError> {
        let mut questions = self.lock();
        if questions.stopped {
            return Err(stopping());
        }
        if questions.waiting.values().any(|one| one.asked.id == asked.id) {
            return Err(WalletError::Duplicate("a batch with this id waits for approval".to_owned()));
        }
        if questions.waiting.len() >= self.most {
            return Err(WalletError::Limit(format!(
                "{} batches wait for approval already: --wallet-max-waiting",
                questions.waiting.len()
            )));
        }
        let number = questions.next;
        questions.next += 1;
        let (decision, decided) = oneshot::channel();
        questions.waiting.insert(number, Waiting { asked, since: Instant::now(), decision });
        self.gauge.set(questions.waiting.len() as f64);
        Ok((Place { approvals: self, number }, decided))
    }

    fn decide(&self, id: &str, decision: Decision) -> Result<BatchId, NoSuchBatch> {
        let mut questions = self.lock();
        let number = questions.find(id)?;
        let Some(Waiting { asked, decision: waiting, .. }) = questions.waiting.remove(&number) else {
            return Err(NoSuchBatch::Unknown(id.to_owned()));
        };
        self.gauge.set(questions.waiting.len() as f64);
        // Under the lock: who finds its question gone finds the decision.
        waiting.send(decision).map_err(|_| NoSuchBatch::Unknown(id.to_owned()))?;
        tracing::info!(id = ?asked.id.as_str(), ?decision, "an approver has decided on a batch");
        Ok(asked.id)
    }

    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Questions {
    /// The only waiting batch whose id this is, or begins so.
    fn find(&self, id: &str) -> Result<u64, NoSuchBatch> {
        let mut found = Vec::new();
        for (number, waiting) in &self.waiting {
            // One that is what the others begin with may be a stranger's, who waits for somebody to mean the others.
            let whole = waiting.asked.id.as_str();
            if whole == id || (id.len() >= SHORTEST_BEGINNING && whole.starts_with(id)) {
                found.push(*number);
            }
        }
        match found.as_slice() {
            [] => Err(NoSuchBatch::Unknown(id.to_owned())),
            [number] => Ok(*number),
            more => Err(NoSuchBatch::Ambiguous(id.to_owned(), more.len())),
        }
    }
}

/// A place among those that wait, given back when dropped.
struct Place<'a> {
    approvals: &'a Approvals,
    number: u64,
}

impl Place<'_> {
    /// Whether it still waited.
    fn withdraw(&self) -> bool {
        let mut questions = self.approvals.lock();
        let waited = questions.waiting.remove(&self.number).is_some();
        self.approvals.gauge.set(questions.waiting.len() as f64);
        waited
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn stopping() -> WalletError {
    WalletError::Rejected("the node stops, and nobody had approved it".to_owned())
}
