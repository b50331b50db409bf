//! `wallet_sendCalls`: a batch is admitted, asked about where that is the policy, and sent.

use std::sync::{Arc, Mutex};

use super::{
    error::RpcError,
    front::Front,
    methods::{Admitted, Backend, Run},
    request::Request,
};
use crate::executor::{LaneName, RunPlace};

/// Where its runs are.
const PLACE: RunPlace = RunPlace::On(LaneName::Bundle);

impl Front {
    /// Answers when the batch is on the disk. Waiting for the approver holds no worker and has no deadline but its own; when the client goes
    /// away, the question is withdrawn, and the approvals keep its id.
    ///
    /// # Errors
    /// Returns the errors of EIP-5792, as the wallet gives them.
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
