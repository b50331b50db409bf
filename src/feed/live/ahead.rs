//! Pre-confirmed blocks: sub-blocks applied as they arrive, each at the cost of its own transactions.

use std::{sync::Arc, time::Duration};

use alloy_consensus::{Header, Transaction, TxReceipt, transaction::Recovered};
use alloy_eips::Decodable2718;
use alloy_primitives::{
    Address, B256, Sealed, U256,
    map::{AddressMap, Entry},
};
use op_alloy::{
    consensus::OpReceipt,
    rpc_types_engine::{OpFlashblockPayloadBase, OpFlashblockPayloadDelta},
};
use tokio::time::Instant;

use super::{Live, LiveError};
use crate::{
    chain::{Attributes, BlockBody, ChainReceipt, ChainTx, SealedBlock},
    feed::{
        apply::{extend, open_block_with, stand_on},
        flashblocks::{Action, Flashblock, FlashblockSequence, Parent},
        upstream::recover,
    },
    state::{
        AccountChange, FeedProblem, FeedState, Lookup, Miss, Missed, OpenBlock, RemoteView, Selector, Snapshot, World,
    },
};

/// The state of a pre-confirmed block that is not canonical yet.
#[derive(Debug)]
pub struct PreConfirmed {
    /// The block's number.
    pub(super) number: u64,
    /// The header, as far as it was known when the block began.
    header: Header,
    /// The producer's fields from its last sub-block.
    diff: OpFlashblockPayloadDelta,
    /// The changes so far, each account once.
    changes: AddressMap<AccountChange>,
    /// The complete block, once the next one has begun.
    complete: Option<SealedBlock>,
}

impl PreConfirmed {
    /// Returns whether the block so far has exactly these transactions, in order. `newest` is the newest snapshot, which
    /// is of this block unless it is complete.
    pub(super) fn has_transactions(&self, transactions: &[Recovered<ChainTx>], newest: &Snapshot) -> bool {
        let told = transactions.iter().map(|tx| *tx.tx_hash());
        match (&self.complete, &newest.open) {
            (Some(complete), _) => complete.body().transactions.iter().map(|tx| *tx.tx_hash()).eq(told),
            (None, Some(open)) => open.transactions.iter().map(|tx| *tx.tx_hash()).eq(told),
            (None, None) => false,
        }
    }

    /// Returns the receipts and the gas so far. `newest` is the newest snapshot, which is of this block unless it is
    /// complete.
    pub(super) fn outcome(&self, newest: &Snapshot) -> (Vec<ChainReceipt>, u64) {
        match (&self.complete, &newest.open) {
            (Some(complete), _) => (complete.body().receipts.clone(), complete.header.gas_used),
            (None, Some(open)) => (open.receipts.iter().cloned().collect(), open.header.gas_used),
            (None, None) => Default::default(),
        }
    }

    /// Returns whether its transactions ran in the environment of `header`'s block.
    pub(super) fn has_environment_of(&self, header: &Header) -> bool {
        let own = &self.header;
        own.parent_hash == header.parent_hash
            && own.beneficiary == header.beneficiary
            && own.timestamp == header.timestamp
            && own.gas_limit == header.gas_limit
            && own.base_fee_per_gas == header.base_fee_per_gas
            && own.mix_hash == header.mix_hash
            && own.parent_beacon_block_root == header.parent_beacon_block_root
            && own.extra_data == header.extra_data
    }

    /// Returns the changes, each account once.
    pub(super) fn changes(&self) -> Vec<AccountChange> {
        self.changes.values().cloned().collect()
    }

    fn add(&mut self, changes: &[AccountChange]) {
        for change in changes {
            match self.changes.entry(change.address) {
                Entry::Vacant(place) => drop(place.insert(change.clone())),
                Entry::Occupied(known) => known.into_mut().then(change.clone()),
            }
        }
    }
}

impl Live {
    /// Executes the actions in order. If one fails, the pre-confirmed blocks are dropped.
    pub(super) async fn act(&mut self, actions: Vec<Action>, received: Instant, late: bool) {
        for action in actions {
            let done = match action {
                Action::Open { .. } | Action::Extend { .. } if late => Err(LiveError::Late(self.source.limits.apply)),
                Action::Open { flashblock, parent } => self.open(&flashblock, parent, received).await,
                Action::Extend { flashblock } => self.extend(&flashblock, received).await,
                Action::FallBack(problem) => {
                    self.fall_back(problem);
                    Ok(())
                }
                // The rules have dropped the block. The canonical block is imported by the caller.
                Action::Replace { .. } | Action::Retire { .. } | Action::Ignore(_) => Ok(()),
            };
            if let Err(error) = done {
                tracing::warn!(%error, "a Flashblock is not applied");
                return self.fail(error.problem());
            }
        }
    }

