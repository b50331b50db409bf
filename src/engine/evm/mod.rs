//! The EVM of runs. It follows the rules of its chain's family, and its loops are metered.

mod family;
mod interpret;
mod meter;
mod op_handler;
mod run;

pub use family::{Ethereum, FamilyEvm, OpStack};
pub use run::RunEvm;

use std::convert::Infallible;

use alloy_evm::EvmEnv;
use revm::{
    Inspector,
    context::{
        ContextSetters, TxEnv,
        result::{EVMError, ResultAndState},
    },
};

use super::precompiles::RunPrecompiles;
use crate::state::Overlay;

pub(super) use family::Host;

/// Runs a call over `overlay` in `env`, and shows each step to `inspector`. As in [`RunEvm`], the meter may stop it.
pub(super) fn inspect<'a, F: FamilyEvm, I: Inspector<Host<'a, F>>>(
    overlay: &'a mut Overlay,
    env: EvmEnv<F::Spec>,
    precompiles: RunPrecompiles,
    inspector: I,
    call: TxEnv,
) -> Result<ResultAndState, EVMError<Infallible>> {
    let number = env.block_env.number;
    let mut evm = RunEvm::<F, I>::inspected(overlay, env, precompiles, inspector);
    evm.inner.ctx.chain = F::waived(number);
    evm.inner.ctx.set_tx(F::unsigned(call));
    let result = F::inspect(&mut evm);
    let state = evm.inner.ctx.journaled_state.inner.finalize();
    result.map(|result| ResultAndState::new(result, state))
}
