//! The rules of `wallet_sendCalls`, in the one order in which they are checked: the first that a request breaks is its answer.
//!
//! | | Rule | Code |
//! |-|------|------|
//! | 1 | `version` is `2.0.0` | -32000 |
//! | 2 | the request has its form: fields, types and patterns of api.md 2.6 | -32602 |
//! | 3 | `chainId` is the wallet's chain, and that is at Prague where `atomicRequired` is true | 5710; the latter 5760 on `/standard` |
//! | 4 | the client may use the wallet, and `from` is an account of it | 4100 |
//! | 5 | the approver does not refuse everything | 4001 |
//! | 6 | each capability that is asked for is supported or optional | 5700 |
//! | 7 | no other batch has the id, nor had it and was withdrawn while it could have been approved | 5720 |
//! | 8 | there are not too many calls, and not too much data in them | 5740 |
//! | 9 | the account is delegated, or may be, where `atomicRequired` is true | 5750 |
//!
//! The first two are checked where the request is parsed, the others by [`WalletRules::check`]. What follows needs the batch to run or somebody to
//! look at it, so it comes last: the plan of an atomic batch (-32602 where it creates a contract, which is a matter of its form, and is seen
//! only here, as the calls of other batches may do so), the simulation (the code of a revert; 5740 where more gas is needed than a transaction
//! may have), then the approver's answer (4001).

use super::{BatchRequest, Requested, WalletError, error::cut};

/// The rules that a wallet has, as its chain and its settings make them.
#[derive(Clone, Copy, Debug)]
pub struct WalletRules {
    /// EIP-155 id of the wallet's chain.
    pub chain_id: u64,
    /// Whether the chain has EIP-7702: it is at Prague or past it.
    pub atomic: bool,
    /// Refuse every batch.
    pub deny: bool,
    /// The most calls of a batch.
    pub max_calls: usize,
    /// The most bytes of call data of a batch, its calls together.
    pub max_bytes: usize,
    /// Delegate accounts that are not yet delegated to the batch executor.
    pub allow_upgrade: bool,
}

/// How a request stands to the wallet.
#[derive(Clone, Copy, Debug)]
pub struct BatchSender {
    /// Whether its client may use the wallet.
    pub client: bool,
    /// Whether the account that is to send it is one of the wallet's. Where the request names none: whether the wallet has one.
    pub account: bool,
    /// Whether that account is delegated to the batch executor.
    pub delegated: bool,
}

impl WalletRules {
    /// The capability of a batch that the wallet supports; that it is atomic is what `atomicRequired` says.
    const OF_A_BATCH: &str = "atomic";
    /// The capability of a call that the wallet supports.
    const OF_A_CALL: &str = "gasLimitOverride";

    /// Checks a batch whose form is right. `reserve` takes its id, so that no other batch has it from then on, or finds it taken ([`WalletError::taken`]); what it
    /// returns is the batch's claim to the id, and is dropped where a later rule refuses the batch: dropping it must free the id.
    ///
    /// # Errors
    /// The first rule that is broken, what was wrong and what was expected.
    pub fn check<IdClaim>(
        &self,
        batch: &BatchRequest,
        standing: BatchSender,
        reserve: impl FnOnce() -> Result<IdClaim, WalletError>,
    ) -> Result<IdClaim, WalletError> {
        self.check_chain(batch)?;
        check_account(batch, standing)?;
        if self.deny {
            return Err(WalletError::Rejected("the wallet rejects every batch: --wallet-approval is deny".into()));
        }
        check_capabilities(batch)?;
        let claim = reserve()?;
        self.check_size(batch)?;
        if batch.atomic_required && !standing.delegated && !self.allow_upgrade {
            return Err(WalletError::Upgrade(
                "params[0].atomicRequired: the account is not delegated to the batch executor, and --wallet-upgrade is deny: expected false"
                    .into(),
            ));
        }
        Ok(claim)
    }

    fn check_chain(&self, batch: &BatchRequest) -> Result<(), WalletError> {
        if batch.chain_id != Some(self.chain_id) {
            let given = batch.chain_id.map_or_else(|| "an id past 64 bits".to_owned(), |id| format!("{id:#x}"));
            let expected = self.chain_id;
            return Err(WalletError::Chain(format!(
                "params[0].chainId: {given}: expected {expected:#x}, the wallet's chain"
            )));
        }
        if batch.atomic_required && !self.atomic {
            return Err(WalletError::NotAtomic(
                "params[0].atomicRequired: the chain is before Prague, so no account can be delegated: expected false"
                    .into(),
            ));
        }
        Ok(())
    }

    fn check_size(&self, batch: &BatchRequest) -> Result<(), WalletError> {
        let (count, most) = (batch.calls.len(), self.max_calls);
        if count > most {
            return Err(WalletError::TooLarge(format!("params[0].calls: {count} calls: expected at most {most}")));
        }
        let (bytes, most) = (batch.calls.iter().map(|call| call.data.len()).sum::<usize>(), self.max_bytes);
        if bytes > most {
            return Err(WalletError::TooLarge(format!(
                "params[0].calls: {bytes} bytes of data in all: expected at most {most}"
            )));
        }
        Ok(())
    }
}

fn check_account(batch: &BatchRequest, standing: BatchSender) -> Result<(), WalletError> {
    if !standing.client {
        return Err(WalletError::no_wallet_token());
    }
    if !standing.account {
        return Err(match batch.from {
            Some(from) => WalletError::foreign_account("params[0].from", from),
            None => WalletError::Unauthorized("the wallet has no account: expected one to be given to it".into()),
        });
    }
    Ok(())
}

fn check_capabilities(batch: &BatchRequest) -> Result<(), WalletError> {
    let unsupported = |asked: &[Requested], supported: &str| {
        asked.iter().find(|one| !one.optional && one.name != supported).map(|one| cut(&one.name))
    };
    if let Some(name) = unsupported(&batch.capabilities, WalletRules::OF_A_BATCH) {
        return Err(WalletError::Capability(format!(
            "params[0].capabilities.{name}: not supported for a batch: expected {}, or optional: true",
            WalletRules::OF_A_BATCH
        )));
    }
    for (index, call) in batch.calls.iter().enumerate() {
        if let Some(name) = unsupported(&call.capabilities, WalletRules::OF_A_CALL) {
            return Err(WalletError::Capability(format!(
                "params[0].calls[{index}].capabilities.{name}: not supported for a call: expected {}, or optional: true",
                WalletRules::OF_A_CALL
            )));
        }
    }
    Ok(())
}
