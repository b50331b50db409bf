//! Submission: sending what waits in the pool, and sending it again.

use alloy_consensus::{Transaction, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{B256, map::B256Set};
use tokio::time::{Duration, Instant};

use super::{Sending, WalletSender, lock};
use crate::{
    feed::upstream::{Ask, UpstreamError, UpstreamState},
    pool::Pool,
};

/// The pause before a transaction is sent again that the upstream did not answer.
const UNANSWERED: Duration = Duration::from_millis(250);
/// Maximum length of the reason that a status shows, in characters.
const LONGEST_REASON: usize = 200;

/// The state of the submission of one transaction.
#[derive(Debug)]
pub(super) struct Submission {
    /// The time at which to send it next.
    due: Instant,
    /// The sender's nonce when the transaction was sent last.
    nonce: u64,
    state: SubmissionState,
}

#[derive(Debug)]
enum SubmissionState {
    /// The upstream has it.
    Accepted,
    /// The upstream does not take it, or does not answer, for this reason.
    Open(String),
}

impl Submission {
    /// Returns the reason why the upstream does not have the transaction. `None` if it does.
    pub(super) fn problem(&self) -> Option<&str> {
        match &self.state {
            SubmissionState::Accepted => None,
            SubmissionState::Open(problem) => Some(problem),
        }
    }
}

impl WalletSender {
    /// Sends what waits.
    pub(super) async fn submit(&self) {
        let pool = &self.wallet.pool;
        let mut was_down = false;
        loop {
            let is_down = matches!(self.sending.upstream().state(), UpstreamState::Degraded(_));
            if was_down && !is_down {
                tracing::info!("the upstream answers again: the wallet's transactions that wait are sent again");
                self.sending.send_all_again();
            }
            was_down = is_down;
            let next = self.sending.send_due(pool).await;
            let pause = async {
                match next {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pool.stored() => {}
                () = self.sending.again.notified() => {}
                () = pause => {}
            }
        }
    }
}

impl Sending {
    /// Has the sender look at what waits, because the chain has moved.
    pub(super) fn wake(&self) {
        self.again.notify_one();
    }

    fn send_all_again(&self) {
        let now = Instant::now();
        lock(&self.submissions).values_mut().for_each(|submission| submission.due = now);
    }

    /// Sends the transactions that are due. Returns the time at which the next one is.
    async fn send_due(&self, pool: &Pool) -> Option<Instant> {
        let waiting = pool.own_waiting();
        self.meters.waiting.set(waiting.len() as f64);
        let hashes: B256Set = waiting.iter().map(|pooled| *pooled.tx.tx_hash()).collect();
        let now = Instant::now();
        let mut due = Vec::new();
        let mut next = None;
        {
            let mut submissions = lock(&self.submissions);
            submissions.retain(|hash, _| hashes.contains(hash));
            for pooled in waiting {
                let nonce = pool.nonce_of(&pooled.tx.signer());
                let at = match submissions.get(pooled.tx.tx_hash()) {
                    // The reason why the upstream has refused it may have passed with a block.
                    Some(Submission { state: SubmissionState::Open(_), nonce: before, .. }) if *before != nonce => now,
                    Some(submission) => submission.due,
                    None => now,
                };
                if at <= now && due.len() < self.settings.batch {
                    due.push((pooled.tx.clone(), nonce));
                } else {
                    next = Some(next.map_or(at, |next: Instant| next.min(at)));
                }
            }
        }
        if due.is_empty() {
            return next;
        }
        let ask = |tx: &TxEnvelope| {
            Ask::<B256>::typed("eth_sendRawTransaction", &(const_hex::encode_prefixed(tx.encoded_2718()),))
        };
        let asks = due.iter().map(|(tx, _)| ask(tx)).collect();
        let answers = self.upstream().all(asks, Instant::now() + self.settings.timeout).await;
        let now = Instant::now();
        let mut submissions = lock(&self.submissions);
        for ((tx, nonce), answer) in due.into_iter().zip(answers) {
            let (state, pause) = match answer {
                Ok(_) => (SubmissionState::Accepted, self.settings.resend),
                Err(UpstreamError::Refused { message, .. }) if is_known(&message) => {
                    (SubmissionState::Accepted, self.settings.resend)
                }
                Err(UpstreamError::Refused { code, message, .. }) => {
                    let message: String = message.chars().take(LONGEST_REASON).collect();
                    (
                        SubmissionState::Open(format!("the upstream refuses it: error {code}: {message}")),
                        self.settings.resend,
                    )
                }
                Err(error) => {
                    let problem: String = error.to_string().chars().take(LONGEST_REASON).collect();
                    (SubmissionState::Open(problem), UNANSWERED)
                }
            };
            match &state {
                SubmissionState::Accepted => self.meters.sent.increment(1),
                SubmissionState::Open(reason) => {
                    self.meters.refused.increment(1);
                    tracing::debug!(hash = %tx.tx_hash(), nonce = tx.nonce(), reason, "a transaction of the wallet waits");
                }
            }
            submissions.insert(*tx.tx_hash(), Submission { due: now + pause, nonce, state });
        }
        // Transactions that were stored meanwhile, or did not fit, are looked for at once.
        Some(now)
    }
}

/// Whether an error of `eth_sendRawTransaction` says that the upstream has the transaction: the texts of geth, reth,
/// Nethermind, Erigon and anvil.
fn is_known(message: &str) -> bool {
    let message = message.to_lowercase();
    ["already known", "alreadyknown", "already imported", "known transaction", "already in the pool"]
        .iter()
        .any(|text| message.contains(text))
}
