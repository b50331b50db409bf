//! The result of `presim_search`.

use alloy_primitives::U256;
use schemars::JsonSchema;

use super::request::ResultForm;
use crate::rpc::json::{Object, hex::Quantity, list, quantity_u256, string};
use crate::{
    engine::{Variant, VariantEnd},
    rpc::{
        api::simulate::{DroppedCall, SimulatedBlocks, SimulationView, write_simulation},
        protocol::{dialect::Dialect, error::Result},
    },
    search::SearchOutcome,
};

/// The outcome of a search.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the handler writes it")]
pub struct Found {
    /// The best variants, the best first.
    best: Vec<FoundVariant>,
    /// The number of variants that ran.
    runs: usize,
    /// Whether all variants ran in time.
    complete: bool,
    /// The fork whose rules the first block has.
    fork: &'static str,
    /// The best variant's outputs, if they are asked for.
    result: Option<SimulatedBlocks>,
}

/// A variant, and how it ended.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the handler writes it")]
struct FoundVariant {
    /// The values of the fields that vary.
    values: Vec<Quantity<U256>>,
    /// A decimal number, which may be negative.
    objective: Option<String>,
    gas_used: Option<Quantity<u64>>,
    /// 1 if all calls ended as they had to, and the objective is at least that which is required.
    status: Quantity<u64>,
    /// The first call that did not end as it had to.
    dropped: Option<DroppedCall>,
    /// The error of a variant that cannot run.
    error: Option<RefusedVariant>,
}

/// The error of a variant that cannot run.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the handler writes it")]
struct RefusedVariant {
    code: i32,
    message: String,
}

/// Writes the outcome of a search, with the best variant's result if that is shown. `limit` is the most bytes of a
/// response.
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
    list(object.key("best"), &outcome.best, variant);
    object.number("runs", outcome.runs);
    object.key("complete").extend_from_slice(if outcome.complete { b"true" } else { b"false" });
    string(object.key("fork"), outcome.fork);
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

fn variant(out: &mut Vec<u8>, variant: &Variant) {
    let mut object = Object::new(out);
    list(object.key("values"), &variant.values, |out, value: &U256| quantity_u256(out, *value));
    match &variant.end {
        VariantEnd::Ran { objective, gas_used, is_enough, succeeded } => {
            string(object.key("objective"), &objective.to_string());
            object.quantity("gasUsed", *gas_used).quantity("status", u64::from(*is_enough && *succeeded));
        }
        VariantEnd::Dropped(index) => {
            object.quantity("status", 0);
            let mut dropped = Object::new(object.key("dropped"));
            dropped.number("block", index.block).number("call", index.call);
            dropped.end();
        }
        VariantEnd::Refused(message, code) => {
            object.quantity("status", 0);
            let mut error = Object::new(object.key("error"));
            error.key("code").extend_from_slice(code.to_string().as_bytes());
            string(error.key("message"), message);
            error.end();
        }
    }
    object.end();
}
