//! The batches that wait for approval.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{BatchId, DigestPrefix, WalletError, error::cut};
use crate::telemetry::{Gauge, Metrics};

/// The shortest beginning of an id in bytes. With less, such as `0x` alone, it would sooner or later be that of the
/// wrong batch.
const SHORTEST_BEGINNING: usize = 6;

/// The batches that wait for approval.
///
/// A batch waits as long as the future of [`ask`](Self::ask) lives, and at most for a time that is set. Decisions and
/// withdrawals happen under one lock, so that an approver who reads that a batch is approved has approved one that
/// still waited. The digest is compared under the same lock, so that the approved batch is the one that was shown.
///
/// A withdrawn batch's id stays taken until the time for its approval would have ended, because an approver may still
/// have that batch in mind. Waiting batches and such ids share one bound, because each waiting batch may be withdrawn.
#[derive(Debug)]
pub struct Approvals {
    questions: Mutex<Questions>,
    most: usize,
    timeout: Duration,
    gauge: Gauge,
}

/// A batch as an approver sees it, ready to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The batch.
    pub id: BatchId,
    /// The account that sends the batch.
    pub from: Address,
    /// The chain id (EIP-155).
    pub chain_id: u64,
    /// Whether all calls are made or none.
    pub atomic: bool,
    /// The code to which the account is to be delegated (EIP-7702), if the batch needs that.
    pub upgrade: Option<Address>,
    /// The number of transactions to sign, one that deploys the batch executor included.
    pub transactions: usize,
    /// The highest fees of the transactions for gas, as simulated, in wei.
    pub most_fees: U256,
    /// The calls, in order.
    pub calls: Vec<AskedCall>,
}

/// A call as an approver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedCall {
    /// The callee; `None` for the creation of a contract.
    pub to: Option<Address>,
    /// The value in wei.
    pub value: U256,
    /// The call data.
    pub data: Bytes,
    /// The gas limit that the client sets for this call (`gasLimitOverride`).
    pub gas_limit: Option<u64>,
    /// The outcome of the simulation.
    pub outcome: String,
}

/// A batch that waits.
#[derive(Clone, Debug)]
pub struct Question {
    /// The batch.
    pub asked: Asked,
    /// The batch's digest.
    pub digest: B256,
    /// The time that the batch has waited.
    pub waited: Duration,
    /// The time that the batch may still wait.
    pub left: Duration,
}

/// The reason why an approver's decision has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// No waiting batch has this id.
    #[error(
        "no batch that waits has the id {0:?}, or one that begins so (six characters at least): `presim wallet list` shows those that do wait"
    )]
    Unknown(String),
    /// Several waiting batches have this id, or begin with it.
    #[error(
        "the ids of {1} waiting batches are or begin with {0:?}: give more of the one you mean, or decide on the others first"
    )]
    Ambiguous(String, usize),
    /// The batch has another digest than the one given.
    #[error("the waiting batch {id:?} has digest {digest}, not {given}: list the batches again")]
    OtherBatch {
        /// The waiting batch's id, shortened if it is long.
        id: String,
        /// The digest of the waiting batch.
        digest: B256,
        /// The digest that the approver gave.
        given: DigestPrefix,
    },
}

#[derive(Debug, Default)]
struct Questions {
    /// The waiting batches in order of arrival.
    waiting: BTreeMap<u64, WaitingBatch>,
    /// The ids that stay taken, and until when, in order of arrival, which is also the order of their times.
    withdrawn: BTreeMap<u64, (BatchId, Instant)>,
    next: u64,
    stopped: bool,
}

#[derive(Debug)]
struct WaitingBatch {
    asked: Asked,
    digest: B256,
    since: Instant,
    decision: oneshot::Sender<Decision>,
}

#[derive(Clone, Copy, Debug)]
enum Decision {
    Approved,
    Rejected,
}