    /// Drops the pre-confirmed blocks, for a reason that the rules do not see.
    pub(super) fn fail(&mut self, problem: FeedProblem) {
        if let Some(source) = &mut self.source.flashblocks {
            source.rules.fail(problem);
        }
        self.fall_back(problem);
    }

    fn fall_back(&mut self, problem: FeedProblem) {
        self.set(FeedState::Degraded(problem));
        self.feed.snapshots.fall_back(FeedState::Degraded(problem));
    }

    /// Begins a block with its index 0.
    async fn open(&mut self, flashblock: &Flashblock, parent: Parent, received: Instant) -> Result<(), LiveError> {
        let time = self.source.limits.apply;
        // The rules open no block without a base.
        let Some(base) = &flashblock.base else { return Ok(()) };
        let complete = match parent {
            Parent::Canonical => None,
            Parent::PreConfirmed => Some(self.complete(base.parent_hash)?),
        };
        let latest = self.feed.snapshots.load().latest().clone();
        if complete.is_none() && latest.head_hash() != base.parent_hash {
            return Err(LiveError::Gone(base.block_number));
        }
        let mut on = match &complete {
            Some(complete) => stand_on(complete.world.clone(), complete.head.clone(), complete.hashes.clone()),
            None => {
                let world = World::on(self.canonical_view(&latest)?);
                stand_on(world, latest.head.clone(), latest.hashes.clone())
            }
        };
        // The same state, on another base.
        on.state = complete.as_ref().map_or(latest.state, |complete| complete.state);
        let header = self.header(&on.head.header, base, &flashblock.diff);
        let opened = loop {
            let opened = open_block_with(&self.source.spec, &on, header.clone())?;
            if opened.missed.is_empty() {
                break opened;
            }
            self.fetch(opened.missed, received, time).await?;
        };
        let mut ahead = PreConfirmed {
            number: base.block_number,
            header,
            diff: flashblock.diff.clone(),
            changes: AddressMap::default(),
            complete: None,
        };
        ahead.add(&opened.changes);
        let (mut snapshot, changes) = self.apply(&opened.snapshot, flashblock, received).await?;
        // The block is published with its first sub-block.
        snapshot.path.splice(..0, opened.snapshot.path);
        ahead.add(&changes);
        if let Some(rules) = self.rules() {
            rules.keep(base.block_number, ahead);
        }
        self.feed.snapshots.publish_pre_confirmed(complete, snapshot);
        self.feed.count(received.into_std());
        self.set(self.live());
        Ok(())
    }

    /// Adds the next sub-block to the newest block.
    async fn extend(&mut self, flashblock: &Flashblock, received: Instant) -> Result<(), LiveError> {
        let newest = self.feed.snapshots.newest();
        let (snapshot, changes) = self.apply(&newest, flashblock, received).await?;
        let ahead =
            self.rules().and_then(FlashblockSequence::newest_made).ok_or(LiveError::Gone(newest.header().number))?;
        ahead.add(&changes);
        ahead.diff = flashblock.diff.clone();
        self.feed.snapshots.publish_pre_confirmed(None, snapshot);
        self.feed.count(received.into_std());
        Ok(())
    }

    /// Executes a sub-block at the end of the block that `on` is building, and checks it.
    async fn apply(
        &self,
        on: &Snapshot,
        flashblock: &Flashblock,
        received: Instant,
    ) -> Result<(Snapshot, Arc<Vec<AccountChange>>), LiveError> {
        let time = self.source.limits.apply;
        let Some(open) = &on.open else { return Err(LiveError::Gone(on.header().number)) };
        let transactions = read(flashblock)?;
        if let Some(view) = on.world.remote() {
            self.warm(view, &transactions, received, time).await?;
        }
        loop {
            let mut failed = None;
            let applied = extend(&self.source.spec, on, open, |sub_block| {
                for (index, tx) in transactions.iter().enumerate() {
                    if let Err(error) = sub_block.push(tx.clone())
                        && !sub_block.has_missed()
                    {
                        failed = Some(LiveError::Transaction { index, problem: error.to_string() });
                        return;
                    }
                }
            });
            if let Some(failed) = failed {
                return Err(failed);
            }
            if applied.missed.is_empty() {
                let mut snapshot = applied.snapshot;
                if let Some(open) = &mut snapshot.open {
                    open.index = u32::try_from(flashblock.index).unwrap_or(u32::MAX);
                    check_receipts(flashblock, open, &transactions)?;
                }
                check_balances(flashblock, &snapshot.world)?;
                return Ok((snapshot, applied.changes));
            }
            self.fetch(applied.missed, received, time).await?;
        }
    }

