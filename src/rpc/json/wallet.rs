//! The results of the wallet's methods (EIP-5792, EIP-2255).

use alloy_primitives::Address;

use super::{Object, data, list, or_null, string};
use crate::wallet::{AtomicSupport, BatchStatus, CallsReceipt, SimulatedCall, Submitted, TakenTx, WaitingTx};

/// Writes the result of `wallet_sendCalls`: `id` and `capabilities` of EIP-5792, and presim's `batchId` and `status`.
pub fn submitted(out: &mut Vec<u8>, batch: &Submitted) {
    let mut object = Object::new(out);
    string(object.key("batchId"), batch.id.as_str());
    string(object.key("id"), batch.id.as_str());
    string(object.key("status"), "pending");
    let mut capabilities = Object::new(object.key("capabilities"));
    if !batch.simulation.is_empty() {
        let mut simulation = Object::new(capabilities.key("simulation"));
        list(simulation.key("calls"), &batch.simulation, simulated_call);
        simulation.end();
    }
    capabilities.end();
    object.end();
}

fn simulated_call(out: &mut Vec<u8>, call: &SimulatedCall) {
    let mut object = Object::new(out);
    object.quantity("status", u64::from(call.error.is_none())).quantity("gasUsed", call.gas_used);
    if let Some(error) = &call.error {
        string(object.key("error"), error);
    }
    object.end();
}

/// Writes the result of `wallet_getCallsStatus`.
pub fn calls_status(out: &mut Vec<u8>, batch: &BatchStatus) {
    let mut object = Object::new(out);
    string(object.key("version"), "2.0.0");
    string(object.key("id"), batch.id.as_str());
    object.quantity("chainId", batch.chain_id);
    object.key("status").extend_from_slice(itoa::Buffer::new().format(batch.state.code()).as_bytes());
    object.key("atomic").extend_from_slice(if batch.atomic { b"true" } else { b"false" });
    if !batch.receipts.is_empty() {
        list(object.key("receipts"), &batch.receipts, receipt);
    }
    if !batch.waiting.is_empty() || !batch.taken.is_empty() {
        let mut capabilities = Object::new(object.key("capabilities"));
        let mut transactions = Object::new(capabilities.key("transactions"));
        if !batch.waiting.is_empty() {
            list(transactions.key("waiting"), &batch.waiting, |out, WaitingTx { hash, nonce, reason }| {
                let mut object = Object::new(out);
                object.data("hash", hash.as_slice()).quantity("nonce", *nonce);
                string(object.key("reason"), reason);
                object.end();
            });
        }
        if !batch.taken.is_empty() {
            list(transactions.key("replaced"), &batch.taken, |out, TakenTx { hash, by }| {
                let mut object = Object::new(out);
                object.data("hash", hash.as_slice());
                or_null(object.key("by"), by.as_ref(), |out, by| data(out, by.as_slice()));
                object.end();
            });
        }
        transactions.end();
        capabilities.end();
    }
    object.end();
}

fn receipt(out: &mut Vec<u8>, receipt: &CallsReceipt) {
    let mut object = Object::new(out);
    list(object.key("logs"), &receipt.logs, |out, log| {
        let mut object = Object::new(out);
        object.data("address", log.address.as_slice()).data("data", &log.data.data);
        list(object.key("topics"), log.topics(), |out, topic| data(out, topic.as_slice()));
        object.end();
    });
    object
        .quantity("status", u64::from(receipt.success))
        .data("blockHash", receipt.block_hash.as_slice())
        .quantity("blockNumber", receipt.block_number)
        .quantity("gasUsed", receipt.gas_used)
        .data("transactionHash", receipt.tx_hash.as_slice());
    object.end();
}

/// Writes the result of `wallet_getCapabilities`. `chain` is `None` if the request excludes the wallet's chain.
pub fn capabilities(out: &mut Vec<u8>, chain: Option<(u64, AtomicSupport)>) {
    let mut object = Object::new(out);
    if let Some((id, atomic)) = chain {
        let mut chain = Object::new(object.key(&format!("{id:#x}")));
        let mut support = Object::new(chain.key("atomic"));
        string(support.key("status"), atomic.as_str());
        support.end();
        let mut support = Object::new(chain.key("gasLimitOverride"));
        support.key("supported").extend_from_slice(b"true");
        support.end();
        chain.end();
    }
    object.end();
}

/// Writes the result of `wallet_getPermissions` and `wallet_requestPermissions` (EIP-2255). `accounts` is `None` if there
/// is no permission.
pub fn permissions(out: &mut Vec<u8>, page: Option<&str>, accounts: Option<impl Iterator<Item = Address>>) {
    list(out, accounts, |out, accounts| {
        let mut object = Object::new(out);
        if let Some(page) = page {
            string(object.key("invoker"), page);
        }
        string(object.key("parentCapability"), "eth_accounts");
        // Clients take the accounts from the first caveat, as other wallets have it.
        list(object.key("caveats"), [accounts], |out, accounts| {
            let mut caveat = Object::new(out);
            string(caveat.key("type"), "restrictReturnedAccounts");
            list(caveat.key("value"), accounts, |out, account| data(out, account.as_slice()));
            caveat.end();
        });
        object.end();
    });
}
