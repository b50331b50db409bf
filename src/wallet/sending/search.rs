//! Finds the transactions that used a nonce: in the blocks that presim has followed, and at the upstream for the
//! others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_consensus::Transaction;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, Log, U64};
use futures::{StreamExt, stream};
use serde::Deserialize;
use tokio::time::{Duration, Instant};

use super::state::Sending;
use crate::{
    chain::ChainSpec,
    ledger::{Block, Chain},
    pool::Pooled,
    upstream::{Ask, UpstreamError},
    wallet::{CallsReceipt, NonceTaker, TxOutcome, outcome::ran_code},
};

/// The pauses between two searches at the upstream for the same nonce: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(8);
/// The most nonces whose takers are looked for at once.
const MAX_NONCES_AT_ONCE: usize = 8;

/// The versions of one transaction: all own ones of an account with one nonce.
pub(super) type Versions = Vec<Arc<Pooled>>;

/// An account and one of its nonces.
pub(super) type NonceOf = (Address, u64);

/// The outcomes of the versions of one transaction.
pub(super) type Fate = Vec<(B256, TxOutcome)>;

/// A search for the transaction that used a nonce.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    since: Instant,
    /// The time of the next look.
    pub due: Instant,
    pause: Duration,
}

impl Retry {
    /// Returns a search that begins at once.
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, due: now, pause: FIRST_PAUSE }
    }

    /// Puts off the next look, and returns how long the search has lasted.
    fn postpone(&mut self) -> Duration {
        let now = Instant::now();
        self.due = now + self.pause;
        self.pause = (2 * self.pause).min(MAX_PAUSE);
        now - self.since
    }
}

/// The upstream's answer about a nonce.
enum UpstreamAnswer {
    /// The outcomes of all versions are known.
    Fate(Fate),
    /// The upstream knows of no transaction that has used the nonce.
    Nothing,
    /// The upstream does not answer, or does not have the receipt yet of a block that it has: a node may be behind another.
    NotYet,
}

/// A receipt, as an upstream gives it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptAnswer {
    block_hash: B256,
    block_number: U64,
    #[serde(default)]
    status: Option<U64>,
    gas_used: U64,
    /// The gas that the sequencer of an OP-stack chain has refunded.
    #[serde(default)]
    op_gas_refund: Option<U64>,
    logs: Vec<Log>,
}

/// A block whose senders are searched.
#[derive(Deserialize)]
struct TakerBlock {
    hash: B256,
    transactions: Vec<TakerTx>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TakerTx {
    hash: B256,
    from: Address,
    /// A post-execution transaction of the OP stack has none, and no sender.
    #[serde(default)]
    nonce: U64,
    #[serde(default)]
    authorization_list: Vec<SignedAuthorization>,
}

/// A search for the transactions that used nonces: in the published blocks, and at the upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonceSearch<'a> {
    pub spec: &'a ChainSpec,
    pub sending: &'a Sending,
    pub published: &'a Chain,
}

