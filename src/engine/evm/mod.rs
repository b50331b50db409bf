//! The EVM that runs are made with: Ethereum's, its loops metered.

mod meter;
mod run;

pub use run::RunEvm;

use alloy_evm::{EthEvm, EvmEnv, eth::EthEvmContext};
use revm::{Context, Inspector, MainBuilder, MainContext};

use super::precompiles::RunPrecompiles;
use crate::state::Overlay;

type Host<'a> = EthEvmContext<&'a mut Overlay>;

/// An EVM over `overlay` in `env` that shows each step to `inspector`. It stops where the overlay's meter says so, as [`RunEvm`] does.
pub(super) fn inspected_evm<'a, I: Inspector<Host<'a>>>(
    overlay: &'a mut Overlay,
    env: EvmEnv,
    precompiles: RunPrecompiles,
    inspector: I,
) -> EthEvm<&'a mut Overlay, I, RunPrecompiles> {
    let mut evm = Context::mainnet()
        .with_block(env.block_env)
        .with_cfg(env.cfg_env)
        .with_db(overlay)
        .build_mainnet_with_inspector(inspector)
        .with_precompiles(precompiles);
    meter::meter(&mut evm.instruction);
    EthEvm::new(evm, true)
}
