//! The requests that wait for an approver's decision: batches, and messages to be signed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{B256, keccak256, map::B256Map};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::{Asked, DigestPrefix, RequestedAction};
use crate::{
    lock::Mutex,
    telemetry::{Gauge, Metrics},
    wallet::{BatchId, WalletError, error::cut},
};

/// Maximum number of waiting batches and withdrawn ids of all clients together, where no other is set.
const MAX_WITHDRAWN: usize = 65_536;
/// Minimum length of an id's beginning in bytes. A shorter one, such as `0x`, would sooner or later name a wrong batch.
const SHORTEST_BEGINNING: usize = 6;

/// The requests that wait for approval: batches, and messages to be signed.
///
/// Both are approved in the same way, and the comments here say "batch" for either. A batch waits while the future of
/// [`ask`](Self::ask) is held, and at most until a timeout. Decisions and withdrawals
/// happen under one lock, so that a batch that is reported as approved was still waiting. Its digest is compared under
/// the same lock, so that the approved batch is the one that was shown.
///
/// The id of a withdrawn batch stays taken until the time for its approval would have ended, because an approver may
/// still have that batch in mind. Each client has its own bounds, on waiting batches and on these with withdrawn ids, so
/// that none locks out another. All clients without a token are one.
#[derive(Debug)]
pub struct Approvals {
    questions: Mutex<Questions>,
    /// Maximum number of waiting batches of one client.
    most: usize,
    /// Maximum number of waiting batches and withdrawn ids of all clients together.
    most_withdrawn: usize,
    /// Number of clients with a token.
    tokens: Arc<AtomicUsize>,
    timeout: Duration,
    gauges: ApprovalGauges,
    /// The number that the next batch gets.
    arrivals: watch::Sender<u64>,
}

#[derive(Debug)]
struct ApprovalGauges {
    waiting: Gauge,
    withdrawn: Gauge,
}

/// A waiting request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// Number of the request in the order of arrival.
    pub number: u64,
    /// Digest of the request.
    #[schemars(with = "String")]
    pub digest: B256,
    /// Time that the request has waited.
    pub waited_ms: u64,
    /// Time until the request is rejected.
    pub left_ms: u64,
    /// The request as it is shown.
    #[serde(flatten)]
    pub asked: Asked,
}

#[derive(Debug, Default)]
struct Questions {
    /// In the order of arrival.
    waiting: BTreeMap<u64, WaitingBatch>,
    /// The times until which ids of withdrawn batches stay taken, and the clients that asked, by the hashes of the ids.
    withdrawn: B256Map<(Instant, ClientName)>,
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

/// The name of a client's token. `None` is shared by all clients without a token.
type ClientName = Option<String>;

#[derive(Clone, Copy, Debug)]
enum Decision {
    Approved,
    Rejected,
}

impl Approvals {
    /// Creates approvals for at most `most` batches of each client at once, each of which waits for at most `timeout`.
    pub fn new(most: usize, timeout: Duration, metrics: &Metrics) -> Self {
        let help = "Reserved ids of withdrawn batches.";
        let gauges = ApprovalGauges {
            waiting: metrics.gauge("presim_wallet_waiting", "Batches waiting for approval."),
            withdrawn: metrics.gauge("presim_wallet_withdrawn_ids", help),
        };
        Self {
            questions: Mutex::default(),
            most,
            most_withdrawn: MAX_WITHDRAWN,
            tokens: Arc::default(),
            timeout,
            gauges,
            arrivals: watch::Sender::new(0),
        }
    }

    /// Sets the maximum number of withdrawn ids. `tokens`, the number of clients with a token, may change: each of them
    /// has an equal part, and so have all clients without a token together.
    #[must_use]
    pub fn with_withdrawn(self, most: usize, tokens: Arc<AtomicUsize>) -> Self {
        Self { most_withdrawn: most, tokens, ..self }
    }

