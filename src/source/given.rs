//! A chain whose sub-blocks the embedding program gives: the transactions of each, in their order.

use std::cell::RefCell;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_primitives::B256;
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::sync::{mpsc, oneshot};

use super::{
    Feed, FeedSource,
    devnet::{Devnet, DevnetSource},
};
use crate::{ledger::Chain, pool::Pool};

/// A sub-block that is given.
#[derive(Debug)]
pub struct GivenSubBlock {
    /// The transactions, with their senders.
    pub transactions: Vec<Recovered<TxEnvelope>>,
    /// Whether the block ends with this sub-block.
    pub ends_block: bool,
    /// The place for the outcome, once the sub-block is visible.
    pub published: oneshot::Sender<Result<Vec<LeftOut>, String>>,
}

/// A transaction that cannot be included, and the reason.
pub type LeftOut = (B256, String);

/// The source of a chain that grows by the sub-blocks which arrive in a channel.
#[derive(Debug)]
pub struct GivenSource {
    /// The builder, which adds no transactions.
    pub devnet: DevnetSource,
    /// The sub-blocks. The source ends with the channel.
    pub given: mpsc::Receiver<GivenSubBlock>,
}

impl FeedSource for GivenSource {
    fn run(mut self: Box<Self>, mut feed: Feed) -> LocalBoxFuture<'static, ()> {
        async move {
            while let Some(GivenSubBlock { transactions, ends_block, published }) = self.given.recv().await {
                let left_out = RefCell::new(Vec::new());
                let step = |devnet: &mut Devnet, chain: &Chain, _: &Pool| {
                    left_out.borrow_mut().clear();
                    let leave_out = |hash, reason| left_out.borrow_mut().push((hash, reason));
                    devnet.given(chain.settled(), &transactions, ends_block, leave_out).map(Some)
                };
                let done = self.devnet.go_on_by(&mut feed, step).await;
                // The giver may not wait.
                let _ = published.send(done.map(|_| left_out.take()).map_err(|error| error.to_string()));
            }
        }
        .boxed_local()
    }
}
