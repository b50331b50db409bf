//! `mev_simBundle`: a bundle in MEV-Share's format, run as `presim_simulate` runs signed transactions. Its profit and
//! refunds are counted as in Flashbots' builder.

mod request;

pub use self::request::SimBundle;

use std::time::Duration;

use alloy_primitives::{I256, TxHash, U256};
use alloy_rpc_types_eth::Log;
use schemars::JsonSchema;
use serde::Serialize;

use self::request::{MevBundle, MevPart, SimBundleRequest};
use super::{Example, Method};
use crate::{
    engine::{CallOutcome, CallResult, HaltText, NumberedLog, Simulated, SimulationError},
    rpc::{
        json::{
            self,
            hex::{Data, Quantity},
        },
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Gas that a transaction which pays a refund may use, as in Flashbots' builder.
const REFUND_GAS: u64 = 30_000;

/// The outcome of a bundle.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SimBundleResult {
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    state_block: Quantity<u64>,
    mev_gas_price: Quantity<U256>,
    profit: Quantity<U256>,
    refundable_value: Quantity<U256>,
    gas_used: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Vec<ItemLogs>>,
    /// The reason for which a transaction failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    exec_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revert: Option<Data>,
}

/// The logs of an item of a bundle: of a transaction, or of the items of a bundle.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ItemLogs {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<json::Log>>")]
    tx_logs: Option<Vec<Log>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle_logs: Option<Vec<Self>>,
}

impl Method for SimBundle {
    type Answer = SimBundleResult;
    const EXAMPLE: Example = Example {
        params: r#"[{"version": "v0.1", "inclusion": {"block": "0x2"}, "body": [{"tx": "0x02f86e827a6980847735940085174876e80083030d409400000000000000000000000000000000000c01ba0180c001a012646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da7a07b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c33", "canRevert": false}]}, {"parentBlock": "0x1"}]"#,
        answer: r#"{"success": true, "stateBlock": "0x1", "mevGasPrice": "0x3b9aca00", "profit": "0x1319718a5000", "refundableValue": "0x1319718a5000", "gasUsed": "0x5208", "logs": [{"txLogs": []}]}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let SimBundleRequest { bundle, simulation, parent, timeout } = self.into_request(&backend.limits.shape)?;
        let snapshot = backend.select(run, parent)?;
        run.limit_time(timeout.filter(|timeout| *timeout > 0).map(Duration::from_millis));
        let (rules, client) = (backend.rules(run.dialect), run.client);
        let asked = simulation.blocks.first().and_then(|block| block.block.number);
        let number = asked.unwrap_or_else(|| snapshot.head.header.number.saturating_add(1));
        let state_block = Quantity(snapshot.header().number);
        let mut response = SimBundleResult { state_block, ..SimBundleResult::default() };
        let done = match bundle.may_land_in(number) {
            false => Err(SimulationError::Refused(format!("invalid inclusion: the bundle is not for block {number}"))),
            true => {
                let mut engine = backend.engine(&rules, run.reset_to(&snapshot));
                backend.beginnings.simulate(&mut engine, client, &snapshot, &simulation)
            }
        };
        match done {
            Ok(done) => {
                backend.gas.increment(done.gas_used);
                fill_response(&bundle, &done, number, &mut response);
            }
            Err(SimulationError::BlockNumber { number, previous }) => {
                return Err(RpcError::params(format!(
                    "params[1].blockNumber: {number}: expected a block after parentBlock, {previous}"
                )));
            }
            Err(SimulationError::BlockTime { time, previous }) => {
                return Err(RpcError::params(format!(
                    "params[1].timestamp: {time}: expected a time after that of the previous block, {previous}"
                )));
            }
            Err(
                error @ (SimulationError::Stopped(_)
                | SimulationError::Internal(_)
                | SimulationError::TooManyBlocks { .. }),
            ) => return Err(RpcError::from(error).outside_simulation()),
            // A refusal by the chain is an answer here.
            Err(error) => response.error = Some(error.to_string()),
        }
        json::value(&mut run.out, &response);
        Ok(())
    }
}

impl MevBundle {
    /// Returns whether the block may include the bundle and all bundles in it.
    fn may_land_in(&self, number: u64) -> bool {
        self.blocks.contains(&number)
            && self.items.iter().all(|item| match &item.part {
                MevPart::Tx(_) => true,
                MevPart::Bundle(bundle) => bundle.may_land_in(number),
            })
    }
}

