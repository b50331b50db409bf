//! Blocks, the transactions in them, and their receipts.

use alloy_consensus::transaction::Recovered;
use alloy_primitives::B256;

use super::{Backend, Run};
use crate::{
    chain::ChainTx,
    ledger::{Block, Chain, Included, Selector},
    rpc::{dialect::Dialect, encode, error::Result},
};

impl Backend {
    pub(super) fn get_block(&self, run: &mut Run<'_>, (selector, full): (Selector, bool)) -> Result<()> {
        let (block, dialect) = (self.block(run.published, selector)?, run.dialect);
        encode::or_null(&mut run.out, block, |out, block| encode::block(out, &block, full, dialect));
        Ok(())
    }

    /// Answers `eth_getHeaderByNumber` and `eth_getHeaderByHash`, for pruned blocks too.
    pub(super) fn get_header(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        let (block, dialect) = (self.find(run.published, selector)?, run.dialect);
        encode::or_null(&mut run.out, block, |out, block| {
            let header = block.header();
            // Only the transactions of a block tell the milliseconds of its time.
            let whole = self.spec.has_base_time(header.timestamp).then(|| Block::load(block.clone())).flatten();
            encode::header(out, header, whole.as_ref().and_then(Block::timestamp_ms), dialect);
        });
        Ok(())
    }

    pub(super) fn get_transaction_count_of_block(&self, run: &mut Run<'_>, block: Selector) -> Result<()> {
        self.count(run, block, Block::len)
    }

    pub(super) fn get_uncle_count(&self, run: &mut Run<'_>, block: Selector) -> Result<()> {
        self.count(run, block, |block| block.ommers().len())
    }

    /// Writes the number that `count` gives for a block, or null if there is no such block.
    fn count(&self, run: &mut Run<'_>, block: Selector, count: fn(&Block) -> usize) -> Result<()> {
        let block = self.block(run.published, block)?;
        encode::or_null(&mut run.out, block, |out, block| encode::quantity(out, count(&block) as u64));
        Ok(())
    }

    pub(super) fn get_block_receipts(&self, run: &mut Run<'_>, block: Selector) -> Result<()> {
        let block = self.block_of_receipts(run.dialect, run.published, block)?;
        encode::or_null(&mut run.out, block, |out, block| {
            encode::list(out, block.transactions(), |out, included| self.receipt(&block, &included, out));
        });
        Ok(())
    }

    pub(super) fn get_transaction(&self, run: &mut Run<'_>, hash: B256) -> Result<()> {
        let found = run.published.transaction(&hash);
        if found.is_some() {
            self.show_transaction(run.published, found, run.dialect, &mut run.out);
        } else if let Some(tx) = self.pool.get(&hash) {
            encode::pooled_transaction(&mut run.out, &tx);
        } else {
            // The transaction may have moved from the pool into a block that was published after the request arrived.
            let published = self.pool.published();
            self.show_transaction(&published, published.transaction(&hash), run.dialect, &mut run.out);
        }
        Ok(())
    }

    /// Writes a transaction that was found in a block, without the block if that waits.
    fn show_transaction(&self, published: &Chain, found: Option<(Block, usize)>, dialect: &Dialect, out: &mut Vec<u8>) {
        show(found, out, |block, included, out| match included.tx.inner() {
            _ if !self.is_waiting(dialect, published, block.number()) => encode::transaction(out, block, included),
            ChainTx::Signed(tx) => {
                encode::pooled_transaction(out, &Recovered::new_unchecked(tx.clone(), included.tx.signer()));
            }
            // The chain's own transactions wait in no pool.
            ChainTx::Deposit(_) => out.extend_from_slice(b"null"),
        });
    }

    pub(super) fn get_transaction_at(&self, run: &mut Run<'_>, (selector, index): (Selector, usize)) -> Result<()> {
        let found = self.block(run.published, selector)?.map(|block| (block, index));
        show(found, &mut run.out, |block, included, out| encode::transaction(out, block, included));
        Ok(())
    }

    pub(super) fn get_transaction_receipt(&self, run: &mut Run<'_>, hash: B256) -> Result<()> {
        let told = |(block, _): &(Block, usize)| !self.is_waiting(run.dialect, run.published, block.number());
        let found = run.published.transaction(&hash).filter(told);
        show(found, &mut run.out, |block, included, out| self.receipt(block, included, out));
        Ok(())
    }

    /// Writes the receipt of a transaction, pre-confirmed or not.
    pub(in crate::rpc) fn write_receipt(&self, run: &mut Run<'_>, hash: B256) {
        let found = run.published.transaction(&hash);
        show(found, &mut run.out, |block, included, out| self.receipt(block, included, out));
    }

    /// Writes the receipt of a transaction in `block`.
    fn receipt(&self, block: &Block, included: &Included<'_>, out: &mut Vec<u8>) {
        encode::receipt(out, block, included, &self.spec);
    }
}

/// Calls `write` for the transaction at an index of a block, or writes null if there is none.
fn show(found: Option<(Block, usize)>, out: &mut Vec<u8>, write: impl FnOnce(&Block, &Included<'_>, &mut Vec<u8>)) {
    let transaction = found.as_ref().and_then(|(block, index)| Some((block, block.transaction(*index)?)));
    encode::or_null(out, transaction, |out, (block, included)| write(block, &included, out));
}
