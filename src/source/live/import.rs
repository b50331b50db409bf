//! The import of canonical blocks: they are requested from the upstream, executed on the known state, and checked.
//!
//! The import does not block the stream: each step is a future that the feed's task polls between sub-blocks. No step
//! changes the published chain.

use std::{cell::Cell, panic::AssertUnwindSafe, rc::Rc, sync::Arc, time::Duration};

use alloy_consensus::{Header, Transaction, transaction::Recovered};
use alloy_eips::{
    BlockNumberOrTag,
    eip2935::HISTORY_STORAGE_ADDRESS,
    eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip7928::{BlockAccessList, compute_block_access_list_hash},
};
use alloy_primitives::{Address, B256, Bloom, Sealed, map::AddressMap};
use futures::FutureExt;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::flashblocks::CanonicalBlock;
use super::{error::LiveError, parts::LiveChain};
use crate::{
    chain::{
        BASE_FEE_VAULT, BASE_TIME, BlockHashes, ChainReceipt, ChainTx, GasRefunds, L1_FEE_VAULT, OPERATOR_FEE_VAULT,
        SealedBlock, receipts_root_and_bloom,
    },
    engine::{BlockRun, look_ahead},
    ledger::{BlockChanges, Selector, Snapshot, Snapshots},
    objects,
    state::{AccountChange, Held, RemoteView, World, listed_changes},
    upstream::{AnnouncedReceipts, BlockName, Hints, Prestate, UpstreamBlock},
};

/// The contracts that are written around the transactions of a block.
const SYSTEM_CONTRACTS: [Address; 5] = [
    HISTORY_STORAGE_ADDRESS,
    BEACON_ROOTS_ADDRESS,
    BASE_TIME,
    WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
];
/// Of the blocks with an access list, one in this many is executed.
const EXECUTED_EVERY: u64 = 32;
/// The most blocks that are skipped with their logs.
const MOST_SKIPPED: u64 = 1_024;
/// The gas after which the execution of a canonical block lets sub-blocks run.
const SLICE: u64 = 10_000_000;

/// The result of a task that ran while the stream continued.
pub(super) enum CanonicalNews {
    /// The way from a known block to the upstream's newest was looked for.
    Found(Result<Found, LiveError>),
    /// The first block of the path was executed, or the upstream was asked for its receipts.
    Executed(Result<ImportedBlock, NotExecuted>, AnnouncedReceipts),
    /// The first block waits for state, or the state for a later one has arrived.
    Waits,
    /// The upstream is a node of another chain now.
    OtherChain(LiveError),
    /// The receipts of a block at which to start again were asked for, and the blocks between that and the head, oldest first, as far as
    /// they lead there.
    Restart(Box<UpstreamBlock>, AnnouncedReceipts, Vec<SealedBlock>),
}

/// A block that was not executed.
pub(super) struct NotExecuted {
    /// The reason.
    pub error: LiveError,
    /// The accounts and slots that it may have changed; `None` if the upstream did not trace it.
    pub touched: Option<Vec<AccountChange>>,
}

/// The path to the upstream's newest block.
pub(super) struct Found {
    /// The newest known block that is an ancestor, or the block itself.
    pub fork: ForkPoint,
    /// The blocks after it, newest first.
    pub path: Vec<UpstreamBlock>,
    /// The hash of the announced block if the upstream does not have it yet, so that the path to its newest block was looked
    /// for in its place.
    pub unknown: Option<B256>,
}

/// The block at which a path to the upstream's newest block begins.
pub(super) enum ForkPoint {
    /// A canonical block.
    Known(Arc<SealedBlock>),
    /// A block with this hash that waited to be imported when the search began.
    Waiting(B256),
    /// No block that is known.
    Unknown,
}

/// The knowledge of a block that was fetched before its turn.
#[derive(Default)]
pub(super) struct Predicted {
    /// The values that its transactions read, if the upstream has traced them.
    pub prestate: Option<Prestate>,
    /// The access list of the block, and its receipts.
    pub listed: Option<ListedBlock>,
}

/// A block that can be applied without executing it.
pub(super) struct ListedBlock {
    /// The access list. Its hash is in the header.
    list: BlockAccessList,
    /// The receipts. Their root is in the header.
    receipts: Vec<ChainReceipt>,
}

