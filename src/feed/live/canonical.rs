//! Canonical blocks: followed from parent to child, executed on the known state, and checked.

use std::{sync::Arc, time::Duration};

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{B256, Sealed};
use tokio::time::Instant;

use super::{Live, LiveError};
use crate::{
    chain::{BlockBody, BlockHashes, ChainReceipt, ChainTx, SealedBlock, receipts_root_and_bloom},
    feed::{
        apply::{Executed, execute_block, stand_on},
        flashblocks::{Action, CanonicalBlock},
        upstream::{Upstream, UpstreamBlock, receipts},
    },
    state::{AccountChange, FeedProblem, FeedState, RemoteView, Selector, Snapshot, World},
};

/// The number of times an older block has to be the upstream's newest before its chain counts as gone back.
const LOOKS: u32 = 8;
/// The number of blocks by which the upstream may be ahead before the published state counts as late.
const BEHIND: usize = 2;

/// The results of a canonical block.
struct ImportedBlock {
    changes: Vec<AccountChange>,
    receipts: Vec<ChainReceipt>,
    /// The snapshot that has the same state, if the block was pre-confirmed unchanged.
    pre_confirmed: Option<Arc<Snapshot>>,
}

impl Live {
    /// Catches up with the upstream's head: walks back from it to the newest known ancestor, then imports the blocks in
    /// between.
    pub(super) async fn follow(&mut self, newest: B256) -> Result<(), LiveError> {
        let mut path: Vec<UpstreamBlock> = Vec::new();
        let mut hash = newest;
        let fork = loop {
            if let Some(known) = self.canonical(hash) {
                break Some(known);
            }
            if path.len() == self.source.limits.gap {
                break None;
            }
            let block = self.block(hash).await?;
            if block.number() <= self.oldest() {
                path.push(block);
                break None;
            }
            hash = block.header.parent_hash;
            path.push(block);
        };
        let head = self.feed.snapshots.load().head().clone();
        match fork {
            Some(fork) if fork.hash() == head.hash() => self.looks = 0,
            // One of several nodes behind an address may be late. Only a lasting answer means that the chain went back.
            Some(_) if path.is_empty() && self.looks < LOOKS => {
                self.looks += 1;
                self.source.heads.again();
                return Ok(());
            }
            Some(fork) if fork.number() < head.number() => {
                self.looks = 0;
                self.reorgs.increment(1);
                tracing::warn!(from = head.number(), to = fork.number(), "the upstream took another branch");
                if self.source.remote.revert_to(fork.number(), fork.hash()).is_none() && !path.is_empty() {
                    return self.begin_anew(path.swap_remove(0)).await;
                }
                // Nothing is answered from the dead branch while the other one is imported.
                self.let_go();
                self.feed.snapshots.go_back(fork.number(), FeedState::Degraded(FeedProblem::Reorg));
                self.set(FeedState::Degraded(FeedProblem::Reorg));
                if path.is_empty() {
                    let actions = self.judge(&about(&fork.header, &fork.body().transactions));
                    self.act(actions, Instant::now(), false).await;
                }
            }
            Some(_) => {}
            None => {
                tracing::warn!(from = head.number(), "too far behind the upstream: the blocks between are skipped");
                return self.begin_anew(path.swap_remove(0)).await;
            }
        }
        if path.len() > BEHIND && self.source.flashblocks.is_none() {
            self.set(FeedState::Degraded(FeedProblem::Lagging));
        }
        for block in path.into_iter().rev() {
            self.import(block).await?;
        }
        Ok(())
    }

    /// Returns the upstream's block of this hash.
    async fn block(&self, hash: B256) -> Result<UpstreamBlock, LiveError> {
        let deadline = Instant::now() + self.source.limits.wait;
        let json = self.source.fetcher.upstream().block_by_hash(hash, deadline).await?;
        let block = UpstreamBlock::read(json.ok_or(LiveError::Unknown(hash))?.get(), self.source.spec.family())?;
        LiveError::unless_equal("hash of the block", block.hash(), hash)?;
        if let Err(error) = block.check(self.source.spec.family()) {
            if self.source.limits.verify {
                return Err(error.into());
            }
            tracing::warn!(%error, "the upstream's block is not consistent");
        }
        Ok(block)
    }

    /// Returns the canonical block of this hash, if its state is kept.
    fn canonical(&self, hash: B256) -> Option<Arc<SealedBlock>> {
        let published = self.feed.snapshots.load();
        let known = published.select(Selector::Hash(hash)).ok()?;
        let is_canonical = known.open.is_none() && known.head.number() <= published.head().number();
        is_canonical.then(|| known.head.clone())
    }