    /// Returns the complete newest pre-confirmed block, after a block with this parent hash has begun: the state after
    /// it, with no block open. The state is based on the newest canonical one, so that the layers between do not
    /// accumulate.
    fn complete(&mut self, hash: B256) -> Result<Snapshot, LiveError> {
        let newest = self.feed.snapshots.newest();
        let published = self.feed.snapshots.load();
        let latest = published.latest();
        let gone = || LiveError::Gone(newest.header().number);
        let view = self.canonical_view(latest)?;
        let ahead = self.rules().and_then(FlashblockSequence::newest_made).ok_or_else(gone)?;
        if let Some(sealed) = ahead.complete.clone() {
            // A builder that changes its mind begins the block after it anew.
            if sealed.hash() != hash {
                return Err(gone());
            }
            let known = published.select(Selector::Hash(hash)).map_err(|_| gone())?;
            return Ok(self.stand_on_ahead(view, sealed, &known));
        }
        let open = newest.open.as_ref().filter(|open| open.header.number == ahead.number).ok_or_else(gone)?;
        let totals = open.totals();
        LiveError::unless_equal("gas_used", totals.gas_used, ahead.diff.gas_used)?;
        LiveError::unless_equal("receipts_root", totals.receipts_root, ahead.diff.receipts_root)?;
        LiveError::unless_equal("logs_bloom", totals.logs_bloom, ahead.diff.logs_bloom)?;
        let mut header = Header { state_root: ahead.diff.state_root, ..open.header.clone() };
        totals.close(&mut header);
        let receipts = open.receipts.iter().cloned().collect();
        let withdrawals = header.withdrawals_root.map(|_| ahead.diff.withdrawals.clone().into());
        let transactions = open.transactions.iter().cloned().collect();
        // Builders may leave out the state root. The next block's parent hash is the block's name all the same.
        let sealed = SealedBlock::named(
            Sealed::new_unchecked(header, hash),
            BlockBody { transactions, receipts, ommers: Vec::new(), withdrawals },
        );
        ahead.complete = Some(sealed.clone());
        Ok(self.stand_on_ahead(view, sealed, &newest))
    }

    /// Returns the state after the newest pre-confirmed block, based on the canonical state, with the changes of the
    /// blocks ahead. It is the state of `same`.
    fn stand_on_ahead(&self, view: RemoteView, sealed: SealedBlock, same: &Snapshot) -> Snapshot {
        let mut world = World::on(view);
        for ahead in self.made() {
            world.apply_many(&ahead.changes());
        }
        let mut hashes = same.hashes.clone();
        hashes.push(sealed.number(), sealed.hash());
        stand_on(world, sealed.into(), hashes).after(same, Arc::default())
    }

    /// Returns the header of a block, as far as its first sub-block has it.
    fn header(
        &self,
        parent: &Sealed<Header>,
        base: &OpFlashblockPayloadBase,
        diff: &OpFlashblockPayloadDelta,
    ) -> Header {
        let spec = &self.source.spec;
        let attributes = Attributes {
            timestamp: base.timestamp,
            fee_recipient: base.fee_recipient,
            prev_randao: base.prev_randao,
            beacon_root: base.parent_beacon_block_root,
            gas_limit: base.gas_limit,
        };
        let next = spec.next_header(parent, base.block_number, attributes);
        Header {
            // The producer's value decides.
            parent_hash: base.parent_hash,
            extra_data: base.extra_data.clone(),
            base_fee_per_gas: Some(base.base_fee_per_gas.saturating_to()),
            excess_blob_gas: next.blob_gas_used,
            withdrawals_root: next
                .withdrawals_root
                .map(|none| if diff.withdrawals_root.is_zero() { none } else { diff.withdrawals_root }),
            ..next
        }
    }

