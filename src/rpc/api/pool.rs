//! The content of the transaction pool. The pool is locked only while its transactions are collected.

use alloy_primitives::Address;

use crate::rpc::run::{Backend, Run};
use crate::{
    pool::PoolStatus,
    rpc::{
        json::{self, Object},
        protocol::error::Result,
    },
};

impl Backend {
    /// Answers `txpool_status`: the numbers of transactions that can be mined now, and of those behind a nonce gap.
    pub fn pool_status(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let PoolStatus { pending, queued } = self.pool.status();
        let mut object = Object::new(&mut run.out);
        object.quantity("pending", pending as u64).quantity("queued", queued as u64);
        object.end();
        Ok(())
    }

    pub fn pool_content(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let content = self.pool.content();
        json::by_sender(&mut run.out, &content, self.limits.max_response, json::pooled_transaction)
    }

    pub fn pool_content_from(&self, run: &mut Run<'_>, sender: Address) -> Result<()> {
        let content = self.pool.content_from(sender);
        json::by_nonce(&mut run.out, &content, self.limits.max_response, json::pooled_transaction)
    }

    /// Answers `txpool_inspect`: the content of the pool with a line of text for each transaction.
    pub fn pool_inspect(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        json::by_sender(&mut run.out, &self.pool.content(), self.limits.max_response, json::summary)
    }
}
