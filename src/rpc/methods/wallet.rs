//! The wallet's methods (EIP-5792).

use std::sync::{Mutex, PoisonError};

use super::{Backend, Run};
use crate::{
    rpc::{
        encode,
        error::RpcError,
        wire::{self, CapabilitiesRequest},
    },
    state::Selector,
    wallet::{BatchId, BatchStatus, PreparedBatch, WalletError},
};

/// A batch that has passed the rules.
#[derive(Debug)]
pub enum Admitted {
    /// It is on its way; its answer is written.
    Sent,
    /// Somebody has to be asked about it.
    ToAsk(Box<PreparedBatch>),
}

impl Backend {
    /// The first half of `wallet_sendCalls`: up to where somebody has to be asked, or to its end where nobody has.
    pub fn admit_batch(&self, run: &mut Run<'_>) -> Result<Admitted, RpcError> {
        let dialect = run.dialect;
        let refuse = |error| dialect.wallet_error(error);
        let batch = wire::parse_batch(run.params, dialect).map_err(refuse)?;
        self.admit(run.published, Selector::Pending)?;
        let meter = std::mem::take(&mut run.meter);
        let prepared =
            self.wallet.admit(batch, run.may_use_wallet, run.published, run.overlay, meter).map_err(refuse)?;
        run.be_complete()?;
        if self.wallet.policy.ask {
            return Ok(Admitted::ToAsk(Box::new(prepared)));
        }
        self.sign_calls(run, prepared).map(|()| Admitted::Sent)
    }

    /// The other half: the approver has said yes, some time after the batch was simulated. The batch is taken out of its place when it is sent.
    pub fn send_approved_batch(
        &self,
        run: &mut Run<'_>,
        prepared: &Mutex<Option<Box<PreparedBatch>>>,
    ) -> Result<(), RpcError> {
        self.admit(run.published, Selector::Pending)?;
        let mut place = prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(prepared) = place.as_mut() else {
            return Err(RpcError::internal("a batch was to be sent again"));
        };
        let meter = std::mem::take(&mut run.meter);
        let renewed = self.wallet.renew(prepared, run.published, run.overlay, meter);
        run.be_complete()?;
        renewed.map_err(|error| run.dialect.wallet_error(error))?;
        let Some(prepared) = place.take() else {
            return Err(RpcError::internal("a batch was to be sent again"));
        };
        self.sign_calls(run, *prepared)
    }

    /// Signs a batch whose answer can be given: an answer that is refused for its length would hide that the batch is sent.
    fn sign_calls(&self, run: &mut Run<'_>, prepared: PreparedBatch) -> Result<(), RpcError> {
        encode::submitted(&mut run.out, &prepared.submitted());
        // The envelope has one byte more.
        if run.out.len() >= self.limits.max_response {
            return Err(encode::too_long(self.limits.max_response));
        }
        run.commit = self.wallet.submit(prepared).map_err(|error| run.dialect.wallet_error(error))?;
        Ok(())
    }

    /// `wallet_getCallsStatus`.
    pub(super) fn get_calls_status(&self, run: &mut Run<'_>, id: BatchId) -> Result<(), RpcError> {
        let status = self.calls_status(run, id)?;
        encode::calls_status(&mut run.out, &status);
        Ok(())
    }

    /// `wallet_showCallsStatus`: shows whoever runs the node, in its log, how far a batch has come.
    pub(super) fn show_calls_status(&self, run: &mut Run<'_>, id: BatchId) -> Result<(), RpcError> {
        let status = self.calls_status(run, id)?;
        run.be_complete()?;
        let hashes: Vec<_> = status.receipts.iter().map(|receipt| receipt.tx_hash).collect();
        tracing::info!(id = ?status.id.as_str(), state = ?status.state, code = status.state.code(), ?hashes, "a batch's status is to be shown");
        run.out.extend_from_slice(b"null");
        Ok(())
    }

    fn calls_status(&self, run: &Run<'_>, id: BatchId) -> Result<BatchStatus, RpcError> {
        let status = use_wallet(run).and_then(|()| self.wallet.status(id, run.overlay));
        status.map_err(|error| run.dialect.wallet_error(error))
    }

    /// `wallet_getCapabilities`.
    pub(super) fn get_capabilities(&self, run: &mut Run<'_>, request: CapabilitiesRequest) -> Result<(), RpcError> {
        let support = use_wallet(run).and_then(|()| self.wallet.support(request.account, run.published, run.overlay));
        let support = support.map_err(|error| run.dialect.wallet_error(error))?;
        let chain_id = self.spec.chain_id();
        encode::capabilities(&mut run.out, request.asks_for(chain_id).then_some((chain_id, support)));
        Ok(())
    }
}

fn use_wallet(run: &Run<'_>) -> Result<(), WalletError> {
    if run.may_use_wallet { Ok(()) } else { Err(WalletError::no_wallet_token()) }
}
