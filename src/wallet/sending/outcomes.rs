//! Determines and stores the outcomes of transactions whose nonces are used.
//!
//! An outcome is stored as soon as it is known, so that it survives a restart. The transaction stays set aside in the
//! pool, because a reorg may revert the block. When the outcome is final, its transaction leaves the pool, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_consensus::Transaction;
use alloy_primitives::{Address, B256, map::B256Map};
use tokio::time::{Duration, Instant};

use super::{
    search::{self, Fate, NonceOf, NonceSearch, Retry, Versions, still_holds},
    state::{FoundOutcome, Sending},
};
use crate::{
    chain::ChainSpec,
    ledger::Chain,
    pool::forget,
    state::{Held, Lookup, Overlay},
    wallet::{TxOutcome, Wallet, outcome, progress::receipt_of},
};

/// The pause before the state of an account is fetched again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The task that sends the transactions of a wallet and records their outcomes.
#[derive(Debug)]
pub struct WalletSender {
    wallet: Arc<Wallet>,
    sending: Arc<Sending>,
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
        tokio::join!(self.sending.submit(&self.wallet.pool), self.record_outcomes());
    }

    /// Reads the outcomes, stored before a restart, of the transactions that are set aside.
    fn restore(&self) {
        let pool = &self.wallet.pool;
        let mut outcomes = self.sending.outcomes.lock();
        for pooled in pool.own_waiting().iter().chain(&pool.own_aside()) {
            let hash = *pooled.tx.tx_hash();
            match self.wallet.ledger.outcome(&hash) {
                Ok(Some(outcome)) => {
                    outcomes.insert(hash, FoundOutcome { outcome, since: Instant::now(), is_certain: false });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%hash, %error, "the outcome of a transaction of the wallet cannot be read")
                }
            }
        }
    }

    /// Advances the pool with the chain, and records the outcomes of the transactions that are set aside.
    async fn record_outcomes(&self) {
        let mut changes = self.wallet.pool.changes();
        let mut retries = BTreeMap::<NonceOf, Retry>::new();
        loop {
            changes.mark_unchanged();
            let pool = &self.wallet.pool;
            let held = self.fetch_accounts().await;
            pool.advance();
            let mut groups = BTreeMap::<NonceOf, Versions>::new();
            for pooled in pool.own_aside() {
                groups.entry((pooled.tx.signer(), pooled.tx.nonce())).or_default().push(pooled);
            }
            let next = self.record_due_outcomes(groups, &mut retries).await;
            drop(held);
            self.sending.wake();
            let due = next.unwrap_or_else(Instant::now);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(due), if next.is_some() => {}
            }
        }
    }

    /// Fetches and holds the accounts that have transactions here, so that their nonces are known on the newest snapshots.
    async fn fetch_accounts(&self) -> Held {
        let published = self.wallet.pool.published();
        let (waiting, aside) = (self.wallet.pool.own_waiting(), self.wallet.pool.own_aside());
        let mut probe = Overlay::default();
        let mut accounts: Vec<Address> = waiting.iter().chain(&aside).map(|pooled| pooled.tx.signer()).collect();
        accounts.sort_unstable();
        accounts.dedup();
        for account in accounts {
            probe.look_up(&published.newest.world, account);
            probe.look_up(&published.latest().world, account);
        }
        let missed = probe.take_missed();
        if missed.is_empty() {
            return Held::default();
        }
        // Nonces that cannot be fetched are requested again.
        self.sending.fetch(&missed).await
    }

    /// Records the outcomes that are known. Returns the time at which another round may know more without a new block.
    async fn record_due_outcomes(
        &self,
        groups: BTreeMap<NonceOf, Versions>,
        retries: &mut BTreeMap<NonceOf, Retry>,
    ) -> Option<Instant> {
        let published = self.wallet.pool.published();
        let void = self.remove_void(&published);
        let mut next = None;
        let (mut fates, mut unknown) = (Vec::new(), BTreeSet::new());
        {
            let outcomes = self.sending.outcomes.lock();
            for (nonce_of @ (account, nonce), versions) in &groups {
                match published.latest().world.look_up(account) {
                    // The feed may have jumped, so that the account has to be fetched first.
                    Lookup::Unknown => next = Some(Instant::now() + RETRY_PAUSE),
                    Lookup::Known(info) if info.as_ref().is_none_or(|info| info.nonce <= *nonce) => {}
                    Lookup::Known(_) => match fate_of(&self.wallet.spec, &published, versions, &outcomes) {
                        Some(fate) => fates.push((fate, true)),
                        None => drop(unknown.insert(*nonce_of)),
                    },
                }
            }
        }
        retries.retain(|nonce_of, _| unknown.contains(nonce_of));
        let now = Instant::now();
        let is_due = |nonce_of: &NonceOf| retries.entry(*nonce_of).or_insert_with(|| Retry::new(now)).due <= now;
        let due: Vec<NonceOf> = unknown.into_iter().filter(is_due).collect();
        if !due.is_empty() {
            let due = due.into_iter().map(|nonce_of| (nonce_of, &groups[&nonce_of])).collect();
            let search = NonceSearch { spec: &self.wallet.spec, sending: &self.sending, published: &published };
            for (nonce_of, fate, is_certain) in search.find(due, retries).await {
                if is_certain {
                    log_taken(nonce_of, &fate);
                    retries.remove(&nonce_of);
                }
                fates.push((fate, is_certain));
            }
        }
        let fresh: Vec<_> =
            fates.iter().flat_map(|(fate, is_certain)| self.sending.record(fate, *is_certain)).collect();
        self.store_fresh(fresh, void);
        let fates = fates.into_iter().map(|(fate, _)| self.sending.recorded(fate));
        self.store(fates.filter(|fate| self.sending.is_final(&published, fate)).collect()).await;
        retries.values().map(|retry| retry.due).chain(next).min()
    }

    /// Forgets the outcomes that no longer hold, because a reorg has reverted their blocks. Returns the ones whose
    /// transactions are still in the pool.
    fn remove_void(&self, published: &Chain) -> Vec<B256> {
        let mut void = Vec::new();
        self.sending.outcomes.lock().retain(|hash, found| {
            let Some(pooled) = self.wallet.pool.own_pooled(hash) else { return false };
            let is_used = match published.latest().world.look_up(&pooled.tx.signer()) {
                Lookup::Known(info) => info.is_some_and(|info| info.nonce > pooled.tx.nonce()),
                Lookup::Unknown => true,
            };
            let holds = is_used && still_holds(published, &found.outcome);
            if !holds {
                void.push(*hash);
            }
            holds
        });
        void
    }

    /// Stores outcomes that are not final, and deletes others that are void. An error shows with the next batch.
    fn store_fresh(&self, fresh: Fate, void: Vec<B256>) {
        if fresh.is_empty() && void.is_empty() {
            return;
        }
        let written = self.wallet.ledger.store.write(move |transaction| {
            outcome::forget(transaction, void)?;
            outcome::write(transaction, fresh)
        });
        if let Err(error) = written {
            tracing::debug!(%error, "outcomes of the wallet's transactions cannot be stored");
        }
    }

    /// Stores final outcomes, and takes their transactions out of the pool.
    async fn store(&self, fates: Vec<Fate>) {
        if fates.is_empty() {
            return;
        }
        let all: Fate = fates.into_iter().flatten().collect();
        let hashes: Vec<B256> = all.iter().map(|(hash, _)| *hash).collect();
        let landed = all.iter().filter(|(_, outcome)| matches!(outcome, TxOutcome::FetchOutcome(..))).count();
        let gone = hashes.clone();
        let written = self.wallet.ledger.store.write(move |transaction| {
            outcome::write(transaction, all)?;
            forget(transaction, gone)
        });
        let stored = match written {
            Ok(commit) => commit.wait().await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(()) => {
                self.sending.meters.mined.increment(landed as u64);
                self.sending.meters.taken.increment((hashes.len() - landed) as u64);
                self.wallet.pool.forget_aside(hashes.iter().copied());
                let mut outcomes = self.sending.outcomes.lock();
                hashes.iter().for_each(|hash| drop(outcomes.remove(hash)));
            }
            Err(error) => tracing::debug!(%error, "outcomes of the wallet's transactions cannot be stored yet"),
        }
    }
}

