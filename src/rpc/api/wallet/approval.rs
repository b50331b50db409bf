//! Requests that may need approval: one is admitted, approved if the policy requires it, and carried out.

use std::sync::Arc;

use alloy_primitives::Address;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    rpc::{
        api::{Example, Method},
        json,
        protocol::error::Result,
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    wallet::{Asked, Requester, SigningAccount, WaitingList, WalletError},
};

/// The batches and messages that wait for an approver, in words, beginning with the one that has waited longest.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct GetApprovals {}

impl Method for GetApprovals {
    type Answer = WaitingList;
    const EXAMPLE: Example =
        Example { params: "[]", answer: r#"{"batches": [], "more": 0, "withdrawn": [{"client": "one", "ids": 2}]}"# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        backend.wallet.check_use(run.may_use_wallet).map_err(|error| run.dialect.wallet_error(error))?;
        let waiting = WaitingList::of(&backend.wallet.approvals);
        json::bounded_value(&mut run.out, &waiting, backend.limits.max_response)
    }
}

/// Answers a request that may need approval. `admit` carries it out and returns `None`, or returns the question to the
/// approver and a value for `finish`, which then carries it out. Waiting for the approver holds no worker and has only
/// its own deadline. If the client disconnects, the request is withdrawn, and the approvals keep its id. `account` is
/// the account that sends transactions.
///
/// # Errors
///
/// Returns the error of `admit` or `finish`, or the wallet's error if the request is not approved.
pub async fn answer<T: Send + Sync + 'static>(
    runner: &Arc<RequestRunner>,
    request: Request,
    account: Option<Address>,
    admit: impl Fn(&Backend, &mut Attempt<'_>) -> Result<Option<(T, Asked)>> + Clone + Send + Sync + 'static,
    finish: fn(&Backend, &mut Attempt<'_>, &T) -> Result<()>,
) -> Result<Vec<u8>> {
    refresh(runner, &request, account).await;
    let (admitted, answer) = runner.run(request.clone(), admit).await?;
    let Some((waiting, asked)) = admitted else { return Ok(answer) };
    let request = approved(runner, request, asked).await?;
    // Nonces and fees are the current ones.
    refresh(runner, &request, account).await;
    let waiting = Arc::new(waiting);
    let finish = move |backend: &Backend, run: &mut Attempt<'_>| finish(backend, run, &waiting);
    runner.write(request, finish).await
}

/// Asks the upstream for the nonce of an account of the wallet, and for the fees.
async fn refresh(runner: &RequestRunner, request: &Request, account: Option<Address>) {
    let wallet = &runner.backend.wallet;
    let account = account.and_then(|address| wallet.accounts.find(address)).map(SigningAccount::address);
    if let (Some(sending), Some(account), true) = (&wallet.sending, account, request.caller.client.may_use_wallet()) {
        sending.refresh(account, runner.published().head().hash()).await;
    }
}

/// Waits for approval. Returns the request on the newest snapshot, with a new deadline.
async fn approved(runner: &RequestRunner, request: Request, asked: Asked) -> Result<Request> {
    drop(request.starting.as_ref().and_then(|starting| starting.release()));
    let asking = runner.backend.wallet.approvals.ask(asked);
    let approved = tokio::select! {
        // In this order, so that nothing is signed for a client whose token is gone at the time of approval.
        biased;
        () = request.caller.client.withdrawn() => Err(WalletError::token_withdrawn()),
        approved = asking => approved,
    };
    approved.map_err(|error| request.caller.dialect.wallet_error(error))?;
    Ok(Request { published: runner.published(), ticket: runner.ticket(&request.caller), ..request })
}

/// Returns the client of a run, as an approver sees it.
pub fn asker(run: &Attempt<'_>) -> Requester {
    Requester { client: run.client.map(str::to_owned), page: run.page.map(str::to_owned) }
}
