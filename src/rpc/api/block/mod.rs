//! Blocks, the transactions in them, and their receipts.

mod access_list;
mod raw;

pub use self::{
    access_list::{GetBlockAccessList, GetRawBlockAccessList},
    raw::{GetRawBlock, GetRawHeader, GetRawReceipts, GetRawTransaction, GetRawTransactionAt},
};

use alloy_consensus::{Transaction, transaction::Recovered};
use alloy_primitives::{Address, B256};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    chain::ChainTx,
    ledger::{Block, Chain, Included},
    pool::SenderContent,
    rpc::{
        json::{
            self, Shape, TxView,
            hex::{Fixed, Quantity},
        },
        params::NamesBlock,
        protocol::{dialect::Dialect, error::Result},
        run::{Attempt, Backend},
    },
};

/// Bytes of JSON of most transactions in full.
const FULL_BYTES: usize = 1024;
/// Bytes of JSON of a hash.
const HASH_BYTES: usize = 69;

queries! {
    /// A block, or null. pending is the one being built, with a provisional hash.
    GetBlock<B> = "1 or 2 parameters: block, whether to show transactions in full", {
        block: B,
        /// Transactions in full; else their hashes.
        #[serde(default)]
        full: Option<bool>,
    }, r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", false]"# => Option<json::Block> = "null",
        |asked, backend, run| {
            let (block, full) = (backend.block(run.published, asked.block.into())?, asked.full.unwrap_or_default());
            if let Some(block) = &block {
                json::count_bytes(&mut run.meter, block.len() * if full { FULL_BYTES } else { HASH_BYTES })?;
            }
            block.map(|block| (block, full, run.dialect))
        };

    /// The number of transactions in a block.
    GetTransactionCountOfBlock<B> = "1 parameter: block", { block: B },
        r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"]"# => Option<Quantity<u64>> = r#""0x10""#,
        |asked, backend, run| backend.block(run.published, asked.block.into())?.map(|block| block.len() as u64);

    /// The number of uncles of a block.
    GetUncleCount<B> = "1 parameter: block", { block: B },
        r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"]"# => Option<Quantity<u64>> = r#""0x0""#,
        |asked, backend, run| backend.block(run.published, asked.block.into())?.map(|block| block.ommers().len() as u64);
}

/// A header, of a pruned block too; or null.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetHeader<B> {
    block: B,
}

impl<B: NamesBlock> Method for GetHeader<B> {
    type Answer = Option<json::Header>;
    const EXAMPLE: Example =
        Example { params: r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = backend.find(run.published, self.block.into())?;
        let header = block.as_ref().map(|block| {
            let header = block.header();
            // Only a block's transactions contain the milliseconds of its time.
            let whole = backend.spec.has_base_time(header.timestamp).then(|| Block::load(block.clone())).flatten();
            (header.inner(), header.hash(), whole.as_ref().and_then(Block::timestamp_ms), run.dialect)
        });
        Self::Answer::write(&mut run.out, header);
        Ok(())
    }
}

/// The receipts of a block, or null; on /standard only of a sealed block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetBlockReceipts<B> {
    block: B,
}

impl<B: NamesBlock> Method for GetBlockReceipts<B> {
    type Answer = Option<Vec<json::Receipt>>;
    const EXAMPLE: Example = Example { params: r#"["latest"]"#, answer: "[]" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let Attempt { dialect, published, meter, out, .. } = run;
        let Some(block) = backend.block_of_receipts(dialect, published, self.block.into())? else {
            json::null(out);
            return Ok(());
        };
        json::metered_list(out, meter, block.transactions(), |out, included| {
            json::Receipt::write(out, (&block, &included, &*backend.spec));
        })?;
        Ok(())
    }
}

/// A transaction: sealed, pre-confirmed or in the pool; else null.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction's hash")]
pub struct GetTransaction {
    hash: Fixed<32>,
}

impl Method for GetTransaction {
    type Answer = Option<json::Transaction>;
    const EXAMPLE: Example =
        Example { params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let hash = B256::from(self.hash);
        let found = run.published.transaction(&hash);
        if found.is_some() {
            show_transaction(backend, run.published, found, run.dialect, &mut run.out);
        } else if let Some(tx) = backend.pool.get(&hash) {
            json::pooled_transaction(&mut run.out, &tx);
        } else {
            // The transaction may have moved from the pool into a block that was published after the request arrived.
            let published = backend.pool.published();
            show_transaction(backend, &published, published.transaction(&hash), run.dialect, &mut run.out);
        }
        Ok(())
    }
}

