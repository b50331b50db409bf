//! Settling: what became of the transactions whose nonces are used, and storing it when it is final.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::Transaction;
use alloy_eips::eip7702::SignedAuthorization;
use alloy_primitives::{Address, B256, U64, map::B256Map};
use alloy_rpc_types_eth::Log;
use serde::Deserialize;
use tokio::time::{Duration, Instant};

use super::{WalletSender, lock};
use crate::{
    chain::ChainSpec,
    feed::upstream::{Ask, UpstreamError},
    pool::{Pooled, forget},
    state::{Block, Lookup, Overlay, Published},
    wallet::{
        CallsReceipt, NonceTaker, TxOutcome,
        outcome::{self, ran_code},
        progress::receipt_of,
    },
};

/// The pause before a question is repeated that the upstream did not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// The most rounds in which the transaction that has used a nonce is looked for, before it counts as unknown.
const LOOKS: u32 = 20;
/// Blocks by which an outcome is stored before its block is pruned.
const MARGIN: u64 = 16;

/// The versions of one transaction: all own ones of an account with one nonce.
type Versions = Vec<Arc<Pooled>>;

/// The nonces whose taker was looked for in vain, with the number of rounds.
type Looks = BTreeMap<(Address, u64), u32>;

/// A receipt as the upstream tells it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptAnswer {
    block_hash: B256,
    block_number: U64,
    #[serde(default)]
    status: Option<U64>,
    gas_used: U64,
    logs: Vec<Log>,
}

/// A block of which the senders are looked at.
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
    nonce: U64,
    #[serde(default)]
    authorization_list: Vec<SignedAuthorization>,
}

