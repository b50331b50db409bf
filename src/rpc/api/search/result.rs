//! The result of `presim_search`.

use alloy_primitives::U256;

use crate::rpc::json::{Object, list, quantity_u256, string};
use crate::{
    engine::{Simulated, Variant, VariantEnd},
    rpc::{
        api::simulate::{SimulationView, write_simulation},
        protocol::error::Result,
    },
};

/// Writes the best variants of a search, and the result of the best one if it is asked for. `runs` is the number of
/// variants that ran.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than the view's limit.
pub fn write(
    out: &mut Vec<u8>,
    best: &[Variant],
    runs: usize,
    complete: bool,
    result: Option<(&Simulated, SimulationView<'_>)>,
) -> Result<()> {
    let mut object = Object::new(out);
    list(object.key("best"), best, variant);
    object.number("runs", runs);
    object.key("complete").extend_from_slice(if complete { b"true" } else { b"false" });
    if let Some((simulated, view)) = result {
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
        VariantEnd::Dropped(place) => {
            object.quantity("status", 0);
            let mut dropped = Object::new(object.key("dropped"));
            dropped.number("block", place.block).number("call", place.call);
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
