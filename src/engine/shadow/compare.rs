//! Compares the outcomes of two runs of a transaction, except for their payments.

use alloy_consensus::Transaction;
use alloy_primitives::{Address, Log, U256};
use bitflags::bitflags;
use revm::{
    context::{
        BlockEnv,
        result::{ExecutionResult, ResultAndState},
    },
    primitives::{KECCAK_EMPTY, eip7708::ETH_TRANSFER_LOG_ADDRESS},
    state::{Account, AccountInfo},
};

use super::divergence::Cause;
use crate::{
    chain::{BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT},
    engine::evm::FamilyEvm,
    ledger::Included,
    state::Overlay,
};

bitflags! {
    /// The parts of the outcomes of two runs that differ.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DifferentParts: u8 {
        /// One has succeeded, the other has not.
        const STATUS = 1;
        /// The data that was returned.
        const RETURN_DATA = 1 << 1;
        /// The logs, except for transfer logs (EIP-7708).
        const LOGS = 1 << 2;
        /// The addresses at which contracts were created.
        const CREATED = 1 << 3;
        /// The code of an account.
        const CODE = 1 << 4;
        /// The nonce of an account.
        const NONCE = 1 << 5;
        /// A storage slot.
        const STORAGE = 1 << 6;
        /// The balance of an account, beyond fees.
        const BALANCE = 1 << 7;
    }
}

/// The difference between two outcomes.
pub(super) struct Compared {
    pub parts: DifferentParts,
    /// The accounts whose code, nonce, storage or logs differ, and contracts whose balances do.
    pub accounts: Vec<Address>,
}

/// The outcome of a run, and the fees in it.
pub(super) struct Outcome<'a> {
    ran: &'a ResultAndState,
    sender: Address,
    /// The fees that the sender has paid, in wei.
    paid: U256,
    beneficiary: Address,
    /// The fees that the beneficiary has got, in wei.
    got: U256,
    /// The vaults of the OP stack that get fees besides the beneficiary.
    vaults: &'static [Address],
}

/// The vaults of the OP stack that get fees besides the beneficiary.
const VAULTS: [Address; 3] = [BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT];

impl<'a> Outcome<'a> {
    /// Creates the outcome of a transaction's run in `block`. `before` has the state before it.
    pub fn new<F: FamilyEvm>(
        ran: &'a ResultAndState,
        included: &Included<'_>,
        block: &BlockEnv,
        before: &Overlay,
    ) -> Self {
        let gas = U256::from(ran.result.tx_gas_used().saturating_sub(included.refund));
        let price = included.tx.effective_gas_price(Some(block.basefee));
        let blob_price = block.blob_excess_gas_and_price.map_or(0, |blobs| blobs.blob_gasprice);
        let blobs = U256::from(included.tx.blob_gas_used().unwrap_or_default()) * U256::from(blob_price);
        // On the OP stack nothing is burnt: the sender has paid what the vaults for data and operation receive.
        let vaults = [L1_FEE_VAULT, OPERATOR_FEE_VAULT].into_iter().filter(|_| F::HAS_VAULTS);
        let vaults = vaults.fold(U256::ZERO, |sum, vault| {
            let after = ran.state.get(&vault).map(|account| account.info.balance);
            let had = before.info(&vault).map_or(U256::ZERO, |info| info.balance);
            sum.wrapping_add(after.map_or(U256::ZERO, |after| after.saturating_sub(had)))
        });
        Self {
            ran,
            sender: included.tx.signer(),
            paid: gas.wrapping_mul(U256::from(price)).wrapping_add(blobs).wrapping_add(vaults),
            beneficiary: block.beneficiary,
            got: gas.wrapping_mul(U256::from(price.saturating_sub(block.basefee.into()))),
            vaults: if F::HAS_VAULTS { &VAULTS } else { &[] },
        }
    }

    pub fn gas_used(&self) -> u64 {
        self.ran.result.tx_gas_used()
    }

    pub fn is_success(&self) -> bool {
        self.ran.result.is_success()
    }

    fn output(&self) -> &[u8] {
        self.ran.result.output().map_or(&[], |output| output)
    }

    /// Returns the cause for which the EVM has stopped the whole run.
    pub fn halt(&self) -> Option<Cause> {
        let ExecutionResult::Halt { reason, .. } = &self.ran.result else { return None };
        Cause::of_end(reason.clone().into(), 0)
    }