/// The results of a canonical block.
pub(super) struct ImportedBlock {
    pub changes: BlockChanges,
    pub receipts: Vec<ChainReceipt>,
}

impl LiveChain {
    /// Walks back from the upstream's newest block to the newest block that is known, or that is among `waiting`: the
    /// numbers and hashes of blocks that are being imported. Where blocks are between, they are asked for side by side, by
    /// their numbers, so that a distant upstream costs two round trips however many they are.
    pub(super) async fn find(
        self,
        newest: BlockName,
        waiting: Vec<(u64, B256)>,
        snapshots: Arc<Snapshots>,
    ) -> Result<Found, LiveError> {
        let canonical = |hash: B256| {
            let published = snapshots.load();
            let known = published.select(Selector::Hash(hash)).ok()?;
            let is_canonical = known.open.is_none() && known.head.number() <= published.head().number();
            is_canonical.then(|| known.head.clone())
        };
        let mut path: Vec<UpstreamBlock> = Vec::new();
        // The blocks between, oldest first, as far as the upstream gave them.
        let mut between: Vec<Box<RawValue>> = Vec::new();
        let (mut hash, mut unknown) = (newest.hash, None);
        // The block with this hash, if it was given.
        let mut given: Option<UpstreamBlock> = None;
        let (fork, number) = loop {
            if let Some((number, _)) = waiting.iter().find(|(_, known)| *known == hash) {
                break (ForkPoint::Waiting(hash), Some(*number));
            }
            if let Some(known) = canonical(hash) {
                let number = known.number();
                break (ForkPoint::Known(known), Some(number));
            }
            if path.len() == self.limits.gap {
                break (ForkPoint::Unknown, None);
            }
            if given.is_none()
                && let Some(json) = between.pop()
            {
                given = self.read(&json, hash, &snapshots).await.ok();
            }
            let block = match given.take() {
                Some(block) => block,
                // Nothing was asked for, or another branch has this number now.
                None => {
                    between.clear();
                    match self.block(hash, &snapshots).await {
                        Err(LiveError::Unknown(_)) if path.is_empty() && unknown.is_none() => {
                            // One of several nodes behind an address may be late, or the announced block is no block yet.
                            let latest = self.latest(&snapshots).await?;
                            hash = latest.hash();
                            // A block of the same height may be one of another branch.
                            let is_ahead = newest.number.to::<u64>() >= latest.number();
                            unknown = (is_ahead && hash != newest.hash).then_some(newest.hash);
                            given = Some(latest);
                            continue;
                        }
                        block => block?,
                    }
                }
            };
            let (head, oldest) = {
                let published = snapshots.load();
                (published.head().number(), published.oldest_state())
            };
            if let Some(child) = path.last() {
                child_of(child, block.number())?;
            }
            let last = waiting.last().map_or(head, |(number, _)| head.max(*number));
            let missing = last + 1..block.number();
            if path.is_empty() && (2..=self.limits.gap as u64).contains(&missing.end.saturating_sub(missing.start)) {
                between = self.upstream.blocks(missing, Instant::now() + self.limits.wait).await;
            }
            hash = block.header.parent_hash;
            let is_old = block.number() <= oldest;
            path.push(block);
            // An old number under a known parent is a wrong one.
            if is_old && canonical(hash).is_none() {
                break (ForkPoint::Unknown, None);
            }
        };
        if path.is_empty() && unknown.is_none() {
            self.check_chain().await?;
        }
        if let (Some(number), Some(first)) = (number, path.last()) {
            child_of(first, number)?;
        }
        Ok(Found { fork, path, unknown })
    }

