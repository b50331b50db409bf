//! Receipts that imply their block: in some dialects, receipts and the block of a transaction are shown only once
//! `latest` has the block. So a client with a receipt finds its effects, and the next nonce of its sender, at
//! `latest`.

use alloy_primitives::U64;
use serde::Deserialize;
use serde_json::Value;

use super::{Backend, SealedOnly, request::Request};
use crate::{
    ledger::{Block, Chain, Selector},
    objects,
    rpc::{
        json::hex::Fixed,
        params::{self, SelectorParam},
        protocol::{dialect::Dialect, error::Result},
    },
};

/// The parameter of a request for a receipt.
#[derive(Deserialize)]
struct OfTransaction {
    hash: Fixed<32>,
}

/// The parameter of a request for the receipts of a block.
#[derive(Deserialize)]
struct OfBlock {
    block: SelectorParam,
}

impl Backend {
    /// Returns whether `dialect` withholds receipts until `latest` has their block.
    fn hides_unsealed(&self, dialect: &Dialect) -> bool {
        dialect.receipts_wait && self.receipts_wait
    }

    /// Returns whether `dialect` withholds the content of block `number` until `latest` has the block.
    pub(in crate::rpc) fn is_unsealed(&self, dialect: &Dialect, published: &Chain, number: u64) -> bool {
        self.hides_unsealed(dialect) && number > published.head().number()
    }

    /// Returns the block of `selector`, for its receipts. In a dialect in which receipts wait, `None` if `latest` does
    /// not have the block yet, or if it is a block as a snapshot was building it.
    pub(in crate::rpc) fn block_of_receipts(
        &self,
        dialect: &Dialect,
        published: &Chain,
        selector: Selector,
    ) -> Result<Option<Block>> {
        let block = self.block(published, selector)?.filter(|block| !block.is_draft());
        if !self.hides_unsealed(dialect) {
            return Ok(block);
        }
        match block {
            Some(block) if self.is_unsealed(dialect, published, block.number()) => Ok(None),
            // The hash of the block while it was being built also identifies the resulting block.
            Some(block) if block.is_open() => match selector {
                Selector::Hash(_) => self.block(published, Selector::Number(block.number())),
                _ => Ok(None),
            },
            block => Ok(block),
        }
    }

    /// Returns whether null, as this node's answer to `request`, may hide receipts that the node does not show yet.
    pub(in crate::rpc) fn hides(&self, request: &Request) -> bool {
        let (published, dialect) = (&request.published, request.caller.dialect);
        if !self.hides_unsealed(dialect) {
            return false;
        }
        match request.method.waits {
            SealedOnly::Nothing | SealedOnly::Inclusion => false,
            SealedOnly::Receipt => params::parse::<OfTransaction>(&request.params, dialect)
                .is_ok_and(|of| published.transaction(&of.hash.into()).is_some()),
            SealedOnly::BlockReceipts => params::parse::<OfBlock>(&request.params, dialect)
                .is_ok_and(|of| published.find(of.block.into()).is_ok_and(|block| block.is_some())),
        }
    }

    /// Withholds unsealed content in the answer of another node to `request`: that node may have blocks that `latest`
    /// does not have here yet. The answer begins in `out` at `start`.
    pub(in crate::rpc) fn hide(&self, request: &Request, now: &Chain, out: &mut Vec<u8>, start: usize) {
        let waits = request.method.waits;
        if waits == SealedOnly::Nothing || !self.hides_unsealed(request.caller.dialect) {
            return;
        }
        let Ok(mut answer) = objects::from_slice::<Value>(&out[start..]) else { return };
        let first = if waits == SealedOnly::BlockReceipts { answer.get(0) } else { Some(&answer) };
        let number = first.and_then(|one| one.get("blockNumber")?.as_str()?.parse::<U64>().ok());
        if number.is_none_or(|number| number.to::<u64>() <= now.head().number()) {
            return;
        }
        out.truncate(start);
        if waits == SealedOnly::Inclusion {
            for key in ["blockHash", "blockNumber", "blockTimestamp", "transactionIndex"] {
                answer[key] = Value::Null;
            }
            out.extend_from_slice(answer.to_string().as_bytes());
        } else {
            out.extend_from_slice(b"null");
        }
    }
}