    /// Returns the number of the oldest block that a branch can begin at.
    fn oldest(&self) -> u64 {
        self.feed.snapshots.load().oldest_state()
    }

    /// Imports the next canonical block, as it was pre-confirmed or by executing it. If neither is possible, the known
    /// state is dropped.
    async fn import(&mut self, block: UpstreamBlock) -> Result<(), LiveError> {
        let (began, number, hash) = (Instant::now(), block.number(), block.hash());
        let parent = self.feed.snapshots.load().select(Selector::Hash(block.header.parent_hash));
        let parent = parent.map_err(|_| LiveError::Gone(number))?;
        // Taken before the rules drop the block.
        let retired = self.retire(&block);
        let actions = self.judge(&about(&block.header, &block.transactions));
        let told_same = actions.iter().any(|action| *action == Action::Retire { number });
        let is_void = |action: &Action| matches!(action, Action::Replace { .. } | Action::FallBack(_));
        // Void blocks are dropped before anything that takes time.
        let (void, rest): (Vec<_>, Vec<_>) = actions.into_iter().partition(is_void);
        let is_voided = !void.is_empty();
        let mut keeps_ahead = told_same && !is_voided;
        self.act(void, began, false).await;
        let done = match retired.filter(|_| told_same) {
            Some(done) => Ok(done),
            None => {
                keeps_ahead = false;
                self.execute(&block, &parent).await
            }
        };
        let remote = &self.source.remote;
        let mut done = match done {
            Ok(done) => {
                self.executed.increment(1);
                Some(done)
            }
            Err(error) => {
                let mismatch = matches!(error, LiveError::Mismatch { .. });
                if mismatch { &self.mismatched } else { &self.skipped }.increment(1);
                tracing::warn!(number, %hash, %error, "a block cannot be executed: its state is fetched anew");
                None
            }
        };
        let (view, receipts) = match &mut done {
            Some(done) => (remote.advance(number, hash, &done.changes), Some(std::mem::take(&mut done.receipts))),
            None => (remote.cut(number, hash), self.receipts(&block).await),
        };
        let view = view.ok_or(LiveError::Gone(number))?;
        self.block_time =
            Duration::from_secs(block.header.timestamp.saturating_sub(parent.head.header.timestamp).clamp(1, 3600));
        let mut hashes = parent.hashes.clone();
        hashes.push(number, hash);
        let mut snapshot = canonical_snapshot(view, block, receipts, hashes);
        snapshot = match done {
            Some(ImportedBlock { pre_confirmed: Some(same), .. }) => snapshot.after(&same, Arc::default()),
            Some(ImportedBlock { changes, .. }) => snapshot.after(&parent, Arc::new(changes)),
            None => snapshot,
        };
        if !keeps_ahead {
            self.let_go();
        }
        if self.made().next().is_some() {
            self.feed.snapshots.confirm(snapshot);
        } else {
            self.feed.snapshots.publish_canonical(snapshot);
            self.feed.count(began.into_std());
        }
        self.act(rest, Instant::now(), false).await;
        if told_same && !keeps_ahead && !is_voided {
            // The rules took the block for the pre-confirmed one, so the blocks that they keep are built on a different
            // state.
            self.fail(FeedProblem::Mismatch);
        }
        Ok(())
    }

    /// Returns the actions that a canonical block requires.
    fn judge(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        self.source.flashblocks.as_mut().map(|source| source.rules.canonical(block)).unwrap_or_default()
    }

    /// Returns the results of a block as it was pre-confirmed, if it became canonical unchanged.
    fn retire(&self, block: &UpstreamBlock) -> Option<ImportedBlock> {
        let ahead = self.made().next().filter(|ahead| ahead.number == block.number())?;
        let newest = self.feed.snapshots.newest();
        let (receipts, gas_used) = ahead.outcome(&newest);
        // The same gas and receipts are not enough: a transfer of another value has them too.
        let is_same = ahead.has_environment_of(&block.header)
            && ahead.has_transactions(&block.transactions, &newest)
            && check(block, gas_used, &receipts).is_ok();
        if !is_same {
            return None;
        }
        let pre_confirmed = match &newest.open {
            Some(open) if open.header.number == block.number() => Some(newest),
            _ => self.feed.snapshots.load().select(Selector::Hash(block.hash())).ok(),
        };
        Some(ImportedBlock { changes: ahead.changes(), receipts, pre_confirmed })
    }

