//! Blocks that run twice: each transaction by the rules of its block and by another fork's rules, on the same state.

mod compare;
mod divergence;
mod follow;

pub use compare::DifferentParts;
pub use divergence::{Cause, DivergentStep, StepKind, StepPlace, op_name};

use std::{convert::Infallible, fmt::Display};

use alloy_consensus::Transaction;
use alloy_evm::Evm;
use alloy_primitives::Address;
use revm::{
    DatabaseCommit,
    context::result::{EVMError, ResultAndState},
};

use self::{compare::Outcome, follow::follow};
use super::{
    call::overridden,
    error::SimulationError,
    evm::{FamilyEvm, RunEvm, TxSetup},
    families::by_family,
    replay::{check_gas, failure, replay},
    request::BlockOverrides,
};
use crate::{
    chain::ChainSpec,
    ledger::{Block, Included},
    state::Overlay,
};

/// A transaction that has run by the rules of its block, and by another fork's rules.
#[derive(Debug)]
pub struct ShadowedTx {
    /// Gas used by the other rules. `None` if the transaction is invalid by them.
    pub gas_under: Option<u64>,
    /// The difference, if there is one besides gas, fees and the logs of transfers (EIP-7708).
    pub difference: Option<Box<Difference>>,
}

/// The difference between the two runs of a transaction.
#[derive(Debug)]
pub struct Difference {
    /// The parts of the outcomes that differ. Empty if the transaction is invalid by the other rules.
    pub parts: DifferentParts,
    /// Whether the transaction succeeds by the other rules.
    pub success_under: bool,
    /// The reason why the transaction is invalid by the other rules.
    pub invalid: Option<String>,
    /// The step at which the runs diverge. `None` if they have the same steps, or none.
    pub at: Option<DivergentStep>,
    /// The cause.
    pub cause: Cause,
    /// The contracts concerned: the ones that run where the runs diverge, the innermost first, and then the ones whose
    /// state or logs differ.
    pub contracts: Vec<Address>,
    /// Whether the transaction would succeed by the other rules with 1.5 and with 2 times its gas limit, the cap on a transaction's gas and
    /// its sender's funds aside.
    pub succeeds_with: [bool; 2],
}

/// The multiples of a gas limit of [`Difference::succeeds_with`], in halves.
const MORE_GAS: [u64; 2] = [3, 4];

/// Runs each transaction of `block` by the rules of `under`, and again by the rules of its own chain (`spec`), and
/// passes the differences to `take`. `overlay` must be over the state of the block's parent. The steps of a
/// transaction that differs may take `limit` bytes.
///
/// # Errors
///
/// Returns the error of `take`, or an error of [`replay`].
pub fn shadow_block<E: From<SimulationError>>(
    spec: &ChainSpec,
    under: &ChainSpec,
    block: &Block,
    limit: usize,
    overlay: &mut Overlay,
    take: impl FnMut(&Included<'_>, ShadowedTx) -> Result<(), E>,
) -> Result<(), E> {
    by_family!(spec, F => Shadow::<F>::new(spec, under, block, limit).run(overlay, take))
}

/// A block, and the two sets of rules to run it with.
struct Shadow<'a, F: FamilyEvm> {
    block: &'a Block,
    own: Rules<'a, F>,
    under: Rules<'a, F>,
    limit: usize,
}

/// A set of rules, and the block's environment under it.
struct Rules<'a, F: FamilyEvm> {
    spec: &'a ChainSpec,
    env: alloy_evm::EvmEnv<F::Spec>,
}

impl<F: FamilyEvm> Rules<'_, F> {
    fn setup(&self, included: &Included<'_>) -> TxSetup<F> {
        TxSetup::included(included.tx, included.refund, self.spec, self.env.clone())
    }

    /// Runs a transaction, and leaves its changes to the caller.
    fn transact(&self, setup: TxSetup<F>, overlay: &mut Overlay) -> Result<ResultAndState, EVMError<Infallible>> {
        let mut evm = RunEvm::<F>::new(overlay, setup.env, setup.precompiles);
        let ran = evm.transact_raw(setup.tx);
        evm.finish();
        ran
    }
}

impl<'a, F: FamilyEvm> Shadow<'a, F> {
    fn new(spec: &'a ChainSpec, under: &'a ChainSpec, block: &'a Block, limit: usize) -> Self {
        let header = block.context();
        let other = overridden(under, header, &BlockOverrides::default());
        Self {
            block,
            own: Rules { spec, env: F::env(spec, header) },
            under: Rules { spec: under, env: F::env(under, &other) },
            limit,
        }
    }

