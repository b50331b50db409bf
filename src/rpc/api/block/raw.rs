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
            self,
            hex::{Data, Fixed, Quantity},
        },
        params::SelectorParam,
        protocol::error::Result,
        run::{Attempt, Backend},
    },
};

queries! {
    /// A header's RLP, of a pruned block too; 0x if there is no block of this number.
    GetRawHeader = "1 parameter: block", { block: SelectorParam }, r#"["0xffffff"]"# => Data = r#""0x""#,
        |asked, backend, run| {
            let selector = asked.block.into();
            let block = or_unknown(backend.find(run.published, selector)?, selector)?;
            block.map(|block| block.header_rlp()).transpose()?.unwrap_or_default()
        };

    /// A block's RLP; 0x if there is no block of this number.
    GetRawBlock = "1 parameter: block", { block: SelectorParam }, r#"["0xffffff"]"# => Data = r#""0x""#,
        |asked, backend, run| {
            let selector = asked.block.into();
            let block = or_unknown(backend.block(run.published, selector)?, selector)?;
            block.map(|block| block.rlp()).transpose()?.unwrap_or_default()
        };

    /// A transaction in EIP-2718 bytes: sealed, pre-confirmed or in the pool, always without blobs; 0x if there is none.
    GetRawTransaction = "1 parameter: a transaction's hash", { hash: Fixed<32> },
        r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"# => Data = r#""0x""#,
        |asked, backend, run| {
            let hash = B256::from(asked.hash);
            raw_transaction(run.published.transaction(&hash))
                // The pool does not keep the blobs of a transaction.
                .or_else(|| backend.pool.get(&hash).map(|tx| tx.encoded_2718()))
                // The transaction may have moved from the pool into a block that was published after the request arrived.
                .or_else(|| raw_transaction(backend.pool.published().transaction(&hash)))
                .unwrap_or_default()
        };

    /// A transaction by its index in a block, in EIP-2718 bytes; 0x if there is none.
    GetRawTransactionAt<B> = "2 parameters: block, index", { block: B, index: Quantity<u64> },
        r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "0x0"]"# => Data = r#""0x""#,
        |asked, backend, run| {
            let block = backend.block(run.published, asked.block.into())?;
            raw_transaction(block.map(|block| (block, position(asked.index)))).unwrap_or_default()
        };
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

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let selector = self.block.into();
        let block = or_unknown(backend.block(run.published, selector)?, selector)?;
        let Attempt { meter, out, .. } = run;
        let Some(block) = block else {
            json::null(out);
            return Ok(());
        };
        json::metered_list(out, meter, block.transactions(), |out, one| {
            json::data(out, &one.receipt.encoded_2718());
        })?;
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