    /// Returns the difference to another outcome of the same transaction, whose state before is `before`.
    pub fn compare(&self, other: &Self, before: &Overlay) -> Compared {
        let mut compared = Compared { parts: DifferentParts::empty(), accounts: Vec::new() };
        let parts = &mut compared.parts;
        parts.set(DifferentParts::STATUS, self.is_success() != other.is_success());
        parts.set(DifferentParts::RETURN_DATA, self.output() != other.output());
        let (logs, other_logs) = (contract_logs(&self.ran.result), contract_logs(&other.ran.result));
        if logs != other_logs {
            *parts |= DifferentParts::LOGS;
            let differ = logs.iter().zip(&other_logs).position(|(log, other)| log != other);
            let first = differ.unwrap_or_else(|| logs.len().min(other_logs.len()));
            let emitters = [logs.get(first), other_logs.get(first)].into_iter().flatten();
            compared.accounts.extend(emitters.map(|log| log.address));
        }
        let mut addresses: Vec<&Address> = self.ran.state.keys().chain(other.ran.state.keys()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let differs = self.compare_account(other, address, before);
            compared.parts |= differs;
            let is_contract = || self.after(address, before).code_hash != KECCAK_EMPTY;
            if differs.difference(DifferentParts::BALANCE) != DifferentParts::empty()
                || !differs.is_empty() && is_contract()
            {
                compared.accounts.push(*address);
            }
        }
        compared
    }

    fn compare_account(&self, other: &Self, address: &Address, before: &Overlay) -> DifferentParts {
        let (own, others) = (self.touched(address), other.touched(address));
        let mut parts = DifferentParts::empty();
        let is_created = |account: Option<&Account>| {
            account.is_some_and(|account| account.is_created() && !is_gone(account) && account.info.nonce > 0)
        };
        parts.set(DifferentParts::CREATED, is_created(own) != is_created(others));
        let (one, two) = (self.after(address, before), other.after(address, before));
        parts.set(DifferentParts::CODE, one.code_hash != two.code_hash);
        parts.set(DifferentParts::NONCE, one.nonce != two.nonce);
        let gets_fees = self.vaults.contains(address);
        let balance = self.beyond_fees(address, one.balance) == other.beyond_fees(address, two.balance);
        parts.set(DifferentParts::BALANCE, !balance && !gets_fees);
        let slots = own.into_iter().chain(others).flat_map(|account| &account.storage);
        let differs = |(slot, value): (&U256, &revm::state::EvmStorageSlot)| {
            let at = |account| slot_after(account, slot, value.original_value);
            at(own) != at(others)
        };
        parts.set(DifferentParts::STORAGE, slots.into_iter().any(differs));
        parts
    }

    fn touched(&self, address: &Address) -> Option<&Account> {
        self.ran.state.get(address).filter(|account| account.is_touched())
    }

    /// Returns an account after the run. One that does not exist is empty.
    fn after(&self, address: &Address, before: &Overlay) -> AccountInfo {
        match self.touched(address) {
            Some(account) if is_gone(account) => AccountInfo::default(),
            Some(account) => account.info.clone(),
            None => before.info(address).unwrap_or_default(),
        }
    }

    /// Returns a balance without the fees of the run, for comparisons.
    fn beyond_fees(&self, address: &Address, balance: U256) -> U256 {
        let paid = if *address == self.sender { self.paid } else { U256::ZERO };
        let got = if *address == self.beneficiary { self.got } else { U256::ZERO };
        balance.wrapping_add(paid).wrapping_sub(got)
    }
}

fn is_gone(account: &Account) -> bool {
    account.is_selfdestructed() || account.is_empty() && !account.is_created()
}

/// Returns the value of a slot after a run that has left its account so, or has not touched it.
fn slot_after(account: Option<&Account>, slot: &U256, before: U256) -> U256 {
    match account {
        None => before,
        Some(account) if is_gone(account) => U256::ZERO,
        Some(account) => match account.storage.get(slot) {
            Some(value) => value.present_value,
            None if account.is_created() => U256::ZERO,
            None => before,
        },
    }
}

/// Returns the logs of contracts.
fn contract_logs(result: &ExecutionResult) -> Vec<&Log> {
    result.logs().iter().filter(|log| log.address != ETH_TRANSFER_LOG_ADDRESS).collect()
}