    /// Returns the headers of the blocks after `head` up to the last of `path`, oldest first. `path` is newest first.
    /// Returns none if there are more than [`MOST_SKIPPED`], or if one does not follow from the previous one.
    pub(super) async fn skipped(self, head: &SealedBlock, path: Vec<UpstreamBlock>) -> Vec<SealedBlock> {
        let found =
            path.into_iter().rev().map(|block| block.into_sealed(AnnouncedReceipts::NotYet)).collect::<Vec<_>>();
        let first = head.number().saturating_add(1);
        let missing = first..found.first().map_or(first, SealedBlock::number);
        if missing.end.saturating_sub(missing.start) > MOST_SKIPPED {
            return Vec::new();
        }
        let headers = self.upstream.headers(missing, Instant::now() + self.limits.wait).await;
        let skipped: Vec<_> = headers.into_iter().map(SealedBlock::bare).chain(found).collect();
        let before = std::iter::once((head.number(), head.hash()));
        let before = before.chain(skipped.iter().map(|block| (block.number(), block.hash())));
        let follows = |(block, (number, hash)): (&SealedBlock, (u64, B256))| {
            block.number() == number.saturating_add(1) && block.header.parent_hash == hash
        };
        if skipped.iter().zip(before).all(follows) { skipped } else { Vec::new() }
    }

    /// Checks that the upstream is still a node of the chain.
    async fn check_chain(&self) -> Result<(), LiveError> {
        self.check_chain_id(self.upstream.chain_id(Instant::now() + self.limits.wait).await?)
    }

    fn check_chain_id(&self, announced: u64) -> Result<(), LiveError> {
        let expected = self.spec.chain_id();
        if announced == expected { Ok(()) } else { Err(LiveError::OtherChain { expected, announced }) }
    }

    /// Returns the upstream's block of this hash, unless a node of another chain answers at the same address now.
    async fn block(&self, hash: B256, snapshots: &Snapshots) -> Result<UpstreamBlock, LiveError> {
        let deadline = Instant::now() + self.limits.wait;
        let (json, chain_id) = self.upstream.block_and_chain(hash, deadline).await?;
        self.check_chain_id(chain_id)?;
        self.read(&json.ok_or(LiveError::Unknown(hash))?, hash, snapshots).await
    }

    /// Returns the newest block of the node that answers, unless that is one of another chain.
    async fn latest(&self, snapshots: &Snapshots) -> Result<UpstreamBlock, LiveError> {
        let (json, chain_id) =
            self.upstream.block_and_chain(BlockNumberOrTag::Latest, Instant::now() + self.limits.wait).await?;
        self.check_chain_id(chain_id)?;
        let json = json.ok_or(LiveError::NoNewest)?;
        let named: BlockName = objects::from_str(json.get()).map_err(|_| LiveError::NoNewest)?;
        self.read(&json, named.hash, snapshots).await
    }

    /// Reads a block that has this hash. The senders of a block that was pre-confirmed are known from its sub-blocks.
    async fn read(&self, json: &RawValue, hash: B256, snapshots: &Snapshots) -> Result<UpstreamBlock, LiveError> {
        let (complete, open) = {
            let published = snapshots.load();
            let complete = published.select(Selector::Hash(hash)).ok().and_then(|ahead| ahead.head.find_body());
            (complete, published.newest.open.as_ref().map(|open| open.transactions.clone()))
        };
        let sender = |index: usize, tx: &ChainTx| {
            let known = match &complete {
                Some(complete) => complete.transactions.get(index),
                None => open.as_ref()?.get(index),
            };
            known.filter(|known| known.inner() == tx).map(Recovered::signer)
        };
        let block = UpstreamBlock::read(json.get(), self.spec.family(), sender).await?;
        LiveError::unless_equal("hash of the block", block.hash(), hash)?;
        if let Err(error) = block.check(self.spec.family()) {
            if self.limits.verify {
                return Err(error.into());
            }
            tracing::warn!(%error, "the upstream's block is not consistent");
        }
        Ok(block)
    }

