//! Blocks, receipts and transactions in the bytes that their hashes are of.

use alloy_eips::Encodable2718;
use alloy_primitives::B256;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    super::{Example, Method},
    position,
};
use crate::{
    ledger::{Block, Selector, UnknownBlock},
    rpc::{
        json::{
            self, Lookup,
            hex::{Data, Fixed, Quantity},
        },
        params::{NamesBlock, SelectorParam},
        protocol::error::Result,
        run::{Attempt, Backend},
    },
};

/// A header's RLP, of a pruned block too; 0x if there is no block of this number.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetRawHeader {
    block: SelectorParam,
}

impl Method for GetRawHeader {
    type Answer = Data;
    const EXAMPLE: Example = Example { params: r#"["0xffffff"]"#, answer: r#""0x""# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let selector = self.block.into();
        let block = or_unknown(backend.find(run.published, selector)?, selector)?;
        Ok(bytes(&mut run.out, block.map(|block| block.header_rlp()).transpose()?))
    }
}

/// A block's RLP; 0x if there is no block of this number.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetRawBlock {
    block: SelectorParam,
}

impl Method for GetRawBlock {
    type Answer = Data;
    const EXAMPLE: Example = Example { params: r#"["0xffffff"]"#, answer: r#""0x""# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let selector = self.block.into();
        let block = or_unknown(backend.block(run.published, selector)?, selector)?;
        Ok(bytes(&mut run.out, block.map(|block| block.rlp()).transpose()?))
    }
}

/// The receipts of a block in EIP-2718 bytes; null if there is no block of this number.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetRawReceipts {
    block: SelectorParam,
}

impl Method for GetRawReceipts {
    type Answer = Option<Vec<Data>>;
    const EXAMPLE: Example = Example { params: r#"["latest"]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let selector = self.block.into();
        let block = or_unknown(backend.block(run.published, selector)?, selector)?;
        let Attempt { meter, out, .. } = run;
        let Some(block) = block else { return Ok(json::null(out)) };
        json::metered_list(out, meter, block.transactions(), |out, one| {
            json::data(out, &one.receipt.encoded_2718());
        })?;
        Ok(Lookup::Found)
    }
}

/// A transaction in EIP-2718 bytes: sealed, pre-confirmed or in the pool, always without blobs; 0x if there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction's hash")]
pub struct GetRawTransaction {
    hash: Fixed<32>,
}

impl Method for GetRawTransaction {
    type Answer = Data;
    const EXAMPLE: Example = Example {
        params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#,
        answer: r#""0x""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let hash = B256::from(self.hash);
        let raw = raw_transaction(run.published.transaction(&hash))
            // The pool does not keep the blobs of a transaction.
            .or_else(|| backend.pool.get(&hash).map(|tx| tx.encoded_2718()))
            // The transaction may have moved from the pool into a block that was published after the request arrived.
            .or_else(|| raw_transaction(backend.pool.published().transaction(&hash)));
        Ok(bytes(&mut run.out, raw))
    }
}

/// A transaction by its index in a block, in EIP-2718 bytes; 0x if there is none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: block, index")]
pub struct GetRawTransactionAt<B> {
    block: B,
    index: Quantity<u64>,
}

impl<B: NamesBlock> Method for GetRawTransactionAt<B> {
    type Answer = Data;
    const EXAMPLE: Example = Example {
        params: r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "0x0"]"#,
        answer: r#""0x""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let block = backend.block(run.published, self.block.into())?;
        Ok(bytes(&mut run.out, raw_transaction(block.map(|block| (block, position(self.index))))))
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
fn bytes(out: &mut Vec<u8>, found: Option<Vec<u8>>) -> Lookup {
    json::data(out, found.as_deref().unwrap_or_default());
    if found.is_some() { Lookup::Found } else { Lookup::Nothing }
}
