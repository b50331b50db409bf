//! State overrides, in geth's order and with its refusals.

use alloy_evm::precompiles::PrecompilesMap;
use alloy_primitives::Address;
use revm::{precompile::{PrecompileSpecId, Precompiles}, primitives::hardfork::SpecId};

use super::{error::SimulationError, request::{AccountOverride, StateOverrides, StorageOverride}};
use crate::state::{CodeCache, Overlay};

/// Applies `overrides` to `overlay`. Returns the precompiles that are left, where an override took or moved one: an account that is
/// overridden in any way is no precompile any more.
pub(super) fn apply(
    overrides: &StateOverrides,
    overlay: &mut Overlay,
    codes: &CodeCache,
    spec: SpecId,
) -> Result<Option<PrecompilesMap>, SimulationError> {
    for (address, account) in overrides {
        apply_account(*address, account, overlay, codes)?;
    }
    let builtin = Precompiles::new(PrecompileSpecId::from_spec_id(spec));
    if overrides.iter().all(|(address, account)| account.move_precompile_to.is_none() && !builtin.contains(address)) {
        return Ok(None);
    }
    let mut precompiles = PrecompilesMap::from_static(builtin);
    move_precompiles(overrides, &mut precompiles)?;
    Ok(Some(precompiles))
}

fn apply_account(
    address: Address,
    account: &AccountOverride,
    overlay: &mut Overlay,
    codes: &CodeCache,
) -> Result<(), SimulationError> {
    let code = account.code.clone().map(|code| codes.overriding(code)).transpose().map_err(|error| {
        SimulationError::Params(format!("stateOverrides.{address}.code: {error}"))
    })?;
    if account.balance.is_some() || account.nonce.is_some() || code.is_some() {
        overlay.set(address, account.balance, account.nonce, code);
    }
    let slots = match &account.storage {
        StorageOverride::Keep => return Ok(()),
        StorageOverride::Replace(slots) => {
            overlay.clear_storage(address);
            slots
        }
        StorageOverride::Diff(slots) => slots,
    };
    if !slots.is_empty() {
        // Slots live in an account: one that has none yet comes into being with them.
        overlay.set(address, None, None, None);
    }
    for (slot, value) in slots {
        overlay.set_slot(address, *slot, *value);
    }
    Ok(())
}

fn move_precompiles(overrides: &StateOverrides, precompiles: &mut PrecompilesMap) -> Result<(), SimulationError> {
    let mut moved_to = Vec::new();
    for (address, account) in overrides {
        if moved_to.contains(address) {
            return Err(SimulationError::Refused(format!("account {address} has already been overridden by a precompile")));
        }
        if let Some(to) = account.move_precompile_to {
            if precompiles.get(address).is_none() {
                return Err(SimulationError::Refused(format!("account {address} is not a precompile")));
            }
            if overrides.iter().any(|(overridden, _)| *overridden == to) {
                return Err(SimulationError::Refused(format!("account {to} is already overridden")));
            }
            precompiles
                .move_precompiles([(*address, to)])
                .map_err(|error| SimulationError::Refused(error.to_string()))?;
            moved_to.push(to);
        }
        precompiles.apply_precompile(address, |_| None);
    }
    Ok(())
}