    /// Executes a block on its parent's state, as far as that is known or can be fetched in time.
    async fn execute(&self, block: &UpstreamBlock, parent: &Snapshot) -> Result<ImportedBlock, LiveError> {
        let (began, time) = (Instant::now(), self.source.limits.execute);
        if time.is_zero() || block.has_ommers {
            return Err(LiveError::Late(time));
        }
        let view = self.source.remote.view(parent.head.number(), parent.head_hash());
        // The state right after the parent, without the pre-confirmed blocks on it.
        let view = view.ok_or(LiveError::Gone(parent.head.number()))?;
        let on = stand_on(World::on(view.clone()), parent.head.clone(), parent.hashes.clone());
        self.warm(&view, &block.transactions, began, time).await?;
        loop {
            let header = block.header.inner();
            let executed =
                execute_block(&self.source.spec, &on, header, &block.transactions, &[], block.withdrawals.as_ref())?;
            if executed.missed.is_empty() {
                check(block, executed.gas_used, &executed.receipts)?;
                let Executed { changes, receipts, .. } = executed;
                return Ok(ImportedBlock { changes, receipts, pre_confirmed: None });
            }
            self.fetch(executed.missed, began, time).await?;
        }
    }

    /// Returns the receipts of a block that is not executed here, as the upstream has them.
    async fn receipts(&self, block: &UpstreamBlock) -> Option<Vec<ChainReceipt>> {
        told_receipts(self.source.fetcher.upstream(), block, Instant::now() + self.source.limits.wait).await
    }

    /// Starts again at a block without known ancestors.
    async fn begin_anew(&mut self, block: UpstreamBlock) -> Result<(), LiveError> {
        let receipts = self.receipts(&block).await;
        let actions = self.judge(&about(&block.header, &block.transactions));
        let view = self.source.remote.restart(block.number(), block.hash());
        let mut hashes = BlockHashes::default();
        if let Some(parent) = block.number().checked_sub(1) {
            hashes.push(parent, block.header.parent_hash);
        }
        hashes.push(block.number(), block.hash());
        self.let_go();
        self.feed.snapshots.begin_anew(canonical_snapshot(view, block, receipts, hashes));
        self.act(actions, Instant::now(), false).await;
        Ok(())
    }
}

/// Returns a canonical block as the rules of a stream want it.
pub(super) fn about(header: &Sealed<Header>, transactions: &[Recovered<ChainTx>]) -> CanonicalBlock {
    CanonicalBlock {
        number: header.number,
        hash: header.hash(),
        parent_hash: header.parent_hash,
        receipts_root: header.receipts_root,
        transactions: transactions.iter().map(|tx| *tx.tx_hash()).collect(),
    }
}

/// Returns the receipts of a block from the upstream; `None` if it does not have them, or they are not the block's.
pub async fn told_receipts(upstream: &Upstream, block: &UpstreamBlock, deadline: Instant) -> Option<Vec<ChainReceipt>> {
    let problem = match receipts(upstream, block.hash(), deadline).await {
        Ok(receipts) => match check(block, block.header.gas_used, &receipts) {
            Ok(()) => return Some(receipts),
            Err(error) => error,
        },
        Err(error) => error.into(),
    };
    tracing::warn!(number = block.number(), %problem, "the receipts of a block are not available: requests for them go to the upstream");
    None
}

/// Returns the snapshot of a canonical block. Without receipts, only its header is known.
pub fn canonical_snapshot(
    view: RemoteView,
    block: UpstreamBlock,
    receipts: Option<Vec<ChainReceipt>>,
    hashes: BlockHashes,
) -> Snapshot {
    let UpstreamBlock { header, transactions, withdrawals, .. } = block;
    let sealed = match receipts {
        Some(receipts) => {
            SealedBlock::named(header, BlockBody { transactions, receipts, ommers: Vec::new(), withdrawals })
        }
        None => SealedBlock::bare(header),
    };
    stand_on(World::on(view), Arc::new(sealed), hashes)
}

/// Checks gas and receipts against the block's header.
fn check(block: &UpstreamBlock, gas_used: u64, receipts: &[ChainReceipt]) -> Result<(), LiveError> {
    let header = &block.header;
    LiveError::unless_equal("gasUsed", gas_used, header.gas_used)?;
    let (root, bloom) = receipts_root_and_bloom(receipts);
    LiveError::unless_equal("receiptsRoot", root, header.receipts_root)?;
    LiveError::unless_equal("logsBloom", bloom, header.logs_bloom)
}
