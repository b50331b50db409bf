//! The system calls that begin and end a simulated block.
//!
//! Each calls a contract that has the same code on every chain, and nearly always does the same: it writes one or two
//! slots, or finds its queue empty. If the contract has that code, the same slots are written here without an EVM. If
//! there is no account, nothing is done, as by the EVM. All else runs in the EVM: other code, a precompile at the
//! address, a queue with requests.

use std::{convert::Infallible, fmt::Display};

use alloy_consensus::Header;
use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS,
    eip4788::BEACON_ROOTS_ADDRESS,
    eip7002::{WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, WITHDRAWAL_REQUEST_TYPE},
    eip7251::{CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_TYPE},
    eip7685::Requests,
    eip8282::{
        BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_DEPOSIT_REQUEST_TYPE, BUILDER_EXIT_CONTRACT_ADDRESS,
        BUILDER_EXIT_REQUEST_TYPE,
    },
};
use alloy_evm::{
    Evm,
    block::{BlockExecutionError, SystemCaller},
};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B256, Bytes, U256, b256};
use revm::Database;

use super::{
    error::SimulationError,
    evm::{FamilyEvm, RunEvm},
};
use crate::{chain::ChainSpec, state::Overlay};

/// A system contract, and the hash of the code that its EIP gives it.
struct SystemContract {
    address: Address,
    code: B256,
}

const PARENT_HASHES: SystemContract = SystemContract {
    address: HISTORY_STORAGE_ADDRESS,
    code: b256!("0x6e49e66782037c0555897870e29fa5e552daf4719552131a0abce779daec0a5d"),
};
const BEACON_ROOTS: SystemContract = SystemContract {
    address: BEACON_ROOTS_ADDRESS,
    code: b256!("0xf57acd40259872606d76197ef052f3d35588dadf919ee1f0e3cb9b62d3f4b02c"),
};
const WITHDRAWALS: RequestQueue = RequestQueue::new(
    WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    b256!("0x0345a365d2f4c5975b9f1599abe0a2ee76b7a3a731bc68781bd04c84e4858f50"),
    2,
);
const CONSOLIDATIONS: RequestQueue = RequestQueue::new(
    CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    b256!("0xaf54b3a24a530e342bfc2f9f135e77c58588ba05f9fadd81e41b45e1ac403c2c"),
    1,
);
const BUILDER_DEPOSITS: RequestQueue = RequestQueue::new(
    BUILDER_DEPOSIT_CONTRACT_ADDRESS,
    b256!("0x1dd29c1e0dbc3ab670d229dbd3438003ec9015c1df9058beeb64ff301b60b98d"),
    8,
);
const BUILDER_EXITS: RequestQueue = RequestQueue::new(
    BUILDER_EXIT_CONTRACT_ADDRESS,
    b256!("0x90a0b24eb190d6c50f00f6f751dc4c2778658abf3631aceb80586c43f8bd9f2f"),
    2,
);

/// The number of parent hashes that [EIP-2935](https://eips.ethereum.org/EIPS/eip-2935) keeps, and of beacon roots that
/// [EIP-4788](https://eips.ethereum.org/EIPS/eip-4788) keeps.
const KEPT: u64 = 8_191;

/// Runs the system calls before the first call of `header`'s block.
///
/// # Errors
///
/// Returns a [`SimulationError`] if one of them fails.
pub(super) fn begin_block<F: FamilyEvm>(
    spec: &ChainSpec,
    header: &Header,
    evm: &mut RunEvm<'_, F>,
) -> Result<(), SimulationError> {
    let run = |evm: &mut RunEvm<'_, F>| -> Result<(), BlockExecutionError> {
        let mut system = SystemCaller::new(spec);
        let Header { timestamp, parent_hash, parent_beacon_block_root, .. } = *header;
        // The genesis block has no system calls.
        let parent = header.number.checked_sub(1);
        let parent_of_prague = parent.filter(|_| spec.is_prague_active_at_timestamp(timestamp));
        let is_run = parent_of_prague.is_some_and(|parent| {
            PARENT_HASHES.is_run(evm, |overlay, contract| {
                write(overlay, contract, U256::from(parent % KEPT), parent_hash.into());
                true
            })
        });
        if !is_run {
            system.apply_blockhashes_contract_call(parent_hash, evm)?;
        }
        let has_root = parent.is_some() && spec.is_cancun_active_at_timestamp(timestamp);
        let is_run = parent_beacon_block_root.filter(|_| has_root).is_some_and(|root| {
            BEACON_ROOTS.is_run(evm, |overlay, contract| {
                let slot = timestamp % KEPT;
                write(overlay, contract, U256::from(slot), U256::from(timestamp));
                write(overlay, contract, U256::from(slot + KEPT), root.into());
                true
            })
        });
        if !is_run {
            system.apply_beacon_root_contract_call(parent_beacon_block_root, evm)?;
        }
        Ok(())
    };
    unrecorded(evm, run).map_err(refused)
}

