//! Blocks, the transactions in them, and their receipts.

use super::{Asked, Backend};
use crate::{
    rpc::{
        encode,
        error::RpcError,
        wire::{self, NamesBlock, SelectorParam},
    },
    state::{Block, Included},
};

const NULL: &[u8] = b"null";

impl Backend {
    pub(super) fn get_block<B: NamesBlock>(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let (selector, full) = wire::parse_block::<B>(asked.params, asked.dialect)?;
        match self.block(asked.published, selector)? {
            Some(block) => encode::block(out, &block, full, asked.dialect),
            None => out.extend_from_slice(NULL),
        }
        Ok(())
    }

    /// How many of something are in a block.
    pub(super) fn get_count<B: NamesBlock>(
        &self,
        asked: Asked<'_>,
        out: &mut Vec<u8>,
        count: impl FnOnce(&Block) -> usize,
    ) -> Result<(), RpcError> {
        let selector = wire::parse_one_block::<B>(asked.params, asked.dialect)?;
        match self.block(asked.published, selector)? {
            Some(block) => encode::quantity(out, count(&block) as u64),
            None => out.extend_from_slice(NULL),
        }
        Ok(())
    }

    pub(super) fn get_block_receipts(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let selector = wire::parse_one_block::<SelectorParam>(asked.params, asked.dialect)?;
        match self.block(asked.published, selector)? {
            Some(block) => {
                encode::list(out, block.transactions(), |out, included| self.receipt(&block, &included, out))
            }
            None => out.extend_from_slice(NULL),
        }
        Ok(())
    }

    pub(super) fn get_transaction(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let hash = wire::parse_hash(asked.params, asked.dialect)?;
        let write =
            |block: &Block, included: &Included<'_>, out: &mut Vec<u8>| encode::transaction(out, block, included);
        let found = asked.published.transaction(&hash);
        if found.is_some() {
            show(found, out, write);
        } else if let Some(tx) = self.pool.get(&hash) {
            encode::pooled_transaction(out, &tx);
        } else {
            // It may have left the pool since the request came: into what was published meanwhile.
            show(self.pool.published().transaction(&hash), out, write);
        }
        Ok(())
    }

    pub(super) fn get_transaction_at<B: NamesBlock>(
        &self,
        asked: Asked<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let (selector, index) = wire::parse_place::<B>(asked.params, asked.dialect)?;
        let found = self.block(asked.published, selector)?.map(|block| (block, index));
        show(found, out, |block, included, out| encode::transaction(out, block, included));
        Ok(())
    }

    pub(super) fn get_transaction_receipt(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let hash = wire::parse_hash(asked.params, asked.dialect)?;
        let found = asked.published.transaction(&hash);
        show(found, out, |block, included, out| self.receipt(block, included, out));
        Ok(())
    }

    /// The receipt of a transaction in `block`.
    fn receipt(&self, block: &Block, included: &Included<'_>, out: &mut Vec<u8>) {
        encode::receipt(out, block, included, &self.spec);
    }
}

/// Writes what is to be shown of the transaction at an index of a block, or null where there is none.
fn show(found: Option<(Block, usize)>, out: &mut Vec<u8>, write: impl FnOnce(&Block, &Included<'_>, &mut Vec<u8>)) {
    let transaction = found.as_ref().and_then(|(block, index)| Some((block, block.transaction(*index)?)));
    match transaction {
        Some((block, included)) => write(block, &included, out),
        None => out.extend_from_slice(NULL),
    }
}