    /// Waits until the batch is approved. Dropping the future withdraws the batch at once.
    ///
    /// # Errors
    /// Returns [`WalletError::Rejected`] if the approver rejects the batch or does not decide in time, or the node
    /// stops, [`WalletError::Limit`] if too many batches wait, and [`WalletError::Duplicate`] if the id is taken.
    pub async fn ask(&self, asked: Asked) -> Result<(), WalletError> {
        let noun = asked.act.noun();
        let (waiting, mut decision) = self.enter(asked)?;
        let decided = match tokio::time::timeout(self.timeout, &mut decision).await {
            Ok(decided) => decided.ok(),
            Err(_) if waiting.withdraw() => {
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
        self.questions.lock().check_id(id, &self.gauges)
    }

    /// Returns the number of withdrawn ids that stay taken, by client.
    pub fn withdrawn(&self) -> Vec<(Option<String>, usize)> {
        let mut questions = self.questions.lock();
        questions.expire(&self.gauges);
        let mut counts = BTreeMap::<ClientName, usize>::new();
        for (_, client) in questions.withdrawn.values() {
            *counts.entry(client.clone()).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    /// Approves the batch with this id or unique beginning of it, if its digest begins with `digest`. Returns the id.
    ///
    /// # Errors
    /// Returns a text if the id does not name one waiting batch, or that batch has another digest.
    pub fn approve(&self, id: &str, digest: &DigestPrefix) -> Result<BatchId, String> {
        self.decide(id, Some(digest), Decision::Approved)
    }

    /// Rejects the batch with this id or unique beginning of it. Returns the id.
    ///
    /// # Errors
    /// Returns a text if the id does not name one waiting batch.
    pub fn reject(&self, id: &str) -> Result<BatchId, String> {
        self.decide(id, None, Decision::Rejected)
    }

    /// Returns the batch with this id or unique beginning of it.
    ///
    /// # Errors
    /// Returns a text if the id does not name one waiting batch.
    pub fn find(&self, id: &str) -> Result<Question, String> {
        self.questions.lock().find(id).map(|(number, one)| one.question(number, self.timeout))
    }

    /// Returns the waiting batches, beginning with the one that has waited longest.
    pub fn waiting(&self) -> Vec<Question> {
        self.questions.lock().waiting.iter().map(|(number, one)| one.question(*number, self.timeout)).collect()
    }

    /// Waits for a batch with at least this number, and returns the first that waits.
    pub async fn next(&self, from: u64) -> Question {
        let mut arrivals = self.arrivals.subscribe();
        loop {
            arrivals.mark_unchanged();
            let found = {
                let questions = self.questions.lock();
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
            let mut questions = self.questions.lock();
            questions.stopped = true;
            std::mem::take(&mut questions.waiting)
        };
        self.gauges.waiting.set(0);
        // Dropping the senders ends every `ask` with a rejection.
        drop(waiting);
    }

    fn enter(&self, asked: Asked) -> Result<(WaitingPermit<'_>, oneshot::Receiver<Decision>), WalletError> {
        let digest = asked.digest();
        let mut questions = self.questions.lock();
        if questions.stopped {
            return Err(stopping(asked.act.noun()));
        }
        questions.check_id(&asked.id, &self.gauges)?;
        let client = &asked.asker.client;
        let waiting = questions.waiting.values().filter(|one| one.asked.asker.client == *client).count();
        let withdrawn = questions.withdrawn.values().filter(|(_, of)| of == client).count();
        let of_client = || match client {
            Some(name) => format!("of the client {:?}", cut(name)),
            None => "of clients without a token".to_owned(),
        };
        if waiting >= self.most {
            return Err(WalletError::Limit(format!(
                "batches {} that wait for approval: {waiting}: expected fewer than {} (--wallet-max-waiting)",
                of_client(),
                self.most
            )));
        }
        // A waiting batch may be withdrawn, too.
        let part = self.most_withdrawn / (self.tokens.load(Relaxed) + 1);
        if waiting + withdrawn >= part {
            return Err(WalletError::Limit(format!(
                "batches {} that wait for approval: {waiting}; withdrawn ids that are still taken: {withdrawn}: expected fewer than {part} in all (--wallet-max-withdrawn)",
                of_client()
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
                RequestedAction::Batch(batch) => Some(batch.calls.len()),
                RequestedAction::Message(_) | RequestedAction::TypedData(_) | RequestedAction::Transaction(_) => None,
            },
            "a {} waits for approval: decide with `presim wallet watch`",
            asked.act.noun()
        );
        questions.waiting.insert(number, WaitingBatch { asked, digest, since: Instant::now(), decision });
        self.arrivals.send_replace(questions.next);
        self.gauges.waiting.set(questions.waiting.len() as f64);
        Ok((WaitingPermit { approvals: self, number }, decided))
    }

    fn decide(&self, id: &str, digest: Option<&DigestPrefix>, decision: Decision) -> Result<BatchId, String> {
        let mut questions = self.questions.lock();
        let (number, found) = questions.find(id)?;
        if let Some(given) = digest
            && !given.begins(&found.digest)
        {
            let (id, digest) = (cut(found.asked.id.as_str()), found.digest);
            return Err(format!("the waiting batch {id:?} has digest {digest}, not {given}: list the batches again"));
        }
        let unknown = || unknown(id);
        let WaitingBatch { asked, since, decision: waiting, .. } =
            questions.waiting.remove(&number).ok_or_else(unknown)?;
        self.gauges.waiting.set(questions.waiting.len() as f64);
        // Sent under the lock, so that an `ask` that finds its batch gone finds the decision.
        if waiting.send(decision).is_err() {
            questions.withdraw(asked, since + self.timeout, &self.gauges);
            return Err(unknown());
        }
        tracing::info!(id = ?asked.id.as_str(), ?decision, "an approver has decided on a batch");
        Ok(asked.id)
    }
}

impl Questions {
    /// Returns the only waiting batch that has this digest, or else whose id is this one or begins with it.
    fn find(&self, id: &str) -> Result<(u64, &WaitingBatch), String> {
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
            (None, _) => Err(unknown(id)),
            (Some((number, waiting)), 0) => Ok((*number, waiting)),
            (Some(_), more) => Err(format!(
                "the ids of {} waiting batches are or begin with {id:?}, or that is the digest of all of them: give more characters of the id, or decide on the others first",
                more + 1
            )),
        }
    }

    /// Frees the ids that have expired.
    fn expire(&mut self, gauges: &ApprovalGauges) {
        let now = Instant::now();
        self.withdrawn.retain(|_, (until, _)| *until > now);
        gauges.withdrawn.set(self.withdrawn.len() as f64);
    }

    /// Has the id of a withdrawn batch stay taken.
    fn withdraw(&mut self, asked: Asked, until: Instant, gauges: &ApprovalGauges) {
        self.withdrawn.insert(keccak256(asked.id.as_str()), (until, asked.asker.client));
        gauges.withdrawn.set(self.withdrawn.len() as f64);
    }

    /// Frees the ids that have expired, and checks that this one is not taken.
    fn check_id(&mut self, id: &BatchId, gauges: &ApprovalGauges) -> Result<(), WalletError> {
        self.expire(gauges);
        if self.waiting.values().any(|one| one.asked.id == *id) {
            return Err(WalletError::Duplicate("a batch with this id waits for approval".to_owned()));
        }
        match self.withdrawn.get(&keccak256(id.as_str())) {
            Some((until, _)) => Err(WalletError::Duplicate(format!(
                "params[0].id: {}: a batch with this id was withdrawn while it waited for approval, and the id is taken for {} s more: expected another",
                cut(id.as_str()),
                until.saturating_duration_since(Instant::now()).as_secs() + 1
            ))),
            None => Ok(()),
        }
    }
}

impl WaitingBatch {
    fn question(&self, number: u64, timeout: Duration) -> Question {
        let waited = self.since.elapsed();
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (waited_ms, left_ms) = (ms(waited), ms(timeout.saturating_sub(waited)));
        Question { number, digest: self.digest, waited_ms, left_ms, asked: self.asked.clone() }
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
        let mut questions = self.approvals.questions.lock();
        let Some(WaitingBatch { asked, since, .. }) = questions.waiting.remove(&self.number) else { return false };
        let Approvals { timeout, gauges, .. } = self.approvals;
        questions.withdraw(asked, since + *timeout, gauges);
        gauges.waiting.set(questions.waiting.len() as f64);
        true
    }
}

impl Drop for WaitingPermit<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn unknown(id: &str) -> String {
    format!(
        "no waiting batch has the id {id:?}, or an id that begins with it (six characters at least): `presim wallet list` shows the waiting batches"
    )
}

fn stopping(noun: &str) -> WalletError {
    WalletError::Rejected(format!("the node stops, and the {noun} was not approved"))
}
