//! geth's traces: of calls, and of the transactions of blocks, which run again on the state before them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    options::Options,
    run::{find_block, find_traced, replay, trace_call, trace_calls},
    schema::{Trace, TracedTransaction},
};
use crate::{
    engine::SimBlock,
    rpc::{
        api::{Example, Method, many::in_bundles},
        json::{self, hex::Fixed},
        params::{
            CallManyBundleParam, CallObject, ManyRequest, NamesBlock, SelectorParam, StateContextParam, into_bundles,
            select,
        },
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// Traces a call on the state of a block, or in the middle of one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 to 3 parameters: call, block, options")]
pub struct Call {
    call: CallObject,
    #[serde(default)]
    block: Option<SelectorParam>,
    #[serde(default)]
    options: Option<Options>,
}

impl Method for Call {
    type Answer = Trace;
    const EXAMPLE: Example = Example {
        params: r#"[{"to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}, "latest", {"tracer": "callTracer"}]"#,
        answer: r#"{"from": "0x0000000000000000000000000000000000000000", "gas": "0x2faf080", "gasUsed": "0x5208", "to": "0x00000000000000000000000000000000000000aa", "input": "0x", "value": "0x1", "type": "CALL"}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let mut options = self.options.unwrap_or_default();
        let (block, state) = options.take_overrides("debug_traceCall")?;
        let calls = vec![self.call.into_call("params[0]", run.dialect)?.into()];
        let (tracer, timeout) = options.tracer("params[2]", run.dialect)?;
        let bundles = vec![SimBlock { calls, block, ..SimBlock::default() }];
        let index = options.tx_index.map(|index| index.0);
        trace_call(backend, run, &ManyRequest { state, bundles, selector: select(self.block), index, timeout }, tracer)
    }
}

/// Traces bundles of calls, each on the state left by the previous ones.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", expecting = "1 to 3 parameters: bundles, state context, options")]
pub struct CallMany {
    /// The bundles, which run one after another. A bundle without overrides of its block runs in the block after the
    /// previous bundle's: number and timestamp plus one.
    bundles: Vec<CallManyBundleParam>,
    /// The block on whose state the bundles run, by default the latest, and the number of its transactions that run first.
    #[serde(default)]
    state_context: Option<StateContextParam>,
    #[serde(default)]
    options: Option<Options>,
}

impl Method for CallMany {
    type Answer = Vec<Vec<Trace>>;
    const EXAMPLE: Example = Example {
        params: r#"[[{"transactions": [{"to": "0x00000000000000000000000000000000000000aa"}]}], {"blockNumber": "latest"}, {"tracer": "4byteTracer"}]"#,
        answer: "[[{}]]",
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        const NAME: &str = "debug_traceCallMany";
        let mut options = self.options.unwrap_or_default();
        if options.tx_index.is_some() {
            return Err(RpcError::params(
                "params[2].txIndex: not supported by debug_traceCallMany: use params[1].transactionIndex",
            ));
        }
        let (selector, index) = self.state_context.unwrap_or_default().into_position();
        let mut bundles = into_bundles(self.bundles, NAME, run.dialect, &backend.limits.shape)?;
        let (all, state) = options.take_overrides(NAME)?;
        // The overrides of the options apply to all bundles. A bundle's own overrides take precedence.
        for (index, bundle) in bundles.iter_mut().enumerate() {
            bundle.block = std::mem::take(&mut bundle.block).or(&all, index == 0);
        }
        let (tracer, timeout) = options.tracer("params[2]", run.dialect)?;
        let calls = ManyRequest { state, bundles, selector, index, timeout };
        let bundles = trace_calls(backend, run, &calls, &[tracer], "params[1].transactionIndex", in_bundles)?;
        json::try_list(&mut run.out, &bundles, |out, bundle| {
            json::try_list(out, bundle, |out, trace| json::trace(out, trace, backend.limits.max_response))
        })
    }
}

/// Traces the transactions of a block, which run again on the state before it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: block, options")]
pub struct Block<B> {
    block: B,
    #[serde(default)]
    options: Option<Options>,
}

impl<B: NamesBlock> Method for Block<B> {
    type Answer = Vec<TracedTransaction>;
    const EXAMPLE: Example = Example {
        params: r#"["0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", {"tracer": "noopTracer"}]"#,
        answer: r#"[{"txHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "result": {}}]"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (tracer, timeout) = self.options.unwrap_or_default().tracer_of_past(run.dialect)?;
        let block = find_block(backend, run.published, self.block.into())?;
        run.limit_time(timeout);
        run.out.push(b'[');
        replay(backend, run, &block, 0..block.len(), &tracer, |out, included, trace| {
            if included.index > 0 {
                out.push(b',');
            }
            let mut object = json::Object::new(out);
            object.data("txHash", included.tx.tx_hash().as_slice());
            json::trace(object.key("result"), &trace, backend.limits.max_response)?;
            object.end();
            Ok(())
        })?;
        run.out.push(b']');
        Ok(())
    }
}

/// Traces a transaction of a block, which runs again on the state before it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: a transaction's hash, options")]
pub struct Transaction {
    hash: Fixed<32>,
    #[serde(default)]
    options: Option<Options>,
}

impl Method for Transaction {
    type Answer = Trace;
    const EXAMPLE: Example = Example {
        params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#,
        answer: r#"{"gas": 21000, "failed": false, "returnValue": "0x", "structLogs": []}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let (tracer, timeout) = self.options.unwrap_or_default().tracer_of_past(run.dialect)?;
        let (block, index) = find_traced(run.published, self.hash)?;
        run.limit_time(timeout);
        replay(backend, run, &block, index..index + 1, &tracer, |out, _, trace| {
            json::trace(out, &trace, backend.limits.max_response)
        })
    }
}
