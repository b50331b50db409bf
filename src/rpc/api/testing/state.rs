//! The state as data, to be loaded by another chain.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::changes::Testing;
use crate::{
    rpc::{
        api::{Example, Method, Serve},
        json::{self, hex::Data},
        params,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    source::testing::{ChainChange, state_file::StateFile},
};

/// With --testing: returns the state after the newest block: gzipped JSON in anvil's format, with all accounts and
/// without blocks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "at most 1 parameter: false")]
pub struct Dump {
    /// Whether the states of earlier blocks are returned too. presim has no form for that, and returns none.
    #[serde(default)]
    preserve_historical_states: Option<bool>,
}

impl Method for Dump {
    type Answer = Data;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#""0x1f8b0800000000000203ab564a4c4ece2fcd2b2956b2aaaead05004987d0640f000000""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        if self.preserve_historical_states == Some(true) {
            return Err(RpcError::params(
                "params[0]: true: expected false: the states of earlier blocks are not dumped",
            ));
        }
        let gzipped = StateFile::of(run.published.latest()).gzipped();
        let gzipped = gzipped.map_err(|error| RpcError::internal(&error.to_string()))?;
        json::data(&mut run.out, &gzipped);
        json::check_length(&run.out, backend.limits.max_response)
    }
}

/// With --testing: sets the accounts of a dumped state. Other accounts are unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the gzipped JSON of a state, or its JSON")]
pub struct Load {
    /// The bytes in hex.
    state: Data,
}

impl Serve for Load {
    type Part = Testing;
    type Answer = bool;
    const EXAMPLE: Example = Example {
        params: r#"["0x1f8b0800000000000203ab564a4c4ece2fcd2b2956b2aaaead05004987d0640f000000"]"#,
        answer: "true",
    };

    async fn serve<'a>(testing: &'a Testing, _: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { state } = params::parse(&request.params, request.caller.dialect)?;
        let file = StateFile::read(&state.0).map_err(|error| RpcError::params(format!("params[0]: {error}")))?;
        testing.make(&request, ChainChange::Load(Box::new(file))).await?;
        Ok(request.answer::<bool, _>(true))
    }
}
