//! The state that a request runs on: after a block, of a snapshot, or in the middle of a block.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_eips::BlockHashOrNumber;

use super::{Attempt, Backend};
use crate::{
    engine::{self, BlockProgress},
    ledger::{Block, OpenBlock, Selector, Snapshot, UnknownBlock},
    rpc::{
        params::ManyRequest,
        protocol::error::{Result, RpcError},
    },
    state::Overlay,
};

impl Backend {
    /// Returns the snapshot that `selector` names. A snapshot in the middle of a block is created for the request, as
    /// if the block were being built and had these transactions so far.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the block has fewer transactions, or an error if its state or its body is not known.
    pub(in crate::rpc) fn select(&self, run: &mut Attempt<'_>, selector: Selector) -> Result<Arc<Snapshot>> {
        self.admit(run.published, selector)?;
        match selector {
            Selector::Within { block, count } => self.within(run, block, count),
            whole => Ok(run.published.select(whole)?),
        }
    }

    fn within(&self, run: &mut Attempt<'_>, named: BlockHashOrNumber, count: u64) -> Result<Arc<Snapshot>> {
        let block = run.published.block(named.into())?.ok_or(UnknownBlock::Contents { block: named })?;
        let progress = self.replay(run, &block, count, "transactionIndex")?;
        let mut open = OpenBlock::new(Header { gas_used: 0, ..block.context().clone() });
        open.set_gas(progress.gas);
        open.blob_gas_used = progress.blob_gas;
        for included in block.transactions().take(progress.transactions) {
            open.push(included.tx.clone(), included.receipt.clone());
        }
        let overlay = &mut *run.overlay;
        open.access_lists.extend(overlay.take_access_list().map(Arc::new));
        let (world, _) = overlay.changed();
        run.meter = std::mem::take(&mut overlay.meter);
        run.ensure_complete()?;
        let parent = before(run, &block)?;
        Ok(Arc::new(Snapshot::new(world, parent.head.clone(), Some(open), parent.hashes.clone())))
    }

    /// Runs the opening system calls of a block and the first `count` of its transactions in the overlay of the run.
    fn replay(&self, run: &mut Attempt<'_>, block: &Block, count: u64, path: &str) -> Result<BlockProgress> {
        let (number, transactions) = (block.number(), block.len());
        let count = usize::try_from(count).ok().filter(|count| *count <= transactions).ok_or_else(|| {
            RpcError::params(format!("{path}: {count}: out of range: block {number} has {transactions} transactions"))
        })?;
        if number == 0 {
            let text = format!("{path}: no transaction in genesis: omit the field, or name another block");
            return Err(RpcError::params(text));
        }
        let parent = before(run, block)?;
        Ok(engine::replay(&self.spec, block, count, run.reset_to(&parent))?)
    }

    /// Sets up the overlay for the calls of `request`: after the whole block, or after some of its transactions, which
    /// are replayed. `path` is the field of their count, for errors. Returns the block's snapshot and the overlay.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`set_up_at`](Self::set_up_at).
    pub(in crate::rpc) fn set_up<'a>(
        &self,
        request: &ManyRequest,
        path: &str,
        run: &'a mut Attempt<'_>,
    ) -> Result<(Arc<Snapshot>, &'a mut Overlay)> {
        run.limit_time(request.timeout);
        self.set_up_at(run, request.selector, request.index, path)
    }

    /// Sets up the overlay after the first `index` transactions of a block, or after the whole block. `path` is the
    /// field of the index, for errors. Returns the block's snapshot and the overlay.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the block has fewer transactions, or that its state or its body is not known.
    pub(in crate::rpc) fn set_up_at<'a>(
        &self,
        run: &'a mut Attempt<'_>,
        selector: Selector,
        index: Option<u64>,
        path: &str,
    ) -> Result<(Arc<Snapshot>, &'a mut Overlay)> {
        let snapshot = self.select(run, selector)?;
        let Some(index) = index else {
            let overlay = run.reset_to(&snapshot);
            return Ok((snapshot, overlay));
        };
        if matches!(selector, Selector::Within { .. }) {
            return Err(RpcError::params(format!("{path}: the block has a transactionIndex: expected one of both")));
        }
        let block = match Block::newest(&snapshot) {
            Some(block) => block,
            // An older block may be known in addition to the state after it.
            None => run.published.block(Selector::Hash(snapshot.head_hash()))?.ok_or_else(|| {
                let block = BlockHashOrNumber::Hash(snapshot.head_hash());
                UnknownBlock::Contents { block }
            })?,
        };
        self.replay(run, &block, index, path)?;
        Ok((snapshot, run.overlay))
    }
}

/// Returns the snapshot before the first transaction of a block, which is not genesis.
fn before(run: &Attempt<'_>, block: &Block) -> Result<Arc<Snapshot>> {
    Ok(run.published.select(Selector::Number(block.number().saturating_sub(1)))?)
}
