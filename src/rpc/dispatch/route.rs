//! The node that answers a request: this one, its upstream, or the leader of its fleet.

use std::{ops::ControlFlow, sync::Arc};

use super::method::Handler;
use crate::ledger::UnknownBlock;
use crate::rpc::{
    api::{send::SendRaw, state},
    json, params,
    protocol::error::{Result, RpcError},
    run::{
        AnsweredBy, ExecutedBy, RunHandler,
        leader::Leader,
        remote::UpstreamGateway,
        request::{Request, has_no_result, open_answer},
        runner::RequestRunner,
    },
};

impl RequestRunner {
    /// Returns the client of the leader if this node is a replica, which may have to ask it.
    pub fn leader_for(&self, request: &Request) -> Option<&Leader> {
        let leader = self.leader.as_ref().filter(|leader| !leader.publishes())?;
        let is_asked = match request.method.by {
            AnsweredBy::Reader | AnsweredBy::WhoKnows => true,
            AnsweredBy::WholeState | AnsweredBy::Taker => self.has_no_upstream(),
            AnsweredBy::Node | AnsweredBy::Wallet => false,
        };
        is_asked.then_some(leader)
    }

    /// Has the leader of the fleet answer a request, if this node cannot.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or of the leader.
    pub async fn run_or_ask_leader(
        self: &Arc<Self>,
        leader: &Leader,
        handler: Handler,
        request: Request,
    ) -> Result<Vec<u8>> {
        let mut out = open_answer(&request.id);
        let mut own = None;
        if let (Handler::Run(run), AnsweredBy::WhoKnows) = (handler, request.method.by) {
            match self.run_own(run, &request).await {
                ControlFlow::Break(answered) => return answered,
                ControlFlow::Continue(answer) => own = Some(answer),
            }
        }
        let start = out.len();
        match (leader.ask(&request).await, own) {
            (Ok(result), _) => out.extend_from_slice(result.get().as_bytes()),
            (Err(error), Some(own)) => match (&self.remote, own) {
                // The leader knows no more than this node, or cannot be reached.
                (None, own @ Err(_)) => return own,
                (None, Ok(_)) => return Err(error),
                (Some(remote), _) if remote.fetcher.upstream().is_some() => remote.forward(&request, &mut out).await?,
                (Some(_), Err(own)) => return Err(own),
                // This node has only the newest blocks of an upstream's chain, so it cannot conclude that there is
                // none.
                (Some(_), Ok(_)) => return Err(error),
            },
            (Err(error), None) => return Err(error),
        }
        self.backend.hide(&request, &self.published(), &mut out, start);
        Ok(out)
    }

    /// Runs a request that another node may answer better. Breaks with the answer, or, if this node has not found the
    /// requested item, continues with its answer.
    async fn run_own(
        self: &Arc<Self>,
        run: RunHandler,
        request: &Request,
    ) -> ControlFlow<Result<Vec<u8>>, Result<Vec<u8>>> {
        match self.write(request.clone(), run).await {
            Ok(answer) if has_no_result(&answer) && !self.backend.hides(request) => ControlFlow::Continue(Ok(answer)),
            // The nodes of a fleet know a snapshot under the same id, and none of them retains an old one. An upstream
            // knows no snapshots, and no states within blocks.
            Err(RpcError::UnknownBlock(unknown))
                if !matches!(unknown, UnknownBlock::Snapshot { .. } | UnknownBlock::Within) =>
            {
                ControlFlow::Continue(Err(unknown.into()))
            }
            answered => ControlFlow::Break(answered),
        }
    }

    /// Runs a request on a chain that presim can execute only in part. The upstream executes the rest.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or of the other node.
    pub async fn run_or_upstream_executes(
        self: &Arc<Self>,
        remote: &UpstreamGateway,
        run: RunHandler,
        request: Request,
        by: &mut ExecutedBy,
    ) -> Result<Vec<u8>> {
        match self.run_by(request.clone(), run, by).await {
            Err(RpcError::Unexecutable(why)) => {
                let mut out = open_answer(&request.id);
                if let Some(leader) = self.leader.as_ref().filter(|_| self.has_no_upstream()) {
                    out.extend_from_slice(leader.ask(&request).await?.get().as_bytes());
                    *by = ExecutedBy::Upstream;
                    return Ok(out);
                }
                remote.execute(why, &request, &mut out, by).await?;
                Ok(out)
            }
            answered => answered.map(|(_, answer)| answer),
        }
    }

    /// Runs a request at any block whose state the upstream has.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or of the upstream.
    pub async fn run_at_any_block(
        self: &Arc<Self>,
        remote: &UpstreamGateway,
        run: RunHandler,
        mut request: Request,
        by: &mut ExecutedBy,
    ) -> Result<Vec<u8>> {
        loop {
            match self.run_or_upstream_executes(remote, run, request.clone(), by).await {
                Err(RpcError::UnknownBlock(unknown)) => request = self.with_older(request, unknown).await?,
                answered => return answered,
            }
        }
    }

    /// Runs a request, and asks the upstream if presim cannot answer it.
    ///
    /// # Errors
    ///
    /// Returns the error of the run, or of the upstream.
    pub async fn run_or_ask_upstream(
        self: &Arc<Self>,
        remote: &UpstreamGateway,
        run: RunHandler,
        request: Request,
    ) -> Result<Vec<u8>> {
        let mut out = open_answer(&request.id);
        match (request.method.by, self.taker(&request)) {
            (AnsweredBy::WholeState, _) => state::forward_proof(remote, &request, &mut out).await?,
            (AnsweredBy::Taker, Some(remote)) => {
                let SendRaw { transaction } = params::parse(&request.params, request.caller.dialect)?;
                json::data(&mut out, remote.send_on(&transaction.0, &request).await?.as_slice());
            }
            _ => {
                let own = match self.run_own(run, &request).await {
                    ControlFlow::Break(answered) => return answered,
                    ControlFlow::Continue(own) => own,
                };
                if let Some(fork) = request.published.forked_at() {
                    return self.ask_of_past(remote, run, request, fork, own).await;
                }
                let start = out.len();
                remote.forward(&request, &mut out).await?;
                self.backend.hide(&request, &self.published(), &mut out, start);
            }
        }
        Ok(out)
    }
}
