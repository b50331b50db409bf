//! Requests on the state of an upstream: the state that their runs miss, and the requests that the upstream answers.

use std::{sync::Arc, time::Instant};

use alloy_primitives::{B256, keccak256};
use async_trait::async_trait;
use op_alloy::consensus::post_exec::POST_EXEC_TX_TYPE_ID;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{ExecutedBy, past::PastStates, request::Request};
use crate::rpc::{
    params,
    protocol::error::{Result, RpcError},
};
use crate::{
    chain::Unexecutable,
    objects,
    pool::PoolError,
    scheduler::FetchMissed,
    state::{FetchError, Held, Missed},
    telemetry::Counter,
    upstream::{Ask, Fetcher, Hints, Refusal, Upstream, UpstreamError, patiently},
};

/// The completion of state that requests need and the cache does not have.
#[derive(Debug)]
pub struct UpstreamGateway {
    /// Fetches missed state.
    pub fetcher: Arc<Fetcher>,
    /// The most rounds of one request that may miss state.
    pub rounds: usize,
    /// Whether presim cannot execute everything on the chain, so that a run may have to be executed by the upstream.
    pub lacks_rules: bool,
    /// The methods that presim does not have and that the upstream answers.
    pub forwarded: ForwardedMethods,
    /// Counts the runs that the upstream executed.
    pub executed: Counter,
    /// The states of blocks that are older than the retained ones.
    pub past: PastStates,
    /// The requests that the upstream may answer at once.
    pub permits: Semaphore,
}

/// The names of methods that are forwarded, each possibly with a `*` at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedMethods(pub Vec<String>);

impl ForwardedMethods {
    /// Returns whether a method is forwarded.
    pub fn has(&self, method: &str) -> bool {
        self.0.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => method.starts_with(prefix),
            None => name == method,
        })
    }
}

/// The methods that an upstream can execute in place of a run, with the block in their second parameter.
const EXECUTED: [&str; 4] = ["eth_call", "eth_estimateGas", "eth_createAccessList", "eth_simulateV1"];

#[async_trait]
impl FetchMissed for UpstreamGateway {
    fn rounds(&self) -> usize {
        self.rounds
    }

    async fn fetch(&self, missed: &Missed, params: Option<&str>, deadline: Instant) -> Result<Held, FetchError> {
        let hints = params.map(Hints::of);
        patiently(self.fetcher.fetch(missed, hints.as_ref(), deadline.into())).await
    }
}

impl UpstreamGateway {
    /// Returns the upstream.
    ///
    /// # Errors
    ///
    /// Returns -32000 on a node that has none.
    pub fn upstream(&self) -> Result<Arc<Upstream>> {
        let text = "only an upstream can answer this, and this node of the fleet has none (--upstream): ask the leader";
        self.fetcher.upstream().ok_or_else(|| RpcError::new(-32000, text))
    }

    /// Forwards a request about blocks from before presim began to follow to the upstream, unchanged.
    ///
    /// # Errors
    ///
    /// Returns the upstream's error, or an error if it cannot be asked.
    pub async fn forward(&self, request: &Request, out: &mut Vec<u8>) -> Result<()> {
        let answer = self.ask(request.method.name, &request.params, request.ticket.deadline()).await?;
        out.extend_from_slice(answer.get().as_bytes());
        Ok(())
    }

