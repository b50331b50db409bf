//! The state of the upstream, and of the transactions that were sent to it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use alloy_consensus::Transaction;
use alloy_primitives::{
    Address, B256, U64, U256,
    map::{AddressMap, B256Map},
};
use arc_swap::ArcSwapOption;
use serde::Deserialize;
use tokio::{sync::Notify, time::Instant};

use crate::{
    chain::Family,
    lock::Mutex,
    pool::Pool,
    state::{Held, Missed},
    telemetry::{Counter, Gauge, Metrics},
    upstream::{Ask, Fetcher, Upstream},
    wallet::{Fees, TxOutcome, WaitingTx},
};

/// Blocks of a fee history, and the percentile of the tips in each that is taken.
const FEE_BLOCKS: u64 = 20;
const FEE_PERCENTILE: f64 = 60.0;
/// The tip in wei per gas if the history has none: the default of geth, and of nodes of the OP stack.
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
    pub(super) upstream: Arc<Upstream>,
    fetcher: Arc<Fetcher>,
    pub(super) settings: SendingSettings,
    family: Family,
    /// The state of the submission of each transaction that waits.
    pub(super) submissions: Mutex<B256Map<Submission>>,
    /// The outcomes that are not final.
    pub(super) outcomes: Mutex<B256Map<FoundOutcome>>,
    /// The nonces that follow the transactions at the upstream, by account.
    counts: Mutex<AddressMap<u64>>,
    /// The tip to offer in wei per gas, and the block after which it was suggested.
    tip: ArcSwapOption<(B256, u128)>,
    /// Held while transactions are replaced.
    pub(super) replacing: tokio::sync::Mutex<()>,
    /// Wakes the submission when transactions wait again.
    pub(super) woken: Notify,
    pub(super) meters: SendingMeters,
}

#[derive(Debug)]
pub(super) struct SendingMeters {
    pub sent: Counter,
    pub refused: Counter,
    pub waiting: Gauge,
    pub mined: Counter,
    pub taken: Counter,
}

/// The state of the submission of one transaction.
#[derive(Debug)]
pub(super) struct Submission {
    /// The time at which to send it next.
    pub due: Instant,
    /// The sender's nonce when the transaction was sent last.
    pub nonce: u64,
    /// The reason why the transaction is not sent, or why the upstream does not take it or does not answer. `None` if the
    /// upstream has it.
    pub problem: Option<Cow<'static, str>>,
}

/// An outcome that is not final.
#[derive(Clone, Debug)]
pub(super) struct FoundOutcome {
    pub outcome: TxOutcome,
    /// The time at which this process has found it.
    pub since: Instant,
    /// Whether nothing further is looked for. If not, the outcome was stored before a restart, or it is not known which
    /// transaction has used the nonce.
    pub is_certain: bool,
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
        let counter = |outcome, help| metrics.counter_with("presim_wallet_sent_total", help, &[("outcome", outcome)]);
        let help = "Sends of the wallet's transactions to the upstream, repeated ones included.";
        let fate = |fate| {
            let help = "Transactions of the wallet whose fate on the upstream's chain is final.";
            metrics.counter_with("presim_wallet_settled_total", help, &[("fate", fate)])
        };
        let meters = SendingMeters {
            sent: counter("ok", help),
            refused: counter("refused", help),
            waiting: metrics.gauge("presim_wallet_unmined", "Transactions of the wallet that wait to be mined."),
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
            woken: Notify::new(),
            meters,
        }
    }

    /// Asks the upstream for the next nonce of `account`, and for the fees if `head` is a new block, in one round
    /// trip. Without an answer, the known values hold: the batch is stored, and its status reports the outcome.
    pub async fn refresh(&self, account: Address, head: B256) {
        let read = |count: U64| Ok(Looked::Count(count.to()));
        let count = Ask::parsed("eth_getTransactionCount", &(account, "pending"), read);
        let mut asks = vec![count];
        if self.tip.load().as_ref().is_none_or(|known| known.0 != head) {
            let blocks = U64::from(FEE_BLOCKS);
            let read = |history| Ok(Looked::Tip(suggested(history)));
            asks.push(Ask::parsed("eth_feeHistory", &(blocks, "latest", [FEE_PERCENTILE]), read));
        }
        let answers = self.upstream.all(asks, Instant::now() + self.settings.timeout).await;
        for answer in answers {
            match answer {
                Ok(Looked::Count(count)) => drop(self.counts.lock().insert(account, count)),
                Ok(Looked::Tip(tip)) => {
                    let usual = if self.family == Family::OpStack { USUAL_OP_TIP } else { USUAL_TIP };
                    self.tip.store(Some(Arc::new((head, tip.unwrap_or(usual)))));
                }
                Err(error) => tracing::debug!(%error, %account, "the upstream does not tell nonce and fees"),
            }
        }
    }

    /// Fetches and holds state that is not known. Without an answer it is still not known.
    pub(super) async fn fetch(&self, missed: &Missed) -> Held {
        let fetched = self.fetcher.fetch(missed, None, Instant::now() + 2 * self.settings.timeout).await;
        fetched.unwrap_or_else(|error| {
            tracing::debug!(%error, "state for the wallet cannot be fetched");
            Held::default()
        })
    }

    /// Returns the tip to offer in wei per gas. `None` if the upstream has given no fees.
    pub fn tip(&self) -> Option<u128> {
        self.tip.load().as_ref().map(|known| known.1)
    }

    /// Returns the account's next nonce as last reported by the upstream, after the transactions that wait there.
    pub fn count(&self, account: &Address) -> Option<u64> {
        self.counts.lock().get(account).copied()
    }

    /// Returns the outcome of a transaction that is not final yet.
    pub fn outcome(&self, hash: &B256) -> Option<TxOutcome> {
        self.outcomes.lock().get(hash).map(|found| found.outcome.clone())
    }

    /// Returns a transaction that waits, with the reason. `None` if it does not wait any more.
    pub(in crate::wallet) fn waiting(&self, hash: &B256, pool: &Pool, fees: &Fees) -> Option<WaitingTx> {
        let pooled = pool.own_pooled(hash)?;
        let tx = &pooled.tx;
        let published = pool.published();
        let next = pool.nonce_of(&tx.signer());
        let base_fee = fees.base_fee(&published).map_or(0, u128::from);
        let problem = self.submissions.lock().get(hash).map(|submission| submission.problem.clone());
        let reason = match problem {
            _ if next > tx.nonce() => "a block that is not final yet has it, or another with its nonce".to_owned(),
            None => "it is stored, and about to be sent".to_owned(),
            Some(Some(problem)) => problem.into_owned(),
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

/// Reads the tip from a fee history: the percentile of the blocks' tips, without blocks that have none.
fn suggested(history: FeeHistoryAnswer) -> Option<u128> {
    let tips = history.reward.unwrap_or_default().into_iter().flatten().map(|tip| tip.saturating_to());
    let mut tips: Vec<u128> = tips.filter(|tip| *tip > 0).collect();
    tips.sort_unstable();
    tips.get(tips.len() / 2).copied()
}
