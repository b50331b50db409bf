//! The sending of the wallet's transactions to an upstream.
//!
//! The pool is the book: it has the signed bytes of each transaction until its fate is final, and they are on the disk
//! before it shows them here. The [`WalletSender`] sends what waits there by `eth_sendRawTransaction`, and sends the same bytes
//! again as long as they wait: at intervals, and at once after a reorg, a restart, or when the upstream is back. A
//! repetition is harmless, because a transaction is mined once at most. What became of a transaction whose nonce is used
//! follows from the canonical blocks; where presim has not followed them, from the upstream's receipts, which are asked for
//! until they come, because a node may be behind another.

mod look;
mod outcomes;
mod submit;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use alloy_consensus::Transaction;
use alloy_primitives::{
    Address, B256, U64, U256,
    map::{AddressMap, B256Map},
};
use arc_swap::ArcSwapOption;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{sync::Notify, time::Instant};

use self::{outcomes::FoundOutcome, submit::Submission};
use super::{Fees, TxOutcome, WaitingTx, Wallet};
use crate::{
    chain::Family,
    pool::Pool,
    state::Missed,
    telemetry::{Counter, Gauge, Metrics},
    upstream::{Ask, Fetcher, Upstream},
};

/// Blocks of a fee history, and the percentile of the tips in each that is taken.
const FEE_BLOCKS: u64 = 20;
const FEE_PERCENTILE: f64 = 60.0;
/// The tip in wei per gas that is offered if the history has none: that of geth, and of nodes of the OP stack.
const USUAL_TIP: u128 = 1_000_000_000;
const USUAL_OP_TIP: u128 = 1_000_000;

/// The settings of the sending.
#[derive(Clone, Copy, Debug)]
pub struct SendingSettings {
    /// The time after which a transaction that waits is sent again.
    pub resend: Duration,
    /// The time-out for an answer of the upstream.
    pub timeout: Duration,
    /// The most transactions in one request.
    pub batch: usize,
    /// The time for which the receipt of a transaction is looked for whose nonce is used, before the transaction counts as
    /// replaced by one that is not known.
    pub receipt_wait: Duration,
    /// The time after which an outcome is final that the upstream has not called final.
    pub final_after: Duration,
}

/// The state of the upstream and of the transactions sent to it, as far as it is known.
#[derive(Debug)]
pub struct Sending {
    upstream: Arc<Upstream>,
    fetcher: Arc<Fetcher>,
    settings: SendingSettings,
    family: Family,
    /// The state of the submission of each transaction that waits.
    submissions: Mutex<B256Map<Submission>>,
    /// The outcomes that are not final.
    outcomes: Mutex<B256Map<FoundOutcome>>,
    /// The nonces that follow the transactions at the upstream, by account.
    counts: Mutex<AddressMap<u64>>,
    /// The tip to offer in wei per gas, and the block after which it was suggested.
    tip: ArcSwapOption<(B256, u128)>,
    /// Held while transactions are replaced.
    pub(super) replacing: tokio::sync::Mutex<()>,
    /// Wakes the submission when transactions wait again.
    again: Notify,
    meters: SendingMeters,
}

#[derive(Debug)]
struct SendingMeters {
    sent: Counter,
    refused: Counter,
    waiting: Gauge,
    mined: Counter,
    taken: Counter,
}

/// The task that sends the transactions of a wallet and records their outcomes.
#[derive(Debug)]
pub struct WalletSender {
    wallet: Arc<Wallet>,
    sending: Arc<Sending>,
}

/// An answer of the upstream about an account or the fees.
enum Looked {
    Count(u64),
    Tip(Option<u128>),
}

#[derive(Deserialize)]
struct FeeHistoryAnswer {
    #[serde(default)]
    reward: Option<Vec<Vec<U256>>>,
}

impl Sending {
    /// Creates the sending to `upstream`, whose state `fetcher` fetches.
    pub fn new(
        upstream: Arc<Upstream>,
        fetcher: Arc<Fetcher>,
        settings: SendingSettings,
        family: Family,
        metrics: &Metrics,
    ) -> Self {
        let counter = |outcome, help| metrics.counter("presim_wallet_sent_total", help, &[("outcome", outcome)]);
        let help = "Transactions of the wallet that were sent to the upstream, each time that they were.";
        let fate = |fate| {
            let help = "Transactions of the wallet whose fate on the upstream's chain is final.";
            metrics.counter("presim_wallet_settled_total", help, &[("fate", fate)])
        };
        let meters = SendingMeters {
            sent: counter("ok", help),
            refused: counter("refused", help),
            waiting: metrics.gauge("presim_wallet_unmined", "Transactions of the wallet that wait to be mined.", &[]),
            mined: fate("mined"),
            taken: fate("replaced"),
        };
        Self {
            upstream,
            fetcher,
            settings,
            family,
            submissions: Mutex::default(),
            outcomes: Mutex::default(),
            counts: Mutex::default(),
            tip: ArcSwapOption::empty(),
            replacing: tokio::sync::Mutex::default(),
            again: Notify::new(),
            meters,
        }
    }