    /// Has the upstream execute a request that presim cannot, at the block that the request names.
    ///
    /// # Errors
    ///
    /// Returns -32000 if the upstream cannot execute it: it is another method, or on a state that no block has. Returns
    /// the upstream's error as the dialect has it. `by` is set if the upstream has answered.
    pub async fn execute(
        &self,
        why: Unexecutable,
        request: &Request,
        out: &mut Vec<u8>,
        by: &mut ExecutedBy,
    ) -> Result<()> {
        let (method, dialect) = (request.method.name, request.caller.dialect);
        let cannot = |upstream: &str| {
            let error = RpcError::Unexecutable(why);
            Err(error.with_message(|text| format!("{text}, nor can the upstream for it: {upstream}")))
        };
        // An upstream would ignore the name of a fork, in any block of a simulation.
        if matches!(why, Unexecutable::Under(..)) || request.params.contains("\"fork\"") {
            return cannot("it does not execute blocks under other forks");
        }
        if !EXECUTED.contains(&method) {
            return cannot("expected eth_call, eth_estimateGas, eth_createAccessList or, on /standard, eth_simulateV1");
        }
        if method == "eth_simulateV1" && !dialect.state_roots {
            return cannot(
                "the upstream answers eth_simulateV1 in the standard dialect: expected a request to /standard",
            );
        }
        let (params, selector) = params::parse_at_block(&request.params)?;
        let snapshot = request.published.select(selector)?;
        let is_block = snapshot.open.is_none() && snapshot.world.is_unchanged_remote();
        let Some(view) = snapshot.world.remote().filter(|_| is_block) else {
            return cannot("the block being built has changes that no block of the upstream has yet: expected latest");
        };
        let params = params::with_block(params, view.hash());
        let ask = Ask::forwarded(method, &params);
        let _permit = self.permit()?;
        let answer = self.upstream()?.one(ask, request.ticket.deadline().into()).await;
        if answer.as_ref().map_or_else(UpstreamError::is_answer, |_| true) {
            *by = ExecutedBy::Upstream;
            self.executed.increment(1);
        }
        match answer {
            Ok(answer) => out.extend_from_slice(answer.get().as_bytes()),
            Err(error) => {
                if let UpstreamError::Refused { meaning: Refusal::Reverted, data: Some(data), .. } = &error
                    && let Ok(data) = objects::from_str(data)
                {
                    return Err((dialect.revert)(data));
                }
                return Err(upstream_error(error));
            }
        }
        Ok(())
    }

    /// Returns a permit to have the upstream answer a request, so that the feed's own questions always have room.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the maximum number of requests is in progress.
    fn permit(&self) -> Result<SemaphorePermit<'_>> {
        self.permits.try_acquire().map_err(|_| {
            RpcError::new(
                -32005,
                "the upstream answers as many requests as may be under way (--upstream-concurrency): try again",
            )
        })
    }

    /// Forwards a method that presim does not have, and returns the upstream's result.
    ///
    /// # Errors
    ///
    /// Returns the upstream's error.
    pub async fn forward_unknown(&self, method: &str, params: &str, deadline: Instant) -> Result<Box<RawValue>> {
        let _permit = self.permit()?;
        self.ask(method, params, deadline).await
    }

    async fn ask(&self, method: &str, params: &str, deadline: Instant) -> Result<Box<RawValue>> {
        let params = RawValue::from_string(params.to_owned());
        let params = params.map_err(|error| RpcError::params(format!("params: {error}")))?;
        let ask = Ask::forwarded(method.to_owned(), &params);
        self.upstream()?.one(ask, deadline.into()).await.map_err(upstream_error)
    }

    /// Forwards a signed transaction to the upstream, and returns its hash.
    ///
    /// # Errors
    ///
    /// Returns the upstream's error, and -32000 for a post-execution transaction, which no client may send
    /// (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md#mempool-and-propagation>).
    pub async fn send_on(&self, raw: &[u8], request: &Request) -> Result<B256> {
        if let Some(&POST_EXEC_TX_TYPE_ID) = raw.first() {
            return Err(PoolError::UnknownType(POST_EXEC_TX_TYPE_ID).into());
        }
        let ask = Ask::<B256>::typed("eth_sendRawTransaction", &(const_hex::encode_prefixed(raw),));
        match self.upstream()?.one(ask, request.ticket.deadline().into()).await {
            // The transaction was sent twice, because the first answer was lost.
            Err(error) if error.meaning() == Some(Refusal::AlreadyKnown) => Ok(keccak256(raw)),
            sent => sent.map_err(upstream_error),
        }
    }
}

/// Returns the upstream's error, with its code and text if it has answered.
fn upstream_error(error: UpstreamError) -> RpcError {
    match error {
        UpstreamError::Refused { code, message, data, .. } => {
            let code = i32::try_from(code).unwrap_or(-32000);
            match data.and_then(|data| RawValue::from_string(data).ok()) {
                Some(data) => RpcError::with_data(code, message, data),
                None => RpcError::new(code, message),
            }
        }
        UpstreamError::Behind { error: Some((code, message)), .. } => {
            RpcError::new(i32::try_from(code).unwrap_or(-32000), message)
        }
        error => FetchError::from(error).into(),
    }
}
