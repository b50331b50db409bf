//! The handler of OP-stack transactions: op-revm's, without one payment for calls that pay nothing.

use std::convert::Infallible;

use op_revm::{OpHaltReason, OpTransactionError, api::exec::OpContextTr, handler::OpHandler};
use revm::{
    Database,
    context::result::{EVMError, ExecutionResult, ResultGas},
    context_interface::{Cfg, ContextTr},
    handler::{EthFrame, EvmTr, FrameResult, Handler},
    inspector::{Inspector, InspectorEvmTr, InspectorHandler},
    interpreter::{InitialAndFloorGas, interpreter::EthInterpreter},
};

pub(super) type OpError = EVMError<Infallible, OpTransactionError>;

/// op-revm's handler, which credits the base fee vault for all gas, except for calls that skip the base fee check. Such
/// a call has paid nothing, so the vault gets nothing, as in op-geth: no ether is created.
pub(super) struct CallHandler<E>(OpHandler<E, OpError, EthFrame>);

impl<E> CallHandler<E> {
    pub fn new() -> Self {
        Self(OpHandler::new())
    }
}

impl<E> Handler for CallHandler<E>
where
    E: EvmTr<Context: OpContextTr<Db: Database<Error = Infallible>>, Frame = EthFrame>,
{
    type Evm = E;
    type Error = OpError;
    type HaltReason = OpHaltReason;

    fn reward_beneficiary(&self, evm: &mut E, result: &mut FrameResult) -> Result<(), OpError> {
        if evm.ctx_ref().cfg().is_base_fee_check_disabled() {
            return Ok(());
        }
        self.0.reward_beneficiary(evm, result)
    }

    fn validate_env(&self, evm: &mut E) -> Result<(), OpError> {
        self.0.validate_env(evm)
    }

    fn validate_against_state_and_deduct_caller(
        &self,
        evm: &mut E,
        gas: &mut InitialAndFloorGas,
    ) -> Result<(), OpError> {
        self.0.validate_against_state_and_deduct_caller(evm, gas)
    }

    fn last_frame_result(&mut self, evm: &mut E, result: &mut FrameResult) -> Result<(), OpError> {
        self.0.last_frame_result(evm, result)
    }

    fn reimburse_caller(&self, evm: &mut E, result: &mut FrameResult) -> Result<(), OpError> {
        self.0.reimburse_caller(evm, result)
    }

    fn refund(&self, evm: &mut E, result: &mut FrameResult, eip7702_refund: i64) {
        self.0.refund(evm, result, eip7702_refund);
    }

    fn execution_result(
        &mut self,
        evm: &mut E,
        result: FrameResult,
        gas: ResultGas,
    ) -> Result<ExecutionResult<OpHaltReason>, OpError> {
        self.0.execution_result(evm, result, gas)
    }

    fn catch_error(&self, evm: &mut E, error: OpError) -> Result<ExecutionResult<OpHaltReason>, OpError> {
        self.0.catch_error(evm, error)
    }
}

impl<E> InspectorHandler for CallHandler<E>
where
    E: InspectorEvmTr<
            Context: OpContextTr<Db: Database<Error = Infallible>>,
            Frame = EthFrame,
            Inspector: Inspector<<E as EvmTr>::Context, EthInterpreter>,
        >,
{
    type IT = EthInterpreter;
}
