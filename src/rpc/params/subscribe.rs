//! The id of a filter.

use super::parse;
use crate::rpc::{
    json::hex::Quantity,
    protocol::{dialect::Dialect, error::Result},
};

params! {
    SubscriptionIdParams(Quantity<u64>) = "1 parameter: the id of a subscription or filter";
}

/// Parses the id of a filter.
pub fn parse_id(params: &str, dialect: &Dialect) -> Result<u64> {
    let SubscriptionIdParams(Quantity(id), ()) = parse(params, dialect)?;
    Ok(id)
}
