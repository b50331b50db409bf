//! `eth_call`, and the gas and the access list that a call needs.

use alloy_eips::eip2930::AccessList;
use alloy_primitives::TxKind;
use revm::context::result::ExecutionResult;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;

use super::{Example, Method, trace::trace_calls};
use crate::{
    engine::{Accessed, BlockOverrides, Call, CallRequest, ConsoleOutput, Estimate, HaltText, SimBlock},
    ledger::{Selector, Snapshot},
    rpc::{
        json::{
            self, AccessListItem, Shape,
            hex::{Data, Quantity},
            shapes,
        },
        params::{
            BlockOverridesParam, CallObject, ManyRequest, SelectorParam, StateOverridesParam, call_block_overrides,
            require, select, state_overrides,
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
        run::{Attempt, Backend},
    },
};

/// A call with its overrides, and the block that it runs on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "1 to 4 parameters: call, block, state overrides, block overrides")]
#[schemars(inline)]
struct CallParams {
    call: CallObject,
    #[serde(default)]
    block: Option<SelectorParam>,
    #[serde(default)]
    state_overrides: Option<StateOverridesParam>,
    #[serde(default)]
    block_overrides: Option<BlockOverridesParam>,
}

impl CallParams {
    /// Returns the parameters of `method`.
    fn into_request(self, method: &str, dialect: &Dialect) -> Result<CallRequest> {
        Ok(CallRequest {
            call: self.call.into_call("params[0]", dialect)?,
            state: state_overrides(self.state_overrides, "params[2]")?,
            block: call_block_overrides(self.block_overrides, "params[3]", method)?,
        })
    }
}

/// Runs a call again, and prints the lines that it logs.
fn print_lines(
    backend: &Backend,
    run: &mut Attempt<'_>,
    console: &ConsoleOutput,
    selector: Selector,
    request: CallRequest,
) -> Result<()> {
    if run.overlay.has_missed() {
        // The request runs again.
        return Ok(());
    }
    run.meter = std::mem::take(&mut run.overlay.meter);
    let CallRequest { call, state, block } = request;
    let bundles = vec![SimBlock { calls: vec![call.into()], block, ..SimBlock::default() }];
    let calls = ManyRequest { state, bundles, selector, index: None, timeout: None };
    let path = |_, _| "params[0]".to_owned();
    let traces = trace_calls(backend, run, &calls, &[ConsoleOutput::tracer()], "params[1]", path)?;
    traces.iter().flatten().for_each(|trace| console.print(trace));
    Ok(())
}

/// Runs a call on the state of a block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transform = requires_block)]
pub struct EthCall(CallParams);

/// Marks the block as one that `/` requires.
fn requires_block(schema: &mut Schema) {
    if let Some(block) = schema.get_mut("properties").and_then(|fields| fields.get_mut("block")) {
        block["x-needed"] = "on /".into();
    }
}

impl Method for EthCall {
    type Answer = Data;
    const EXAMPLE: Example = Example {
        params: r#"[{"to": "0x5fbdb2315678afecb367f032d93f642f64180aa3", "data": "0x18160ddd"}, "pending"]"#,
        answer: r#""0x0000000000000000000000000000000000000000000000000de0b6b3a7640000""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let dialect = run.dialect;
        let block = self.0.block;
        let (request, selector) = (self.0.into_request("eth_call", dialect)?, require(block, dialect)?);
        let snapshot = backend.select(run, selector)?;
        let rules = backend.rules(dialect);
        run.by = backend.by(Some(&request.block));
        let result = backend
            .engine(&rules, run.reset_to(&snapshot))
            .call(snapshot.header(), &request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        backend.gas.increment(result.tx_gas_used());
        if let Some(console) = backend.console.as_ref().filter(|console| console.awaits(run.overlay)) {
            print_lines(backend, run, console, selector, request)?;
        }
        match result {
            ExecutionResult::Success { output, .. } => {
                json::data(&mut run.out, output.data());
                Ok(())
            }
            ExecutionResult::Revert { output, .. } => Err((dialect.revert)(output)),
            ExecutionResult::Halt { reason, .. } => Err(RpcError::new(-32000, HaltText(reason).to_string())),
        }
    }
}

/// The smallest gas limit with which a call succeeds on the state of a block: to the unit, not within a tolerance.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct EstimateGas(CallParams);

impl Method for EstimateGas {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example {
        params: r#"[{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}, "latest"]"#,
        answer: r#""0x5208""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = self.0.block;
        let request = self.0.into_request("eth_estimateGas", run.dialect)?;
        let snapshot = backend.select(run, select(block))?;
        let gas = match run.dialect.for_tests && is_transfer(run, &snapshot, &request) {
            true => TRANSFER_GAS,
            false => needed_gas(backend, &snapshot, &request, run)?,
        };
        json::quantity(&mut run.out, gas);
        Ok(())
    }
}

/// The gas of a transfer of ether to an account without code.
const TRANSFER_GAS: u64 = 21_000;

/// Returns whether a call does nothing but transfer ether to an account without code.
fn is_transfer(run: &Attempt<'_>, snapshot: &Snapshot, request: &CallRequest) -> bool {
    let CallRequest { call: Call { to, data, access_list, authorization_list, blob_hashes, .. }, state, block } =
        request;
    let TxKind::Call(to) = to else { return false };
    let is_plain = data.is_empty() && access_list.is_none() && authorization_list.is_none() && blob_hashes.is_none();
    is_plain
        && state.is_empty()
        && *block == BlockOverrides::default()
        && run.overlay.look_up(&snapshot.world, *to).is_some_and(|account| account.is_empty_code_hash())
}

/// Returns the smallest gas limit, within the dialect's tolerance, with which a call succeeds on `snapshot`.
///
/// # Errors
///
/// Returns the error of the call, or -32000 if its sender cannot pay for the gas.
pub fn needed_gas(backend: &Backend, snapshot: &Snapshot, request: &CallRequest, run: &mut Attempt<'_>) -> Result<u64> {
    run.by = backend.by(Some(&request.block));
    let (dialect, rules) = (run.dialect, backend.rules(run.dialect));
    let estimate = backend
        .engine(&rules, run.reset_to(snapshot))
        .estimate_gas(snapshot.header(), request)
        .map_err(|error| RpcError::from(error).outside_simulation())?;
    match estimate {
        Estimate::Gas { limit, simulated } => {
            backend.gas.increment(simulated);
            Ok(limit)
        }
        Estimate::Revert(data) => Err((dialect.revert)(data)),
        Estimate::Halt(reason) => Err(RpcError::new(-32000, HaltText(reason).to_string())),
        Estimate::TooLittle(allowance) => {
            Err(RpcError::new(-32000, format!("gas required exceeds allowance ({allowance})")))
        }
    }
}

/// The access list (EIP-2930) of a call on the state of a block, and the gas that the call uses with it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CreateAccessList(CallParams);

shapes! {
    /// The result of `eth_createAccessList`.
    pub AccessListResult: (&AccessList, Option<String>, u64) => |(list, error, gas_used)| {
        accessList: Vec<AccessListItem> = &list.0,
        /// The reason for which the call failed, if it did.
        error: Option<String> = error,
        gasUsed: Quantity<u64> = gas_used,
    }
}

impl Method for CreateAccessList {
    type Answer = AccessListResult;
    const EXAMPLE: Example = Example {
        params: r#"[{"to": "0x00000000000000000000000000000000000000aa"}, "latest"]"#,
        answer: r#"{"accessList": [], "gasUsed": "0x5208"}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = self.0.block;
        let request = self.0.into_request("eth_createAccessList", run.dialect)?;
        let snapshot = backend.select(run, select(block))?;
        let rules = backend.rules(run.dialect);
        run.by = backend.by(Some(&request.block));
        let Accessed { list, result, simulated } = backend
            .engine(&rules, run.reset_to(&snapshot))
            .create_access_list(snapshot.header(), &request)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        backend.gas.increment(simulated);
        let gas_used = result.tx_gas_used();
        let error = match result {
            ExecutionResult::Success { .. } => None,
            ExecutionResult::Revert { .. } => Some("execution reverted".to_owned()),
            ExecutionResult::Halt { reason, .. } => Some(HaltText(reason).to_string()),
        };
        AccessListResult::write(&mut run.out, (&list, error, gas_used));
        Ok(())
    }
}
