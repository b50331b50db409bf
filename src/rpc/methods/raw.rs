//! Blocks, receipts and transactions in the bytes that their hashes are of.

use alloy_eips::Encodable2718;
use alloy_primitives::B256;

use super::{Backend, Run};
use crate::{
    ledger::{Block, Selector, UnknownBlock},
    rpc::{encode, error::Result},
};

impl Backend {
    /// Answers `debug_getRawHeader`: a header's RLP.
    pub(super) fn get_raw_header(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        let block = or_unknown(self.find(run.published, selector)?, selector)?;
        bytes(&mut run.out, block.map(|block| block.header_rlp()).transpose()?);
        Ok(())
    }

    /// Answers `debug_getRawBlock`: a block's RLP.
    pub(super) fn get_raw_block(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        let block = or_unknown(self.block(run.published, selector)?, selector)?;
        bytes(&mut run.out, block.map(|block| block.rlp()).transpose()?);
        Ok(())
    }

    /// Answers `debug_getRawReceipts`: the receipts of a block in EIP-2718 bytes, or null.
    pub(super) fn get_raw_receipts(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        let block = or_unknown(self.block(run.published, selector)?, selector)?;
        encode::or_null(&mut run.out, block, |out, block| {
            encode::list(out, block.transactions(), |out, one| encode::data(out, &one.receipt.encoded_2718()));
        });
        Ok(())
    }

    /// Answers `debug_getRawTransaction` and `eth_getRawTransactionByHash`: a transaction in EIP-2718 bytes, a
    /// blob transaction in the pool as a block holds it, because the pool does not keep blobs.
    pub(super) fn get_raw_transaction(&self, run: &mut Run<'_>, hash: B256) -> Result<()> {
        let raw = raw_transaction(run.published.transaction(&hash))
            .or_else(|| self.pool.get(&hash).map(|tx| tx.encoded_2718()))
            // The transaction may have moved from the pool into a block that was published after the request arrived.
            .or_else(|| raw_transaction(self.pool.published().transaction(&hash)));
        bytes(&mut run.out, raw);
        Ok(())
    }

    /// Answers `eth_getRawTransactionByBlockNumberAndIndex` and its kin by hash.
    pub(super) fn get_raw_transaction_at(&self, run: &mut Run<'_>, (selector, index): (Selector, usize)) -> Result<()> {
        let block = self.block(run.published, selector)?;
        bytes(&mut run.out, raw_transaction(block.map(|block| (block, index))));
        Ok(())
    }
}

/// Returns a block that was found; of one that was not, an error if it was named by its hash, as in geth.
fn or_unknown<T>(found: Option<T>, selector: Selector) -> Result<Option<T>, UnknownBlock> {
    match (found, selector) {
        (None, Selector::Hash(hash)) => Err(UnknownBlock::Hash { hash }),
        (found, _) => Ok(found),
    }
}

fn raw_transaction(found: Option<(Block, usize)>) -> Option<Vec<u8>> {
    let (block, index) = found?;
    Some(block.transaction(index)?.tx.encoded_2718())
}

/// Writes bytes, or `0x` if there are none, as in geth.
fn bytes(out: &mut Vec<u8>, found: Option<Vec<u8>>) {
    encode::data(out, &found.unwrap_or_default());
}