impl NonceSearch<'_> {
    /// Searches for the transactions that used these nonces, all of them together. Returns the outcomes found, each
    /// with whether it is certain. Searches in `retries` that find nothing are postponed.
    pub(super) async fn find(
        &self,
        nonces: BTreeMap<NonceOf, &Versions>,
        retries: &mut BTreeMap<NonceOf, Retry>,
    ) -> Vec<(NonceOf, Fate, bool)> {
        let mut found = Vec::new();
        let takers = takers(self.published, &nonces.keys().copied().collect());
        let (followed, others): (Vec<_>, Vec<_>) =
            nonces.into_iter().partition(|(nonce_of, _)| takers.contains_key(nonce_of));
        found.extend(followed.into_iter().map(|(nonce_of, versions)| {
            let fate = taken(versions, takers[&nonce_of]);
            (nonce_of, fate, true)
        }));
        for ((nonce_of, versions), answered) in others.iter().zip(self.ask(&others).await) {
            match answered {
                UpstreamAnswer::Fate(fate) => {
                    found.push((*nonce_of, fate, true));
                    continue;
                }
                UpstreamAnswer::Nothing | UpstreamAnswer::NotYet => {}
            }
            let Some(retry) = retries.get_mut(nonce_of) else { continue };
            let lasted = retry.postpone();
            if matches!(answered, UpstreamAnswer::Nothing) && lasted >= self.sending.settings.receipt_wait {
                let head = self.published.head();
                let by = NonceTaker { hash: None, block_number: head.number(), block_hash: head.hash() };
                found.push((*nonce_of, taken(versions, by), false));
            }
        }
        found
    }

    /// Asks the upstream which transactions used nonces in blocks that presim has not followed. Returns an answer for
    /// each.
    async fn ask(&self, nonces: &[(NonceOf, &Versions)]) -> Vec<UpstreamAnswer> {
        let deadline = Instant::now() + 2 * self.sending.settings.timeout;
        let receipt = |hash: &B256| Ask::<Option<ReceiptAnswer>>::typed("eth_getTransactionReceipt", &(hash,));
        let all = nonces.iter().flat_map(|(_, versions)| versions.iter());
        let asks = all.map(|one| receipt(one.tx.tx_hash())).collect();
        let mut receipts = self.sending.upstream.all(asks, deadline).await.into_iter();
        let receipts: Vec<Vec<_>> =
            nonces.iter().map(|(_, versions)| receipts.by_ref().take(versions.len()).collect()).collect();
        let mut answers = Vec::with_capacity(nonces.len());
        for ((nonce_of, versions), receipts) in nonces.iter().zip(receipts) {
            answers.push(async move {
                match self.landed(versions, receipts) {
                    UpstreamAnswer::Nothing => self.replaced(*nonce_of, versions, deadline).await,
                    answered => answered,
                }
            });
        }
        stream::iter(answers).buffered(MAX_NONCES_AT_ONCE).collect().await
    }

    /// Reads the receipts of the versions of one transaction.
    fn landed(
        &self,
        versions: &Versions,
        receipts: Vec<Result<Option<ReceiptAnswer>, UpstreamError>>,
    ) -> UpstreamAnswer {
        for (version, receipt) in versions.iter().zip(receipts) {
            let receipt = match receipt {
                Ok(Some(receipt)) => receipt,
                Ok(None) => continue,
                Err(_) => return UpstreamAnswer::NotYet,
            };
            let hash = *version.tx.tx_hash();
            let refund: u64 = receipt.op_gas_refund.unwrap_or_default().to();
            let receipt = receipt.landed(hash);
            let fork = self.spec.evm_fork(&self.published.head().header);
            let used = receipt.gas_used.saturating_add(refund);
            let ran = ran_code(&**version.tx, version.tx.signer(), used, fork);
            let fate = landed(versions, receipt, ran);
            // A node may give a receipt of another branch, or of a block that presim does not have yet.
            let holds = fate.iter().all(|(_, outcome)| still_holds(self.published, outcome));
            return if holds { UpstreamAnswer::Fate(fate) } else { UpstreamAnswer::NotYet };
        }
        UpstreamAnswer::Nothing
    }

    /// Finds another transaction that has used a nonce.
    async fn replaced(&self, (account, nonce): NonceOf, versions: &Versions, deadline: Instant) -> UpstreamAnswer {
        match self.find_taker(account, nonce, deadline).await {
            Ok(Some(by)) if versions.iter().any(|one| Some(*one.tx.tx_hash()) == by.hash) => UpstreamAnswer::NotYet,
            Ok(Some(by)) => UpstreamAnswer::Fate(taken(versions, by)),
            Ok(None) | Err(UpstreamError::Refused { .. } | UpstreamError::Behind { .. }) => UpstreamAnswer::Nothing,
            Err(_) => UpstreamAnswer::NotYet,
        }
    }

    /// Finds the transaction of a canonical block that has used a nonce, by the counts at earlier blocks.
    async fn find_taker(
        &self,
        account: Address,
        nonce: u64,
        deadline: Instant,
    ) -> Result<Option<NonceTaker>, UpstreamError> {
        let upstream = &self.sending.upstream;
        let is_used = async |number: u64| {
            let ask = Ask::<U64>::typed("eth_getTransactionCount", &(account, U64::from(number)));
            upstream.one(ask, deadline).await.map(|count| count.to::<u64>() > nonce)
        };
        // Used at `used`, and not at `free`.
        let (mut used, mut step) = (self.published.head().number(), 1);
        let mut free = loop {
            let Some(before) = used.checked_sub(step) else { break None };
            if !is_used(before).await? {
                break Some(before);
            }
            (used, step) = (before, step * 2);
        };
        while let Some(low) = free.filter(|low| used - low > 1) {
            let middle = low + (used - low) / 2;
            if is_used(middle).await? { used = middle } else { free = Some(middle) }
        }
        let ask = Ask::<Option<TakerBlock>>::typed("eth_getBlockByNumber", &(U64::from(used), true));
        let Some(block) = upstream.one(ask, deadline).await? else { return Ok(None) };
        let is_taker = |tx: &&TakerTx| {
            let authorizes = |one: &SignedAuthorization| {
                one.nonce() == nonce && one.recover_authority().is_ok_and(|authority| authority == account)
            };
            (tx.from == account && tx.nonce.to::<u64>() == nonce) || tx.authorization_list.iter().any(authorizes)
        };
        let taker = block.transactions.iter().find(is_taker);
        Ok(taker.map(|tx| NonceTaker { hash: Some(tx.hash), block_number: used, block_hash: block.hash }))
    }
}

