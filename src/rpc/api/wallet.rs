//! The wallet's methods (EIP-5792).

use std::sync::{Mutex, PoisonError};

use crate::rpc::run::{Backend, Run};
use crate::{
    ledger::Selector,
    rpc::{
        json,
        params::{self, CapabilitiesRequest},
        protocol::error::{Result, RpcError},
    },
    wallet::{Asked, Asker, BatchId, BatchRequest, BatchStatus, PreparedBatch, WaitingList},
};

/// The state of a batch that satisfies the rules.
#[derive(Debug)]
pub enum Admitted {
    /// The batch is submitted, and its response is written.
    Sent,
    /// The batch requires approval before it is sent.
    ToAsk(Box<PreparedBatch>, Box<Asked>),
}

impl Backend {
    /// Runs the first half of `wallet_sendCalls`: admits a batch, and sends it unless it requires approval.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error with the dialect's code, or -32005 if the state is not retained.
    pub fn admit_batch(&self, run: &mut Run<'_>) -> Result<Admitted> {
        let dialect = run.dialect;
        let refuse = |error| dialect.wallet_error(error);
        let batch = params::parse_batch(run.params, dialect).map_err(refuse)?;
        self.admit_to_wallet(run, batch)
    }

    /// Admits a batch, and sends it unless it requires approval.
    pub fn admit_to_wallet(&self, run: &mut Run<'_>, batch: BatchRequest) -> Result<Admitted> {
        let dialect = run.dialect;
        let refuse = |error| dialect.wallet_error(error);
        self.admit(run.published, Selector::Pending)?;
        let meter = std::mem::take(&mut run.meter);
        let prepared = self.wallet.admit(batch, run.may_use_wallet, run.overlay, meter);
        run.ensure_complete()?;
        let prepared = prepared.map_err(refuse)?;
        if let Some(snapshot) = prepared.failed_on().filter(|_| prepared.is_transaction()) {
            self.check_success(run, snapshot)?;
        }
        if self.wallet.policy.ask {
            let meter = std::mem::take(&mut run.overlay.meter);
            let asked = self.wallet.question(&prepared, asker(run), run.overlay, meter);
            // The words and the assets may have missed more state than the batch itself.
            run.ensure_complete()?;
            return Ok(Admitted::ToAsk(Box::new(prepared), Box::new(asked.map_err(refuse)?)));
        }
        self.sign_calls(run, prepared).map(|()| Admitted::Sent)
    }

    /// Runs the second half of `wallet_sendCalls`: simulates an approved batch again, because time has passed, and
    /// sends it. Takes the batch out of `prepared` only when it is sent.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error with the dialect's code.
    pub fn send_approved_batch(&self, run: &mut Run<'_>, prepared: &Mutex<Option<Box<PreparedBatch>>>) -> Result<()> {
        self.admit(run.published, Selector::Pending)?;
        let mut place = prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(prepared) = place.as_mut() else {
            return Err(RpcError::internal("the batch has already been sent"));
        };
        let meter = std::mem::take(&mut run.meter);
        let renewed = self.wallet.renew(prepared, run.overlay, meter);
        run.ensure_complete()?;
        renewed.map_err(|error| run.dialect.wallet_error(error))?;
        let Some(prepared) = place.take() else {
            return Err(RpcError::internal("the batch has already been sent"));
        };
        self.sign_calls(run, *prepared)
    }

    /// Writes the response, then signs and submits the batch. A response that is too long is rejected before that,
    /// because its error would hide that the batch is sent. The response to a transaction is its hash.
    fn sign_calls(&self, run: &mut Run<'_>, prepared: PreparedBatch) -> Result<()> {
        let is_transaction = prepared.is_transaction();
        if !is_transaction {
            json::submitted(&mut run.out, &prepared.submitted());
        }
        // The end of the response takes one more byte.
        if run.out.len() >= self.limits.max_response {
            return Err(json::too_long(self.limits.max_response));
        }
        let (commit, last) = self.wallet.submit(prepared).map_err(|error| run.dialect.wallet_error(error))?;
        if let Some(hash) = last.filter(|_| is_transaction) {
            json::data(&mut run.out, hash.as_slice());
        }
        run.commit = commit.into();
        Ok(())
    }

    pub fn get_calls_status(&self, run: &mut Run<'_>, id: BatchId) -> Result<()> {
        let status = self.calls_status(run, id)?;
        json::calls_status(&mut run.out, &status);
        Ok(())
    }

    /// Answers `wallet_showCallsStatus`: logs the status of a batch for the operator of the node.
    pub fn show_calls_status(&self, run: &mut Run<'_>, id: BatchId) -> Result<()> {
        let status = self.calls_status(run, id)?;
        run.ensure_complete()?;
        let hashes: Vec<_> = status.receipts.iter().map(|receipt| receipt.tx_hash).collect();
        tracing::info!(id = ?status.id.as_str(), state = ?status.state, code = status.state.code(), ?hashes, "the status of a batch, requested by wallet_showCallsStatus");
        run.out.extend_from_slice(b"null");
        Ok(())
    }

    /// Answers `presim_approvals`: what waits for an approver, as `presim wallet list --json` shows it.
    pub fn waiting_approvals(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        self.wallet.check_use(run.may_use_wallet).map_err(|error| run.dialect.wallet_error(error))?;
        json::bounded_value(&mut run.out, &WaitingList::of(&self.wallet.approvals), self.limits.max_response)
    }

    fn calls_status(&self, run: &Run<'_>, id: BatchId) -> Result<BatchStatus> {
        let allowed = self.wallet.check_use(run.may_use_wallet);
        let status = allowed.and_then(|()| self.wallet.status(id, run.overlay));
        status.map_err(|error| run.dialect.wallet_error(error))
    }

    pub fn get_capabilities(&self, run: &mut Run<'_>, request: CapabilitiesRequest) -> Result<()> {
        let allowed = self.wallet.check_use(run.may_use_wallet);
        let support = allowed.and_then(|()| self.wallet.support(request.account, run.published, run.overlay));
        let support = support.map_err(|error| run.dialect.wallet_error(error))?;
        let chain_id = self.spec.chain_id();
        json::capabilities(&mut run.out, request.asks_for(chain_id).then_some((chain_id, support)));
        Ok(())
    }
}

/// Returns the client of a run, as an approver sees it.
pub fn asker(run: &Run<'_>) -> Asker {
    Asker { client: run.client.map(str::to_owned), page: run.page.map(str::to_owned) }
}