    fn run<E: From<SimulationError>>(
        &self,
        overlay: &mut Overlay,
        mut take: impl FnMut(&Included<'_>, ShadowedTx) -> Result<(), E>,
    ) -> Result<(), E> {
        replay(self.own.spec, self.block, 0, overlay)?;
        // A post-execution transaction runs no code.
        for included in self.block.transactions().filter(|included| included.tx.as_post_exec().is_none()) {
            overlay.meter.between_calls().map_err(SimulationError::from)?;
            let other = self.under.transact(self.under.setup(&included), overlay);
            let own = self.own.transact(self.own.setup(&included), overlay);
            if overlay.has_missed() {
                // The run is repeated, and continues to find what else it will miss.
                if let Ok(own) = own {
                    let fails = other.map_or(true, |other| other.result.is_success() != own.result.is_success());
                    if fails {
                        self.succeeds_with_more(&included, overlay)?;
                    }
                    overlay.commit(own.state);
                }
                continue;
            }
            let own = own.map_err(|error| self.failed(&included, error, overlay))?;
            check_gas(&included, own.result.tx_gas_used(), included.evm_gas_used())
                .map_err(|mismatch| failure(self.block, mismatch, overlay))?;
            let shadowed = self.compare(&included, &own, other, overlay)?;
            overlay.commit(own.state);
            if !overlay.has_missed() {
                take(&included, shadowed)?;
            }
        }
        Ok(())
    }

    fn failed(&self, included: &Included<'_>, error: impl Display, overlay: &Overlay) -> SimulationError {
        failure(self.block, format!("transaction {}: {error}", included.index), overlay)
    }

    fn compare(
        &self,
        included: &Included<'_>,
        own: &ResultAndState,
        other: Result<ResultAndState, EVMError<Infallible>>,
        overlay: &mut Overlay,
    ) -> Result<ShadowedTx, SimulationError> {
        let other = match other {
            Ok(other) => other,
            Err(EVMError::Transaction(invalid)) => {
                let difference = Difference {
                    parts: DifferentParts::empty(),
                    success_under: false,
                    cause: Cause::of_invalid(&invalid),
                    invalid: Some(invalid.to_string()),
                    at: None,
                    contracts: included.tx.to().into_iter().collect(),
                    succeeds_with: self.succeeds_with_more(included, overlay)?,
                };
                return Ok(ShadowedTx { gas_under: None, difference: Some(difference.into()) });
            }
            Err(error) => return Err(self.failed(included, error, overlay)),
        };
        let fees = |ran, rules: &Rules<'_, F>| Outcome::new::<F>(ran, included, &rules.env.block_env, overlay);
        let (own, other) = (fees(own, &self.own), fees(&other, &self.under));
        let gas_under = Some(other.gas_used());
        let compared = own.compare(&other, overlay);
        if compared.parts.is_empty() {
            return Ok(ShadowedTx { gas_under, difference: None });
        }
        let success_under = other.is_success();
        let setups = (self.own.setup(included), self.under.setup(included));
        let followed = follow::<F>(setups.0, setups.1, self.limit, overlay);
        if let Some(stopped) = overlay.meter.stopped() {
            return Err(stopped.into());
        }
        let mut contracts = followed.contracts;
        contracts.extend(compared.accounts);
        contracts.extend(included.tx.to().filter(|_| contracts.is_empty()));
        let mut seen = alloy_primitives::map::AddressSet::default();
        contracts.retain(|contract| seen.insert(*contract));
        let difference = Difference {
            parts: compared.parts,
            success_under,
            invalid: None,
            at: followed.at,
            // A run may be stopped before its first step.
            cause: match followed.cause {
                Cause::Protocol => other.halt().or(own.halt()).unwrap_or(Cause::Protocol),
                cause => cause,
            },
            contracts,
            succeeds_with: self.succeeds_with_more(included, overlay)?,
        };
        Ok(ShadowedTx { gas_under, difference: Some(difference.into()) })
    }

    /// Returns whether a transaction would succeed by the other rules with more gas, ignoring its limit and the
    /// sender's funds.
    fn succeeds_with_more(&self, included: &Included<'_>, overlay: &mut Overlay) -> Result<[bool; 2], SimulationError> {
        let mut succeeds = [false; 2];
        for (halves, succeeds) in MORE_GAS.into_iter().zip(&mut succeeds) {
            let mut setup = self.under.setup(included);
            let cfg = &mut setup.env.cfg_env;
            cfg.tx_gas_limit_cap = Some(u64::MAX);
            cfg.disable_balance_check = true;
            cfg.disable_block_gas_limit = true;
            setup.tx = F::with_gas_limit(setup.tx, included.tx.gas_limit().saturating_mul(halves) / 2);
            let ran = self.under.transact(setup, overlay);
            if let Some(stopped) = overlay.meter.stopped() {
                return Err(stopped.into());
            }
            *succeeds = ran.is_ok_and(|ran| ran.result.is_success());
        }
        Ok(succeeds)
    }
}
