//! Requests on the state of an upstream: run, fetch the missed state, run again.

use std::sync::Arc;

use alloy_eips::RpcBlockHash;
use alloy_primitives::{B256, keccak256};
use serde_json::value::RawValue;

use super::{error::RpcError, hex::SlotKey, request::Request, wire};
use crate::{
    feed::upstream::{Ask, FetchError, Fetcher, Hints, UpstreamError},
    state::{Missed, Published, Snapshots},
};

/// The completion of state that requests need and the cache does not have.
#[derive(Debug)]
pub struct StateCompletion {
    /// Fetches missed state.
    pub fetcher: Arc<Fetcher>,
    /// The most rounds of one request that may miss state.
    pub rounds: usize,
    /// The published snapshots, for a newer one.
    pub snapshots: Arc<Snapshots>,
}

impl StateCompletion {
    /// Fetches the state that a run of `request` has missed, for the `round`th time, so that it can run again. Returns
    /// another snapshot to run on if the request's block is no longer part of the upstream's chain.
    ///
    /// # Errors
    ///
    /// Returns -32603 with the cause if the upstream does not return the state, the deadline has passed, or this was
    /// the last round.
    pub(super) async fn complete(
        &self,
        round: usize,
        missed: &Missed,
        request: &Request,
    ) -> Result<Option<Arc<Published>>, RpcError> {
        let hints = (round == 1).then(|| Hints::of(&request.params));
        if round > self.rounds {
            return Err(FetchError::Rounds(self.rounds).into());
        }
        let deadline = request.ticket.deadline();
        match self.fetcher.fetch(missed, hints.as_ref(), deadline.into()).await {
            // Nothing was answered yet, so the request can run on the new branch. Entries of a batch cannot, because
            // all of them run on one snapshot.
            Err(error @ FetchError::Replaced { .. }) if !request.ticket.is_entry() => {
                let newer = tokio::time::timeout_at(deadline.into(), self.newer_than(&request.published)).await;
                newer.map(Some).map_err(|_| RpcError::from(error))
            }
            done => Ok(done.map(|()| None)?),
        }
    }

    /// Waits for a newer publication than `old`.
    async fn newer_than(&self, old: &Arc<Published>) -> Arc<Published> {
        let mut changes = self.snapshots.changes();
        loop {
            let published = self.snapshots.load();
            if !Arc::ptr_eq(&published, old) {
                return published;
            }
            if changes.changed().await.is_err() {
                // Nothing is published any more, so the request's deadline ends the wait.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns a question about blocks from before presim began to follow, as it was put.
    pub(super) async fn forward(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let params = RawValue::from_string(request.params.to_string());
        let params = params.map_err(|error| RpcError::params(format!("params: {error}")))?;
        let answer = Ask::new(request.method.name, &params, |answer| Ok::<Box<RawValue>, _>(answer.to_owned()));
        let answer =
            self.fetcher.upstream().one(answer, request.ticket.deadline().into()).await.map_err(upstream_error)?;
        out.extend_from_slice(answer.get().as_bytes());
        Ok(())
    }

    /// Forwards a signed transaction to the upstream, and returns its hash.
    ///
    /// # Errors
    ///
    /// Returns the upstream's error.
    pub(super) async fn send_on(&self, raw: &[u8], request: &Request) -> Result<B256, RpcError> {
        let ask = Ask::<B256>::typed("eth_sendRawTransaction", &(const_hex::encode_prefixed(raw),));
        match self.fetcher.upstream().one(ask, request.ticket.deadline().into()).await {
            // The transaction was sent twice, because the first answer was lost.
            Err(UpstreamError::Refused { message, .. }) if message.to_lowercase().contains("already known") => {
                Ok(keccak256(raw))
            }
            sent => sent.map_err(upstream_error),
        }
    }

    /// Answers `eth_getProof` of an upstream's state, which only the upstream can prove.
    ///
    /// # Errors
    ///
    /// Returns an error if the state has changes that are in no canonical block, or the upstream's error.
    pub(super) async fn forward_proof(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let wanted = wire::parse_proof(&request.params, request.caller.dialect)?;
        let snapshot = request.published.select(wanted.selector)?;
        let view = snapshot.world.remote().filter(|_| snapshot.world.is_unchanged_remote());
        let Some(view) = view else {
            let text = "the state has changes that no block has yet: there is no proof of it: expected a block";
            return Err(RpcError::new(-32000, text));
        };
        let at = RpcBlockHash { block_hash: view.hash(), require_canonical: Some(false) };
        // In the client's spelling, which the answer repeats.
        let written = |key: &SlotKey| match key.in_full {
            true => B256::from(key.slot).to_string(),
            false => format!("{:#x}", key.slot),
        };
        let slots: Vec<String> = wanted.slots.iter().map(written).collect();
        let ask =
            Ask::new("eth_getProof", &(wanted.address, slots, at), |proof| Ok::<Box<RawValue>, _>(proof.to_owned()));
        let proof =
            self.fetcher.upstream().one(ask, request.ticket.deadline().into()).await.map_err(FetchError::from)?;
        out.extend_from_slice(proof.get().as_bytes());
        Ok(())
    }
}

/// Returns the upstream's error, with its code and text if it has answered.
fn upstream_error(error: UpstreamError) -> RpcError {
    match error {
        UpstreamError::Refused { code, message, .. } => RpcError::new(i32::try_from(code).unwrap_or(-32000), message),
        error => FetchError::from(error).into(),
    }
}

impl From<FetchError> for RpcError {
    fn from(error: FetchError) -> Self {
        let code = match error {
            FetchError::Upstream(_) | FetchError::Deadline(_) | FetchError::Rounds(_) => -32603,
            FetchError::Replaced { .. } => -32000,
            FetchError::Busy(_) => -32005,
        };
        Self::new(code, error.to_string())
    }
}
