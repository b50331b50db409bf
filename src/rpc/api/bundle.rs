//! Runs of signed bundles (`eth_callBundle`), with the fields that Flashbots documents.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, I256, U256};
use serde::{Serialize, Serializer};

use crate::rpc::run::{Backend, Run};
use crate::{
    engine::{BundleResult, BundleTx, CallOutcome, HaltText, RunError, SimBlock, SimCall, SimulationError},
    rpc::{
        json,
        params::ParsedBundle,
        protocol::error::{Result, RpcError},
    },
};

/// The result of `eth_callBundle`. Wei are decimal strings, gas and block numbers are JSON numbers. A producer's loss
/// is negative, as in mev-geth. alloy's `EthCallBundleResponse` reads every result without a loss.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CallBundleResult {
    #[serde(serialize_with = "decimal")]
    bundle_gas_price: I256,
    bundle_hash: B256,
    #[serde(serialize_with = "decimal")]
    coinbase_diff: I256,
    #[serde(serialize_with = "decimal")]
    eth_sent_to_coinbase: I256,
    #[serde(serialize_with = "decimal")]
    gas_fees: U256,
    results: Vec<TxResult>,
    state_block_number: u64,
    total_gas_used: u64,
}

/// The result of a transaction of the bundle.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TxResult {
    #[serde(serialize_with = "decimal")]
    coinbase_diff: I256,
    #[serde(serialize_with = "decimal")]
    eth_sent_to_coinbase: I256,
    from_address: Address,
    #[serde(serialize_with = "decimal")]
    gas_fees: U256,
    #[serde(serialize_with = "decimal")]
    gas_price: I256,
    gas_used: u64,
    to_address: Option<Address>,
    tx_hash: B256,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revert: Option<Bytes>,
}

impl Backend {
    pub fn call_bundle(&self, run: &mut Run<'_>, ParsedBundle { bundle, state, timeout }: ParsedBundle) -> Result<()> {
        let snapshot = self.select(run.published, state)?;
        let timeout = timeout.filter(|timeout| *timeout > 0).map(Duration::from_millis);
        if let Some(deadline) = timeout.and_then(|timeout| Instant::now().checked_add(timeout)) {
            run.meter.limit_time(deadline);
        }
        let rules = self.rules(run.dialect);
        let result = self.engine(&rules, run.reset_to(&snapshot)).call_bundle(&snapshot, &bundle);
        let result = result.map_err(|error| refusal(error, &bundle))?;
        let result = CallBundleResult::from(result);
        self.gas.increment(result.total_gas_used);
        json::value(&mut run.out, &result);
        Ok(())
    }
}

/// Converts the error of a bundle, and names the field of the request that caused it.
fn refusal(RunError { place, error }: RunError, bundle: &SimBlock) -> RpcError {
    match (*error, place) {
        (SimulationError::BlockNumber { number, previous }, _) => RpcError::params(format!(
            "params[0].blockNumber: {number}: expected a block after the state block, {previous}, or, at pending, the block being built"
        )),
        (SimulationError::BlockTime { time, previous }, _) => RpcError::params(format!(
            "params[0].timestamp: {time}: expected a time after that of the previous block, {previous}"
        )),
        (error, place) => {
            let error = RpcError::from(error).outside_simulation();
            match place.and_then(|place| Some((place.call, bundle.calls.get(place.call)?))) {
                Some((index, SimCall::Signed(tx))) => {
                    error.with_message(|text| format!("params[0].txs[{index}] ({}): {text}", tx.tx_hash()))
                }
                _ => error,
            }
        }
    }
}

impl From<BundleResult> for CallBundleResult {
    fn from(bundle: BundleResult) -> Self {
        let results: Vec<TxResult> = bundle.transactions.into_iter().map(TxResult::from).collect();
        let total_gas_used = results.iter().map(|tx| tx.gas_used).sum();
        let coinbase_diff = results.iter().fold(I256::ZERO, |sum, tx| sum.wrapping_add(tx.coinbase_diff));
        let gas_fees = results.iter().fold(U256::ZERO, |sum, tx| sum.wrapping_add(tx.gas_fees));
        Self {
            bundle_gas_price: price(coinbase_diff, total_gas_used),
            bundle_hash: bundle.hash,
            coinbase_diff,
            eth_sent_to_coinbase: coinbase_diff.wrapping_sub(I256::from_raw(gas_fees)),
            gas_fees,
            results,
            state_block_number: bundle.state_block_number,
            total_gas_used,
        }
    }
}

impl From<BundleTx> for TxResult {
    fn from(tx: BundleTx) -> Self {
        let gas_used = tx.result.gas_used;
        let output = tx.result.return_data;
        let (value, error, revert) = match tx.result.outcome {
            CallOutcome::Success => (Some(output), None, None),
            CallOutcome::Revert => {
                (None, Some("execution reverted".to_owned()), Some(output).filter(|data| !data.is_empty()))
            }
            CallOutcome::Halt(reason) => (None, Some(HaltText(reason).to_string()), None),
        };
        Self {
            coinbase_diff: tx.coinbase_diff,
            eth_sent_to_coinbase: tx.coinbase_diff.wrapping_sub(I256::from_raw(tx.gas_fees)),
            from_address: tx.from,
            gas_fees: tx.gas_fees,
            gas_price: price(tx.coinbase_diff, gas_used),
            gas_used,
            to_address: tx.to,
            tx_hash: tx.hash,
            value,
            error,
            revert,
        }
    }
}

/// Returns the producer's gain in wei per gas, rounded down. `gas_used` is not zero: a transaction always uses gas.
fn price(diff: I256, gas_used: u64) -> I256 {
    I256::try_from(gas_used).ok().filter(|gas| !gas.is_zero()).map_or(I256::ZERO, |gas| diff.div_euclid(gas))
}

fn decimal<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