    /// Executes a block on its parent, or else asks for its receipts, unless it is a block of another chain.
    pub(super) async fn import(
        self,
        block: UpstreamBlock,
        parent: Arc<Snapshot>,
        predicted: Predicted,
        time: Duration,
        waits: Rc<Cell<bool>>,
    ) -> CanonicalNews {
        let until = Instant::now() + time;
        let Predicted { mut prestate, listed } = predicted;
        if let Some(imported) = self.import_listed(&block, &parent, listed, &waits).await {
            return CanonicalNews::Executed(Ok(imported), AnnouncedReceipts::Never);
        }
        let execute = async |prestate: &mut Option<Prestate>| {
            let executed =
                AssertUnwindSafe(self.execute(&block, &parent, prestate, until, &waits)).catch_unwind().await;
            executed.unwrap_or(Err(LiveError::Panicked))
        };
        let mut executed = execute(&mut prestate).await;
        let may_be_the_traces = matches!(
            executed,
            Err(LiveError::Mismatch { .. } | LiveError::Transaction { .. } | LiveError::Block(_) | LiveError::Panicked)
        );
        if may_be_the_traces && prestate.take().is_some() {
            self.fetcher.distrust_traces();
            executed = execute(&mut prestate).await;
        }
        let error = match executed {
            Ok(executed) => return CanonicalNews::Executed(Ok(executed), AnnouncedReceipts::Never),
            Err(error) => error,
        };
        waits.set(true);
        match futures::join!(self.check_chain(), self.receipts(&block), self.touched(&block)) {
            (Err(other @ LiveError::OtherChain { .. }), ..) => CanonicalNews::OtherChain(other),
            (_, receipts, touched) => CanonicalNews::Executed(Err(NotExecuted { error, touched }), receipts),
        }
    }

    /// Returns whether a block is applied from its access list instead of executed. Some blocks are executed
    /// nevertheless, to check whether lists can be relied upon.
    pub(super) fn applies_list(&self, block: &UpstreamBlock) -> bool {
        let has_list = block.header.block_access_list_hash.is_some() && !block.has_ommers;
        has_list && !block.number().is_multiple_of(EXECUTED_EVERY) && self.fetcher.has_lists()
    }

    /// Requests the access list and the receipts of a block from the upstream. Returns them if both match the header.
    pub(super) async fn listed(self, block: UpstreamBlock) -> Option<ListedBlock> {
        let (announced, deadline) = (block.header.block_access_list_hash?, Instant::now() + self.limits.wait);
        block.check_transactions().ok()?;
        let list = self.fetcher.block_list(block.hash(), announced, deadline);
        match futures::join!(list, AnnouncedReceipts::ask(&self.upstream, &block, deadline)) {
            (Some(list), AnnouncedReceipts::Whole(receipts)) => Some(ListedBlock { list, receipts }),
            _ => None,
        }
    }

    /// Returns the results of a block from its access list. `waits` is set while the upstream is asked for it.
    async fn import_listed(
        &self,
        block: &UpstreamBlock,
        parent: &Snapshot,
        listed: Option<ListedBlock>,
        waits: &Cell<bool>,
    ) -> Option<ImportedBlock> {
        if !self.applies_list(block) {
            return None;
        }
        let listed = match listed {
            Some(listed) => Some(listed),
            None => {
                waits.set(true);
                let asked = self.clone().listed(block.clone()).await;
                waits.set(false);
                asked
            }
        };
        let ListedBlock { list, receipts } = listed?;
        // The state right after the parent, which is canonical, without pre-confirmed blocks.
        let before = parent.world.remote().filter(|view| view.hash() == parent.head_hash())?;
        let changes = listed_changes(&list, &World::on(before.clone()), self.fetcher.codes());
        Some(ImportedBlock { changes: BlockChanges::Listed(changes.into()), receipts })
    }

    /// Returns the accounts and slots that a block may have changed: by its transactions, and by the system calls and payments
    /// around them. Returns `None` if the upstream does not trace the block.
    async fn touched(&self, block: &UpstreamBlock) -> Option<Vec<AccountChange>> {
        // Since Amsterdam, other contracts are also written around the transactions.
        if block.has_ommers || block.header.block_access_list_hash.is_some() {
            return None;
        }
        let natives = self.spec.natives().at(block.header.timestamp);
        let called = block.transactions.iter().filter_map(|tx| tx.to());
        // A tracer may miss writes of native code.
        let natives: Vec<_> = called.filter(|address| natives.find(address).is_some()).collect();
        let mut touched = self.fetcher.touched(block.hash()).await?;
        let known: AddressMap<usize> = touched.iter().enumerate().map(|(at, change)| (change.address, at)).collect();
        let withdrawals = block.withdrawals.iter().flat_map(|list| list.iter()).map(|withdrawal| withdrawal.address);
        let accounts = withdrawals.chain([block.header.beneficiary, BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT]);
        let whole = SYSTEM_CONTRACTS.into_iter().chain(natives).map(|address| (address, true));
        let around = accounts.map(|address| (address, false)).chain(whole);
        for (address, storage_cleared) in around {
            match known.get(&address) {
                Some(at) => touched[*at].storage_cleared |= storage_cleared,
                None => touched.push(AccountChange { address, storage_cleared, ..AccountChange::default() }),
            }
        }
        Some(touched)
    }

