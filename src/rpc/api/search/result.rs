//! The result of `presim_search`.

use alloy_primitives::U256;
use schemars::JsonSchema;

use super::request::ResultForm;
use crate::{
    engine::{Variant, VariantEnd},
    rpc::{
        api::simulate::{DroppedCall, SimulatedBlocks, SimulationView, write_simulation},
        json::{Fields, Object, hex::Quantity, shapes},
        protocol::{dialect::Dialect, error::Result},
    },
    search::SearchOutcome,
};

/// The outcome of a search.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the handler writes it")]
pub struct Found {
    #[serde(flatten)]
    outcome: Outcome,
    /// The best variant's outputs, if requested.
    result: Option<SimulatedBlocks>,
}

shapes! {
    Outcome: &SearchOutcome => |outcome| {
        /// The best variants, the best first.
        best: Vec<FoundVariant> = &outcome.best,
        /// The number of variants that ran.
        runs: usize = outcome.runs,
        /// Whether all variants ran in time.
        complete: bool = outcome.complete,
        /// The fork whose rules apply to the first block.
        fork: String = outcome.fork,
    }

    /// A variant, and how it ended.
    FoundVariant: &Variant => |variant| let {
        let (ran, dropped, error) = match &variant.end {
            VariantEnd::Ran { objective, gas_used, is_enough, succeeded } => {
                (Some((objective.to_string(), *gas_used, *is_enough && *succeeded)), None, None)
            }
            VariantEnd::Dropped(index) => (None, Some(*index), None),
            VariantEnd::Refused(message, code) => (None, None, Some((*code, message))),
        };
    } {
        /// The values of the fields that vary.
        values: Vec<Quantity<U256>> = variant.values.iter().copied(),
        /// A decimal number, which may be negative.
        objective: Option<String> = ran.as_ref().map(|(objective, ..)| objective),
        gasUsed: Option<Quantity<u64>> = ran.as_ref().map(|(_, gas, _)| *gas),
        /// 1 if all calls ended as they had to, and the objective is at least that which is required.
        status: Quantity<u64> = u64::from(ran.is_some_and(|(.., is_good)| is_good)),
        /// The first call that did not end as it had to.
        dropped: Option<DroppedCall> = dropped,
        /// The error of a variant that cannot run.
        error: Option<RefusedVariant> = error,
    }

    /// The error of a variant that cannot run.
    RefusedVariant: (i32, &String) => |(code, message)| {
        code: i32 = code,
        message: String = message,
    }
}

/// Writes the outcome of a search, with the best variant's result if it is shown. `limit` is the maximum length of a
/// response in bytes.
///
/// # Errors
///
/// Returns -32005 if the best variant's result becomes longer than the limit.
pub fn write(
    out: &mut Vec<u8>,
    outcome: &SearchOutcome,
    form: &ResultForm,
    dialect: &'static Dialect,
    limit: usize,
) -> Result<()> {
    let mut object = Object::new(out);
    Outcome::write_fields(&mut object, outcome);
    if let Some(simulated) = &outcome.shown {
        let view = SimulationView {
            dialect,
            names_fork: true,
            outputs: form.outputs,
            full_transactions: form.full_transactions,
            errors: Some(&form.errors),
            reads: outcome.reads.as_ref(),
            limit,
        };
        write_simulation(object.key("result"), simulated, &view)?;
    }
    object.end();
    Ok(())
}
