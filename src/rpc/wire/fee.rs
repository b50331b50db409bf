//! The history of fees.

use serde::Deserialize;

use super::{SelectorParam, parse};
use crate::{
    rpc::{dialect::Dialect, error::RpcError, hex::Number},
    state::Selector,
};

/// Percentiles of one request: geth's bound.
const MOST_PERCENTILES: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(expecting = "2 or 3 parameters: block count, newest block, reward percentiles")]
struct FeeHistoryParams(Number<u64>, SelectorParam, #[serde(default)] Option<Vec<f64>>);

/// What `eth_feeHistory` asks for.
#[derive(Debug)]
pub struct FeeHistoryRequest {
    /// How many blocks.
    pub count: u64,
    /// The newest of them.
    pub newest: Selector,
    /// Which percentiles of the tips paid, rising; none where nobody wants to know.
    pub percentiles: Option<Vec<f64>>,
}

/// A number of blocks, the newest of them, and percentiles from 0 to 100 in rising order.
pub fn parse_fee_history(params: &str, dialect: &Dialect) -> Result<FeeHistoryRequest, RpcError> {
    let FeeHistoryParams(Number(count), SelectorParam(newest), percentiles) = parse(params, dialect)?;
    if let Some(list) = &percentiles {
        if list.len() > MOST_PERCENTILES {
            return Err(RpcError::params(format!("params[2]: {} percentiles: at most {MOST_PERCENTILES}", list.len())));
        }
        if let Some(index) = list.iter().position(|percentile| !(0.0..=100.0).contains(percentile)) {
            return Err(RpcError::params(format!(
                "params[2][{index}]: invalid percentile {}: expected 0 to 100",
                list[index]
            )));
        }
        if let Some(index) = list.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(RpcError::params(format!(
                "params[2][{}]: invalid percentile: less than the one before it: expected a rising order",
                index + 1
            )));
        }
    }
    // geth leaves the rewards out where no percentile is asked for.
    let percentiles = percentiles.filter(|list| !list.is_empty());
    Ok(FeeHistoryRequest { count, newest, percentiles })
}