    /// Executes a block on its parent's state, as far as it is known or can be fetched in time. `prestate` holds the values that the
    /// upstream has traced, before or during the execution. `waits` is set while state is fetched.
    async fn execute(
        &self,
        block: &UpstreamBlock,
        parent: &Snapshot,
        prestate: &mut Option<Prestate>,
        until: Instant,
        waits: &Cell<bool>,
    ) -> Result<ImportedBlock, LiveError> {
        // A block that contradicts its header is not part of the chain.
        block.check_transactions()?;
        let late = || LiveError::ExecutionTimeout(self.limits.execute);
        if self.limits.execute.is_zero() || block.has_ommers {
            return Err(late());
        }
        // An unexecuted fork and most calls of native contracts are seen before anything is executed.
        let called = block.transactions.iter().filter_map(|tx| tx.to());
        let natives = self.spec.natives().at(block.header.timestamp);
        let mut used = called.chain([block.header.beneficiary]);
        if let Some(why) = used.find_map(|address| natives.find(&address)) {
            return Err(LiveError::Unexecutable(why));
        }
        if let Some(foreign) = &block.foreign {
            return Err(LiveError::ForeignType { index: foreign.index, kind: foreign.kind });
        }
        let is_lagoon = self.spec.has_post_exec(block.header.timestamp);
        let refunds = GasRefunds::of_block(is_lagoon, block.number(), &block.transactions)
            .map_err(|(index, broken)| LiveError::Transaction { index, problem: broken.to_string() })?;
        // The state right after the parent, which is canonical, without pre-confirmed blocks.
        let view = parent.world.remote().filter(|view| view.hash() == parent.head_hash()).cloned();
        let view = view.ok_or(LiveError::Gone(parent.head.number()))?;
        let on = Snapshot::at_head(World::on(view.clone()), parent.head.clone(), parent.hashes.clone());
        let mut held = Held::default();
        // Traced values are not cached before the block has proven right.
        held.extend(view.hold(prestate.iter().flat_map(Prestate::values).cloned()));
        let mut may_trace = prestate.is_none() && self.fetcher.traces_blocks();
        let mut fetch = async |missed, hints| {
            LiveError::unless_executable(&missed)?;
            waits.set(true);
            let fetched = async {
                if !std::mem::take(&mut may_trace) {
                    return self.clone().fetch(missed, hints).await;
                }
                let (mut fetched, traced) = self.clone().fetch_traced(missed, block.hash()).await?;
                fetched.extend(view.hold(traced.iter().flat_map(Prestate::values).cloned()));
                *prestate = traced;
                Ok(fetched)
            };
            let fetched = tokio::time::timeout_at(until, fetched).await;
            waits.set(false);
            held.extend(fetched.map_err(|_| late())??);
            Ok::<_, LiveError>(())
        };
        let mut unknown: Vec<usize> = (0..block.transactions.len()).collect();
        let mut is_first = true;
        // Access lists are asked of the upstream once.
        let mut hints = |unknown: &[usize]| match std::mem::take(&mut is_first) {
            true => Hints::of_transactions(unknown.iter().filter_map(|index| block.transactions.get(*index))),
            false => Hints::default(),
        };
        let mut run = loop {
            let (run, mut missed) = BlockRun::begin(&self.spec, &on, block.header.inner().clone())?;
            if missed.is_empty() {
                break run;
            }
            // The rest of the block is run ahead, so that its state is fetched in the same round trip.
            unknown = look_ahead(&self.spec, run.at(), &block.transactions, &unknown, &mut missed);
            run.read_at_end(&self.spec, block.withdrawals.as_ref(), &mut missed);
            fetch(missed, hints(&unknown)).await?;
        };
        run.refund(refunds);
        while let Some(rest) = block.transactions.get(run.executed()..).filter(|rest| !rest.is_empty()) {
            let mut missed = run.go_on(&self.spec, rest, SLICE)?;
            if missed.is_empty() {
                // Lets sub-blocks run in between.
                tokio::task::yield_now().await;
                continue;
            }
            unknown.retain(|index| *index >= run.executed());
            unknown = look_ahead(&self.spec, run.at(), &block.transactions, &unknown, &mut missed);
            fetch(missed, hints(&unknown)).await?;
        }
        let end = loop {
            let end = run.end(&self.spec, block.withdrawals.as_ref())?;
            if end.missed.is_empty() {
                break end;
            }
            fetch(end.missed, Hints::default()).await?;
        };
        ReceiptTotals::of(end.gas_used, &end.receipts).check(block)?;
        if let (Some(list), Some(announced)) = (&end.access_list, block.header.block_access_list_hash) {
            LiveError::unless_equal("blockAccessListHash", compute_block_access_list_hash(list), announced)?;
        }
        view.insert(prestate.iter().flat_map(Prestate::values).cloned());
        let changes = BlockChanges::These(Arc::new(run.changes(&end)));
        Ok(ImportedBlock { changes, receipts: end.receipts })
    }

