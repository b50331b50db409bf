//! Runs of signed bundles (`eth_callBundle`), with the fields that Flashbots documents.

use std::time::Duration;

use alloy_eips::BlockHashOrNumber;
use alloy_primitives::{Address, I256, U256};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    engine::{
        BlockOverrides, BundleResult, BundleTx, CallOutcome, HaltText, RunError, SimBlock, SimCall, SimulationError,
    },
    ledger::{Chain, Selector},
    rpc::{
        json::{
            OrNull, Shape,
            hex::{Data, Fixed, Number},
            shapes,
        },
        params::{IndexParam, SelectorParam, ShapeLimits, check_count, transaction},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Runs signed transactions in the block that they are meant for: at pending, after the transactions of the block
/// being built. If the block cannot include one of them, all are refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the bundle")]
pub struct CallBundle {
    bundle: BundleParam,
}

/// A bundle, with the fields that Flashbots documents.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SignedBundle")]
#[serde(rename_all = "camelCase")]
struct BundleParam {
    /// Signed transactions of any type, with or without their blobs.
    #[schemars(length(min = 1))]
    txs: Vec<Data>,
    block_number: Number<u64>,
    /// The block whose state the bundle runs on.
    state_block_number: SelectorParam,
    timestamp: Option<Number<u64>>,
    coinbase: Option<Fixed<20>>,
    gas_limit: Option<Number<u64>>,
    difficulty: Option<Number<U256>>,
    base_fee: Option<Number<u64>>,
    /// Milliseconds; 0 selects the node's default.
    timeout: Option<Number<u64>>,
    /// The number of transactions of the state's block that run first; -1 for all of them.
    transaction_index: Option<IndexParam>,
}

impl BundleParam {
    /// Returns the block of the bundle, with its transactions decoded and their senders recovered.
    fn block(&self, limits: &ShapeLimits) -> Result<SimBlock> {
        check_count(self.txs.len(), limits.max_block_calls)?;
        let call =
            |(index, raw)| Ok(SimCall::Signed(Box::new(transaction(raw, format_args!("params[0].txs[{index}]"))?)));
        let calls = self.txs.iter().enumerate().map(call).collect::<Result<_>>()?;
        let block = BlockOverrides {
            number: Some(self.block_number.0),
            time: self.timestamp.map(|time| time.0),
            fee_recipient: self.coinbase.map(Address::from),
            gas_limit: self.gas_limit.map(|gas| gas.0),
            difficulty: self.difficulty.map(|difficulty| difficulty.0),
            base_fee: self.base_fee.map(|fee| fee.0),
            ..BlockOverrides::default()
        };
        Ok(SimBlock { calls, block, ..SimBlock::default() })
    }

    /// Returns the state on which the bundle runs.
    fn state(&self, published: &Chain) -> Result<Selector> {
        let selector = Selector::from(self.state_block_number);
        let Some(IndexParam(Some(count))) = self.transaction_index else { return Ok(selector) };
        let block = match selector {
            Selector::Number(number) => BlockHashOrNumber::Number(number),
            Selector::Hash(hash) => BlockHashOrNumber::Hash(hash),
            Selector::Snapshot(_) | Selector::Within { .. } => {
                let text =
                    "params[0].transactionIndex: expected a block in stateBlockNumber, and not a state within one";
                return Err(RpcError::params(text));
            }
            tag => BlockHashOrNumber::Number(published.select(tag)?.header().number),
        };
        Ok(Selector::Within { block, count })
    }
}

impl Method for CallBundle {
    type Answer = CallBundleResult;
    const EXAMPLE: Example = Example {
        params: r#"[{"txs": ["0x02f86e827a6980847735940085174876e80083030d409400000000000000000000000000000000000c01ba0180c001a012646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da7a07b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c33"], "blockNumber": "0x2", "stateBlockNumber": "0x1"}]"#,
        answer: r#"{"bundleGasPrice": "1000000000", "bundleHash": "0x73b1e258c7a42fd0230b2fd05529c5d4b6fcb66c227783f8bece8aeacdd1db2e", "coinbaseDiff": "21000000000000", "ethSentToCoinbase": "0", "gasFees": "21000000000000", "results": [], "stateBlockNumber": 1, "totalGasUsed": 21000}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = self.bundle.block(&backend.limits.shape)?;
        let selected = backend.select(run, self.bundle.state(run.published)?);
        let snapshot = selected.map_err(|error| match error {
            RpcError::Answer(_) => error.with_message(|text| match text.starts_with("transactionIndex") {
                true => format!("params[0].{text}"),
                false => text.to_owned(),
            }),
            error => error,
        })?;
        // Zero leaves the node's own limit.
        run.limit_time(
            self.bundle.timeout.filter(|timeout| timeout.0 > 0).map(|timeout| Duration::from_millis(timeout.0)),
        );
        let rules = backend.rules(run.dialect);
        let result = backend.engine(&rules, run.reset_to(&snapshot)).call_bundle(&snapshot, &block);
        let result = result.map_err(|error| refusal(error, &block))?;
        let gas_used = result.transactions.iter().map(|tx| tx.result.gas_used).sum();
        backend.gas.increment(gas_used);
        CallBundleResult::write(&mut run.out, (&result, gas_used));
        Ok(())
    }
}

shapes! {
    /// The result of `eth_callBundle`. Wei are decimal strings, gas and block numbers are JSON numbers. A producer's loss
    /// is negative, as in mev-geth. alloy's `EthCallBundleResponse` reads every result without a loss.
    pub CallBundleResult: (&BundleResult, u64) => |(bundle, gas_used)| let {
        let transactions = &bundle.transactions;
        let diff = transactions.iter().fold(I256::ZERO, |sum, tx| sum.wrapping_add(tx.coinbase_diff));
        let fees = transactions.iter().fold(U256::ZERO, |sum, tx| sum.wrapping_add(tx.gas_fees));
    } {
        bundleGasPrice: String = price(diff, gas_used),
        bundleHash: Fixed<32> = bundle.hash,
        coinbaseDiff: String = diff.to_string(),
        ethSentToCoinbase: String = diff.wrapping_sub(I256::from_raw(fees)).to_string(),
        gasFees: String = fees.to_string(),
        results: Vec<TxResult> = transactions,
        stateBlockNumber: u64 = bundle.state_block_number,
        totalGasUsed: u64 = gas_used,
    }

    /// The result of a transaction of the bundle.
    TxResult: &BundleTx => |tx| let {
        let (gas_used, output) = (tx.result.gas_used, &tx.result.return_data);
        let (value, error, revert) = match &tx.result.outcome {
            CallOutcome::Success => (Some(output), None, None),
            CallOutcome::Revert => {
                (None, Some("execution reverted".to_owned()), Some(output).filter(|data| !data.is_empty()))
            }
            CallOutcome::Halt(reason) => (None, Some(HaltText(reason.clone()).to_string()), None),
        };
    } {
        coinbaseDiff: String = tx.coinbase_diff.to_string(),
        ethSentToCoinbase: String = tx.coinbase_diff.wrapping_sub(I256::from_raw(tx.gas_fees)).to_string(),
        fromAddress: Fixed<20> = tx.from,
        gasFees: String = tx.gas_fees.to_string(),
        gasPrice: String = price(tx.coinbase_diff, gas_used),
        gasUsed: u64 = gas_used,
        toAddress: Option<Fixed<20>> = Some(OrNull(tx.to)),
        txHash: Fixed<32> = tx.hash,
        value: Option<Data> = value,
        error: Option<String> = error,
        revert: Option<Data> = revert,
    }
}

/// Converts the error of a bundle, and names the field of the request that caused it.
fn refusal(RunError { index, error }: RunError, bundle: &SimBlock) -> RpcError {
    match (*error, index) {
        (SimulationError::BlockNumber { number, previous }, _) => RpcError::params(format!(
            "params[0].blockNumber: {number}: expected a block after the state block, {previous}, or, at pending, the block being built"
        )),
        (SimulationError::BlockTime { time, previous }, _) => RpcError::params(format!(
            "params[0].timestamp: {time}: expected a time after that of the previous block, {previous}"
        )),
        (error, index) => {
            let error = RpcError::from(error).outside_simulation();
            match index.and_then(|index| Some((index.call, bundle.calls.get(index.call)?))) {
                Some((index, SimCall::Signed(tx))) => {
                    error.with_message(|text| format!("params[0].txs[{index}] ({}): {text}", tx.tx_hash()))
                }
                _ => error,
            }
        }
    }
}

/// Returns the producer's gain in wei per gas, rounded down. `gas_used` is not zero: a transaction always uses gas.
fn price(diff: I256, gas_used: u64) -> String {
    let gas = I256::try_from(gas_used).ok().filter(|gas| !gas.is_zero());
    gas.map_or(I256::ZERO, |gas| diff.div_euclid(gas)).to_string()
}
