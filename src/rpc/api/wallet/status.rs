//! The status of batches (EIP-5792).

use alloy_primitives::Log;

use super::batch::IdParam;
use crate::{
    rpc::{
        json::{
            Json, OrNull,
            hex::{Data, Fixed, Quantity},
            shapes,
        },
        protocol::error::Result,
        run::{Attempt, Backend},
    },
    wallet::{BatchId, BatchStatus, CallsReceipt, TakenTx, WaitingTx},
};

queries! {
    /// The status of a batch (EIP-5792). Error 5730 where no batch has the id.
    GetCallsStatus = "1 parameter: the id of a batch", { id: IdParam },
        r#"["one"]"# => CallsStatus = r#"{"version": "2.0.0", "id": "one", "chainId": "0x7a69", "status": 200, "atomic": false, "receipts": [{"logs": [], "status": "0x1", "blockHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "blockNumber": "0x2", "gasUsed": "0x5208", "transactionHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"}]}"#,
        |asked, backend, run| calls_status(backend, run, asked.id)?;

    /// Logs the status of a batch for the operator of the node, because there is no window to show it in (EIP-5792).
    /// Error 5730 if no batch has the id.
    ShowCallsStatus = "1 parameter: the id of a batch", { id: IdParam }, r#"["one"]"# => () = "null",
        |asked, backend, run| {
            let status = calls_status(backend, run, asked.id)?;
            run.ensure_complete()?;
            let hashes: Vec<_> = status.receipts.iter().map(|receipt| receipt.tx_hash).collect();
            tracing::info!(id = ?status.id.as_str(), state = ?status.state, code = status.state as u16, ?hashes, "the status of a batch, requested by wallet_showCallsStatus");
        };
}

shapes! {
    /// The status of a batch.
    pub CallsStatus: BatchStatus => |batch| let {
        let is_settled = batch.waiting.is_empty() && batch.taken.is_empty();
    } {
        #[schemars(extend("const" = "2.0.0"))]
        version: String = "2.0.0",
        id: BatchId = Json(&batch.id),
        chainId: Quantity<u64> = batch.chain_id,
        /// 100 pending, 200 confirmed, 400 failed and in no block, 500 reverted, 600 reverted in part.
        #[schemars(extend("enum" = [100, 200, 400, 500, 600]))]
        status: u32 = batch.state as u32,
        atomic: bool = batch.atomic,
        receipts: Option<Vec<BatchReceipt>> = Some(batch.receipts).filter(|receipts| !receipts.is_empty()),
        capabilities: Option<StatusCapabilities> = (!is_settled).then_some((batch.waiting, batch.taken)),
    }

    /// The receipt of a transaction of a batch.
    BatchReceipt: CallsReceipt => |receipt| {
        logs: Vec<BatchLog> = &receipt.logs,
        /// 1 if the transaction has succeeded.
        status: Quantity<u64> = u64::from(receipt.success),
        blockHash: Fixed<32> = receipt.block_hash,
        blockNumber: Quantity<u64> = receipt.block_number,
        gasUsed: Quantity<u64> = receipt.gas_used,
        transactionHash: Fixed<32> = receipt.tx_hash,
    }

    /// A log of a transaction of a batch.
    BatchLog: &Log => |log| {
        address: Fixed<20> = log.address,
        data: Data = &log.data.data,
        topics: Vec<Fixed<32>> = log.topics(),
    }

    /// The capabilities in the status of a batch.
    StatusCapabilities: (Vec<WaitingTx>, Vec<TakenTx>) => |unsettled| {
        transactions: UnsettledTransactions = unsettled,
    }

    /// On an upstream's chain, the waiting transactions, and the ones whose nonces other transactions have used.
    UnsettledTransactions: (Vec<WaitingTx>, Vec<TakenTx>) => |(waiting, taken)| {
        waiting: Option<Vec<WaitingTransaction>> = Some(waiting).filter(|waiting| !waiting.is_empty()),
        replaced: Option<Vec<ReplacedTransaction>> = Some(taken).filter(|taken| !taken.is_empty()),
    }

    /// A transaction that waits, with the reason.
    WaitingTransaction: WaitingTx => |tx| {
        hash: Fixed<32> = tx.hash,
        nonce: Quantity<u64> = tx.nonce,
        reason: String = tx.reason,
    }

    /// A transaction whose nonce another transaction has used.
    ReplacedTransaction: TakenTx => |tx| {
        hash: Fixed<32> = tx.hash,
        /// The hash of the other transaction, or null if it is not known.
        by: Option<Fixed<32>> = Some(OrNull(tx.by)),
    }
}

fn calls_status(backend: &Backend, run: &Attempt<'_>, IdParam(id): IdParam) -> Result<BatchStatus> {
    let allowed = backend.wallet.check_use(run.may_use_wallet);
    let status = allowed.and_then(|()| backend.wallet.status(id, run.overlay));
    status.map_err(|error| run.dialect.wallet_error(error))
}
