//! The node that answers a request: this one, its upstream, or the leader of its fleet.

use std::sync::Arc;

use super::method::Handler;
use crate::ledger::UnknownBlock;
use crate::rpc::{
    api::{send::SendRaw, state},
    json::{self, Lookup},
    params,
    protocol::error::{Result, RpcError},
    run::{
        ExecutedBy, LeaderUse, RunHandler, UpstreamUse,
        leader::{self, Leader},
        remote::StateCompletion,
        request::{Request, begin},
        runner::RequestRunner,
    },
};

impl RequestRunner {
    /// Returns the client of the leader if another node has a part in answering a method. The leader has the pool and
    /// the accounts, blocks whose bodies this node does not have, and the upstream where this node has none.
    pub fn leader_for(&self, request: &Request) -> Option<&dyn Leader> {
        let leader = self.leader.as_deref()?;
        // A node that stands by beside an upstream has the same source as the leader.
        let stands_for_itself = leader.leads() || leader.publishes() && self.remote.is_some();
        let has_part = match request.method.leader {
            LeaderUse::Wallet => true,
            _ if stands_for_itself => false,
            LeaderUse::Always => true,
            LeaderUse::If(has_part) => has_part(&request.params, request.caller.dialect),
            LeaderUse::IfUnknown => match request.method.upstream {
                UpstreamUse::IfUnknown => true,
                UpstreamUse::Proves | UpstreamUse::Sends => self.has_no_upstream(),
                UpstreamUse::Unasked => false,
            },
        };
        has_part.then_some(leader)
    }

    /// Has the leader of the fleet answer a request, if this node cannot.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or that of the leader.
    pub async fn ask(self: &Arc<Self>, leader: &dyn Leader, handler: Handler, request: Request) -> Result<Vec<u8>> {
        let mut out = begin(&request.id, "result");
        let mut own = None;
        let may_know =
            matches!(request.method.leader, LeaderUse::IfUnknown) && request.method.upstream == UpstreamUse::IfUnknown;
        if let (Handler::Run(run), true) = (handler, may_know) {
            match self.run(run, request.clone(), &mut ExecutedBy::Node).await {
                Ok((Lookup::Nothing, answer)) if !self.backend.withholds(&request) => own = Some(Ok(answer)),
                // A snapshot is known by the nodes of the fleet under the same id, and an old one by none of them.
                Err(error @ RpcError::UnknownBlock(UnknownBlock::Snapshot { .. } | UnknownBlock::Within)) => {
                    return Err(error);
                }
                Err(error @ RpcError::UnknownBlock(_)) => own = Some(Err(error)),
                answered => return answered.map(|(_, answer)| answer),
            }
        }
        let start = out.len();
        match (leader::ask(leader, &request).await, own) {
            (Ok(result), _) => out.extend_from_slice(result.get().as_bytes()),
            (Err(error), Some(own)) => match (&self.remote, own) {
                // The leader knows no more than this node, or is not there to say whether it does.
                (None, own @ Err(_)) => return own,
                (None, Ok(_)) => return Err(error),
                (Some(remote), _) if remote.fetcher.upstream().is_some() => remote.forward(&request, &mut out).await?,
                (Some(_), Err(own)) => return Err(own),
                // Of an upstream's chain this node has the newest blocks alone, so it cannot say that there is none.
                (Some(_), Ok(_)) => return Err(error),
            },
            (Err(error), None) => return Err(error),
        }
        self.backend.withhold(&request, &self.published(), &mut out, start);
        Ok(out)
    }

    /// Runs a request on a chain of which presim cannot execute everything. What it cannot, the upstream executes.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or that of the other node.
    pub async fn run_or_forward(
        self: &Arc<Self>,
        remote: &StateCompletion,
        run: RunHandler,
        request: Request,
        by: &mut ExecutedBy,
    ) -> Result<Vec<u8>> {
        match self.run(run, request.clone(), by).await {
            Err(RpcError::Unexecutable(why)) => {
                let mut out = begin(&request.id, "result");
                if let Some(leader) = self.leader.as_ref().filter(|_| self.has_no_upstream()) {
                    out.extend_from_slice(leader::ask(&**leader, &request).await?.get().as_bytes());
                    *by = ExecutedBy::Upstream;
                    return Ok(out);
                }
                remote.execute(why, &request, &mut out, by).await?;
                Ok(out)
            }
            answered => answered.map(|(_, answer)| answer),
        }
    }

    /// Runs a request at any block of which the upstream has the state.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or that of the upstream.
    pub async fn run_at_any_block(
        self: &Arc<Self>,
        remote: &StateCompletion,
        run: RunHandler,
        mut request: Request,
        by: &mut ExecutedBy,
    ) -> Result<Vec<u8>> {
        loop {
            match self.run_or_forward(remote, run, request.clone(), by).await {
                Err(RpcError::UnknownBlock(unknown)) => request = self.with_older(request, unknown).await?,
                answered => return answered,
            }
        }
    }

    /// Runs a request, and asks the upstream if presim cannot answer it.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or that of the upstream.
    pub async fn run_beside(
        self: &Arc<Self>,
        remote: &StateCompletion,
        run: RunHandler,
        request: Request,
    ) -> Result<Vec<u8>> {
        let mut out = begin(&request.id, "result");
        let fork = request.published.forked_at();
        match (request.method.upstream, fork) {
            (UpstreamUse::Proves, _) => state::forward_proof(remote, &request, &mut out).await?,
            (UpstreamUse::Sends, None) => {
                let SendRaw { transaction } = params::parse(&request.params, request.caller.dialect)?;
                json::data(&mut out, remote.send_on(&transaction.0, &request).await?.as_slice());
            }
            (UpstreamUse::Sends | UpstreamUse::IfUnknown | UpstreamUse::Unasked, _) => {
                let own = match self.run(run, request.clone(), &mut ExecutedBy::Node).await {
                    Ok((Lookup::Nothing, own)) if !self.backend.withholds(&request) => Ok(own),
                    // An upstream knows nothing of snapshots, nor of states within blocks.
                    Err(error @ RpcError::UnknownBlock(UnknownBlock::Snapshot { .. } | UnknownBlock::Within)) => {
                        return Err(error);
                    }
                    Err(error @ RpcError::UnknownBlock(_)) => Err(error),
                    answered => return answered.map(|(_, answer)| answer),
                };
                match fork {
                    Some(fork) => return self.ask_of_past(remote, run, request, fork, own).await,
                    None => self.forward(remote, &request, &mut out).await?,
                }
            }
        }
        Ok(out)
    }

    /// Has the upstream answer a request that presim cannot answer.
    async fn forward(&self, remote: &StateCompletion, request: &Request, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        remote.forward(request, out).await?;
        self.backend.withhold(request, &self.published(), out, start);
        Ok(())
    }
}
