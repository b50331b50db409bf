//! The node as runs of requests need it: the workers, the chain, and the data that all methods share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    Backend,
    leader::Leader,
    past::PastSearch,
    remote::UpstreamGateway,
    request::{Caller, Request},
};
use crate::{
    ledger::{Chain, Snapshots, UnknownBlock},
    rpc::protocol::error::{Result, RpcError},
    scheduler::{Executor, FetchMissed, Host, LocalState, Stall, Ticket},
    store::StoreError,
    upstream::UpstreamState,
};

/// The maximum number of older blocks of a request. A call in the middle of a block names three: the block, and the
/// blocks whose states are after and before it.
const MOST_OLDER: usize = 5;

/// The workers with all that a run needs besides its request.
#[derive(Debug)]
pub struct RequestRunner {
    /// The data that all methods share.
    pub backend: Arc<Backend>,
    /// The workers, the chain, and the source of the state that runs miss.
    pub host: Arc<Host>,
    /// The permits to wait.
    pub waiters: Waiters,
    /// The completion of state from an upstream, if there is one.
    pub remote: Option<Arc<UpstreamGateway>>,
    /// The client of the leader, on a node of a fleet.
    pub leader: Option<Leader>,
}

/// Permits to wait for receipts. Waiting holds no worker: each publication wakes the task, which looks for its receipt.
#[derive(Debug)]
pub struct Waiters {
    /// The permits that are free.
    pub permits: Semaphore,
    /// The number of permits in all.
    pub count: usize,
}

impl Waiters {
    /// Creates `count` permits.
    pub fn new(count: usize) -> Self {
        Self { permits: Semaphore::new(count.min(Semaphore::MAX_PERMITS)), count }
    }
}

impl RequestRunner {
    /// Creates the runner of a node. State that runs miss is fetched from `remote`, if there is one.
    pub fn new(
        backend: Arc<Backend>,
        executor: Executor,
        snapshots: Arc<Snapshots>,
        waiters: Waiters,
        remote: Option<Arc<UpstreamGateway>>,
        leader: Option<Leader>,
    ) -> Self {
        let source: Arc<dyn FetchMissed> = match &remote {
            Some(remote) => remote.clone(),
            None => Arc::new(LocalState),
        };
        let (spec, codes) = (backend.spec.clone(), backend.codes.clone());
        let host = Arc::new(Host { executor, source, snapshots, spec, codes });
        Self { backend, host, waiters, remote, leader }
    }

    /// Returns the health of the upstream, if there is one.
    pub fn upstream(&self) -> Option<UpstreamState> {
        Some(self.remote.as_ref()?.fetcher.upstream()?.state())
    }

    /// Returns a fork of the chain that presim does not execute, as a sentence.
    pub fn unknown_fork(&self) -> Option<String> {
        if let Some(scheduled) = self.backend.spec.unexecuted_fork() {
            return Some(format!("presim does not execute {scheduled}, which the chain has"));
        }
        let time = self.remote.as_ref()?.fetcher.upstream()?.newer_fork()?;
        Some(format!("the upstream has a fork at {time} that presim does not know"))
    }

    /// Returns the reason why nothing can be stored any more, if there is one.
    pub fn store_failure(&self) -> Option<&StoreError> {
        self.backend.wallet.ledger.store.failure()
    }

    /// Returns a worker that makes no progress although requests wait, if there is one.
    pub fn stalled_worker(&self) -> Option<Stall> {
        self.host.executor.stall()
    }

    /// Returns what is published now.
    pub fn published(&self) -> Arc<Chain> {
        self.host.snapshots.load()
    }

    /// Returns a request that failed because the chain does not retain a block, with the upstream's data for that
    /// block. The request can then run again.
    ///
    /// # Errors
    ///
    /// Returns `unknown` if there is no upstream, it does not have the block either, or the request has run often enough.
    pub async fn with_older(&self, request: Request, unknown: UnknownBlock) -> Result<Request> {
        let upstream = self.remote.as_ref().and_then(|remote| Some((remote, remote.fetcher.upstream()?)));
        if upstream.is_none() && request.published.tags().is_some() && matches!(unknown, UnknownBlock::Pruned { .. }) {
            let text = format!("{unknown}, and this node has no upstream that could tell it (--upstream)");
            return Err(RpcError::new(4444, text));
        }
        let has_more = request.published.tags().is_some() && request.published.older() < MOST_OLDER;
        let Some((remote, upstream)) = upstream.filter(|_| has_more) else { return Err(unknown.into()) };
        let (spec, deadline) = (&*self.backend.spec, request.ticket.deadline());
        let search = PastSearch { upstream: &upstream, spec, published: &request.published, deadline };
        let published = remote.past.find(search, unknown).await?;
        Ok(Request { published, ..request })
    }

    /// Returns a ticket for a request that has just arrived.
    pub fn ticket(&self, caller: &Caller) -> Ticket {
        let ticket = self.host.executor.ticket(caller.client.flow());
        match caller.until {
            Some(deadline) => ticket.until(deadline),
            None => ticket,
        }
    }

    /// Returns the upstream that answers a method which presim does not have, if one does.
    pub fn forwards(&self, method: &str) -> Option<&UpstreamGateway> {
        self.remote.as_deref().filter(|remote| remote.forwarded.has(method))
    }

    /// Returns the upstream that takes the transactions of a request, if not this node does: a fork sends nothing on.
    pub fn taker(&self, request: &Request) -> Option<&UpstreamGateway> {
        self.remote.as_deref().filter(|_| request.published.forked_at().is_none())
    }

    /// Returns whether the state is an upstream's that only the leader of the fleet follows.
    pub fn has_no_upstream(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.fetcher.upstream().is_none())
    }
}
