//! What the EVM of a run takes from its chain's family: transactions, forks, and the handler that runs them.

use std::{convert::Infallible, fmt::Debug, hash::Hash};

use alloy_consensus::Header;
use alloy_evm::{EvmEnv, FromRecoveredTx, FromTxWithEncoded, IntoTxEnv};
use alloy_op_evm::OpTx;
use alloy_primitives::{Bytes, U256};
use op_revm::{L1BlockInfo, OpEvm, OpHaltReason, OpSpecId, OpTransaction, OpTransactionError};
use revm::{
    Context, InspectEvm, Inspector, Journal,
    context::{
        BlockEnv, CfgEnv, ContextSetters, ContextTr, Evm as Inner, JournalTr, Transaction, TxEnv,
        result::{EVMError, ExecutionResult, HaltReason, OutOfGasError, ResultAndState},
    },
    handler::{EthFrame, Handler, MainnetHandler, SystemCallTx, instructions::EthInstructions},
    inspector::InspectorHandler,
    interpreter::interpreter::EthInterpreter,
    primitives::hardfork::SpecId,
};

use super::{
    RunEvm,
    op_handler::{CallHandler, OpError},
};
use crate::{
    chain::{ChainSpec, ChainTx, Fork},
    engine::precompiles::RunPrecompiles,
    state::Overlay,
};

/// Why a run did not come to its end.
pub(super) type Error = EVMError<Infallible>;
/// What a run over an overlay works on.
pub(in crate::engine) type Host<'a, F> = Context<
    BlockEnv,
    <F as FamilyEvm>::Tx,
    CfgEnv<<F as FamilyEvm>::Spec>,
    &'a mut Overlay,
    Journal<&'a mut Overlay>,
    <F as FamilyEvm>::Chain,
>;
pub(super) type Instructions<'a, F> = EthInstructions<EthInterpreter, Host<'a, F>>;
/// revm's EVM over an overlay.
pub(in crate::engine) type InnerEvm<'a, F, I> = Inner<Host<'a, F>, I, Instructions<'a, F>, RunPrecompiles, EthFrame>;

/// A family of chains, as the EVM of a run knows it. Which it is, is settled once for a request, where it enters the engine.
pub trait FamilyEvm: Copy + Debug + Send + Sync + Sized + 'static {
    /// Its forks.
    type Spec: Copy + Debug + Default + Eq + Hash + Into<SpecId> + Into<Fork> + Send + Sync + 'static;
    /// Its transactions.
    type Tx: Transaction
        + SystemCallTx
        + IntoTxEnv<Self::Tx>
        + FromRecoveredTx<ChainTx>
        + FromTxWithEncoded<ChainTx>
        + Clone
        + Debug
        + Default;
    /// What its fees depend on beside the block.
    type Chain: Debug + Default;

    /// The environment in which the transactions of `header`'s block run.
    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv<Self::Spec>;

    /// An unsigned call as a transaction. There are no bytes of it that anybody would have to pay for.
    fn unsigned(call: TxEnv) -> Self::Tx;

    /// What an unsigned call in block `number` pays beside its gas: nothing.
    fn waived(number: U256) -> Self::Chain;

    /// Runs the transaction that `evm` is set to.
    ///
    /// # Errors
    /// That it cannot be run, or was stopped.
    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, EVMError<Infallible>>;

    /// Runs the system call that `evm` is set to.
    ///
    /// # Errors
    /// That it was stopped.
    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, EVMError<Infallible>>;

    /// Runs `tx` in `evm`, and shows each step to its inspector.
    ///
    /// # Errors
    /// That it cannot be run, or was stopped.
    fn inspect<
        'a,
        I: Inspector<
            Context<BlockEnv, Self::Tx, CfgEnv<Self::Spec>, &'a mut Overlay, Journal<&'a mut Overlay>, Self::Chain>,
        >,
    >(
        evm: InnerEvm<'a, Self, I>,
        tx: Self::Tx,
    ) -> Result<ResultAndState, EVMError<Infallible>>;
}

/// Ethereum's own family.
#[derive(Clone, Copy, Debug)]
pub struct Ethereum;

impl FamilyEvm for Ethereum {
    type Spec = SpecId;
    type Tx = TxEnv;
    type Chain = ();

    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv {
        spec.evm_env(header)
    }

    fn unsigned(call: TxEnv) -> TxEnv {
        call
    }

    fn waived(_: U256) {}

    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        MainnetHandler::default().run(evm)
    }

    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        MainnetHandler::default().run_system_call(evm)
    }

    fn inspect<'a, I: Inspector<Host<'a, Self>>>(
        mut evm: InnerEvm<'a, Self, I>,
        tx: TxEnv,
    ) -> Result<ResultAndState, Error> {
        evm.inspect_tx(tx)
    }
}

/// The OP stack: deposits, and fees for what a transaction costs on L1.
#[derive(Clone, Copy, Debug)]
pub struct OpStack;

impl FamilyEvm for OpStack {
    type Spec = OpSpecId;
    type Tx = OpTx;
    type Chain = L1BlockInfo;

    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv<OpSpecId> {
        spec.op_evm_env(header)
    }

    fn unsigned(call: TxEnv) -> OpTx {
        // A transaction of no bytes has no L1 fee.
        OpTx(OpTransaction { base: call, enveloped_tx: Some(Bytes::new()), deposit: Default::default() })
    }

    fn waived(number: U256) -> L1BlockInfo {
        // op-revm charges no operator fee for no bytes, but gives back what it would have been: so it must be zero.
        L1BlockInfo {
            l2_block: Some(number),
            operator_fee_scalar: Some(U256::ZERO),
            operator_fee_constant: Some(U256::ZERO),
            ..L1BlockInfo::default()
        }
    }

    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        CallHandler::new().run(evm).map(ended).map_err(explain)
    }

    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        CallHandler::new().run_system_call(evm).map(ended).map_err(explain)
    }

    fn inspect<'a, I: Inspector<Host<'a, Self>>>(
        evm: InnerEvm<'a, Self, I>,
        tx: OpTx,
    ) -> Result<ResultAndState, Error> {
        let mut evm = OpEvm(evm);
        evm.0.ctx.set_tx(tx);
        let ran = CallHandler::new().inspect_run(&mut evm).map_err(explain)?;
        Ok(ResultAndState::new(ended(ran), evm.0.ctx.journal_mut().finalize()))
    }
}

/// A result in Ethereum's words.
fn ended(result: ExecutionResult<OpHaltReason>) -> ExecutionResult {
    result.map_haltreason(|reason| match reason {
        OpHaltReason::Base(reason) => reason,
        // Why is not known any more, but it has used up its gas.
        OpHaltReason::FailedDeposit => HaltReason::OutOfGas(OutOfGasError::Basic),
    })
}

fn explain(error: OpError) -> Error {
    match error {
        EVMError::Transaction(OpTransactionError::Base(invalid)) => EVMError::Transaction(invalid),
        EVMError::Transaction(other) => EVMError::Custom(other.to_string()),
        EVMError::Database(error) => EVMError::Database(error),
        EVMError::Header(error) => EVMError::Header(error),
        EVMError::Custom(error) => EVMError::Custom(error),
        EVMError::CustomAny(error) => EVMError::CustomAny(error),
    }
}