impl Approvals {
    /// Creates a queue for at most `most` batches at once, each of which waits at most for `timeout`.
    pub fn new(most: usize, timeout: Duration, metrics: &Metrics) -> Self {
        let gauge = metrics.gauge("presim_wallet_waiting", "Batches that wait for approval.", &[]);
        Self { questions: Mutex::default(), most, timeout, gauge }
    }

    /// Waits until the batch is approved. Dropping the future withdraws the batch at once.
    ///
    /// # Errors
    ///
    /// Returns [`WalletError::Rejected`] if the approver rejects the batch, or does not decide in time, or the node
    /// stops; [`WalletError::Limit`] if too many batches wait or were withdrawn; and [`WalletError::Duplicate`] if the
    /// id is taken.
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
            // A decision may have come at the last moment.
            Err(_) => decision.try_recv().ok(),
        };
        match decided {
            Some(Decision::Approved) => Ok(()),
            Some(Decision::Rejected) => Err(WalletError::Rejected("the approver rejected it".to_owned())),
            None => Err(stopping()),
        }
    }

    /// Checks that a batch may have this id.
    ///
    /// # Errors
    ///
    /// Returns [`WalletError::Duplicate`] if a batch with this id waits, or was withdrawn and could still have been approved.
    pub fn check_id(&self, id: &BatchId) -> Result<(), WalletError> {
        self.lock().check_id(id)
    }

    /// Approves the batch with this id, or with the only id that begins so, if its digest begins as the one given.
    /// Returns the batch's id.
    ///
    /// # Errors
    ///
    /// Returns [`DecisionError`] if the id does not name one waiting batch, or that batch has another digest.
    pub fn approve(&self, id: &str, digest: &DigestPrefix) -> Result<BatchId, DecisionError> {
        self.decide(id, Some(digest), Decision::Approved)
    }

    /// Rejects the batch with this id, or with the only id that begins so. Returns the batch's id.
    ///
    /// # Errors
    ///
    /// Returns [`DecisionError`] if the id does not name one waiting batch.
    pub fn reject(&self, id: &str) -> Result<BatchId, DecisionError> {
        self.decide(id, None, Decision::Rejected)
    }

    /// Returns the batch with this id, or with the only id that begins so.
    ///
    /// # Errors
    ///
    /// Returns [`DecisionError`] if the id does not name one waiting batch.
    pub fn find(&self, id: &str) -> Result<Question, DecisionError> {
        self.lock().find(id).map(|(_, one)| one.question(self.timeout))
    }

    /// Returns the batches that wait, from the one that has waited longest.
    pub fn waiting(&self) -> Vec<Question> {
        self.lock().waiting.values().map(|one| one.question(self.timeout)).collect()
    }

    /// Rejects all batches, waiting and future ones, because the node stops.
    pub fn stop(&self) {
        let waiting = {
            let mut questions = self.lock();
            questions.stopped = true;
            std::mem::take(&mut questions.waiting)
        };
        self.gauge.set(0);
        // Dropping the senders rejects the batches, because no one can decide any more.
        drop(waiting);
    }

    fn enter(&self, asked: Asked) -> Result<(WaitingPermit<'_>, oneshot::Receiver<Decision>), WalletError> {
        let digest = asked.digest();
        let mut questions = self.lock();
        if questions.stopped {
            return Err(stopping());
        }
        questions.check_id(&asked.id)?;
        let (waiting, withdrawn) = (questions.waiting.len(), questions.withdrawn.len());
        if waiting + withdrawn >= self.most {
            return Err(WalletError::Limit(format!(
                "batches that wait for approval: {waiting}; withdrawn ones whose ids are still taken: {withdrawn}: expected fewer than {} in all: --wallet-max-waiting",
                self.most
            )));
        }
        let number = questions.next;
        questions.next += 1;
        let (decision, decided) = oneshot::channel();
        questions.waiting.insert(number, WaitingBatch { asked, digest, since: Instant::now(), decision });
        self.gauge.set(questions.waiting.len() as f64);
        Ok((WaitingPermit { approvals: self, number }, decided))
    }

    fn decide(&self, id: &str, digest: Option<&DigestPrefix>, decision: Decision) -> Result<BatchId, DecisionError> {
        let mut questions = self.lock();
        let (number, found) = questions.find(id)?;
        if let Some(given) = digest
            && !given.begins(&found.digest)
        {
            return Err(DecisionError::OtherBatch {
                id: cut(found.asked.id.as_str()),
                digest: found.digest,
                given: given.clone(),
            });
        }
        let unknown = || DecisionError::Unknown(id.to_owned());
        let WaitingBatch { asked, since, decision: waiting, .. } =
            questions.waiting.remove(&number).ok_or_else(unknown)?;
        self.gauge.set(questions.waiting.len() as f64);
        // Sent under the lock, so that a batch that finds its entry gone finds the decision.
        if waiting.send(decision).is_err() {
            questions.withdrawn.insert(number, (asked.id, since + self.timeout));
            return Err(unknown());
        }
        tracing::info!(id = ?asked.id.as_str(), ?decision, "an approver has decided on a batch");
        Ok(asked.id)
    }

    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Questions {
    /// Returns the only waiting batch whose id this is, or begins so.
    fn find(&self, id: &str) -> Result<(u64, &WaitingBatch), DecisionError> {
        // An id that is the beginning of others may be a stranger's, made to be taken for the others. So an exact match
        // counts only together with those.
        let is_meant = |whole: &str| whole == id || (id.len() >= SHORTEST_BEGINNING && whole.starts_with(id));
        let mut found = self.waiting.iter().filter(|(_, waiting)| is_meant(waiting.asked.id.as_str()));
        match (found.next(), found.count()) {
            (None, _) => Err(DecisionError::Unknown(id.to_owned())),
            (Some((number, waiting)), 0) => Ok((*number, waiting)),
            (Some(_), more) => Err(DecisionError::Ambiguous(id.to_owned(), more + 1)),
        }
    }

    /// Frees the ids whose time has passed, and checks that this one is not taken.
    fn check_id(&mut self, id: &BatchId) -> Result<(), WalletError> {
        let now = Instant::now();
        while let Some(first) = self.withdrawn.first_entry()
            && first.get().1 <= now
        {
            first.remove();
        }
        if self.waiting.values().any(|one| one.asked.id == *id) {
            return Err(WalletError::Duplicate("a batch with this id waits for approval".to_owned()));
        }
        match self.withdrawn.values().find(|(withdrawn, _)| withdrawn == id) {
            Some((_, until)) => Err(WalletError::Duplicate(format!(
                "params[0].id: {}: a batch with this id was withdrawn while it waited for approval, and the id is taken for {} s more: expected another",
                cut(id.as_str()),
                (*until - now).as_secs() + 1
            ))),
            None => Ok(()),
        }
    }
}

impl WaitingBatch {
    fn question(&self, timeout: Duration) -> Question {
        let waited = self.since.elapsed();
        let left = timeout.saturating_sub(waited);
        Question { asked: self.asked.clone(), digest: self.digest, waited, left }
    }
}

/// A permit to wait for approval. Released on drop.
struct WaitingPermit<'a> {
    approvals: &'a Approvals,
    number: u64,
}

impl WaitingPermit<'_> {
    /// Withdraws the batch. Returns whether it was still waiting. Its id stays taken for as long as the batch could
    /// have been approved, and not at all if that time has passed.
    fn withdraw(&self) -> bool {
        let mut questions = self.approvals.lock();
        let Some(WaitingBatch { asked, since, .. }) = questions.waiting.remove(&self.number) else { return false };
        questions.withdrawn.insert(self.number, (asked.id, since + self.approvals.timeout));
        self.approvals.gauge.set(questions.waiting.len() as f64);
        true
    }
}

impl Drop for WaitingPermit<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn stopping() -> WalletError {
    WalletError::Rejected("the node stops, and nobody had approved it".to_owned())
}