    /// Fetches the state that the transactions certainly read, so that the first run finds what else is missing.
    pub(super) async fn warm(
        &self,
        view: &RemoteView,
        transactions: &[Recovered<ChainTx>],
        began: Instant,
        time: Duration,
    ) -> Result<(), LiveError> {
        let mut missed = Missed::default();
        let mut want = |miss: Miss| {
            let is_known = match miss {
                Miss::Account(address) => view.account(&address).is_some(),
                Miss::Slot(address, slot) => view.slot(&address, &slot).is_some(),
                Miss::BlockHash(number) => view.block_hash(number).is_some(),
            };
            if !is_known {
                missed.push(view, miss);
            }
        };
        for tx in transactions {
            want(Miss::Account(tx.signer()));
            if let Some(to) = tx.to() {
                want(Miss::Account(to));
            }
            for item in tx.access_list().into_iter().flat_map(|list| &list.0) {
                want(Miss::Account(item.address));
                item.storage_keys.iter().for_each(|key| want(Miss::Slot(item.address, (*key).into())));
            }
        }
        if missed.is_empty() { Ok(()) } else { self.fetch(missed, began, time).await }
    }

    /// Returns the state after the newest canonical block.
    fn canonical_view(&self, latest: &Snapshot) -> Result<RemoteView, LiveError> {
        let (number, hash) = (latest.head.number(), latest.head_hash());
        self.source.remote.view(number, hash).ok_or(LiveError::Gone(number))
    }
}

/// Returns the transactions of a sub-block with their senders.
fn read(flashblock: &Flashblock) -> Result<Vec<Recovered<ChainTx>>, LiveError> {
    let decode = |(index, bytes): (usize, &alloy_primitives::Bytes)| {
        let fail = |problem: String| LiveError::Transaction { index, problem };
        let mut rest = bytes.as_ref();
        let tx = ChainTx::decode_2718(&mut rest).map_err(|error| fail(error.to_string()))?;
        if rest.is_empty() { Ok(tx) } else { Err(fail(format!("{} bytes follow it", rest.len()))) }
    };
    let transactions = flashblock.diff.transactions.iter().enumerate().map(decode).collect::<Result<Vec<_>, _>>()?;
    recover(transactions)
        .map_err(|index| LiveError::Transaction { index, problem: "the signature is not valid".to_owned() })
}

/// Checks the receipts of a sub-block's transactions against the builder's, if it sent any.
fn check_receipts(
    flashblock: &Flashblock,
    open: &OpenBlock,
    transactions: &[Recovered<ChainTx>],
) -> Result<(), LiveError> {
    let Some(told) = &flashblock.metadata.receipts else { return Ok(()) };
    for tx in transactions {
        let Some(told) = told.get(tx.tx_hash()) else { continue };
        let Some(own) = open.positions.get(tx.tx_hash()).and_then(|index| open.receipts.get(*index)) else { continue };
        let told_receipt = told.as_receipt();
        LiveError::unless_equal("receipt: status", own.status(), told_receipt.status.coerce_status())?;
        LiveError::unless_equal(
            "receipt: cumulative gas",
            own.cumulative_gas_used(),
            told_receipt.cumulative_gas_used,
        )?;
        LiveError::unless_equal("receipt: logs", own.logs().len(), told_receipt.logs.len())?;
        let same_logs = own.logs() == told_receipt.logs.as_slice();
        LiveError::unless_equal("receipt: the same logs", same_logs, true)?;
        if let (Some(own), OpReceipt::Deposit(told)) = (own.as_deposit(), told) {
            let nonce = |nonce: Option<u64>| nonce.map_or_else(|| "none".to_owned(), |nonce| nonce.to_string());
            LiveError::unless_equal("receipt: deposit nonce", nonce(own.deposit_nonce), nonce(told.deposit_nonce))?;
        }
    }
    Ok(())
}

/// Checks balances against the builder's, if it sent any and they are known.
fn check_balances(flashblock: &Flashblock, world: &World) -> Result<(), LiveError> {
    for (address, told) in flashblock.metadata.new_account_balances.iter().flatten() {
        if let Lookup::Known(info) = world.look_up(address) {
            let own = info.map_or(U256::ZERO, |info| info.balance);
            let what = |balance: U256| of(*address, balance);
            LiveError::unless_equal("balance", what(own), what(*told))?;
        }
    }
    Ok(())
}

fn of(address: Address, balance: U256) -> String {
    format!("{balance} of {address}")
}
