//! The parameters of `eth_feeHistory`.

use super::{SelectorParam, parse};
use crate::{
    ledger::Selector,
    rpc::{
        dialect::Dialect,
        error::{Result, RpcError},
        hex::Number,
    },
};

/// Maximum number of percentiles in a request, as in geth.
const MAX_PERCENTILES: usize = 100;

params! {
    FeeHistoryParams(Number<u64>, SelectorParam; Vec<f64>)
        = "2 or 3 parameters: block count, newest block, reward percentiles";
}

/// The parsed parameters of `eth_feeHistory`.
#[derive(Debug)]
pub struct FeeHistoryRequest {
    /// The number of blocks.
    pub count: u64,
    /// The newest block.
    pub newest: Selector,
    /// Percentiles of the tips paid, from 0 to 100 in ascending order. `None` if no rewards are requested.
    pub percentiles: Option<Vec<f64>>,
}

/// Parses the number of blocks, the newest block, and percentiles from 0 to 100 in ascending order.
pub fn parse_fee_history(params: &str, dialect: &Dialect) -> Result<FeeHistoryRequest> {
    let FeeHistoryParams(Number(count), SelectorParam(newest), percentiles, ()) = parse(params, dialect)?;
    if let Some(list) = &percentiles {
        if list.len() > MAX_PERCENTILES {
            return Err(RpcError::params(format!("params[2]: {} percentiles: at most {MAX_PERCENTILES}", list.len())));
        }
        if let Some(index) = list.iter().position(|percentile| !(0.0..=100.0).contains(percentile)) {
            return Err(RpcError::params(format!(
                "params[2][{index}]: invalid percentile {}: expected 0 to 100",
                list[index]
            )));
        }
        if let Some(index) = list.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(RpcError::params(format!(
                "params[2][{}]: invalid percentile: less than the one before it: expected ascending order",
                index + 1
            )));
        }
    }
    // geth omits the rewards if the list of percentiles is empty.
    let percentiles = percentiles.filter(|list| !list.is_empty());
    Ok(FeeHistoryRequest { count, newest, percentiles })
}
