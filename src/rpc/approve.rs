//! `wallet_sendCalls`: a batch is admitted, asked about where that is the policy, and sent.

use std::sync::{Arc, Mutex};

use super::{
    error::{RpcError, wallet_error},
    front::{Front, Job, kept},
    methods::Admitted,
};
use crate::executor::LaneName;

impl Front {
    /// Answers when the batch is on the disk. Waiting for the approver holds no worker and has no deadline but its own; when the client goes
    /// away, the question is withdrawn, and the approvals keep its id.
    ///
    /// # Errors
    /// Those of `api.md` 7.2.
    pub(super) async fn send_calls(&self, lane: LaneName, job: Job, out: Vec<u8>) -> (Vec<u8>, Result<(), RpcError>) {
        match self.try_send_calls(lane, job, &out).await {
            Ok(answer) => (answer, Ok(())),
            Err(error) => (out, Err(error)),
        }
    }

    async fn try_send_calls(&self, lane: LaneName, job: Job, out: &[u8]) -> Result<Vec<u8>, RpcError> {
        let mut answer = out.to_vec();
        let (admitted, mut answer) = self
            .on_lane(lane, job.clone(), move |backend, job, overlay, meter| {
                backend.admit_batch(job.asked(), overlay, meter, &mut answer).map(|admitted| (admitted, answer))
            })
            .await??;
        let (commit, ticket) = match admitted {
            Admitted::Sent(commit) => (commit, job.ticket),
            Admitted::ToAsk(prepared) => {
                let wallet = self.wallet();
                let asked = wallet.approvals.ask(wallet.question(&prepared)).await;
                asked.map_err(|error| wallet_error(error, job.dialect))?;
                let ticket = self.ticket();
                let job = Job { published: self.published(), ticket: ticket.clone(), ..job };
                let prepared = Arc::new(Mutex::new(Some(prepared)));
                let (commit, written) = self
                    .on_lane(lane, job, move |backend, job, overlay, meter| {
                        let sent = backend.send_approved_batch(job.asked(), &prepared, overlay, meter, &mut answer);
                        sent.map(|commit| (commit, answer))
                    })
                    .await??;
                answer = written;
                (commit, ticket)
            }
        };
        kept(commit, &ticket).await?;
        Ok(answer)
    }
}
