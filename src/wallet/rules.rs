//! The rules of `wallet_sendCalls`, in the order of their checks. The first that a request breaks is the answer.
//!
//! | | Rule | Code |
//! |-|------|------|
//! | 1 | `version` is `2.0.0` | -32000 |
//! | 2 | the request has the right form: fields, types and patterns | -32602 |
//! | 3 | `chainId` is the wallet's chain, with Prague if `atomicRequired` | 5710; without Prague 5760 on `/standard` |
//! | 4 | the client may use the wallet, and `from` is one of its accounts | 4100 |
//! | 5 | the policy is not to reject every batch | 4001 |
//! | 6 | each requested capability is supported or optional | 5700 |
//! | 7 | the id is not taken by another batch, or by one that was withdrawn but could still have been approved | 5720 |
//! | 8 | there are not too many calls or too much data | 5740 |
//! | 9 | if `atomicRequired`, the account is delegated or may be | 5750 |
//!
//! The parser of the request checks the first two, `Wallet::check` the others. Three checks are last, because
//! they need the batch to run or an approver: the plan of an atomic batch (-32602 if it creates a contract, which the
//! calls of other batches may do), the simulation (the code of a revert, or 5740 if it needs more gas than a
//! transaction may have), and the approver's decision (4001).

use alloy_primitives::Address;

use super::{BatchRequest, Requested, WalletError, error::cut};

/// The settings of a wallet.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Whether an approver is asked about each batch.
    pub ask: bool,
    /// Whether every batch is rejected.
    pub deny: bool,
    /// Maximum number of calls of a batch.
    pub max_calls: usize,
    /// Maximum length of the call data of a batch, all calls together, in bytes.
    pub max_bytes: usize,
    /// Whether accounts may be delegated to the batch executor.
    pub allow_upgrade: bool,
    /// Whether an atomic batch that reverts in the simulation is rejected.
    pub refuse_reverts: bool,
    /// Gas limit above the gas that the simulation needed, in percent.
    pub gas_margin: u64,
    /// Fees above the plan's to which an approver agrees, in percent.
    pub fee_margin: u64,
    /// Address of the batch executor. `None` selects presim's own.
    pub executor: Option<Address>,
}

/// The supported capability of a batch. `atomicRequired` decides whether the batch is atomic.
const OF_A_BATCH: &str = "atomic";
/// The supported capability of a call.
const OF_A_CALL: &str = "gasLimitOverride";

pub(super) fn check_chain(batch: &BatchRequest, chain_id: u64, is_prague: bool) -> Result<(), WalletError> {
    if batch.chain_id != Some(chain_id) {
        let given = batch.chain_id.map_or_else(|| "an id of more than 64 bits".to_owned(), |id| format!("{id:#x}"));
        return Err(WalletError::Chain(format!(
            "params[0].chainId: {given}: expected {chain_id:#x}, the wallet's chain"
        )));
    }
    if batch.atomic_required && !is_prague {
        return Err(WalletError::NotAtomic(
            "params[0].atomicRequired: the chain is before Prague, so no account can be delegated: expected false"
                .into(),
        ));
    }
    Ok(())
}

pub(super) fn check_size(batch: &BatchRequest, policy: &Policy) -> Result<(), WalletError> {
    let (count, most) = (batch.calls.len(), policy.max_calls);
    if count > most {
        return Err(WalletError::TooLarge(format!("params[0].calls: {count} calls: expected at most {most}")));
    }
    let (bytes, most) = (batch.calls.iter().map(|call| call.data.len()).sum::<usize>(), policy.max_bytes);
    if bytes > most {
        return Err(WalletError::TooLarge(format!(
            "params[0].calls: {bytes} bytes of data in all: expected at most {most}"
        )));
    }
    Ok(())
}

pub(super) fn check_capabilities(batch: &BatchRequest) -> Result<(), WalletError> {
    let unsupported = |asked: &[Requested], supported: &str| {
        asked.iter().find(|one| !one.optional && one.name != supported).map(|one| cut(&one.name))
    };
    if let Some(name) = unsupported(&batch.capabilities, OF_A_BATCH) {
        return Err(WalletError::Capability(format!(
            "params[0].capabilities.{name}: not supported for a batch: expected {}, or optional: true",
            OF_A_BATCH
        )));
    }
    for (index, call) in batch.calls.iter().enumerate() {
        if let Some(name) = unsupported(&call.capabilities, OF_A_CALL) {
            return Err(WalletError::Capability(format!(
                "params[0].calls[{index}].capabilities.{name}: not supported for a call: expected {}, or optional: true",
                OF_A_CALL
            )));
        }
    }
    Ok(())
}
