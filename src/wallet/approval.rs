//! The requests that wait for an approver's decision: batches, and messages to be signed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::sync::{oneshot, watch};

use super::{Asked, AskedAct, BatchId, DigestPrefix, WalletError, error::cut};
use crate::telemetry::{Gauge, Metrics};

/// Minimum length of an id's beginning in bytes. A shorter one, such as `0x`, would sooner or later name a wrong batch.
const SHORTEST_BEGINNING: usize = 6;

/// The requests that wait for approval: batches, and messages to be signed.
///
/// All of them are approved in one way, and this text says "batch" for each. A batch waits while the future of [`ask`](Self::ask) is held, and at most until a timeout. Decisions and withdrawals
/// happen under one lock, so that a batch that is reported as approved was still waiting. Its digest is compared under
/// the same lock, so that the approved batch is the one that was shown.
///
/// The id of a withdrawn batch stays taken until the time for its approval would have ended, because an approver may
/// still have that batch in mind. Such ids share one limit with waiting batches, which may be withdrawn too.
#[derive(Debug)]
pub struct Approvals {
    questions: Mutex<Questions>,
    most: usize,
    timeout: Duration,
    gauge: Gauge,
    /// The number that the next batch gets.
    arrivals: watch::Sender<u64>,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub struct Question {
    /// Number of the request in the order of arrival.
    pub number: u64,
    /// The request as it is shown.
    pub asked: Asked,
    /// Digest of the batch.
    pub digest: B256,
    /// Time that the batch has waited.
    pub waited: Duration,
    /// Time until the batch is rejected.
    pub left: Duration,
}

/// The reason why an approver's decision has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecisionError {
    /// No waiting batch has this id.
    #[error(
        "no waiting batch has the id {0:?}, or an id that begins with it (six characters at least): `presim wallet list` shows the waiting batches"
    )]
    Unknown(String),
    /// Several waiting batches have an id that begins with the given one.
    #[error(
        "the ids of {1} waiting batches are or begin with {0:?}, or that is the digest of all of them: give more characters of the id, or decide on the others first"
    )]
    Ambiguous(String, usize),
    /// The waiting batch has another digest than the one that was given.
    #[error("the waiting batch {id:?} has digest {digest}, not {given}: list the batches again")]
    OtherBatch {
        /// Id of the waiting batch, shortened if it is long.
        id: String,
        /// Digest of the waiting batch.
        digest: B256,
        /// Digest that the approver gave.
        given: DigestPrefix,
    },
}

#[derive(Debug, Default)]
struct Questions {
    /// In the order of arrival.
    waiting: BTreeMap<u64, WaitingBatch>,
    /// Ids that stay taken, and until when. In the order of the batches' arrival, which is that of the ids' expiry.
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
    /// Creates approvals for at most `most` batches at once, each of which waits for at most `timeout`.
    pub fn new(most: usize, timeout: Duration, metrics: &Metrics) -> Self {
        let gauge = metrics.gauge("presim_wallet_waiting", "Batches that wait for approval.", &[]);
        Self { questions: Mutex::default(), most, timeout, gauge, arrivals: watch::Sender::new(0) }
    }

    /// Waits until the batch is approved. Dropping the future withdraws the batch at once.
    ///
    /// # Errors
    /// Returns [`WalletError::Rejected`] if the approver rejects the batch or does not decide in time, or the node
    /// stops, [`WalletError::Limit`] if too many batches wait, and [`WalletError::Duplicate`] if the id is taken.
    pub async fn ask(&self, asked: Asked) -> Result<(), WalletError> {
        let noun = asked.act.noun();
        let (place, mut decision) = self.enter(asked)?;
        let decided = match tokio::time::timeout(self.timeout, &mut decision).await {
            Ok(decided) => decided.ok(),
            Err(_) if place.withdraw() => {
                return Err(WalletError::Rejected(format!(
                    "the {noun} was neither approved nor rejected within {:?}: --wallet-approval-timeout-ms",
                    self.timeout
                )));
            }
            // The decision was made just before the timeout.
            Err(_) => decision.try_recv().ok(),
        };
        match decided {
            Some(Decision::Approved) => Ok(()),
            Some(Decision::Rejected) => Err(WalletError::Rejected(format!("the approver rejected the {noun}"))),
            None => Err(stopping(noun)),
        }
    }

    /// Checks that a batch may have this id.
    ///
    /// # Errors
    /// Returns [`WalletError::Duplicate`] if a batch with this id waits, or a withdrawn one still keeps the id taken.
    pub fn check_id(&self, id: &BatchId) -> Result<(), WalletError> {
        self.lock().check_id(id)
    }

    /// Approves the batch with this id or unique beginning of it, if its digest begins with `digest`. Returns the id.
    ///
    /// # Errors
    /// Returns [`DecisionError::Unknown`] or [`DecisionError::Ambiguous`] if the id does not name one waiting batch,
    /// and [`DecisionError::OtherBatch`] if that batch has another digest.
    pub fn approve(&self, id: &str, digest: &DigestPrefix) -> Result<BatchId, DecisionError> {
        self.decide(id, Some(digest), Decision::Approved)
    }

