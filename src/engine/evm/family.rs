//! The EVM of a run, and its parts that depend on the chain's family: transactions, forks, and the handler that runs them.

use std::{convert::Infallible, fmt::Debug, hash::Hash};

use alloy_consensus::Header;
use alloy_evm::{EvmEnv, FromRecoveredTx, FromTxWithEncoded, IntoTxEnv};
use revm::{
    Context, Inspector, Journal,
    context::{
        BlockEnv, CfgEnv, Evm as Inner, Transaction, TxEnv,
        result::{EVMError, ExecutionResult, InvalidTransaction},
    },
    handler::{EthFrame, Handler, MainnetHandler, SystemCallTx, instructions::EthInstructions},
    inspector::{InspectorHandler, NoOpInspector},
    interpreter::interpreter::EthInterpreter,
    primitives::hardfork::SpecId,
};

use crate::{
    chain::{ChainSpec, ChainTx, Fork},
    engine::precompiles::RunPrecompiles,
    state::Overlay,
};

pub(super) type Error = EVMError<Infallible>;
/// The context of a run over an overlay.
pub(in crate::engine) type Host<'a, F> = Context<
    BlockEnv,
    <F as FamilyEvm>::Tx,
    CfgEnv<<F as FamilyEvm>::Spec>,
    &'a mut Overlay,
    Journal<&'a mut Overlay>,
    <F as FamilyEvm>::Chain,
>;
pub(in crate::engine) type Instructions<'a, F> = EthInstructions<EthInterpreter, Host<'a, F>>;
pub(in crate::engine) type InnerEvm<'a, F, I> = Inner<Host<'a, F>, I, Instructions<'a, F>, RunPrecompiles, EthFrame>;

/// An EVM over an overlay. The overlay's meter may stop it: each `JUMPDEST` and each call ticks the meter. Each log
/// gets its number in the overlay's [`LogNumbers`](crate::state::LogNumbers).
///
/// The allocations of a run (frames with their stacks, the journal, the memory) stay on its thread for the next run.
pub struct RunEvm<'a, F: FamilyEvm = Ethereum, I = NoOpInspector> {
    pub(in crate::engine) inner: InnerEvm<'a, F, I>,
    /// Whether transfers of the native currency are written as logs.
    pub(super) transfers: bool,
    /// The depth of the deepest frame so far.
    pub(super) deepest: usize,
}

/// A family of chains, as the EVM of a run sees it. It is chosen once per request, where the request enters the engine.
pub trait FamilyEvm: Copy + Debug + Send + Sync + Sized + 'static {
    /// The forks of the family.
    type Spec: Copy + Debug + Default + Eq + Hash + Into<SpecId> + Into<Fork> + Send + Sync + 'static;
    /// The transactions of the family. An unsigned call has no encoded bytes to charge a fee for.
    type Tx: Transaction
        + From<TxEnv>
        + SystemCallTx
        + IntoTxEnv<Self::Tx>
        + FromRecoveredTx<ChainTx>
        + FromTxWithEncoded<ChainTx>
        + Clone
        + Debug
        + Default;
    /// The data, besides the block, on which fees depend.
    type Chain: Debug + Default;

    /// Whether vaults get a part of the fees.
    const HAS_VAULTS: bool;
    /// Whether blocks have requests (EIP-7685). If not, their list is empty.
    const HAS_REQUESTS: bool;

    /// Returns the environment in which the transactions of `header`'s block run.
    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv<Self::Spec>;

    /// Returns the fee data of an unsigned call, which pays nothing besides its gas.
    fn waived() -> Self::Chain;

    /// Returns a transaction to which its block refunds `gas`.
    #[must_use]
    fn refunded(tx: Self::Tx, gas: u64) -> Self::Tx;

    /// Returns a transaction with another gas limit.
    #[must_use]
    fn with_gas_limit(tx: Self::Tx, gas: u64) -> Self::Tx;

    /// Runs the transaction that `evm` is set to.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`] if the transaction is invalid, or if the meter stopped the run.
    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error>;

    /// Runs the system call that `evm` is set to.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`] if the meter stopped the run.
    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error>;

    /// Runs the transaction that `evm` is set to, and shows each step to the inspector of `evm`.
    ///
    /// # Errors
    ///
    /// Returns an [`EVMError`] if the transaction is invalid, or if the meter stopped the run.
    fn inspect<'a, I: Inspector<Host<'a, Self>>>(evm: &mut RunEvm<'a, Self, I>) -> Result<ExecutionResult, Error>;
}

/// The family of Ethereum itself.
#[derive(Clone, Copy, Debug)]
pub struct Ethereum;

impl FamilyEvm for Ethereum {
    type Spec = SpecId;
    type Tx = TxEnv;
    type Chain = ();

    const HAS_VAULTS: bool = false;
    const HAS_REQUESTS: bool = true;

    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv {
        spec.evm_env(header)
    }

    fn waived() {}

    /// Returns the transaction: no block of Ethereum refunds gas.
    fn refunded(tx: TxEnv, _: u64) -> TxEnv {
        tx
    }

    fn with_gas_limit(tx: TxEnv, gas: u64) -> TxEnv {
        TxEnv { gas_limit: gas, ..tx }
    }

    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        check_gas_limit(evm)?;
        MainnetHandler::default().run(evm)
    }

    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        MainnetHandler::default().run_system_call(evm)
    }

    fn inspect<'a, I: Inspector<Host<'a, Self>>>(evm: &mut RunEvm<'a, Self, I>) -> Result<ExecutionResult, Error> {
        check_gas_limit(evm)?;
        MainnetHandler::default().inspect_run(evm)
    }
}

/// The highest gas limit of a transaction from Amsterdam on (<https://github.com/ethereum/execution-specs/pull/3582>).
pub const MAX_TX_GAS_LIMIT: u64 = u32::MAX as u64;

/// Checks the gas limit of Amsterdam's transactions, which revm bounds only by the block's. Calls whose gas limit need
/// not fit a block are exempt.
fn check_gas_limit<I>(evm: &RunEvm<'_, Ethereum, I>) -> Result<(), Error> {
    let (cfg, gas_limit) = (&evm.inner.ctx.cfg, evm.inner.ctx.tx.gas_limit);
    let is_bound = cfg.enable_amsterdam_eip8037 && !cfg.disable_block_gas_limit;
    match is_bound && gas_limit > MAX_TX_GAS_LIMIT {
        true => Err(InvalidTransaction::TxGasLimitGreaterThanCap { gas_limit, cap: MAX_TX_GAS_LIMIT }.into()),
        false => Ok(()),
    }
}
