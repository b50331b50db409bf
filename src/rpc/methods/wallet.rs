//! The wallet's methods (EIP-5792).

use std::sync::{Mutex, PoisonError};

use super::{Asked, Backend, be_complete};
use crate::{
    rpc::{
        encode,
        error::{RpcError, wallet_error},
        wire,
    },
    state::{Meter, Overlay, Selector},
    store::Commit,
    wallet::{BatchStatus, Prepared, WalletError},
};

/// A batch that has passed the rules.
#[derive(Debug)]
pub enum Admitted {
    /// It is on its way; its answer is written, and is to go out when the promise is kept.
    Sent(Commit),
    /// Somebody has to be asked about it.
    ToAsk(Box<Prepared>),
}

impl Backend {
    /// The first half of `wallet_sendCalls`: up to where somebody has to be asked, or to its end where nobody has.
    pub fn admit_batch(
        &self,
        asked: Asked<'_>,
        overlay: &mut Overlay,
        meter: Meter,
        out: &mut Vec<u8>,
    ) -> Result<Admitted, RpcError> {
        let refuse = |error| wallet_error(error, asked.dialect);
        let batch = wire::parse_batch(asked.params, asked.dialect).map_err(refuse)?;
        self.admit(asked.published, Selector::Pending)?;
        let prepared =
            self.wallet.admit(batch, asked.may_use_wallet, asked.published, overlay, meter).map_err(refuse)?;
        be_complete(overlay)?;
        if self.wallet.policy.ask {
            return Ok(Admitted::ToAsk(Box::new(prepared)));
        }
        self.sign_calls(asked, prepared, out).map(Admitted::Sent)
    }

    /// The other half: the approver has said yes, some time after the batch was simulated. The batch is taken out of its place when it is sent.
    pub fn send_approved_batch(
        &self,
        asked: Asked<'_>,
        prepared: &Mutex<Option<Box<Prepared>>>,
        overlay: &mut Overlay,
        meter: Meter,
        out: &mut Vec<u8>,
    ) -> Result<Commit, RpcError> {
        self.admit(asked.published, Selector::Pending)?;
        let mut place = prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(prepared) = place.as_mut() else {
            return Err(RpcError::internal("a batch was to be sent again"));
        };
        let renewed = self.wallet.renew(prepared, asked.published, overlay, meter);
        be_complete(overlay)?;
        renewed.map_err(|error| wallet_error(error, asked.dialect))?;
        let Some(prepared) = place.take() else {
            return Err(RpcError::internal("a batch was to be sent again"));
        };
        self.sign_calls(asked, *prepared, out)
    }

    /// Signs a batch whose answer can be given: an answer that is refused for its length would hide that the batch is sent.
    fn sign_calls(&self, asked: Asked<'_>, prepared: Prepared, out: &mut Vec<u8>) -> Result<Commit, RpcError> {
        encode::submitted(out, &prepared.submitted());
        // The envelope has one byte more.
        if out.len() >= self.limits.max_response {
            return Err(encode::too_long(self.limits.max_response));
        }
        self.wallet.submit(prepared).map_err(|error| wallet_error(error, asked.dialect))
    }

    /// `wallet_getCallsStatus`.
    pub(super) fn get_calls_status(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        encode::calls_status(out, &self.calls_status(asked, overlay)?);
        Ok(())
    }

    /// `wallet_showCallsStatus`: shows whoever runs the node, in its log, how far a batch has come.
    pub(super) fn show_calls_status(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let status = self.calls_status(asked, overlay)?;
        be_complete(overlay)?;
        let hashes: Vec<_> = status.receipts.iter().map(|receipt| receipt.tx_hash).collect();
        tracing::info!(id = ?status.id.as_str(), state = ?status.state, code = status.state.code(), ?hashes, "a batch's status is to be shown");
        out.extend_from_slice(b"null");
        Ok(())
    }

    fn calls_status(&self, asked: Asked<'_>, overlay: &Overlay) -> Result<BatchStatus, RpcError> {
        let id = wire::parse_batch_id(asked.params, asked.dialect)?;
        let status = use_wallet(asked).and_then(|()| self.wallet.status(id, overlay));
        status.map_err(|error| wallet_error(error, asked.dialect))
    }

    /// `wallet_getCapabilities`.
    pub(super) fn get_capabilities(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let request = wire::parse_capabilities(asked.params, asked.dialect)?;
        let support = use_wallet(asked).and_then(|()| self.wallet.support(request.account, asked.published, overlay));
        let support = support.map_err(|error| wallet_error(error, asked.dialect))?;
        let chain_id = self.spec.chain_id();
        encode::capabilities(out, request.asks_for(chain_id).then_some((chain_id, support)));
        Ok(())
    }
}

fn use_wallet(asked: Asked<'_>) -> Result<(), WalletError> {
    if asked.may_use_wallet { Ok(()) } else { Err(WalletError::no_wallet_token()) }
}
