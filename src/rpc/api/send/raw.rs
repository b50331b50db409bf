//! Signed transactions. The client of `eth_sendRawTransactionSync` waits for the receipt (EIP-7966).

use std::{sync::Arc, time::Duration};

use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::B256;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use crate::pool::SentTransaction;
use crate::rpc::{
    api::{Example, Method, Serve, block::show_receipt},
    json::{
        Receipt,
        hex::{Data, Fixed, Number},
    },
    params::parse,
    protocol::error::{Result, RpcError},
    run::{Attempt, Backend, catch_up::await_published, request::Request, runner::RequestRunner},
};

queries! {
    /// Adds a signed transaction to the pool, or rejects it with geth's message. A devnet mines it in its next sub-block;
    /// a static chain keeps it.
    SendRaw = "1 parameter: a signed transaction", {
        /// A signed transaction of any type (EIP-2718); a blob transaction in its network form, with cell proofs (EIP-7594) or blob
        /// proofs (EIP-4844).
        pub transaction: Data,
    }, r#"["0x02f86e827a6980847735940085174876e80083030d409400000000000000000000000000000000000c01ba0180c001a012646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da7a07b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c33"]"#
        => Fixed<32> = r#""0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421""#,
        |asked, backend, run| add(backend, run, &asked.transaction)?;
}

/// Takes a signed transaction into the pool, and waits for its pre-confirmed receipt (EIP-7966). Error 4 when the time is up, 5
/// when the transaction waits for a nonce before its own; data is its hash.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: a signed transaction, milliseconds to wait")]
pub struct SendRawSync {
    /// A signed transaction of any type (EIP-2718); a blob transaction in its network form, with cell proofs (EIP-7594) or blob
    /// proofs (EIP-4844).
    transaction: Data,
    /// Milliseconds to wait, up to --max-sync-timeout-ms; --sync-timeout-ms where absent or zero.
    // The examples of EIP-7966 write an integer, its table a quantity.
    #[serde(default)]
    timeout: Option<Number<u64>>,
}

impl Serve for SendRawSync {
    type Part = ();
    type Answer = Receipt;
    const EXAMPLE: Example = Example {
        params: SendRaw::EXAMPLE.params,
        answer: r#"{"blockHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "blockNumber": "0x2", "contractAddress": null, "cumulativeGasUsed": "0x5208", "effectiveGasPrice": "0x3b9aca07", "from": "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "gasUsed": "0x5208", "logs": [], "logsBloom": "0x", "status": "0x1", "to": "0x000000000000000000000000000000000000abcd", "transactionHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "transactionIndex": "0x0", "type": "0x2"}"#,
    };

    /// Answers from the first snapshot with the transaction. Returns the errors of `eth_sendRawTransaction`; -32005 if too many
    /// requests wait; 4 at the deadline, and 5 if the transaction cannot be mined at present, both with its hash as data.
    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Ok(_permit) = runner.waiters.permits.try_acquire() else {
            let text = format!("too busy: {} requests wait for receipts already", runner.waiters.count);
            return Err(RpcError::limit(text));
        };
        let upstream = runner.taker(&request);
        let (hash, asked) = match upstream {
            Some(remote) => {
                let Self { transaction, timeout } = parse(&request.params, request.caller.dialect)?;
                (remote.send_on(&transaction.0, &request).await?, timeout)
            }
            None => runner.run(request.clone(), add_to_wait).await?.0,
        };
        let asked = asked.filter(|asked| asked.0 > 0).map(|asked| Duration::from_millis(asked.0));
        let sync = runner.backend.limits.sync;
        let most = asked.unwrap_or(sync.usual).min(sync.most);
        drop(request.starting.as_ref().and_then(|starting| starting.release()));
        let included = await_published(&runner.host.snapshots, || {
            // In this order, because a transaction leaves the pool only after the snapshot with it was published.
            let waits = upstream.is_some() || runner.backend.pool.get(&hash).is_some();
            let published = runner.published();
            let is_included = published.transaction(&hash).is_some();
            (is_included || !waits).then(|| is_included.then_some(published))
        });
        match timeout(most, included).await {
            Ok(Some(published)) => {
                let request = Request { published, ticket: runner.ticket(&request.caller), ..request };
                let receipt = move |backend: &Backend, run: &mut Attempt<'_>| {
                    show_receipt(backend, run.published.transaction(&hash), &mut run.out);
                    Ok(())
                };
                runner.write(request, receipt).await
            }
            Ok(None) => {
                let text = "The transaction was added to the transaction pool but left it again: another took its place, or it cannot be mined";
                Err(RpcError::unready(hash, text))
            }
            Err(_) => {
                let text =
                    format!("The transaction was added to the transaction pool but wasn't processed in {most:?}");
                Err(RpcError::receipt_timeout(hash, text))
            }
        }
    }
}

/// Reads the account of a transaction's sender, with which the pool checks the transaction. If the account is in
/// unknown state of an upstream, the request runs again.
fn know_sender(run: &Attempt<'_>, raw: &[u8]) -> Result<()> {
    let world = &run.published.newest.world;
    if world.remote().is_some()
        && let Ok(SentTransaction { tx, .. }) = SentTransaction::decode(raw)
        && let Ok(sender) = tx.recover_signer()
    {
        run.overlay.look_up(world, sender);
    }
    run.ensure_complete()
}

/// Adds the transaction to the pool, and returns its hash.
fn add(backend: &Backend, run: &mut Attempt<'_>, Data(raw): &Data) -> Result<B256> {
    know_sender(run, raw)?;
    let (hash, commit) = backend.pool.add_raw(raw)?;
    run.commit = commit;
    Ok(hash)
}

/// Adds the transaction to the pool. Returns its hash, and the milliseconds that the client wants to wait.
fn add_to_wait(backend: &Backend, run: &mut Attempt<'_>) -> Result<(B256, Option<Number<u64>>)> {
    let SendRawSync { transaction, timeout } = parse(run.params, run.dialect)?;
    let hash = add(backend, run, &transaction)?;
    if let Some(nonce) = backend.pool.gap_before(&hash) {
        return Err(RpcError::unready(
            hash,
            format!(
                "The transaction was added to the transaction pool but wasn't processed: nonce {nonce} of its sender is missing"
            ),
        ));
    }
    Ok((hash, timeout))
}