/// A transaction by its sender and its nonce: sealed, pre-confirmed or in the pool; else null. Transactions of older
/// blocks are found as long as the node retains the blocks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: sender, nonce")]
pub struct GetTransactionBySender {
    sender: Fixed<20>,
    nonce: Quantity<u64>,
}

impl Method for GetTransactionBySender {
    type Answer = Option<json::Transaction>;
    const EXAMPLE: Example =
        Example { params: r#"["0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "0x0"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (sender, Quantity(nonce)) = (Address::from(self.sender), self.nonce);
        let is_it = |tx: &Recovered<ChainTx>| {
            tx.signer() == sender && tx.nonce() == nonce && matches!(tx.inner(), ChainTx::Signed(_))
        };
        let published = run.published;
        let open = published.newest.open.iter().flat_map(|open| open.transactions.iter());
        let mut found = open.clone().find(|tx| is_it(tx)).map(|tx| *tx.tx_hash());
        if found.is_none() {
            let SenderContent { pending, queued, .. } = backend.pool.content_from(sender);
            let waiting = pending.iter().chain(&queued).find(|tx| tx.nonce() == nonce);
            found = waiting.map(|tx| *tx.tx_hash());
        }
        let mut blocks = published.blocks(0, u64::MAX).rev();
        while found.is_none()
            && let Some(block) = blocks.next()
        {
            run.meter.count(1)?;
            let block = Block::sealed(block);
            let mut transactions = block.iter().flat_map(Block::transactions);
            found = transactions.find(|included| is_it(included.tx)).map(|included| *included.tx.tx_hash());
        }
        let Some(hash) = found else {
            json::null(&mut run.out);
            return Ok(());
        };
        GetTransaction { hash: Fixed(hash.0) }.run(backend, run)
    }
}

/// Writes a transaction that was found in a block, without the block if that waits.
fn show_transaction(
    backend: &Backend,
    published: &Chain,
    found: Option<(Block, usize)>,
    dialect: &Dialect,
    out: &mut Vec<u8>,
) {
    let waits = |block: &Block| backend.is_unsealed(dialect, published, block.number());
    // The chain's own transactions never wait in the pool.
    let is_shown = |(block, index): &(Block, usize)| {
        let is_own = block.transaction(*index).is_some_and(|one| !matches!(one.tx.inner(), ChainTx::Signed(_)));
        !(is_own && waits(block))
    };
    show(found.filter(is_shown), out, |block, included, out| match included.tx.inner() {
        ChainTx::Signed(tx) if waits(block) => {
            json::pooled_transaction(out, &Recovered::new_unchecked(tx.clone(), included.tx.signer()));
        }
        _ => json::Transaction::write(out, TxView::of(block, included)),
    });
}

/// A transaction by its index in a block, or null.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: block, index")]
pub struct GetTransactionAt<B> {
    block: B,
    index: Quantity<u64>,
}

impl<B: NamesBlock> Method for GetTransactionAt<B> {
    type Answer = Option<json::Transaction>;
    const EXAMPLE: Example = Example {
        params: r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "0x0"]"#,
        answer: "null",
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let found = backend.block(run.published, self.block.into())?.map(|block| (block, position(self.index)));
        show(found, &mut run.out, |block, included, out| json::Transaction::write(out, TxView::of(block, included)));
        Ok(())
    }
}

/// Returns an index of a list. One that does not fit `usize` is past the end of any block.
fn position(index: Quantity<u64>) -> usize {
    usize::try_from(index.0).unwrap_or(usize::MAX)
}

/// The receipt of a transaction that is sealed, or on / pre-confirmed, or null.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction's hash")]
pub struct GetTransactionReceipt {
    hash: Fixed<32>,
}

impl Method for GetTransactionReceipt {
    type Answer = Option<json::Receipt>;
    const EXAMPLE: Example =
        Example { params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let told = |(block, _): &(Block, usize)| !backend.is_unsealed(run.dialect, run.published, block.number());
        show_receipt(backend, run.published.transaction(&self.hash.into()).filter(told), &mut run.out);
        Ok(())
    }
}

/// Writes the receipt of the transaction at an index of a block, or null if there is none.
pub fn show_receipt(backend: &Backend, found: Option<(Block, usize)>, out: &mut Vec<u8>) {
    show(found, out, |block, included, out| json::Receipt::write(out, (block, included, &*backend.spec)));
}

/// Calls `write` for the transaction at an index of a block, or writes null if there is none.
fn show(found: Option<(Block, usize)>, out: &mut Vec<u8>, write: impl FnOnce(&Block, &Included<'_>, &mut Vec<u8>)) {
    let transaction = found.as_ref().and_then(|(block, index)| Some((block, block.transaction(*index)?)));
    match transaction {
        Some((block, included)) => write(block, &included, out),
        None => json::null(out),
    }
}
