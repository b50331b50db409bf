//! Requests on the state of an upstream: run, fetch what was missed, run again.

use std::sync::Arc;

use alloy_eips::RpcBlockHash;
use alloy_primitives::{B256, keccak256};
use serde_json::value::RawValue;

use super::{error::RpcError, hex::SlotKey, request::Request, wire};
use crate::{
    feed::upstream::{Ask, FetchError, Fetcher, Hints, UpstreamError},
    state::{Missed, Published, Snapshots},
};

/// How the front completes the state that requests need.
#[derive(Debug)]
pub struct StateCompletion {
    /// Brings it in.
    pub fetcher: Arc<Fetcher>,
    /// How often one request may miss something.
    pub rounds: usize,
    /// Where newer snapshots come from.
    pub snapshots: Arc<Snapshots>,
}

impl StateCompletion {
    /// Brings in what a run of `request` has missed, `round` times by now: it may run again then. Returns what it runs on instead, where the
    /// block it was about is no more on the upstream's chain.
    ///
    /// # Errors
    /// -32603 with the cause, where the upstream does not give it, the time is up, or that was the last round.
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
        match self.fetcher.fetch(missed, hints.as_ref(), deadline).await {
            // Nothing was answered yet: it may as well be asked of the new branch. The entries of a batch are to be of one moment.
            Err(error @ FetchError::Replaced { .. }) if !request.ticket.is_entry() => {
                let newer = tokio::time::timeout_at(deadline.into(), self.newer_than(&request.published)).await;
                newer.map(Some).map_err(|_| RpcError::from(error))
            }
            done => Ok(done.map(|()| None)?),
        }
    }

    /// Waits for something else than `old` to be published.
    async fn newer_than(&self, old: &Arc<Published>) -> Arc<Published> {
        let mut changes = self.snapshots.changes();
        loop {
            let published = self.snapshots.load();
            if !Arc::ptr_eq(&published, old) {
                return published;
            }
            if changes.changed().await.is_err() {
                // Nothing is published any more: its time runs out.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A question about blocks from before presim began to follow, as it was put.
    pub(super) async fn forward(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let params = RawValue::from_string(request.params.to_string());
        let params = params.map_err(|error| RpcError::params(format!("params: {error}")))?;
        let answer = Ask::new(request.method.name, &params, |answer| Ok::<Box<RawValue>, _>(answer.to_owned()));
        let answer = self.fetcher.upstream().one(answer, request.ticket.deadline()).await.map_err(upstream_error)?;
        out.extend_from_slice(answer.get().as_bytes());
        Ok(())
    }

    /// Sends a signed transaction on to the upstream. Its hash is the upstream's answer.
    ///
    /// # Errors
    /// What the upstream has against it.
    pub(super) async fn send_on(&self, raw: &[u8], request: &Request) -> Result<B256, RpcError> {
        let ask = Ask::<B256>::typed("eth_sendRawTransaction", &(const_hex::encode_prefixed(raw),));
        match self.fetcher.upstream().one(ask, request.ticket.deadline()).await {
            // It was sent once more, because the first answer was lost.
            Err(UpstreamError::Refused { message, .. }) if message.to_lowercase().contains("already known") => {
                Ok(keccak256(raw))
            }
            sent => sent.map_err(upstream_error),
        }
    }

    /// `eth_getProof` of a state that is the upstream's: only who has all of it can prove it.
    ///
    /// # Errors
    /// That the state has changes that are in no block yet; what the upstream says.
    pub(super) async fn forward_proof(&self, request: &Request, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let wanted = wire::parse_proof(&request.params, request.caller.dialect)?;
        let snapshot = request.published.select(wanted.selector)?;
        let view = snapshot.world.remote().filter(|_| snapshot.world.is_unchanged_remote());
        let Some(view) = view else {
            let text = "the state has changes that no block has yet: there is no proof of it: expected a block";
            return Err(RpcError::new(-32000, text));
        };
        let at = RpcBlockHash { block_hash: view.hash(), require_canonical: Some(false) };
        // As they were written: an answer repeats them so.
        let written = |key: &SlotKey| match key.in_full {
            true => B256::from(key.slot).to_string(),
            false => format!("{:#x}", key.slot),
        };
        let slots: Vec<String> = wanted.slots.iter().map(written).collect();
        let ask =
            Ask::new("eth_getProof", &(wanted.address, slots, at), |proof| Ok::<Box<RawValue>, _>(proof.to_owned()));
        let proof = self.fetcher.upstream().one(ask, request.ticket.deadline()).await.map_err(FetchError::from)?;
        out.extend_from_slice(proof.get().as_bytes());
        Ok(())
    }
}

/// What an upstream refuses is refused in its words.
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
