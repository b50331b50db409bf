//! Predictions of the state that blocks and calls will read, by the upstream: access lists, and traces of one that is far away.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use alloy_eips::{
    BlockId, RpcBlockHash,
    eip2930::AccessList,
    eip7928::{BlockAccessList, compute_block_access_list_hash},
};
use alloy_primitives::B256;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Fetcher, Hints, Prestate, Upstream, ask::Ask, prestate};
use crate::state::{AccountChange, CodeCache, Miss, RemoteView};

/// The most values in access lists that are fetched.
const MAX_LISTED: usize = 4096;
/// The time that an upstream has to trace a block. A trace that takes longer saves nothing.
const TRACE_TIMEOUT: Duration = Duration::from_millis(500);
/// The answer to `eth_createAccessList`. Calls that revert have one too.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessListAnswer {
    access_list: AccessList,
}

impl Fetcher {
    /// Returns whether the upstream is asked for the state that blocks read: it is so far away that a trace saves time, and it is not
    /// known to refuse.
    pub fn traces_blocks(&self) -> bool {
        !self.refused_traces.has_blocks() && self.upstream().is_some_and(|upstream| upstream.is_far())
    }

    /// Returns the values before the block with this hash that its transactions read. Returns `None` if the upstream does not trace
    /// the block.
    pub async fn prestate(&self, hash: B256) -> Option<Prestate> {
        self.trace_block(Prestate::ask(hash, &self.codes)).await
    }

    /// Returns the accounts and slots that the transactions of the block with this hash have changed. Returns `None` if the upstream
    /// does not trace the block.
    pub async fn touched(&self, hash: B256) -> Option<Vec<AccountChange>> {
        self.trace_block(prestate::ask_touched(hash)).await
    }

    async fn trace_block<T: Send>(&self, ask: Ask<T>) -> Option<T> {
        let upstream = self.upstream().filter(|_| !self.refused_traces.has_blocks())?;
        let traced = upstream.one(ask, Instant::now() + TRACE_TIMEOUT).await;
        traced
            .inspect_err(|error| {
                tracing::debug!(%error, "the upstream does not trace a block");
                self.refused_traces.refuse_blocks();
            })
            .ok()
    }

    /// Stops asking the upstream for traces of blocks for some minutes, because a block does not execute on a trace.
    pub fn distrust_traces(&self) {
        tracing::warn!(
            "a block does not execute on the state that the upstream has traced: it is executed without the trace"
        );
        self.refused_traces.refuse_blocks();
    }

    /// Returns whether the upstream is asked for the access lists of blocks (EIP-7928): it is not known to have none, or wrong ones.
    pub fn has_lists(&self) -> bool {
        !self.refused_traces.lists.load(Relaxed)
    }

    /// Stops asking the upstream for access lists of blocks, because a block that was executed has another one.
    pub fn distrust_lists(&self) {
        self.refused_traces.lists.store(true, Relaxed);
    }

    /// Returns the access list of a block. Its hash matches the one that the header announces. Returns `None` if the
    /// upstream does not have it.
    pub async fn block_list(&self, block: B256, announced: B256, deadline: Instant) -> Option<BlockAccessList> {
        let upstream = self.upstream().filter(|_| self.has_lists())?;
        let ask = Ask::<Option<BlockAccessList>>::typed("eth_getBlockAccessList", &(block,));
        match upstream.one(ask, deadline).await {
            Ok(list) => list.filter(|list| compute_block_access_list_hash(list) == announced),
            Err(error) => {
                if error.is_unknown_method() {
                    self.distrust_lists();
                }
                tracing::debug!(%error, "the upstream does not give the access list of a block");
                None
            }
        }
    }

    /// Returns the code cache of the state.
    pub const fn codes(&self) -> &Arc<CodeCache> {
        &self.codes
    }

    /// Returns whether the upstream predicts the state that calls read.
    pub(super) fn predicts(&self) -> bool {
        !self.no_access_lists.load(Relaxed) || self.far_tracer().is_some()
    }

    /// Returns the upstream if it is asked to trace calls.
    fn far_tracer(&self) -> Option<Arc<Upstream>> {
        self.upstream().filter(|upstream| upstream.is_far() && !self.refused_traces.calls.load(Relaxed))
    }

    /// Returns the state that is still to be fetched for the calls in `hints`. An upstream that is far away is asked to trace them,
    /// which returns the values, too.
    pub(super) async fn predicted(&self, view: &RemoteView, hints: Option<Hints>, deadline: Instant) -> Vec<Miss> {
        let (Some(upstream), Some(given)) = (self.far_tracer(), &hints) else {
            return self.access_lists(view, hints, deadline).await;
        };
        let at = BlockId::Hash(RpcBlockHash { block_hash: view.hash(), require_canonical: Some(false) });
        let asks = given.calls.iter().map(|call| Prestate::ask_call(call, at, &self.codes));
        let (mut keys, mut is_refused) = (Vec::new(), false);
        for answer in upstream.all(asks.collect(), deadline).await {
            match answer {
                Ok(prestate) if self.config.verify_proofs => keys.extend(prestate.keys()),
                Ok(prestate) => view.insert(prestate.values().iter().cloned()),
                Err(error) => is_refused |= error.is_unknown_method(),
            }
        }
        if is_refused {
            self.refused_traces.calls.store(true, Relaxed);
            return self.access_lists(view, hints, deadline).await;
        }
        keys.truncate(MAX_LISTED);
        keys
    }

    /// Returns the state that the upstream predicts for the calls in `hints`. Empty if the upstream has no prediction.
    async fn access_lists(&self, view: &RemoteView, hints: Option<Hints>, deadline: Instant) -> Vec<Miss> {
        let (Some(hints), Some(upstream)) = (hints, self.upstream()) else { return Vec::new() };
        let at = BlockId::Hash(RpcBlockHash { block_hash: view.hash(), require_canonical: Some(false) });
        let asks = hints.calls.iter().map(|call| Ask::<AccessListAnswer>::typed("eth_createAccessList", &(call, at)));
        let answers = upstream.all(asks.collect(), deadline).await;
        let mut listed = Vec::new();
        for answer in answers {
            match answer {
                Ok(answer) => {
                    for item in answer.access_list.0 {
                        listed.push(Miss::Account(item.address));
                        let slots = item.storage_keys.iter().map(|key| Miss::Slot(item.address, (*key).into()));
                        listed.extend(slots);
                    }
                }
                Err(error) if error.is_unknown_method() => self.no_access_lists.store(true, Relaxed),
                Err(_) => {}
            }
        }
        listed.truncate(MAX_LISTED);
        listed
    }
}