impl WalletSender {
    /// Keeps the pool in step with the chain, and settles what stands aside.
    pub(super) async fn settle(&self) {
        let mut changes = self.wallet.pool.changes();
        let mut looks = Looks::new();
        loop {
            changes.mark_unchanged();
            let pool = &self.wallet.pool;
            self.know_accounts().await;
            pool.advance();
            let mut groups = BTreeMap::<(Address, u64), Versions>::new();
            for pooled in pool.own_aside() {
                groups.entry((pooled.tx.signer(), pooled.tx.nonce())).or_default().push(pooled);
            }
            let is_done = self.settle_all(groups, &mut looks).await;
            self.sending.wake();
            let again = async { if is_done { std::future::pending().await } else { tokio::time::sleep(AGAIN).await } };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    /// Fetches the accounts that have transactions here, so that their nonces are known on the newest snapshots.
    async fn know_accounts(&self) {
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
            return;
        }
        let deadline = Instant::now() + 2 * self.sending.settings.timeout;
        if let Err(error) = self.sending.fetcher.fetch(&missed, None, deadline).await {
            tracing::debug!(%error, "the nonces of the wallet's accounts cannot be fetched: they are asked for again");
        }
    }

    /// Settles what can be settled. Returns whether nothing is left that another round without a new block may settle.
    async fn settle_all(&self, groups: BTreeMap<(Address, u64), Versions>, looks: &mut Looks) -> bool {
        let published = self.wallet.pool.published();
        let hashes = |versions: &Versions| versions.iter().map(|one| *one.tx.tx_hash()).collect::<Vec<_>>();
        let mut is_done = true;
        let (mut settled, mut unknown) = (Vec::new(), Vec::new());
        {
            let mut outcomes = lock(&self.sending.outcomes);
            let aside: alloy_primitives::map::B256Set = groups.values().flat_map(hashes).collect();
            outcomes.retain(|hash, outcome| aside.contains(hash) && still_holds(&published, outcome));
            for ((account, nonce), versions) in &groups {
                match published.latest().world.look_up(account) {
                    // The feed may have jumped, so that the account has to be fetched first.
                    Lookup::Unknown => is_done = false,
                    Lookup::Known(info) if info.as_ref().is_none_or(|info| info.nonce <= *nonce) => {
                        hashes(versions).iter().for_each(|hash| drop(outcomes.remove(hash)));
                    }
                    Lookup::Known(_) => match fate_of(&self.wallet.spec, &published, versions, &outcomes) {
                        Some(fate) => settled.push(fate),
                        None => unknown.push((*account, *nonce)),
                    },
                }
            }
        }
        looks.retain(|key, _| unknown.contains(key));
        let takers = takers(&published, &unknown);
        for key @ (account, nonce) in unknown {
            let versions = &groups[&key];
            let found = match takers.get(&key) {
                Some(taker) => Some(taken(versions, *taker)),
                None => self.ask(account, nonce, versions, &published, looks).await,
            };
            let Some(fate) = found else {
                is_done = false;
                continue;
            };
            self.note(account, nonce, &fate);
            lock(&self.sending.outcomes).extend(fate.iter().cloned());
            settled.push(fate);
        }
        self.store(settled.into_iter().filter(|fate| is_final(&published, fate)).collect()).await;
        is_done
    }

    /// Asks the upstream what has used a nonce in a block that presim has not followed.
    async fn ask(
        &self,
        account: Address,
        nonce: u64,
        versions: &Versions,
        published: &Published,
        looks: &mut Looks,
    ) -> Option<Vec<(B256, TxOutcome)>> {
        let deadline = Instant::now() + 2 * self.sending.settings.timeout;
        let hashes: Vec<B256> = versions.iter().map(|one| *one.tx.tx_hash()).collect();
        let asks = hashes
            .iter()
            .map(|hash| Ask::<Option<ReceiptAnswer>>::typed("eth_getTransactionReceipt", &(hash,)))
            .collect();
        for (hash, answer) in hashes.iter().zip(self.sending.upstream().all(asks, deadline).await) {
            let Some(receipt) = answer.ok()? else { continue };
            let landed = receipt.landed(*hash);
            let (number, block) = (landed.block_number, landed.block_hash);
            let tx = versions.iter().find(|one| one.tx.tx_hash() == hash)?;
            let ran = ran_code(&**tx.tx, landed.gas_used, self.wallet.spec.evm_fork(&published.head().header));
            let landed = TxOutcome::Landed(landed, ran);
            if !still_holds(published, &landed) {
                return None;
            }
            let by = NonceTaker { hash: Some(*hash), block_number: number, block_hash: block };
            let others = hashes.iter().filter(|other| *other != hash).map(|other| (*other, TxOutcome::Taken(by)));
            return Some(others.chain([(*hash, landed)]).collect());
        }
        let rounds = looks.entry((account, nonce)).or_default();
        *rounds += 1;
        let head = published.head();
        match self.find_taker(account, nonce, head.number(), deadline).await {
            Ok(Some(taker)) => Some(taken(versions, taker)),
            // A node that is behind has neither the receipt nor the block yet.
            _ if *rounds < LOOKS => None,
            Ok(None) | Err(UpstreamError::Refused { .. }) => {
                let taker = NonceTaker { hash: None, block_number: head.number(), block_hash: head.hash() };
                Some(taken(versions, taker))
            }
            Err(_) => None,
        }
    }

    /// Finds the transaction of a canonical block that has used a nonce, by the counts at earlier blocks.
    async fn find_taker(
        &self,
        account: Address,
        nonce: u64,
        head: u64,
        deadline: Instant,
    ) -> Result<Option<NonceTaker>, UpstreamError> {
        let upstream = self.sending.upstream();
        let is_used = async |number: u64| {
            let ask = Ask::<U64>::typed("eth_getTransactionCount", &(account, U64::from(number)));
            upstream.one(ask, deadline).await.map(|count| count.to::<u64>() > nonce)
        };
        // Used at `used`, and not at `free`.
        let (mut used, mut step) = (head, 1);
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

    /// Logs an outcome that is not the wallet's own doing.
    fn note(&self, account: Address, nonce: u64, fate: &[(B256, TxOutcome)]) {
        if fate.iter().any(|(_, outcome)| matches!(outcome, TxOutcome::Landed(..))) {
            return;
        }
        for (hash, outcome) in fate {
            if let TxOutcome::Taken(by) = outcome {
                let (by, block) = (by.hash.map_or_else(|| "unknown".to_owned(), |by| by.to_string()), by.block_number);
                tracing::warn!(%hash, %account, nonce, %by, block, "another transaction has used the nonce of a transaction of the wallet");
            }
        }
    }

    /// Stores final outcomes, and takes their transactions out of the pool.
    async fn store(&self, settled: Vec<Vec<(B256, TxOutcome)>>) {
        if settled.is_empty() {
            return;
        }
        let all: Vec<(B256, TxOutcome)> = settled.into_iter().flatten().collect();
        let hashes: Vec<B256> = all.iter().map(|(hash, _)| *hash).collect();
        let landed = all.iter().filter(|(_, outcome)| matches!(outcome, TxOutcome::Landed(..))).count();
        let gone = hashes.clone();
        let written = self.wallet.ledger.store().write(move |transaction| {
            outcome::write(transaction, all)?;
            forget(transaction, gone)
        });
        let stored = match written {
            Ok(commit) => commit.wait().await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(()) => {
                self.sending.meters.settled.increment(landed as u64);
                self.sending.meters.taken.increment((hashes.len() - landed) as u64);
                self.wallet.pool.settle(hashes.iter().copied());
                let mut outcomes = lock(&self.sending.outcomes);
                hashes.iter().for_each(|hash| drop(outcomes.remove(hash)));
            }
            Err(error) => tracing::debug!(%error, "outcomes of the wallet's transactions cannot be stored yet"),
        }
    }
}

impl ReceiptAnswer {
    fn landed(self, hash: B256) -> CallsReceipt {
        CallsReceipt {
            logs: self.logs.into_iter().map(|log| log.inner).collect(),
            success: self.status.is_none_or(|status| !status.is_zero()),
            block_hash: self.block_hash,
            block_number: self.block_number.to(),
            gas_used: self.gas_used.to(),
            tx_hash: hash,
        }
    }
}

/// Whether the block of an outcome is still the chain's, as far as it is known.
fn still_holds(published: &Published, outcome: &TxOutcome) -> bool {
    let (number, hash) = outcome.block();
    match published.sealed_block(number) {
        Some(block) => block.hash() == hash,
        // An older block is not known.
        None => number < published.head().number(),
    }
}

/// Returns the outcomes of the versions of a transaction whose nonce a canonical block has used, as far as that is known.
fn fate_of(
    spec: &ChainSpec,
    published: &Published,
    versions: &Versions,
    outcomes: &B256Map<TxOutcome>,
) -> Option<Vec<(B256, TxOutcome)>> {
    let known: Vec<_> = versions
        .iter()
        .filter_map(|one| outcomes.get_key_value(one.tx.tx_hash()))
        .map(|(hash, one)| (*hash, one.clone()))
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
    let by =
        NonceTaker { hash: Some(landed.tx_hash), block_number: landed.block_number, block_hash: landed.block_hash };
    let mut fate = taken(versions, by);
    fate.retain(|(hash, _)| *hash != landed.tx_hash);
    fate.push((landed.tx_hash, TxOutcome::Landed(landed, ran)));
    Some(fate)
}

fn taken(versions: &Versions, by: NonceTaker) -> Vec<(B256, TxOutcome)> {
    versions.iter().map(|one| (*one.tx.tx_hash(), TxOutcome::Taken(by))).collect()
}

/// Finds the transactions of canonical blocks that have used these nonces: as their senders', or by an authorization
/// (EIP-7702).
fn takers(published: &Published, nonces: &[(Address, u64)]) -> BTreeMap<(Address, u64), NonceTaker> {
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

/// Whether no reorg is expected to change outcomes: their block is final for the upstream, or soon older than what is
/// retained.
fn is_final(published: &Published, fate: &[(B256, TxOutcome)]) -> bool {
    let Some(number) = fate.iter().map(|(_, outcome)| outcome.block().0).max() else { return false };
    let window = published.retained_states().window.unwrap_or(u64::MAX);
    let is_old = number.saturating_add(window.saturating_sub(MARGIN).max(1)) <= published.head().number();
    is_old || published.finalized().is_some_and(|finalized| number <= finalized)
}
