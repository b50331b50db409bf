//! The EVM of the OP stack's chains.

use alloy_consensus::Header;
use alloy_evm::EvmEnv;
use revm::{
    Inspector,
    context::{TxEnv, result::ExecutionResult},
    handler::Handler,
    inspector::InspectorHandler,
};

use super::{OpBlockFees, OpHandler, gasless::with_gasless};
use crate::{
    chain::{ChainSpec, OpFork, OpTx},
    engine::evm::family::{Error, FamilyEvm, Host, RunEvm},
};

/// The family of the OP stack, with deposits, and fees for the cost of a transaction on L1.
#[derive(Clone, Copy, Debug)]
pub struct OpStack;

impl FamilyEvm for OpStack {
    type Spec = OpFork;
    type Tx = OpTx;
    type Chain = OpBlockFees;

    const HAS_VAULTS: bool = true;
    const HAS_REQUESTS: bool = false;

    fn env(spec: &ChainSpec, header: &Header) -> EvmEnv<OpFork> {
        spec.op_evm_env(header)
    }

    fn unsigned(call: TxEnv) -> OpTx {
        OpTx::unsigned(call)
    }

    fn waived() -> OpBlockFees {
        OpBlockFees::waived()
    }

    fn refunded(tx: OpTx, refund: u64) -> OpTx {
        OpTx { refund, ..tx }
    }

    fn with_gas_limit(tx: OpTx, gas: u64) -> OpTx {
        OpTx { base: TxEnv { gas_limit: gas, ..tx.base }, ..tx }
    }

    fn handle(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        with_gasless(evm, |evm| OpHandler::default().run(evm))
    }

    fn handle_system_call(evm: &mut RunEvm<'_, Self>) -> Result<ExecutionResult, Error> {
        OpHandler::default().run_system_call(evm)
    }

    fn inspect<'a, I: Inspector<Host<'a, Self>>>(evm: &mut RunEvm<'a, Self, I>) -> Result<ExecutionResult, Error> {
        with_gasless(evm, |evm| OpHandler::default().inspect_run(evm))
    }
}
