//! `eth_createAccessList`: the access list (EIP-2930) of all accounts and slots that a call with this list touches.

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::Header;
use alloy_eips::eip2930::{AccessList, AccessListItem};
use revm::context::{TxEnv, result::ExecutionResult, transaction::TransactionType};
use revm_inspectors::access_list::AccessListInspector;

use super::{
    Engine,
    call::{PreparedCall, explain},
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, TxSetup, inspect},
    request::CallRequest,
};
use crate::chain::Family;

/// The accounts and slots that a call touches.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The access list, ordered by address and slot. The sender, the callee or created contract, the precompiles and
    /// the authorities (EIP-7702) are always warm, so the list has them only for their slots.
    pub list: AccessList,
    /// The result of the call with this list.
    pub result: ExecutionResult,
    /// Gas used by all runs together.
    pub simulated: u64,
}

impl Engine<'_> {
    /// Finds the access list of a call in `header`'s block, beginning with the call's own list.
    ///
    /// The accounts and slots touched may depend on the list, because gas does. So the call runs with a growing list
    /// until a run adds nothing (geth's `AccessList`). The call pays for each entry, so its gas bounds the runs.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if the call or an override is refused, or if the meter stopped the run.
    pub fn create_access_list(&mut self, header: &Header, request: &CallRequest) -> Result<Accessed, SimulationError> {
        match self.spec.family() {
            Family::Ethereum => self.access_list_of::<Ethereum>(header, request),
            Family::OpStack => self.access_list_of::<OpStack>(header, request),
        }
    }

    fn access_list_of<F: FamilyEvm>(
        &mut self,
        header: &Header,
        request: &CallRequest,
    ) -> Result<Accessed, SimulationError> {
        let prepared = self.prepare::<F>(header, request)?;
        let overlay = &mut *self.overlay;
        let base_fee = prepared.env.block_env.basefee;
        let mut list = sorted(prepared.tx.access_list.clone());
        let mut simulated: u64 = 0;
        loop {
            overlay.meter.between_calls()?;
            let PreparedCall { env, precompiles, tx } = prepared.clone();
            let mut inspector = AccessListInspector::new(list.clone());
            let setup = TxSetup::unsigned(with_list(tx, list.clone()), env, precompiles);
            let ran = inspect::<F, _>(&mut *overlay, setup, &mut inspector);
            let touched = touched(&inspector);
            let result = ran.map_err(|error| explain(error, &request.call, base_fee, overlay))?.result;
            simulated = simulated.saturating_add(result.tx_gas_used());
            if touched == list {
                return Ok(Accessed { list, result, simulated });
            }
            list = touched;
        }
    }
}

/// Returns the call with an access list. A legacy call with a list becomes a call of type EIP-2930.
fn with_list(tx: TxEnv, access_list: AccessList) -> TxEnv {
    let legacy = tx.tx_type == TransactionType::Legacy as u8;
    let tx_type = if legacy && !access_list.is_empty() { TransactionType::Eip2930 as u8 } else { tx.tx_type };
    TxEnv { tx_type, access_list, ..tx }
}

/// Returns the accounts and slots that a run touched, without those that are always warm.
fn touched(inspector: &AccessListInspector) -> AccessList {
    let mut list = inspector.access_list();
    list.0.retain(|item| !item.storage_keys.is_empty() || !inspector.excluded().contains(&item.address));
    sorted(list)
}

/// Returns the list in order, with each address once, and each of its slots once.
fn sorted(list: AccessList) -> AccessList {
    let mut slots = BTreeMap::<_, BTreeSet<_>>::new();
    for item in list.0 {
        slots.entry(item.address).or_default().extend(item.storage_keys);
    }
    let item = |(address, keys): (_, BTreeSet<_>)| AccessListItem { address, storage_keys: keys.into_iter().collect() };
    AccessList(slots.into_iter().map(item).collect())
}
