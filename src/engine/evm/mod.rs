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
        TxEnv,
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
    let mut evm = run::inner::<F, I>(overlay, env, precompiles, inspector, run::Memory::fresh());
    evm.ctx.chain = F::waived(number);
    F::inspect(evm, F::unsigned(call))
}