impl Sending {
    /// Notes outcomes. Returns the certain ones that are new.
    fn record(&self, fate: &Fate, is_certain: bool) -> Fate {
        let mut outcomes = self.outcomes.lock();
        let mut fresh = Vec::new();
        for (hash, outcome) in fate {
            match outcomes.get_mut(hash) {
                Some(known) if known.outcome == *outcome => known.is_certain |= is_certain,
                // An outcome from before a restart is not replaced by one that is not known.
                Some(_) if !is_certain => {}
                _ => {
                    let found = FoundOutcome { outcome: outcome.clone(), since: Instant::now(), is_certain };
                    outcomes.insert(*hash, found);
                    fresh.extend(is_certain.then(|| (*hash, outcome.clone())));
                }
            }
        }
        fresh
    }

    /// Returns the recorded outcomes of the transactions of `fate`: one that is not certain does not replace one that was found
    /// before.
    fn recorded(&self, fate: Fate) -> Fate {
        let outcomes = self.outcomes.lock();
        let recorded = |(hash, found): (B256, TxOutcome)| {
            let outcome = outcomes.get(&hash).map_or(found, |known| known.outcome.clone());
            (hash, outcome)
        };
        fate.into_iter().map(recorded).collect()
    }

    /// Whether no reorg is expected to change outcomes: their block is final for the upstream, or they were found long ago.
    /// Outcomes that are not certain may be corrected for as long.
    fn is_final(&self, published: &Chain, fate: &Fate) -> bool {
        let outcomes = self.outcomes.lock();
        let is_finalized = |number: u64| published.finalized().is_some_and(|finalized| number <= finalized);
        fate.iter().all(|(hash, outcome)| {
            outcomes.get(hash).is_some_and(|found| {
                found.since.elapsed() >= self.settings.final_after
                    || found.is_certain && is_finalized(outcome.block().0)
            })
        })
    }
}

