//! `wallet_sendCalls` (EIP-5792): a batch is simulated, approved if the policy requires it, and sent.

use std::sync::Arc;

use super::{
    approval::{answer, asker},
    batch::SendCalls,
};
use crate::{
    ledger::Selector,
    lock::Mutex,
    rpc::{
        api::{Example, Serve},
        json::{self, Json, Shape, hex::Quantity, shapes},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    wallet::{Asked, BatchId, BatchRequest, PreparedBatch, SigningAccount, SimulatedCall},
};

/// A batch that waits for approval; `None` once it is sent.
pub type Waiting = Mutex<Option<PreparedBatch>>;

shapes! {
    /// A sent batch, with presim's `batchId` and `status` in addition to the fields of EIP-5792.
    pub SentBatch: &PreparedBatch => |batch| {
        batchId: BatchId = Json(batch.id()),
        id: BatchId = Json(batch.id()),
        #[schemars(extend("const" = "pending"))]
        status: String = "pending",
        capabilities: SentCapabilities = batch.simulation(),
    }

    /// The capabilities in the answer to a batch.
    SentCapabilities: &[SimulatedCall] => |calls| {
        simulation: Option<BatchSimulation> = (!calls.is_empty()).then_some(calls),
    }

    /// The outcome of each call when the batch was simulated at pending, where that is known.
    BatchSimulation: &[SimulatedCall] => |calls| {
        calls: Vec<CallOutcome> = calls,
    }

    /// The outcome of a call in a simulation.
    CallOutcome: &SimulatedCall => |call| {
        /// 1 if the call has succeeded.
        status: Quantity<u64> = u64::from(call.error.is_none()),
        gasUsed: Quantity<u64> = call.gas_used,
        error: Option<String> = call.error.as_ref(),
    }
}

impl Serve for SendCalls {
    type Part = ();
    type Answer = SentBatch;
    const EXAMPLE: Example = Example {
        params: r#"[{"version": "2.0.0", "from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "chainId": "0x7a69", "atomicRequired": false, "calls": [{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]}]"#,
        answer: r#"{"batchId": "one", "id": "one", "status": "pending", "capabilities": {"simulation": {"calls": [{"status": "0x1", "gasUsed": "0x5208"}]}}}"#,
    };

    /// Answers when the batch is on disk. Returns the wallet's error, with a code of EIP-5792.
    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        // A batch that is not valid is rejected later, for its first fault.
        let from = Self::parse(&request.params, request.caller.dialect).ok().and_then(|batch| {
            let first = || runner.backend.wallet.accounts.first().map(SigningAccount::address);
            batch.from.or_else(first)
        });
        let admit = |backend: &Backend, run: &mut Attempt<'_>| {
            let batch = SendCalls::parse(run.params, run.dialect).map_err(|error| run.dialect.wallet_error(error))?;
            let prepared = prepare(backend, run, batch)?;
            send_or_ask(backend, run, prepared)
        };
        answer(runner, request, from, admit, send_approved).await
    }
}

/// Checks a batch by the wallet's rules, and simulates it.
///
/// # Errors
///
/// Returns the wallet's error with the dialect's code, or -32005 if the state is not retained.
pub fn prepare(backend: &Backend, run: &mut Attempt<'_>, batch: BatchRequest) -> Result<PreparedBatch> {
    backend.admit(run.published, Selector::Pending)?;
    let meter = std::mem::take(&mut run.meter);
    let prepared = backend.wallet.admit(batch, run.may_use_wallet, run.overlay, meter);
    run.ensure_complete()?;
    prepared.map_err(|error| run.dialect.wallet_error(error))
}

/// Sends a batch, or returns it with the question to the approver if the policy requires approval.
///
/// # Errors
///
/// Returns the wallet's error with the dialect's code.
pub fn send_or_ask(
    backend: &Backend,
    run: &mut Attempt<'_>,
    prepared: PreparedBatch,
) -> Result<Option<(Waiting, Asked)>> {
    if !backend.wallet.policy.ask {
        return sign(backend, run, prepared).map(|()| None);
    }
    let meter = std::mem::take(&mut run.overlay.meter);
    let asked = backend.wallet.question(&prepared, asker(run), run.overlay, meter);
    // The words and the assets may have missed more state than the batch itself.
    run.ensure_complete()?;
    let asked = asked.map_err(|error| run.dialect.wallet_error(error))?;
    Ok(Some((Mutex::new(Some(prepared)), asked)))
}

/// Simulates an approved batch again, because time has passed, and sends it.
///
/// # Errors
///
/// Returns the wallet's error with the dialect's code.
pub fn send_approved(backend: &Backend, run: &mut Attempt<'_>, waiting: &Waiting) -> Result<()> {
    backend.admit(run.published, Selector::Pending)?;
    let mut waiting = waiting.lock();
    let is_sent = || RpcError::internal("the batch has already been sent");
    let meter = std::mem::take(&mut run.meter);
    let renewed = backend.wallet.renew(waiting.as_mut().ok_or_else(is_sent)?, run.overlay, meter);
    run.ensure_complete()?;
    renewed.map_err(|error| run.dialect.wallet_error(error))?;
    sign(backend, run, waiting.take().ok_or_else(is_sent)?)
}

/// Writes the response, then signs and submits the batch. A response that is too long is rejected before that, because its error
/// would hide that the batch is sent. The response to a transaction is its hash.
fn sign(backend: &Backend, run: &mut Attempt<'_>, prepared: PreparedBatch) -> Result<()> {
    let is_transaction = prepared.is_transaction();
    if !is_transaction {
        SentBatch::write(&mut run.out, &prepared);
    }
    // The end of the response takes one more byte.
    if run.out.len() >= backend.limits.max_response {
        return Err(json::too_long(backend.limits.max_response));
    }
    let (commit, last) = backend.wallet.submit(prepared).map_err(|error| run.dialect.wallet_error(error))?;
    if let Some(hash) = last.filter(|_| is_transaction) {
        json::data(&mut run.out, hash.as_slice());
    }
    run.commit = commit;
    Ok(())
}
