//! State overrides, in geth's order and with geth's refusals.

use alloy_primitives::Address;

use super::{
    error::SimulationError,
    precompiles::RunPrecompiles,
    request::{AccountOverride, StateOverrides, StorageOverride},
};
use crate::{
    chain::{ChainSpec, Fork},
    state::{CodeCache, Overlay},
};

/// Applies `overrides` to `overlay`, and returns the remaining precompiles. An account with any override is not a
/// precompile any more.
pub(super) fn apply(
    overrides: &StateOverrides,
    overlay: &mut Overlay,
    codes: &CodeCache,
    chain: &ChainSpec,
    fork: impl Into<Fork>,
) -> Result<RunPrecompiles, SimulationError> {
    for (address, account) in overrides {
        apply_account(*address, account, overlay, codes);
    }
    precompiles(overrides, chain, fork)
}

/// Returns the precompiles of a fork on `chain` that remain under `overrides`.
pub(super) fn precompiles(
    overrides: &StateOverrides,
    chain: &ChainSpec,
    fork: impl Into<Fork>,
) -> Result<RunPrecompiles, SimulationError> {
    let mut precompiles = RunPrecompiles::of(chain, fork);
    move_precompiles(overrides, &mut precompiles)?;
    Ok(precompiles)
}

fn apply_account(address: Address, account: &AccountOverride, overlay: &mut Overlay, codes: &CodeCache) {
    let code = account.code.clone().map(|code| codes.overriding(code));
    if account.balance.is_some() || account.nonce.is_some() || code.is_some() {
        overlay.set(address, account.balance, account.nonce, code);
    }
    let slots = match &account.storage {
        StorageOverride::Keep => return,
        StorageOverride::Replace(slots) => {
            overlay.clear_storage(address);
            slots
        }
        StorageOverride::Diff(slots) => slots,
    };
    if !slots.is_empty() {
        // Slots belong to an account, so an account that does not exist yet is created with them.
        overlay.set(address, None, None, None);
    }
    overlay.set_slots(address, slots);
}

fn move_precompiles(overrides: &StateOverrides, precompiles: &mut RunPrecompiles) -> Result<(), SimulationError> {
    let mut moved_to = Vec::new();
    for (address, account) in overrides {
        if moved_to.contains(address) {
            return Err(SimulationError::Refused(format!(
                "account {address} has already been overridden by a precompile"
            )));
        }
        if let Some(to) = account.move_precompile_to {
            if !precompiles.is_at(address) {
                return Err(SimulationError::Refused(format!("account {address} is not a precompile")));
            }
            if overrides.iter().any(|(overridden, _)| *overridden == to) {
                return Err(SimulationError::Refused(format!("account {to} is already overridden")));
            }
            precompiles.copy(address, to);
            moved_to.push(to);
        }
        precompiles.remove(address);
    }
    Ok(())
}