    /// Returns the receipts of a block that is not executed here, as the upstream has them.
    pub(super) async fn receipts(&self, block: &UpstreamBlock) -> AnnouncedReceipts {
        AnnouncedReceipts::ask(&self.upstream, block, Instant::now() + self.limits.wait).await
    }
}

/// Checks that a block's number follows its parent's. The hash proves that only if it is checked.
fn child_of(block: &UpstreamBlock, parent: u64) -> Result<(), LiveError> {
    LiveError::unless_equal("number of the block", block.number(), parent.saturating_add(1))
}

/// Returns a canonical block as the rules of a stream want it.
pub(super) fn summary(header: &Sealed<Header>, mut transactions: Vec<B256>, post_exec: Option<B256>) -> CanonicalBlock {
    // The post-execution transaction is the last.
    transactions.pop_if(|last| Some(*last) == post_exec);
    CanonicalBlock {
        number: header.number,
        hash: header.hash(),
        parent_hash: header.parent_hash,
        receipts_root: header.receipts_root,
        transactions,
        post_exec,
    }
}

/// Returns the parts of a sealed block that the rules of the stream need.
pub(super) fn summary_of_sealed(block: &SealedBlock) -> CanonicalBlock {
    let post_exec = block.find_body().and_then(|body| block.refunds(&body).hash());
    summary(&block.header, block.transaction_hashes().unwrap_or_default(), post_exec)
}

/// Returns the parts of an upstream's block that the rules of the stream need.
pub(super) fn summary_of(block: &UpstreamBlock) -> CanonicalBlock {
    summary(&block.header, block.transaction_hashes(), block.refunds().hash())
}

/// Returns the snapshot of a canonical block. Without receipts, only its header is known.
pub fn canonical_snapshot(view: RemoteView, block: UpstreamBlock, receipts: AnnouncedReceipts) -> Snapshot {
    let hashes = BlockHashes::of(&block.header);
    Snapshot::at_head(World::on(view), Arc::new(block.into_sealed(receipts)), hashes)
}

/// The header fields that follow from the receipts of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceiptTotals {
    pub gas_used: u64,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
}

impl ReceiptTotals {
    fn of(gas_used: u64, receipts: &[ChainReceipt]) -> Self {
        let (receipts_root, logs_bloom) = receipts_root_and_bloom(receipts);
        Self { gas_used, receipts_root, logs_bloom }
    }

    /// Checks the fields against the header of `block`.
    ///
    /// # Errors
    ///
    /// Returns [`LiveError::Mismatch`] for the first field that differs.
    pub fn check(&self, block: &UpstreamBlock) -> Result<(), LiveError> {
        let header = &block.header;
        LiveError::unless_equal("gasUsed", self.gas_used, header.gas_used)?;
        LiveError::unless_equal("receiptsRoot", self.receipts_root, header.receipts_root)?;
        LiveError::unless_equal("logsBloom", self.logs_bloom, header.logs_bloom)
    }
}