/// Logs outcomes that are not the wallet's own doing.
fn log_taken((account, nonce): NonceOf, fate: &Fate) {
    if fate.iter().any(|(_, outcome)| matches!(outcome, TxOutcome::FetchOutcome(..))) {
        return;
    }
    for (hash, outcome) in fate {
        if let TxOutcome::Taken(by) = outcome {
            let (by, block) = (by.hash.map_or_else(|| "unknown".to_owned(), |by| by.to_string()), by.block_number);
            tracing::warn!(%hash, %account, nonce, %by, block, "another transaction has used the nonce of a transaction of the wallet");
        }
    }
}

/// Returns the outcomes of the versions of a transaction whose nonce a canonical block has used, as far as that is known.
fn fate_of(spec: &ChainSpec, published: &Chain, versions: &Versions, outcomes: &B256Map<FoundOutcome>) -> Option<Fate> {
    let known: Fate = versions
        .iter()
        .filter_map(|one| outcomes.get_key_value(one.tx.tx_hash()))
        .filter(|(_, found)| found.is_certain)
        .map(|(hash, found)| (*hash, found.outcome.clone()))
        .collect();
    if known.len() == versions.len() {
        return Some(known);
    }
    let (landed, ran) = versions.iter().find_map(|one| receipt_of(spec, published, one.tx.tx_hash()))?;
    // A pre-confirmed block may not become canonical.
    if published.sealed_block(landed.block_number)?.hash() != landed.block_hash
        || landed.block_number > published.head().number()
    {
        return None;
    }
    Some(search::landed(versions, landed, ran))
}
