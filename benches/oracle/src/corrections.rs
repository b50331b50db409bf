//! The places where op-revm differs from the specification or from op-geth. The oracle's outcomes follow those, and name
//! the rule. `README.md` has a row for each.

use std::cell::Cell;

use alloy_primitives::{Bytes, U256};
use op_revm::{L1BlockInfo, OpSpecId, OpTransaction, precompiles::OpPrecompiles};
use revm::{
    DatabaseRef,
    context::{Cfg, CfgEnv, Transaction, TxEnv},
    database::WrapDatabaseRef,
    handler::EthPrecompiles,
    precompile::{
        EthPrecompileResult, Precompile, PrecompileHalt, PrecompileId, Precompiles, bn254, eth_precompile_fn,
    },
    primitives::{OnceLock, eip3860::MAX_INITCODE_SIZE},
};

use crate::{
    case::{Included, Status},
    execute::{DEPOSIT, State},
};

/// A rule by which op-revm differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Karst bounds the input of the pairing precompile by 57,600 bytes, not by Jovian's 81,984.
    KarstPairing,
    /// EIP-7825's cap of Karst does not bound the gas with which a deposit executes.
    DepositGasCap,
    /// A deposit whose init code is too long (EIP-3860) fails, like any deposit that would be an invalid transaction.
    DepositInitCode,
    /// Before Regolith, too, the gas of a deposit that is not the system's must fit into the block.
    DepositBlockGas,
    /// Before Regolith a system deposit uses no gas, even if it fails.
    SystemDepositGas,
    /// Before Regolith, too, a deposit fails whose sender has less than its value, so that its nonce is used if it creates.
    UnfundedCreation,
    /// Bedrock's L1 fee applies while both scalars and the blob base fee are zero, under any fork from Ecotone on.
    UnsetScalars,
}

/// The longest input of the pairing precompile from Karst on, in bytes.
const KARST_PAIRING: usize = 57_600;
/// The longest before.
const JOVIAN_PAIRING: usize = 81_984;

thread_local! {
    static PAIRING_IS_TOO_LONG: Cell<bool> = const { Cell::new(false) };
}

fn bounded_pairing(input: &[u8], gas_limit: u64) -> EthPrecompileResult {
    if input.len() > KARST_PAIRING {
        PAIRING_IS_TOO_LONG.set(PAIRING_IS_TOO_LONG.get() || input.len() <= JOVIAN_PAIRING);
        return Err(PrecompileHalt::Bn254PairLength);
    }
    bn254::run_pair(input, bn254::pair::ISTANBUL_PAIR_PER_POINT, bn254::pair::ISTANBUL_PAIR_BASE, gas_limit)
}

eth_precompile_fn!(pairing, bounded_pairing);

/// Returns the precompiles of a fork.
pub fn precompiles(fork: OpSpecId) -> EthPrecompiles {
    static KARST: OnceLock<Precompiles> = OnceLock::new();
    let precompiles = match fork {
        OpSpecId::KARST => KARST.get_or_init(|| {
            let mut precompiles = OpPrecompiles::new_with_spec(fork).precompiles().clone();
            precompiles.extend([Precompile::new(PrecompileId::Bn254Pairing, bn254::pair::ADDRESS, pairing)]);
            precompiles
        }),
        _ => OpPrecompiles::new_with_spec(fork).precompiles(),
    };
    EthPrecompiles { precompiles, spec: fork.into_eth_spec() }
}

/// Returns whether an input of the pairing precompile was too long for Karst alone since the last call of this.
pub fn take_long_pairing() -> bool {
    PAIRING_IS_TOO_LONG.take()
}

/// Makes a deposit fail whose init code is too long. Returns whether it did: system deposits fail, too, and in the same
/// way.
pub fn fail_long_init_code(tx: &mut OpTransaction<TxEnv>, fork: OpSpecId) -> bool {
    let is_too_long = fork.is_enabled_in(OpSpecId::CANYON)
        && tx.tx_type() == DEPOSIT
        && tx.kind().is_create()
        && tx.input().len() > MAX_INITCODE_SIZE;
    tx.deposit.is_system_transaction |= is_too_long;
    is_too_long
}

/// Lifts the cap on the gas of a transaction for a deposit. Returns whether that changes anything.
pub fn lift_gas_cap(cfg: &mut CfgEnv<OpSpecId>, tx: &OpTransaction<TxEnv>) -> bool {
    let is_lifted = tx.tx_type() == DEPOSIT && tx.gas_limit() > cfg.tx_gas_limit_cap();
    if is_lifted {
        cfg.tx_gas_limit_cap = Some(u64::MAX);
    }
    is_lifted
}

/// Makes a deposit fail that creates with less than there is: its gas is too low then. Returns whether it did.
pub fn fail_unfunded_creation(tx: &mut OpTransaction<TxEnv>, state: &State, fork: OpSpecId) -> bool {
    let balance = state.basic_ref(tx.caller()).expect("a state in memory").unwrap_or_default().balance;
    let is_unfunded = fork == OpSpecId::BEDROCK
        && tx.tx_type() == DEPOSIT
        && tx.kind().is_create()
        && balance.saturating_add(U256::from(tx.deposit.mint.unwrap_or_default())) < tx.value();
    if is_unfunded {
        tx.base.gas_limit = 0;
    }
    is_unfunded
}

/// Returns the fee data of block `number` in which the scalars are zero, with the L1 fee of the transaction. `None` if
/// op-revm's own is right.
pub fn l1_block(number: u64, tx: &Bytes, state: &State, fork: OpSpecId) -> Option<L1BlockInfo> {
    let fetch = |fork| {
        L1BlockInfo::try_fetch(&mut WrapDatabaseRef(state), U256::from(number), fork).expect("a state in memory")
    };
    let mut info = fetch(fork);
    let blob_scalar = info.l1_blob_base_fee_scalar?;
    if !info.l1_base_fee_scalar.is_zero() || !blob_scalar.is_zero() {
        return None;
    }
    let is_unset = info.l1_blob_base_fee.is_none_or(|fee| fee.is_zero());
    info.tx_l1_cost = Some(match is_unset {
        true => fetch(OpSpecId::REGOLITH).calculate_tx_l1_cost(tx, OpSpecId::REGOLITH),
        false => U256::ZERO,
    });
    Some(info)
}

/// Returns whether the gas of a deposit must fit into the block.
pub fn takes_block_gas(tx: &OpTransaction<TxEnv>, fork: OpSpecId) -> bool {
    fork.is_enabled_in(OpSpecId::REGOLITH) || !tx.deposit.is_system_transaction
}

/// Corrects the gas of a system deposit. Returns whether it did.
pub fn free_system_deposit(included: &mut Included, tx: &OpTransaction<TxEnv>, fork: OpSpecId) -> bool {
    let is_free = fork == OpSpecId::BEDROCK && tx.deposit.is_system_transaction && included.status != Status::Success;
    if is_free {
        included.gas_used = 0;
    }
    is_free
}
