//! `eth_callMany`, and the position in a block where bundles run.

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};

use crate::rpc::run::{Backend, Run};
use crate::{
    engine::{self, CallOutcome, CallResult, HaltText, RunError},
    ledger::{Block, Selector, Snapshot},
    rpc::{
        json::{self, Lookup, hex::Data, schema::CallError},
        params::{
            CallManyBundleParam, ManyRequest, Milliseconds, StateContextParam, StateOverridesParam, into_bundles,
            state_overrides,
        },
        protocol::{
            dialect::{Dialect, ErrorForm},
            error::{Result, RpcError},
        },
    },
    state::Overlay,
};

/// Runs bundles of calls, each on what those before it left.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "1 to 4 parameters: bundles, state context, state overrides, timeout in milliseconds"
)]
pub struct CallMany {
    /// The bundles, which run one after another. A bundle without overrides of its block runs in the block after that of the one
    /// before: number and timestamp plus one.
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

/// The value that a call returned, or its error: an object on /, and a text on /standard.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the handler writes it")]
pub struct CalledValue {
    value: Option<Data>,
    error: Option<CallError>,
}

impl Method for CallMany {
    type Answer = Vec<Vec<CalledValue>>;
    const EXAMPLE: Example = Example {
        params: r#"[[{"transactions": [{"to": "0x00000000000000000000000000000000000000aa"}]}], {"blockNumber": "latest"}]"#,
        answer: r#"[[{"value": "0x"}]]"#,
    };

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        let (dialect, rules) = (run.dialect, backend.rules(run.dialect));
        let (selector, index) = self.state_context.unwrap_or_default().into_position();
        let state = state_overrides(self.state_overrides, "params[2]")?;
        let bundles = into_bundles(self.bundles, "eth_callMany", dialect, &backend.limits.shape)?;
        // Zero sets no limit, as in Erigon, which defines the method.
        let timeout = self.timeout.filter(|time| time.0 > 0).map(|time| Duration::from_millis(time.0));
        let request = ManyRequest { state, bundles, selector, index, timeout };
        let (snapshot, overlay) = backend.set_up(&request, "params[1].transactionIndex", run)?;
        let done = backend
            .engine(&rules, overlay)
            .call_many(&snapshot, &request.state, &request.bundles, &[])
            .map_err(|error| refusal(error, in_bundles))?;
        backend.gas.increment(done.gas_used);
        json::list(&mut run.out, &done.blocks, |out, bundle| {
            json::list(out, &bundle.calls, |out, result| call_result(out, result, dialect));
        });
        Ok(Lookup::Found)
    }
}

impl Backend {
    /// Sets up the overlay for the calls of `request`: after the whole block, or after some of its transactions, which
    /// are replayed. `path` is the field of their count, for errors. Returns the block's snapshot and the overlay.
    ///
    /// # Errors
    ///
    /// Returns those of [`set_up_at`](Self::set_up_at).
    pub fn set_up<'a>(
        &self,
        request: &ManyRequest,
        path: &str,
        run: &'a mut Run<'_>,
    ) -> Result<(Arc<Snapshot>, &'a mut Overlay)> {
        run.limit_time(request.timeout);
        self.set_up_at(run, request.selector, request.index, path)
    }

    /// Sets up the overlay after the first `index` transactions of a block, or after the whole block. `path` is the
    /// field of the index, for errors. Returns the block's snapshot and the overlay.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the block has fewer transactions, or that its state or its body is not known.
    pub fn set_up_at<'a>(
        &self,
        run: &'a mut Run<'_>,
        selector: Selector,
        index: Option<u64>,
        path: &str,
    ) -> Result<(Arc<Snapshot>, &'a mut Overlay)> {
        let snapshot = self.select(run.published, selector)?;
        let Some(index) = index else {
            let overlay = run.reset_to(&snapshot);
            return Ok((snapshot, overlay));
        };
        let block = Block::newest(&snapshot).ok_or_else(|| run.published.no_body(snapshot.header().number))?;
        let (number, transactions) = (block.number(), block.len());
        let count = usize::try_from(index).ok().filter(|count| *count <= transactions).ok_or_else(|| {
            RpcError::params(format!("{path}: {index}: out of range: block {number} has {transactions} transactions"))
        })?;
        let parent = number.checked_sub(1).ok_or_else(|| {
            RpcError::params(format!("{path}: no transaction in genesis: omit the field, or name another block"))
        })?;
        let parent = run.published.select(Selector::Number(parent))?;
        let overlay = run.reset_to(&parent);
        engine::replay(&self.spec, &block, count, overlay)?;
        Ok((snapshot, overlay))
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

fn call_result(out: &mut Vec<u8>, result: &CallResult, dialect: &Dialect) {
    let mut object = json::Object::new(out);
    let error = match &result.outcome {
        CallOutcome::Success => {
            object.data("value", &result.return_data);
            return object.end();
        }
        CallOutcome::Revert => (dialect.revert)(result.return_data.clone()),
        CallOutcome::Halt(reason) => RpcError::new(-32000, HaltText(reason.clone()).to_string()),
    };
    let (out, error) = (object.key("error"), error.into_object());
    match dialect.many_error {
        ErrorForm::Text => json::string(out, error.message()),
        ErrorForm::Object => json::value(out, &error),
    }
    object.end();
}
