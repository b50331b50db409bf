//! `eth_callMany`, and the position in a block where bundles run.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};

use crate::rpc::run::{Attempt, Backend};
use crate::{
    engine::{CallOutcome, CallResult, HaltText, RunError},
    rpc::{
        json::{CallError, Shape, hex::Data, shapes},
        params::{
            CallManyBundleParam, ManyRequest, Milliseconds, StateContextParam, StateOverridesParam, into_bundles,
            state_overrides,
        },
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

/// Runs bundles of calls, each on the state left by the previous ones.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "1 to 4 parameters: bundles, state context, state overrides, timeout in milliseconds"
)]
pub struct CallMany {
    /// The bundles, which run one after another. A bundle without overrides of its block runs in the block after the
    /// previous bundle's: number and timestamp plus one.
    bundles: Vec<CallManyBundleParam>,
    /// The block on whose state the bundles run, by default the latest, and the number of its transactions that run first.
    #[serde(default)]
    state_context: Option<StateContextParam>,
    /// Applied once, before the first call.
    #[serde(default)]
    state_overrides: Option<StateOverridesParam>,
    /// Milliseconds, which can only shorten the node's own limit; 0 leaves it.
    #[serde(default)]
    timeout: Option<Milliseconds>,
}

shapes! {
    /// The value that a call returned, or its error: an object on /, and a text on /standard.
    pub CalledValue: (&CallResult, &Dialect) => |(call, dialect)| let {
        let error = match &call.outcome {
            CallOutcome::Success => None,
            CallOutcome::Revert => Some((dialect.revert)(call.return_data.clone())),
            CallOutcome::Halt(reason) => Some(RpcError::new(-32000, HaltText(reason.clone()).to_string())),
        };
    } {
        value: Option<Data> = error.is_none().then_some(&call.return_data),
        error: Option<CallError> = error.map(|error| (error, dialect.many_error)),
    }
}

impl Method for CallMany {
    type Answer = Vec<Vec<CalledValue>>;
    const EXAMPLE: Example = Example {
        params: r#"[[{"transactions": [{"to": "0x00000000000000000000000000000000000000aa"}]}], {"blockNumber": "latest"}]"#,
        answer: r#"[[{"value": "0x"}]]"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (dialect, rules) = (run.dialect, backend.rules(run.dialect));
        let (selector, index) = self.state_context.unwrap_or_default().into_position();
        let state = state_overrides(self.state_overrides, "params[2]")?;
        let bundles = into_bundles(self.bundles, "eth_callMany", dialect, &backend.limits.shape)?;
        // Zero sets no limit, as in Erigon, which defines the method.
        let timeout = self.timeout.filter(|time| time.0 > 0).map(|time| Duration::from_millis(time.0));
        let request = ManyRequest { state, bundles, selector, index, timeout };
        run.by = backend.by(request.bundles.first().map(|bundle| &bundle.block));
        let (snapshot, overlay) = backend.set_up(&request, "params[1].transactionIndex", run)?;
        let done = backend
            .engine(&rules, overlay)
            .call_many(&snapshot, &request.state, &request.bundles, &[])
            .map_err(|error| refusal(error, in_bundles))?;
        backend.gas.increment(done.gas_used);
        let bundles = done.blocks.iter().map(|bundle| bundle.calls.iter().map(|call| (call, dialect)));
        Vec::<Vec<CalledValue>>::write(&mut run.out, bundles);
        Ok(())
    }
}

/// Returns the path of a bundle's call in the parameters.
pub fn in_bundles(bundle: usize, call: usize) -> String {
    format!("params[0][{bundle}].transactions[{call}]")
}

/// Converts the error of bundles, and names the call that caused it.
pub fn refusal(RunError { index, error }: RunError, path: impl FnOnce(usize, usize) -> String) -> RpcError {
    let error = RpcError::from(*error).outside_simulation();
    match index {
        Some(index) => error.with_message(|text| format!("{}: {text}", path(index.block, index.call))),
        None => error,
    }
}