/// Runs the system calls after the last call of a block of Prague or later. Appends the requests that they return.
///
/// # Errors
///
/// Returns a [`SimulationError`] if one of them fails.
pub(super) fn end_block<F: FamilyEvm>(
    spec: &ChainSpec,
    evm: &mut RunEvm<'_, F>,
    requests: &mut Requests,
) -> Result<(), SimulationError> {
    let run = |evm: &mut RunEvm<'_, F>| -> Result<(), BlockExecutionError> {
        let mut system = SystemCaller::new(spec);
        let mut push = |kind: u8, found: Bytes| {
            if !found.is_empty() {
                requests.push_request_with_type(kind, found);
            }
        };
        if !WITHDRAWALS.is_run(evm) {
            push(WITHDRAWAL_REQUEST_TYPE, system.apply_withdrawal_requests_contract_call(evm)?);
        }
        if !CONSOLIDATIONS.is_run(evm) {
            push(CONSOLIDATION_REQUEST_TYPE, system.apply_consolidation_requests_contract_call(evm)?);
        }
        if spec.is_amsterdam_active_at_timestamp(evm.block().timestamp.saturating_to()) {
            if !BUILDER_DEPOSITS.is_run(evm) {
                push(BUILDER_DEPOSIT_REQUEST_TYPE, system.apply_builder_deposit_requests_contract_call(evm)?);
            }
            if !BUILDER_EXITS.is_run(evm) {
                push(BUILDER_EXIT_REQUEST_TYPE, system.apply_builder_exit_requests_contract_call(evm)?);
            }
        }
        Ok(())
    };
    unrecorded(evm, run).map_err(refused)
}

/// Runs system calls without recording their reads. Code that reads their writes records these. Their contracts are
/// defined by EIPs, and the code never changes.
fn unrecorded<F: FamilyEvm, T>(evm: &mut RunEvm<'_, F>, run: impl FnOnce(&mut RunEvm<'_, F>) -> T) -> T {
    let records = evm.db().records_reads();
    evm.db_mut().record_reads(false);
    let done = run(evm);
    evm.db_mut().record_reads(records);
    done
}

/// Returns the refusal of a block whose system call, or a step that follows from one, fails.
pub(super) fn refused(error: impl Display) -> SimulationError {
    SimulationError::Refused(format!("system call: {error}"))
}

impl SystemContract {
    /// Applies `effect` if the contract has its known code. Returns whether the call is done, which is also the case if
    /// there is no account. `effect` returns false, having done nothing, if the code would do more.
    fn is_run<F: FamilyEvm>(
        &self,
        evm: &mut RunEvm<'_, F>,
        effect: impl FnOnce(&mut Overlay, Address) -> bool,
    ) -> bool {
        // An override may have moved a precompile here. An access list has all that the code reads.
        if evm.components().2.is_at(&self.address) || evm.db().lists_accesses() {
            return false;
        }
        let overlay: &mut Overlay = evm.db_mut();
        match overlay.code_hash(self.address) {
            None => true,
            Some(hash) if hash == self.code => effect(overlay, self.address),
            Some(_) => false,
        }
    }
}

/// The queue of a contract that collects requests ([EIP-7002](https://eips.ethereum.org/EIPS/eip-7002),
/// [EIP-7251](https://eips.ethereum.org/EIPS/eip-7251), [EIP-8282](https://eips.ethereum.org/EIPS/eip-8282)).
struct RequestQueue {
    contract: SystemContract,
    /// The number of requests in a block above which the fee for a request rises.
    target: u64,
}

impl RequestQueue {
    /// The slots that all of these contracts have.
    const EXCESS: U256 = U256::ZERO;
    const COUNT: U256 = U256::ONE;
    const HEAD: U256 = U256::from_limbs([2, 0, 0, 0]);
    const TAIL: U256 = U256::from_limbs([3, 0, 0, 0]);

    const fn new(address: Address, code: B256, target: u64) -> Self {
        Self { contract: SystemContract { address, code }, target }
    }

    /// Ends the contract's block if its queue is empty. Returns whether the call is done.
    fn is_run<F: FamilyEvm>(&self, evm: &mut RunEvm<'_, F>) -> bool {
        self.contract.is_run(evm, |overlay, contract| {
            let [head, tail, excess, count] =
                [Self::HEAD, Self::TAIL, Self::EXCESS, Self::COUNT].map(|slot| read(overlay, contract, slot));
            // The excess is the largest word until the first block of the fork has ended, or if the queue is disabled. No
            // request can be added then.
            let excess = if excess == U256::MAX && count.is_zero() { U256::ZERO } else { excess };
            let sum = excess.checked_add(count).filter(|_| head.is_zero() && tail.is_zero());
            let Some(sum) = sum else { return false };
            write(overlay, contract, Self::EXCESS, sum.saturating_sub(U256::from(self.target)));
            write(overlay, contract, Self::COUNT, U256::ZERO);
            true
        })
    }
}

fn read(overlay: &mut Overlay, contract: Address, slot: U256) -> U256 {
    let Ok::<_, Infallible>(value) = overlay.storage(contract, slot);
    value
}

/// Writes a slot unless it has the value already.
fn write(overlay: &mut Overlay, contract: Address, slot: U256, value: U256) {
    if read(overlay, contract, slot) != value {
        overlay.set_slot(contract, slot, value);
    }
}

#[cfg(test)]
mod tests;
