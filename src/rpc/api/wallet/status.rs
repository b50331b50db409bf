//! The status of batches (EIP-5792).

use schemars::JsonSchema;
use serde::Serialize;

use super::batch::IdParam;
use crate::{
    rpc::{
        json::hex::{Data, Fixed, Quantity},
        protocol::error::Result,
        run::{Attempt, Backend},
    },
    wallet::{BatchId, BatchStatus, CallsReceipt, TakenTx, WaitingTx},
};

queries! {
    /// The status of a batch (EIP-5792). Error 5730 where no batch has the id.
    GetCallsStatus = "1 parameter: the id of a batch", { id: IdParam },
        r#"["one"]"# => CallsStatus = r#"{"version": "2.0.0", "id": "one", "chainId": "0x7a69", "status": 200, "atomic": false, "receipts": [{"logs": [], "status": "0x1", "blockHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "blockNumber": "0x2", "gasUsed": "0x5208", "transactionHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"}]}"#,
        |asked, backend, run| calls_status(backend, run, asked.id)?.into();

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

/// The status of a batch.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallsStatus {
    #[schemars(extend("const" = "2.0.0"))]
    version: &'static str,
    id: BatchId,
    chain_id: Quantity<u64>,
    /// 100 pending, 200 confirmed, 400 failed and in no block, 500 reverted, 600 reverted in part.
    #[schemars(extend("enum" = [100, 200, 400, 500, 600]))]
    status: u16,
    atomic: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    receipts: Vec<BatchReceipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<StatusCapabilities>,
}

/// The receipt of a transaction of a batch.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BatchReceipt {
    logs: Vec<BatchLog>,
    /// 1 if the transaction has succeeded.
    status: Quantity<u8>,
    block_hash: Fixed<32>,
    block_number: Quantity<u64>,
    gas_used: Quantity<u64>,
    transaction_hash: Fixed<32>,
}

/// A log of a transaction of a batch.
#[derive(Serialize, JsonSchema)]
struct BatchLog {
    address: Fixed<20>,
    data: Data,
    topics: Vec<Fixed<32>>,
}

/// The capabilities in the status of a batch.
#[derive(Serialize, JsonSchema)]
struct StatusCapabilities {
    transactions: UnsettledTransactions,
}

/// On an upstream's chain, the waiting transactions, and the ones whose nonces other transactions have used.
#[derive(Serialize, JsonSchema)]
struct UnsettledTransactions {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingTransaction>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<ReplacedTransaction>,
}

/// A transaction that waits, with the reason.
#[derive(Serialize, JsonSchema)]
struct WaitingTransaction {
    hash: Fixed<32>,
    nonce: Quantity<u64>,
    reason: String,
}

/// A transaction whose nonce another transaction has used.
#[derive(Serialize, JsonSchema)]
struct ReplacedTransaction {
    hash: Fixed<32>,
    /// The hash of the other transaction, or null if it is not known.
    by: Option<Fixed<32>>,
}

fn calls_status(backend: &Backend, run: &Attempt<'_>, IdParam(id): IdParam) -> Result<BatchStatus> {
    let allowed = backend.wallet.check_use(run.may_use_wallet);
    let status = allowed.and_then(|()| backend.wallet.status(id, run.overlay));
    status.map_err(|error| run.dialect.wallet_error(error))
}

impl From<BatchStatus> for CallsStatus {
    fn from(batch: BatchStatus) -> Self {
        let waiting = batch.waiting.into_iter().map(|WaitingTx { hash, nonce, reason }| WaitingTransaction {
            hash: Fixed(hash.0),
            nonce: Quantity(nonce),
            reason,
        });
        let replaced = batch
            .taken
            .into_iter()
            .map(|TakenTx { hash, by }| ReplacedTransaction { hash: Fixed(hash.0), by: by.map(|hash| Fixed(hash.0)) });
        let transactions = UnsettledTransactions { waiting: waiting.collect(), replaced: replaced.collect() };
        let is_settled = transactions.waiting.is_empty() && transactions.replaced.is_empty();
        Self {
            version: "2.0.0",
            id: batch.id,
            chain_id: Quantity(batch.chain_id),
            status: batch.state as u16,
            atomic: batch.atomic,
            receipts: batch.receipts.into_iter().map(BatchReceipt::from).collect(),
            capabilities: (!is_settled).then_some(StatusCapabilities { transactions }),
        }
    }
}

impl From<CallsReceipt> for BatchReceipt {
    fn from(receipt: CallsReceipt) -> Self {
        let logs = receipt.logs.into_iter().map(|log| BatchLog {
            address: Fixed(log.address.0.0),
            topics: log.topics().iter().map(|topic| Fixed(topic.0)).collect(),
            data: Data(log.data.data),
        });
        Self {
            logs: logs.collect(),
            status: Quantity(u8::from(receipt.success)),
            block_hash: Fixed(receipt.block_hash.0),
            block_number: Quantity(receipt.block_number),
            gas_used: Quantity(receipt.gas_used),
            transaction_hash: Fixed(receipt.tx_hash.0),
        }
    }
}
