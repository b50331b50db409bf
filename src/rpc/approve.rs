//! `wallet_sendCalls`: a batch is admitted, approved if policy requires it, and sent.

use std::sync::{Arc, Mutex};

use super::{
    error::RpcError,
    front::Front,
    methods::{Admitted, Backend, Run},
    request::Request,
};
use crate::executor::{LaneName, RunPlace};

/// The place of the method's runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Bundle);

impl Front {
    /// Sends the batch, and answers when it is on disk. Waiting for the approver holds no worker and has its own
    /// deadline only. If the client disconnects, the batch is withdrawn, and the approvals keep its id.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error, with a code of EIP-5792.
    pub(super) async fn send_calls(&self, request: Request) -> Result<Vec<u8>, RpcError> {
        let (admitted, answer) = self.run_step(PLACE, request.clone(), Backend::admit_batch).await?;
        let Admitted::ToAsk(prepared) = admitted else { return Ok(answer) };
        drop(request.starting.as_ref().and_then(|starting| starting.release()));
        let wallet = self.wallet();
        let asked = wallet.approvals.ask(wallet.question(&prepared)).await;
        asked.map_err(|error| request.caller.dialect.wallet_error(error))?;
        let request = Request { published: self.published(), ticket: self.ticket(&request.caller), ..request };
        let prepared = Arc::new(Mutex::new(Some(prepared)));
        let send = move |backend: &Backend, run: &mut Run<'_>| backend.send_approved_batch(run, &prepared);
        self.run_step(PLACE, request, send).await.map(|((), answer)| answer)
    }
}