    const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Asks the upstream for the next nonce of `account`, and for the fees if `head` is a new block, in one round trip.
    /// Without an answer, what is known holds: the batch is stored, and its status says what becomes of it.
    pub async fn look(&self, account: Address, head: B256) {
        let count = Ask::new("eth_getTransactionCount", &(account, "pending"), |answer| {
            serde_json::from_str::<U64>(answer.get())
                .map(|count| Looked::Count(count.to()))
                .map_err(|error| error.to_string())
        });
        let mut asks = vec![count];
        if self.tip.load().as_ref().is_none_or(|known| known.0 != head) {
            let blocks = U64::from(FEE_BLOCKS);
            asks.push(Ask::new("eth_feeHistory", &(blocks, "latest", [FEE_PERCENTILE]), suggested));
        }
        let answers = self.upstream().all(asks, Instant::now() + self.settings.timeout).await;
        for answer in answers {
            match answer {
                Ok(Looked::Count(count)) => drop(lock(&self.counts).insert(account, count)),
                Ok(Looked::Tip(tip)) => {
                    let usual = if self.family == Family::OpStack { USUAL_OP_TIP } else { USUAL_TIP };
                    self.tip.store(Some(Arc::new((head, tip.unwrap_or(usual)))));
                }
                Err(error) => tracing::debug!(%error, %account, "the upstream does not tell nonce and fees"),
            }
        }
    }

    /// Fetches state that is not known. Without an answer it is still not known.
    pub(super) async fn fetch(&self, missed: &Missed) {
        if let Err(error) = self.fetcher.fetch(missed, None, Instant::now() + 2 * self.settings.timeout).await {
            tracing::debug!(%error, "state for the wallet cannot be fetched");
        }
    }

    /// Returns the tip to offer in wei per gas. `None` if the upstream has told no fees.
    pub fn tip(&self) -> Option<u128> {
        self.tip.load().as_ref().map(|known| known.1)
    }

    /// Returns the account's next nonce as the upstream told it last, after the transactions that wait there.
    pub fn count(&self, account: &Address) -> Option<u64> {
        lock(&self.counts).get(account).copied()
    }

    /// Returns the outcome of a transaction that is not final yet.
    pub fn outcome(&self, hash: &B256) -> Option<TxOutcome> {
        lock(&self.outcomes).get(hash).map(|found| found.outcome().clone())
    }

    /// Returns a transaction that waits, with the reason. `None` if it does not wait any more.
    pub(super) fn waiting(&self, hash: &B256, pool: &Pool, fees: &Fees) -> Option<WaitingTx> {
        let pooled = pool.own_pooled(hash)?;
        let tx = &pooled.tx;
        let published = pool.published();
        let next = pool.nonce_of(&tx.signer());
        let base_fee = fees.base_fee(&published).map_or(0, u128::from);
        let problem = lock(&self.submissions).get(hash).map(|submission| submission.problem().map(str::to_owned));
        let reason = match problem {
            _ if next > tx.nonce() => "a block that is not final yet has it, or another with its nonce".to_owned(),
            None => "it is stored, and about to be sent".to_owned(),
            Some(Some(problem)) => problem,
            Some(None) if next < tx.nonce() => {
                format!("the upstream has it; earlier transactions of the account come first, from nonce {next} on")
            }
            Some(None) if tx.max_fee_per_gas() < base_fee => format!(
                "the upstream has it; it pays at most {} wei per gas, and the base fee is {base_fee}: `presim wallet bump` raises it",
                tx.max_fee_per_gas()
            ),
            Some(None) => "the upstream has it, and no block has it yet".to_owned(),
        };
        Some(WaitingTx { hash: *hash, nonce: tx.nonce(), reason })
    }
}

impl WalletSender {
    /// Creates the task of `wallet`, with the outcomes that were stored before a restart. Returns `None` if the wallet sends to
    /// no upstream.
    pub fn new(wallet: Arc<Wallet>) -> Option<Self> {
        let sending = wallet.sending.clone()?;
        let sender = Self { wallet, sending };
        sender.restore();
        Some(sender)
    }

    /// Sends transactions and records their outcomes for as long as it is polled.
    pub async fn run(self) {
        tokio::join!(self.submit(), self.record_outcomes());
    }
}

/// Reads the tip from a fee history: the percentile of the blocks' tips, without those of blocks that have none.
fn suggested(answer: &RawValue) -> Result<Looked, String> {
    let history: FeeHistoryAnswer = serde_json::from_str(answer.get()).map_err(|error| error.to_string())?;
    let mut tips: Vec<u128> = history
        .reward
        .unwrap_or_default()
        .into_iter()
        .flatten()
        .map(|tip| tip.saturating_to())
        .filter(|tip| *tip > 0)
        .collect();
    tips.sort_unstable();
    Ok(Looked::Tip(tips.get(tips.len() / 2).copied()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
