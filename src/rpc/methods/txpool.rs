//! The content of the transaction pool. The pool is locked only while its transactions are collected.

use alloy_primitives::Address;

use super::{Backend, Run};
use crate::{
    pool::PoolStatus,
    rpc::{
        encode::{self, Object},
        error::Result,
    },
};

impl Backend {
    /// Answers `txpool_status`: the numbers of transactions that can be mined now, and of those behind a nonce gap.
    pub(super) fn pool_status(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let PoolStatus { pending, queued } = self.pool.status();
        let mut object = Object::new(&mut run.out);
        object.quantity("pending", pending as u64).quantity("queued", queued as u64);
        object.end();
        Ok(())
    }

    pub(super) fn pool_content(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let content = self.pool.content();
        encode::by_sender(&mut run.out, &content, self.limits.max_response, encode::pooled_transaction)
    }

    pub(super) fn pool_content_from(&self, run: &mut Run<'_>, sender: Address) -> Result<()> {
        let content = self.pool.content_from(sender);
        encode::by_nonce(&mut run.out, &content, self.limits.max_response, encode::pooled_transaction)
    }

    /// Answers `txpool_inspect`: the content of the pool with a line of text for each transaction.
    pub(super) fn pool_inspect(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        encode::by_sender(&mut run.out, &self.pool.content(), self.limits.max_response, encode::summary)
    }
}
