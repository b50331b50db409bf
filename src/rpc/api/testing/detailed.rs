//! Mining with the blocks as the answer.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::changes::{MineOptions, Testing, mine_by};
use crate::{
    engine::{Trace, Tracer, revert_reason},
    ledger::Block,
    objects,
    rpc::{
        api::{Example, Serve, trace::replay},
        json::{self, Shape},
        params,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    source::testing::ChainChange,
};

/// With --testing: mines a block, or several. Returns them with their transactions, each with its `output`, and with the `revertReason`
/// if it has failed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "at most 1 parameter: a timestamp, or an object of timestamp and blocks")]
pub struct MineDetailed {
    /// The timestamp of the first block, or an object.
    #[serde(default)]
    options: Option<MineOptions>,
}

impl Serve for MineDetailed {
    type Part = Testing;
    type Answer = Vec<json::Block>;
    const EXAMPLE: Example = Example { params: r#"[{"blocks": 0}]"#, answer: "[]" };

    async fn serve<'a>(testing: &'a Testing, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { options } = params::parse(&request.params, request.caller.dialect)?;
        let change = mine_by(options);
        let ChainChange::Mine { blocks, .. } = change else { return Err(RpcError::internal("another change")) };
        testing.make(&request, change).await?;
        let published = runner.published();
        let write = move |backend: &Backend, run: &mut Attempt<'_>| write(backend, run, blocks);
        runner.write(Request { published, ..request }, write).await
    }
}

/// Writes the newest `count` blocks.
fn write(backend: &Backend, run: &mut Attempt<'_>, count: u64) -> Result<()> {
    let newest = run.published.head().number();
    let mut blocks = Vec::new();
    for number in (newest + 1).saturating_sub(count)..=newest {
        let Some(block) = run.published.blocks(number, number).next().and_then(Block::sealed) else { continue };
        let mut text = Vec::new();
        json::Block::write(&mut text, (&block, true, run.dialect));
        let mut shown: Value = objects::from_slice(&text).map_err(|error| RpcError::internal(&error.to_string()))?;
        let all = 0..block.len();
        replay(backend, run, &block, all, &Tracer::Calls(Default::default()), |_, included, trace| {
            let Trace::Calls { frames, .. } = trace else { return Ok(()) };
            let (Some(first), Some(tx)) = (frames.first(), shown["transactions"].get_mut(included.index)) else {
                return Ok(());
            };
            let output = &first.trace.output;
            tx["output"] = Value::String(output.to_string());
            if let Some(reason) = revert_reason(output).filter(|_| !first.trace.success) {
                tx["revertReason"] = Value::String(reason);
            }
            Ok(())
        })?;
        blocks.push(shown);
    }
    json::value(&mut run.out, &blocks);
    json::check_length(&run.out, backend.limits.max_response)
}