impl ReceiptAnswer {
    fn landed(self, hash: B256) -> CallsReceipt {
        CallsReceipt {
            logs: self.logs,
            success: self.status.is_none_or(|status| !status.is_zero()),
            block_hash: self.block_hash,
            block_number: self.block_number.to(),
            gas_used: self.gas_used.to(),
            tx_hash: hash,
        }
    }
}

/// Whether the block of an outcome is still the chain's, as far as it is known.
pub(super) fn still_holds(published: &Chain, outcome: &TxOutcome) -> bool {
    let (number, hash) = outcome.block();
    match published.sealed_block(number) {
        Some(block) => block.hash() == hash,
        // An older block is not known.
        None => number < published.head().number(),
    }
}

/// Returns the outcomes of the versions of a transaction whose nonce another transaction has used.
pub(super) fn taken(versions: &Versions, by: NonceTaker) -> Fate {
    versions.iter().map(|one| (*one.tx.tx_hash(), TxOutcome::Taken(by))).collect()
}

/// Returns the outcomes of the versions of a transaction of which one is in a block.
pub(super) fn landed(versions: &Versions, receipt: CallsReceipt, ran: Option<bool>) -> Fate {
    let CallsReceipt { tx_hash, block_number, block_hash, .. } = receipt;
    let mut fate = taken(versions, NonceTaker { hash: Some(tx_hash), block_number, block_hash });
    fate.retain(|(hash, _)| *hash != tx_hash);
    fate.push((tx_hash, TxOutcome::FetchOutcome(receipt, ran)));
    fate
}

/// Finds the transactions of canonical blocks that have used these nonces: as their senders', or by an authorization
/// (EIP-7702).
fn takers(published: &Chain, nonces: &BTreeSet<NonceOf>) -> BTreeMap<NonceOf, NonceTaker> {
    let mut found = BTreeMap::new();
    if nonces.is_empty() {
        return found;
    }
    let head = published.head().number();
    for block in published.blocks(0, head).filter_map(Block::sealed) {
        let (block_number, block_hash) = (block.number(), block.header().hash());
        for included in block.transactions() {
            let by = NonceTaker { hash: Some(*included.tx.tx_hash()), block_number, block_hash };
            let own = (included.tx.signer(), included.tx.nonce());
            let authorized = included.tx.authorization_list().unwrap_or_default().iter();
            let authorized = authorized.filter_map(|one| Some((one.recover_authority().ok()?, one.nonce())));
            for key in std::iter::once(own).chain(authorized).filter(|key| nonces.contains(key)) {
                found.entry(key).or_insert(by);
            }
        }
    }
    found
}