    /// Rejects the batch with this id or unique beginning of it. Returns the id.
    ///
    /// # Errors
    /// Returns [`DecisionError::Unknown`] or [`DecisionError::Ambiguous`] if the id does not name one waiting batch.
    pub fn reject(&self, id: &str) -> Result<BatchId, DecisionError> {
        self.decide(id, None, Decision::Rejected)
    }

    /// Returns the batch with this id or unique beginning of it.
    ///
    /// # Errors
    /// Returns [`DecisionError::Unknown`] or [`DecisionError::Ambiguous`] if the id does not name one waiting batch.
    pub fn find(&self, id: &str) -> Result<Question, DecisionError> {
        self.lock().find(id).map(|(number, one)| one.question(number, self.timeout))
    }

    /// Returns the waiting batches, beginning with the one that has waited longest.
    pub fn waiting(&self) -> Vec<Question> {
        self.lock().waiting.iter().map(|(number, one)| one.question(*number, self.timeout)).collect()
    }

    /// Waits for a batch with at least this number, and returns the first that waits.
    pub async fn next(&self, from: u64) -> Question {
        let mut arrivals = self.arrivals.subscribe();
        loop {
            arrivals.mark_unchanged();
            let found = {
                let questions = self.lock();
                questions.waiting.range(from..).next().map(|(number, one)| one.question(*number, self.timeout))
            };
            match found {
                Some(question) => return question,
                // The sender lives as long as `self`, so this waits for a change.
                None => drop(arrivals.changed().await),
            }
        }
    }

    /// Rejects all waiting batches and all later ones, because the node stops.
    pub fn stop(&self) {
        let waiting = {
            let mut questions = self.lock();
            questions.stopped = true;
            std::mem::take(&mut questions.waiting)
        };
        self.gauge.set(0);
        // Dropping the senders ends every `ask` with a rejection.
        drop(waiting);
    }

    fn enter(&self, asked: Asked) -> Result<(WaitingPermit<'_>, oneshot::Receiver<Decision>), WalletError> {
        let digest = asked.digest();
        let mut questions = self.lock();
        if questions.stopped {
            return Err(stopping(asked.act.noun()));
        }
        questions.check_id(&asked.id)?;
        let (waiting, withdrawn) = (questions.waiting.len(), questions.withdrawn.len());
        if waiting + withdrawn >= self.most {
            return Err(WalletError::Limit(format!(
                "batches that wait for approval: {waiting}; withdrawn ids that are still taken: {withdrawn}: expected fewer than {} in all (--wallet-max-waiting)",
                self.most
            )));
        }
        let number = questions.next;
        questions.next += 1;
        let (decision, decided) = oneshot::channel();
        tracing::info!(
            id = ?cut(asked.id.as_str()),
            %digest,
            account = %asked.from,
            client = asked.asker.client.as_deref(),
            page = asked.asker.page.as_deref(),
            calls = match &asked.act {
                AskedAct::Batch(batch) => Some(batch.calls.len()),
                AskedAct::Message(_) | AskedAct::TypedData(_) => None,
            },
            "a {} waits for approval: decide with `presim wallet watch`",
            asked.act.noun()
        );
        questions.waiting.insert(number, WaitingBatch { asked, digest, since: Instant::now(), decision });
        self.arrivals.send_replace(questions.next);
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
        // Sent under the lock, so that an `ask` that finds its batch gone finds the decision.
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
    /// Returns the only waiting batch that has this digest, or else whose id is this one or begins with it.
    fn find(&self, id: &str) -> Result<(u64, &WaitingBatch), DecisionError> {
        // A digest wins, because no stranger can make another batch with it.
        let digest = id.parse::<B256>().ok();
        let digest = digest.filter(|digest| self.waiting.values().any(|waiting| waiting.digest == *digest));
        // An exact match does not win, because a stranger may have chosen the beginning of another batch's id.
        let begins = |whole: &str| whole == id || (id.len() >= SHORTEST_BEGINNING && whole.starts_with(id));
        let is_meant = |waiting: &WaitingBatch| match digest {
            Some(digest) => waiting.digest == digest,
            None => begins(waiting.asked.id.as_str()),
        };
        let mut found = self.waiting.iter().filter(|(_, waiting)| is_meant(waiting));
        match (found.next(), found.count()) {
            (None, _) => Err(DecisionError::Unknown(id.to_owned())),
            (Some((number, waiting)), 0) => Ok((*number, waiting)),
            (Some(_), more) => Err(DecisionError::Ambiguous(id.to_owned(), more + 1)),
        }
    }

    /// Frees the ids that have expired, and checks that this one is not taken.
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
    fn question(&self, number: u64, timeout: Duration) -> Question {
        let waited = self.since.elapsed();
        let left = timeout.saturating_sub(waited);
        Question { number, asked: self.asked.clone(), digest: self.digest, waited, left }
    }
}

/// An entry among the waiting batches. Withdrawn on drop.
struct WaitingPermit<'a> {
    approvals: &'a Approvals,
    number: u64,
}

impl WaitingPermit<'_> {
    /// Withdraws the batch, whose id stays taken until its timeout. Returns whether the batch still waited.
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

fn stopping(noun: &str) -> WalletError {
    WalletError::Rejected(format!("the node stops, and the {noun} was not approved"))
}