/// Writes the profit of a bundle that has run to `response`.
fn fill_response(bundle: &MevBundle, done: &Simulated, number: u64, response: &mut SimBundleResult) {
    let Some(block) = done.blocks.iter().find(|block| !block.filler) else { return };
    if let Some(failed) = block.calls.iter().rfind(|call| call.outcome != CallOutcome::Success) {
        response.exec_error = Some(match &failed.outcome {
            CallOutcome::Halt(reason) => HaltText(reason.clone()).to_string(),
            _ => "execution reverted".to_owned(),
        });
        response.revert = Some(Data(failed.return_data.clone())).filter(|data| !data.0.is_empty());
    }
    // A transaction that breaks the bundle is the last, and counts for nothing.
    let ran = match done.dropped {
        Some(_) => block.calls.split_last().map_or(&[][..], |(_, before)| before),
        None => &block.calls,
    };
    let mut account = BundleAccount { base_fee: block.base_fee, number, left: ran, index: 0 };
    let (earned, logs) = account.of(bundle);
    let unsigned = |value: I256| U256::try_from(value).unwrap_or_default();
    response.gas_used = Quantity(earned.gas);
    response.refundable_value = Quantity(unsigned(earned.refundable));
    response.error = match () {
        () if done.dropped.is_some() => Some("tx failed".to_owned()),
        () if !earned.pays || earned.profit.is_negative() => Some("negative profit".to_owned()),
        () => None,
    };
    let profit = unsigned(earned.profit);
    response.profit = Quantity(profit);
    if response.error.is_none() {
        response.success = true;
        response.mev_gas_price = Quantity(profit.checked_div(U256::from(earned.gas)).unwrap_or_default());
        response.logs = Some(logs);
    }
}

/// The earnings of a bundle.
struct BundleEarnings {
    /// Wei that the producer keeps.
    profit: I256,
    /// Wei that the items without a refund have paid to the producer.
    refundable: I256,
    /// Gas of the transactions and of the refunds' payments.
    gas: u64,
    /// Whether each refund is worth its payment.
    pays: bool,
}

/// The walk through the results of a bundle's transactions.
struct BundleAccount<'a> {
    base_fee: u64,
    number: u64,
    /// The results that are not yet accounted for.
    left: &'a [CallResult],
    /// The index of the first of them.
    index: u64,
}

impl BundleAccount<'_> {
    fn of(&mut self, bundle: &MevBundle) -> (BundleEarnings, Vec<ItemLogs>) {
        let mut all = BundleEarnings { profit: I256::ZERO, refundable: I256::ZERO, gas: 0, pays: true };
        let mut logs = Vec::with_capacity(bundle.items.len());
        for item in &bundle.items {
            let before = self.left;
            match &item.part {
                MevPart::Tx(hash) => {
                    let Some((call, left)) = self.left.split_first() else { break };
                    logs.push(ItemLogs { tx_logs: Some(self.logs_of(call, *hash)), bundle_logs: None });
                    (self.left, self.index) = (left, self.index + 1);
                    all.gas += call.gas_used;
                }
                MevPart::Bundle(inner) => {
                    let (earned, inner) = self.of(inner);
                    logs.push(ItemLogs { tx_logs: None, bundle_logs: Some(inner) });
                    all.gas += earned.gas;
                    all.pays &= earned.pays && !earned.profit.is_negative();
                }
            }
            // A nested bundle pays its refunds itself: its transactions' payments to the producer count here.
            let ran = &before[..before.len() - self.left.len()];
            let income = ran.iter().filter_map(|call| call.income).fold(I256::ZERO, I256::saturating_add);
            all.profit = all.profit.saturating_add(income);
            if item.refund.is_none() {
                all.refundable = all.refundable.saturating_add(income);
            }
        }
        for item in &bundle.items {
            let Some(percent) = item.refund else { continue };
            let gas = REFUND_GAS * item.part.recipients();
            let cost = U256::from(gas) * U256::from(self.base_fee);
            let refund = U256::try_from(all.refundable).unwrap_or_default().saturating_mul(U256::from(percent))
                / U256::from(100);
            all.gas += gas;
            all.pays &= cost <= refund;
            all.profit = all.profit.saturating_sub(I256::try_from(refund).unwrap_or(I256::MAX));
        }
        (all, logs)
    }

    fn logs_of(&self, call: &CallResult, hash: TxHash) -> Vec<Log> {
        let log = |log: &NumberedLog| Log {
            inner: log.log.clone(),
            block_number: Some(self.number),
            transaction_hash: Some(hash),
            transaction_index: Some(self.index),
            log_index: Some(log.number),
            ..Log::default()
        };
        call.logs.iter().map(log).collect()
    }
}
