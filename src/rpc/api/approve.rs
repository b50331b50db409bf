//! The requests that may need approval: a batch or a message is admitted, approved if the policy requires it, and sent or
//! signed.

use std::sync::{Arc, Mutex};

use alloy_primitives::Address;

use super::{signature::AdmittedSignature, wallet::Admitted};
use crate::rpc::{
    params,
    protocol::{dialect::Dialect, error::Result},
    run::{
        Backend, Run, leader,
        request::{Request, begin},
        runner::RequestRunner,
    },
};
use crate::{
    scheduler::{LaneName, RunPlace},
    wallet::{Asked, SignatureRequest, SigningAccount, WalletError},
};

/// The place of the method's runs.
const PLACE: RunPlace = RunPlace::On(LaneName::Bundle);

impl RequestRunner {
    /// Sends the batch, and answers when it is on disk. Waiting for the approver holds no worker and has its own
    /// deadline only. If the client disconnects, the batch is withdrawn, and the approvals keep its id.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error, with a code of EIP-5792.
    pub async fn send_calls(self: &Arc<Self>, request: Request) -> Result<Vec<u8>> {
        // A batch that is not valid is rejected later, for its first fault.
        let from = params::parse_batch(&request.params, request.caller.dialect).ok().and_then(|batch| {
            let first = || self.wallet().accounts.first().map(SigningAccount::address);
            batch.from.or_else(first)
        });
        self.send_admitted(PLACE, request, from, Backend::admit_batch).await
    }

    /// Sends a transaction that the node signs. From an account of the wallet it is sent as [`send_calls`](Self::send_calls)
    /// sends a batch.
    ///
    /// # Errors
    ///
    /// Returns -32000 if the transaction is rejected, and the wallet's error.
    pub async fn send_transaction(self: &Arc<Self>, request: Request) -> Result<Vec<u8>> {
        let call = params::parse_sending(&request.params, request.caller.dialect).ok();
        let from = call.map(|call| call.from).filter(|_| request.caller.dialect.sends_from_wallet);
        // Of a fleet one node has the wallet, and signs for its accounts alone, so that no nonce is signed for twice.
        let is_of_wallet = |address| self.wallet().accounts.find(address).is_some_and(|account| !account.is_open);
        if from.is_some_and(is_of_wallet)
            && let Some(leader) = self.leader.as_deref().filter(|leader| leader.publishes())
            && leader.leaves_wallet_to_leader().await?
        {
            let mut out = begin(&request.id, "result");
            out.extend_from_slice(leader::ask(leader, &request).await?.get().as_bytes());
            return Ok(out);
        }
        self.send_admitted(request.method.place, request, from, Backend::admit_transaction).await
    }

    /// Admits a batch or a transaction of the account `from`, waits for approval if the policy requires it, and sends it.
    async fn send_admitted(
        self: &Arc<Self>,
        place: RunPlace,
        request: Request,
        from: Option<Address>,
        admit: fn(&Backend, &mut Run<'_>) -> Result<Admitted>,
    ) -> Result<Vec<u8>> {
        self.look_at_account(&request, from).await;
        let (admitted, answer) = self.run_step(place, request.clone(), admit).await?;
        let Admitted::ToAsk(prepared, asked) = admitted else { return Ok(answer) };
        let request = self.approved(request, *asked).await?;
        // Nonces and fees are those of this moment.
        self.look_at_account(&request, from).await;
        let prepared = Arc::new(Mutex::new(Some(prepared)));
        let send = move |backend: &Backend, run: &mut Run<'_>| backend.send_approved_batch(run, &prepared);
        self.run_step(place, request, send).await.map(|((), answer)| answer)
    }

    /// Asks the upstream for the nonce of an account of the wallet, and for the fees.
    async fn look_at_account(&self, request: &Request, account: Option<Address>) {
        let wallet = self.wallet();
        let account = account.and_then(|address| wallet.accounts.find(address));
        if let (Some(sending), Some(account), true) = (&wallet.sending, account, request.caller.may_use_wallet) {
            sending.refresh(account.address(), self.published().head().hash()).await;
        }
    }

    /// Signs the message that `parse` reads from the parameters, as [`send_calls`](Self::send_calls) sends a batch.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the parameters are wrong, and the wallet's error.
    pub async fn sign_message(
        self: &Arc<Self>,
        parse: fn(&str, &Dialect) -> Result<SignatureRequest>,
        request: Request,
    ) -> Result<Vec<u8>> {
        let admit = move |backend: &Backend, run: &mut Run<'_>| {
            let message = parse(run.params, run.dialect)?;
            backend.admit_signature(run, message)
        };
        let place = request.method.place;
        let (admitted, answer) = self.run_step(place, request.clone(), admit).await?;
        let AdmittedSignature::ToAsk(message, asked) = admitted else { return Ok(answer) };
        let request = self.approved(request, *asked).await?;
        let sign = move |backend: &Backend, run: &mut Run<'_>| backend.sign_message(run, &message);
        self.run_step(place, request, sign).await.map(|((), answer)| answer)
    }

    /// Waits for approval. Returns the request on the newest snapshot, with a new deadline.
    async fn approved(&self, request: Request, asked: Asked) -> Result<Request> {
        drop(request.starting.as_ref().and_then(|starting| starting.release()));
        let asking = self.wallet().approvals.ask(asked);
        let approved = match &request.caller.client {
            Some(client) => tokio::select! {
                // In this order, because nothing is signed for a client whose token is gone when it is approved.
                biased;
                () = client.withdrawn() => Err(WalletError::token_withdrawn()),
                approved = asking => approved,
            },
            None => asking.await,
        };
        approved.map_err(|error| request.caller.dialect.wallet_error(error))?;
        Ok(Request { published: self.published(), ticket: self.ticket(&request.caller), ..request })
    }
}
