//! The EVM of runs. It follows the rules of its chain's family, and its loops are metered.

mod family;
mod interpret;
mod meter;
mod op;
mod reads;
mod run;

pub use family::{Ethereum, FamilyEvm, RunEvm};
pub use op::{OpBlockFees, OpStack};

use std::convert::Infallible;

use alloy_consensus::transaction::Recovered;
use alloy_evm::{EvmEnv, FromRecoveredTx};
use revm::{
    Inspector,
    context::{
        ContextSetters, TxEnv,
        result::{EVMError, ResultAndState},
    },
};

use super::precompiles::RunPrecompiles;
use crate::{
    chain::{ChainSpec, ChainTx},
    state::Overlay,
};

pub(super) use family::{Host, MAX_TX_GAS_LIMIT};
pub(super) use op::OpBlock;
pub(super) use reads::delegate_of;

/// A transaction that is ready to run once, with its environment and precompiles.
#[derive(Debug)]
pub(super) struct TxSetup<F: FamilyEvm> {
    pub tx: F::Tx,
    /// The fee data of an unsigned call. `None` for a signed transaction, which pays all fees of its chain.
    pub waived: Option<F::Chain>,
    pub env: EvmEnv<F::Spec>,
    pub precompiles: RunPrecompiles,
}

impl<F: FamilyEvm> TxSetup<F> {
    /// Sets up an unsigned call, which pays nothing besides its gas.
    pub fn unsigned(call: TxEnv, env: EvmEnv<F::Spec>, precompiles: RunPrecompiles) -> Self {
        Self { tx: call.into(), waived: Some(F::waived()), env, precompiles }
    }

    /// Sets up a transaction of `env`'s block, which refunds this gas to it.
    pub fn included(tx: &Recovered<ChainTx>, refund: u64, chain: &ChainSpec, env: EvmEnv<F::Spec>) -> Self {
        let precompiles = RunPrecompiles::of(chain, env.cfg_env.spec);
        let tx = F::refunded(F::Tx::from_recovered_tx(tx.inner(), tx.signer()), refund);
        Self { tx, waived: None, env, precompiles }
    }
}

/// Runs a transaction over `overlay`, and shows each step to `inspector`. As in [`RunEvm`], the meter may stop it.
pub(super) fn inspect<'a, F: FamilyEvm, I: Inspector<Host<'a, F>>>(
    overlay: &'a mut Overlay,
    setup: TxSetup<F>,
    inspector: I,
) -> Result<ResultAndState, EVMError<Infallible>> {
    let mut evm = RunEvm::<F, I>::inspected(overlay, setup.env, setup.precompiles, inspector);
    let is_signed = setup.waived.is_none();
    evm.inner.ctx.chain = setup.waived.unwrap_or_default();
    evm.inner.ctx.set_tx(setup.tx);
    evm.note_transaction_if_recorded(is_signed);
    let result = F::inspect(&mut evm);
    let state = evm.inner.ctx.journaled_state.inner.finalize();
    result.map(|result| ResultAndState::new(result, state))
}
