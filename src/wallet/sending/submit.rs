//! Submission: sends the pool's waiting transactions, and repeats them.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{
    Address, B256,
    map::{AddressMap, B256Set},
};
use tokio::time::{Duration, Instant};

use super::state::{Sending, Submission};
use crate::{
    pool::{Pool, Pooled},
    upstream::{Ask, Refusal, UpstreamError, UpstreamState},
};

/// The pause before a transaction is sent again that the upstream did not answer.
const UNANSWERED_PAUSE: Duration = Duration::from_millis(250);
/// Maximum length of the reason that a status shows, in characters.
const MAX_REASON: usize = 200;
/// The reason why a transaction waits behind one that delegates its account.
const BEHIND_DELEGATION: &str =
    "it is sent when an earlier transaction of the account, which delegates it (EIP-7702), is in a block";

impl Sending {
    /// Sends the transactions of the wallet that wait in `pool`, for as long as it is polled.
    pub(super) async fn submit(&self, pool: &Pool) {
        let mut was_down = false;
        loop {
            let is_down = matches!(self.upstream.state(), UpstreamState::Degraded(_));
            if was_down && !is_down {
                tracing::info!("the upstream answers again: the wallet's transactions that wait are sent again");
                self.resend_all();
            }
            was_down = is_down;
            let next = self.send_due(pool).await;
            let due = next.unwrap_or_else(Instant::now);
            tokio::select! {
                () = pool.stored() => {}
                () = self.woken.notified() => {}
                () = tokio::time::sleep_until(due), if next.is_some() => {}
            }
        }
    }

    /// Wakes the sender to check the waiting transactions, because the chain has changed.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    fn resend_all(&self) {
        let now = Instant::now();
        self.submissions.lock().values_mut().for_each(|submission| submission.due = now);
    }

    /// Sends the transactions that are due. Returns the time at which the next one is.
    async fn send_due(&self, pool: &Pool) -> Option<Instant> {
        let (waiting, behind) = split_behind_delegations(pool);
        self.meters.waiting.set((waiting.len() + behind.len()) as f64);
        let hashes: B256Set = waiting.iter().chain(&behind).map(|pooled| *pooled.tx.tx_hash()).collect();
        let now = Instant::now();
        let mut due = Vec::new();
        let mut next = None;
        {
            let mut submissions = self.submissions.lock();
            submissions.retain(|hash, _| hashes.contains(hash));
            for pooled in behind {
                let nonce = pool.nonce_of(&pooled.tx.signer());
                let problem = Some(BEHIND_DELEGATION.into());
                submissions.insert(*pooled.tx.tx_hash(), Submission { due: now, nonce, problem });
            }
            for pooled in waiting {
                let nonce = pool.nonce_of(&pooled.tx.signer());
                let at = match submissions.get(pooled.tx.tx_hash()) {
                    // The reason why the upstream has refused it may have passed with a block.
                    Some(Submission { problem: Some(_), nonce: before, .. }) if *before != nonce => now,
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
        let answers = self.upstream.all(asks, Instant::now() + self.settings.timeout).await;
        let now = Instant::now();
        let mut submissions = self.submissions.lock();
        for ((tx, nonce), answer) in due.into_iter().zip(answers) {
            let (problem, pause) = match answer {
                Ok(_) => (None, self.settings.resend),
                Err(error) if error.meaning() == Some(Refusal::AlreadyKnown) => (None, self.settings.resend),
                Err(UpstreamError::Refused { code, message, .. }) => {
                    let message = beginning(&message);
                    (Some(format!("the upstream refuses it: error {code}: {message}")), self.settings.resend)
                }
                Err(error) => (Some(beginning(&error.to_string())), UNANSWERED_PAUSE),
            };
            match &problem {
                None => self.meters.sent.increment(1),
                Some(reason) => {
                    self.meters.refused.increment(1);
                    tracing::debug!(hash = %tx.tx_hash(), nonce = tx.nonce(), %reason, "a transaction of the wallet waits");
                }
            }
            let problem = problem.map(Into::into);
            submissions.insert(*tx.tx_hash(), Submission { due: now + pause, nonce, problem });
        }
        // Transactions that were stored meanwhile, or did not fit, are looked for at once.
        Some(now)
    }
}

/// Returns the own transactions that wait, without and with an earlier one of their account that delegates it and is in no
/// block yet. Nodes take no transaction after such a one until it is mined (geth), or take it and never mine it (anvil, whose
/// pool waits for a transaction with the nonce that the authorization uses).
fn split_behind_delegations(pool: &Pool) -> (Vec<Arc<Pooled>>, Vec<Arc<Pooled>>) {
    let mut delegating = AddressMap::<bool>::default();
    let is_free = |pooled: &Arc<Pooled>| {
        let account: Address = pooled.tx.signer();
        let is_behind = delegating.entry(account).or_default();
        let is_free = !*is_behind;
        *is_behind |= pooled.delegates_sender() && pooled.tx.nonce() >= pool.nonce_of(&account);
        is_free
    };
    pool.own_waiting().into_iter().partition(is_free)
}

fn beginning(text: &str) -> String {
    text.chars().take(MAX_REASON).collect()
}
