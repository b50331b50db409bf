//! Requests about the past of a fork. The upstream has the blocks up to the one on which the fork began.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    objects,
    rpc::{
        json::Json,
        protocol::error::Result,
        run::{
            RunHandler,
            remote::UpstreamGateway,
            request::{Request, open_answer},
            runner::RequestRunner,
        },
    },
};

/// The method whose block range may span both chains.
const GET_LOGS: &str = "eth_getLogs";
/// The method that names its block in the second parameter. The first is a number, too.
const FEE_HISTORY: &str = "eth_feeHistory";

impl RequestRunner {
    /// Has the upstream answer a request that this node cannot, on a chain that is built on block `fork` of the
    /// upstream's. `own` is this node's answer. The upstream's answer has no part after the block.
    ///
    /// # Errors
    ///
    /// Returns the error of this node or of the upstream.
    pub(super) async fn ask_of_past(
        self: &Arc<Self>,
        remote: &UpstreamGateway,
        run: RunHandler,
        request: Request,
        fork: u64,
        own: Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        // Parameters that a handler has taken are a list.
        let Ok(params) = objects::from_str::<Vec<Value>>(&request.params) else { return own };
        if let (GET_LOGS, Some(Value::Object(filter))) = (request.method.name, params.first()) {
            return self.logs(remote, run, request, fork, filter.clone()).await;
        }
        let place = usize::from(request.method.name == FEE_HISTORY);
        if number(params.get(place)).is_some_and(|number| number > fork) {
            return own;
        }
        let mut out = open_answer(&request.id);
        let start = out.len();
        remote.forward(&request, &mut out).await?;
        let answer: Value = objects::from_slice(&out[start..]).unwrap_or_default();
        let first = answer.get(0).unwrap_or(&answer);
        let of_block = ["blockNumber", "number"].into_iter().find_map(|key| number(first.get(key)));
        if of_block.is_some_and(|number| number > fork) {
            return own;
        }
        Ok(out)
    }

    /// Returns the logs of a range that begins in the upstream's chain.
    async fn logs(
        self: &Arc<Self>,
        remote: &UpstreamGateway,
        run: RunHandler,
        request: Request,
        fork: u64,
        mut filter: Map<String, Value>,
    ) -> Result<Vec<u8>> {
        let to = filter.get("toBlock");
        let last = number(to).unwrap_or_else(|| match to.and_then(Value::as_str) {
            Some("pending") => request.published.newest.header().number,
            _ => request.published.head().number(),
        });
        let mut out = open_answer(&request.id);
        let start = out.len();
        filter.insert("toBlock".to_owned(), json!(format!("{:#x}", last.min(fork))));
        let params = json!([filter]).to_string().into();
        remote.forward(&Request { params, ..request.clone() }, &mut out).await?;
        if last <= fork {
            return Ok(out);
        }
        filter.insert("fromBlock".to_owned(), json!(format!("{:#x}", fork + 1)));
        filter.insert("toBlock".to_owned(), json!(format!("{last:#x}")));
        let params = json!([filter]).to_string().into();
        let ours = self.write(Request { params, ..request.clone() }, run).await?;
        let lists = [&out[start..], ours.get(start..).unwrap_or_default()].map(objects::from_slice::<Vec<&RawValue>>);
        Ok(request.answer::<Value, _>(Json(lists.into_iter().flatten().flatten().collect::<Vec<_>>())))
    }
}

/// Returns the number that a quantity in hex is.
fn number(value: Option<&Value>) -> Option<u64> {
    u64::from_str_radix(value?.as_str()?.strip_prefix("0x")?, 16).ok()
}
